"""The dearest values: their costs are the plan's collectives, and their names find them."""

from __future__ import annotations

import pytest

from autoshard.program.select import find_values
from autoshard.search.dearest import dearest
from tests.helpers import toy_machine


@pytest.fixture(scope="module")
def found(program, free):
    return dearest(program, toy_machine(8), free)


def test_what_they_cost_adds_up(found, free):
    moves = free.moves
    assert moves
    assert sum(one.seconds for one in found) == pytest.approx(sum(m.seconds for m in moves))
    exposed = sum(move.exposed_seconds for move in moves)
    assert sum(one.exposed_seconds for one in found) == pytest.approx(exposed)
    assert [one.exposed_seconds for one in found] == sorted(
        (one.exposed_seconds for one in found), reverse=True
    )


def test_names_find_them(found, program):
    for one in found:
        assert len(find_values(program, one.target)) >= one.count


def test_state_holds_its_parts(found, program):
    up = next(one for one in found if one.target == "weights.up")
    assert up.count == 1
    assert up.bytes in [program.values[v].bytes / n for v in program.inputs for n in (1, 2, 4, 8)]
