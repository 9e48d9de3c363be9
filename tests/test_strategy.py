"""Strategies of an op against a brute-force enumeration of their definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from autoshard.rules import Factor, FactorKind, Rule
from autoshard.strategy import enumerate_strategies, is_layout_determined


def factor(name, size, kind=FactorKind.PASS):
    return Factor(name, size, kind, "sum" if kind is FactorKind.REDUCE else None)


def matmul(i=8, k=8, j=4):
    factors = (factor("i", i), factor("k", k, FactorKind.REDUCE), factor("j", j))
    return Rule(factors, (((0,), (1,)), ((1,), (2,))), (((0,), (2,)),))


def cut_of(mesh, chosen, wanted):
    return math.prod(size for size, c in zip(mesh, chosen, strict=True) if c == wanted)


def as_rows(strategies):
    return {
        (tuple(a), tuple(s)) for a, s in zip(
            strategies.assignment.tolist(), strategies.stored[0].tolist(), strict=True
        )
    }


@pytest.mark.parametrize("mesh", [(2,), (8,), (2, 4), (2, 2, 2)])
def test_strategies_of_a_matmul_are_all_that_the_definition_allows(mesh):
    rule, shape = matmul(), (8, 4)
    expected = set()
    for chosen in itertools.product((-1, 0, 1, 2), repeat=len(mesh)):
        parts = [cut_of(mesh, chosen, factor) for factor in range(3)]
        if any(f.size % p for f, p in zip(rule.factors, parts, strict=True)):
            continue
        written = tuple({-1: -1, 0: 0, 1: -1, 2: 1}[c] for c in chosen)
        expected.add((chosen, written))
        reduced = [axis for axis, c in enumerate(chosen) if c == 1]
        for targets in itertools.product((0, 1), repeat=len(reduced)):
            stored = list(written)
            for axis, target in zip(reduced, targets, strict=True):
                stored[axis] = target
            cut = [cut_of(mesh, stored, dimension) for dimension in (0, 1)]
            divides = all(size % c == 0 for size, c in zip(shape, cut, strict=True))
            # What is scattered becomes the minor part of its dimension: nothing stands behind it.
            last = all(
                written[later] != target
                for axis, target in zip(reduced, targets, strict=True)
                for later in range(axis + 1, len(mesh))
            )
            if reduced and divides and last:
                expected.add((chosen, tuple(stored)))
    assert as_rows(enumerate_strategies(rule, mesh, [shape])) == expected


def test_the_first_strategy_replicates_everything():
    first = enumerate_strategies(matmul(), (2, 4), [(8, 4)])
    assert first.assignment[0].tolist() == [-1, -1]
    assert first.shards[0] == 1


def test_what_is_read_and_written_follows_from_the_assignment():
    strategies = enumerate_strategies(matmul(), (2, 4), [(8, 4)])
    row = np.flatnonzero((strategies.assignment == [0, 1]).all(axis=1))[0]
    assert [read[row].tolist() for read in strategies.reads] == [[0, 1], [-1, 0]]
    assert strategies.written[0][row].tolist() == [0, -1]
    assert strategies.reduced[row].tolist() == [False, True]
    assert strategies.shards[row] == 8


def test_a_minor_factor_waits_until_its_major_one_is_used_up():
    rule = Rule((factor("a", 2), factor("b", 4)), (((0,), (1,)),), (((0, 1),),))
    chosen = {tuple(row) for row in enumerate_strategies(rule, (2, 2), [(8,)]).assignment.tolist()}
    assert chosen == {(-1, -1), (0, -1), (-1, 0), (0, 1)}


@pytest.mark.parametrize("kind", [FactorKind.REPLICATE, FactorKind.PERMUTE, FactorKind.BLOCKED])
def test_other_kinds_of_factors_stay_whole(kind):
    rule = Rule((factor("a", 8), factor("b", 8, kind)), (((0,), (1,)),), (((0,), (1,)),))
    strategies = enumerate_strategies(rule, (2, 4), [(8, 8)])
    assert not (strategies.assignment == 1).any()
    assert (strategies.assignment == 0).any()


def test_arrays_of_no_elements_stay_whole():
    rule = Rule((factor("a", 0), factor("b", 8)), (((0,), (1,)),), (((0,), (1,)),))
    assert len(enumerate_strategies(rule, (2, 4), [(0, 8)])) == 1


def test_the_layout_of_an_elementwise_result_determines_the_strategy():
    assert is_layout_determined(Rule((factor("a", 8),), (((0,),), ((0,),)), (((0,),),)))
    assert not is_layout_determined(matmul())
