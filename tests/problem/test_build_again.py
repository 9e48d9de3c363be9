"""Builds that only find prices anew, against builds from nothing."""

from __future__ import annotations

import functools
from dataclasses import fields

import numpy as np
import pytest

from autoshard.cost.step_prices import step_prices
from autoshard.machine.load import load
from autoshard.problem.build import build
from autoshard.problem.memo import Shared
from autoshard.program.repeats import find_repeats
from autoshard.program.trace import trace
from autoshard.solve import Status
from autoshard.solve.flat import flatten
from autoshard.solve.pipeline import solve
from autoshard.xla import analyse
from tests.study.whatif import programs


@functools.cache
def _program(batch: int = 64):
    fn, args, options = programs.step(batch)
    return trace(fn, *args, **options)


def _build(machine: str, shared: Shared | None, limit: float = 2.0**30, batch: int = 64):
    loaded, program = load(machine), _program(batch)
    prices = step_prices(program, analyse(program, loaded.chip), loaded, (2, 2, 4))
    return build(prices, find_repeats(program), limit=limit, shared=shared)


@pytest.mark.parametrize(
    ("before", "batch", "edges"),
    [
        ("v5p-16", 64, "the same"),
        ("v6e-16", 64, "the same"),
        ("v5p-16", 128, "the same"),
        ("v5p-16", 24, "others"),  # divides by 8 at most
        ("h100-16", 64, "others"),
    ],
)
def test_a_build_after_another_is_the_build_from_nothing(before: str, batch: int, edges: str):
    shared = Shared()
    first = _build(before, shared, batch=batch)
    again, fresh = _build("v5e-16", shared, 2.0**20), _build("v5e-16", None, 2.0**20)
    assert (again.problem.edges is first.problem.edges) == (edges == "the same")
    assert (again.value_node is first.value_node) == (edges == "the same")
    assert (again.value_node, again.op_node) == (fresh.value_node, fresh.op_node)
    assert again.problem.limit == fresh.problem.limit
    for one, other in zip(again.problem.nodes, fresh.problem.nodes, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.costs, other.costs)
    for one, other in zip(again.problem.edges, fresh.problem.edges, strict=True):
        assert (one.u, one.v) == (other.u, other.v)
        np.testing.assert_array_equal(one.pair_costs(), other.pair_costs())
    for one, other in zip(again.problem.usages, fresh.problem.usages, strict=True):
        assert (one.node, one.start, one.stop) == (other.node, other.start, other.stop)
        np.testing.assert_array_equal(one.amounts, other.amounts)


def test_kept_arrays_are_those_of_the_problem():
    shared = Shared()
    for machine, limit in (("v5p-16", 2.0**20), ("v5e-16", 2.0**20), ("h100-16", 2.0**22)):
        problem = _build(machine, shared, limit).problem
        kept, fresh = shared.arrays.flat(problem), flatten(problem, dense=False)
        for field in fields(fresh):
            one, other = (getattr(arrays, field.name) for arrays in (kept, fresh))
            np.testing.assert_array_equal(one, other, err_msg=field.name)


def test_only_what_is_better_is_looked_for():
    problem = _build("v5e-16", None).problem
    best = solve(problem)
    cost = best.report.objective
    none = solve(problem, better_than=cost * (1 - 1e-6))
    assert none.status is not Status.INFEASIBLE
    assert none.report.bound >= cost * (1 - 2e-6)
    assert none.report.bound <= cost * (1 + 1e-9)
    found = solve(problem, better_than=1.5 * cost)
    assert found.report.objective == pytest.approx(cost)
    assert found.report.bound == pytest.approx(cost)
