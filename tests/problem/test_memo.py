"""What builds share, against the same found for each by itself."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.problem.memo import Shared
from autoshard.problem.value_choices import layout_rows
from autoshard.program.layout import layout_table
from autoshard.program.rules.ask_shardy import Factor, FactorKind, Rule
from autoshard.program.strategies import enumerate_strategies

MESH = (2, 4)
SIZES = (0, 1, 2, 3, 4, 8, 12, 16, 24, 64)


def _product(rows: int, inner: int, columns: int) -> Rule:
    """`([ij, k], [k, l])->([ij, l])`, where a dimension of `rows` x 4 has two factors."""
    factors = (
        Factor("i", rows),
        Factor("j", 4),
        Factor("k", inner, FactorKind.REDUCE, "sum"),
        Factor("l", columns),
    )
    return Rule(factors, (((0, 1), (2,)), ((2,), (3,))), (((0, 1), (3,)),))


@pytest.mark.parametrize("rows", SIZES)
def test_strategies_of_other_sizes_are_those_of_these(rows: int):
    shared = Shared()
    for inner in SIZES:
        for columns in SIZES:
            rule, shapes = _product(rows, inner, columns), ((4 * rows, columns),)
            for pending in (False, True):
                found = shared.strategies(rule, MESH, shapes, joins=False, pending=pending)
                fresh = enumerate_strategies(rule, MESH, shapes, pending=pending)
                for name in ("assignment", "reduced", "scattered", "shards"):
                    np.testing.assert_array_equal(getattr(found, name), getattr(fresh, name))
                for name in ("reads", "written", "stored"):
                    pairs = zip(getattr(found, name), getattr(fresh, name), strict=True)
                    assert all(np.array_equal(one, other) for one, other in pairs)


def test_sizes_that_divide_alike_share_objects():
    shared = Shared()
    one, other, less = (
        shared.strategies(_product(16, 8, size), MESH, ((64, size),), joins=False, pending=False)
        for size in (8, 24, 12)
    )
    assert one is other
    assert len(less) < len(one)
    tables = [shared.table((rows, 8), 4, MESH, pending=False) for rows in (16, 48, 12)]
    assert tables[0].dimensions is tables[1].dimensions
    assert tables[2].layouts != tables[0].layouts
    assert tables[2].layouts == layout_table((12, 8), 4, MESH).layouts
    np.testing.assert_array_equal(tables[1].local_bytes, layout_table((48, 8), 4, MESH).local_bytes)
    rows = shared.rows(tables[0], one.stored[0])
    assert rows is shared.rows(tables[1], other.stored[0])
    np.testing.assert_array_equal(rows, layout_rows(tables[0], one.stored[0]))
