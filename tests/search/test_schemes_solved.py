"""A search without time has a plan that is no worse than the well-known schemes that fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoshard import models
from autoshard.problem.schemes import SCHEMES
from autoshard.program.trace import Program, trace
from autoshard.search import one_shape, schemes_solved
from autoshard.search.all_shapes import explore
from autoshard.search.one_shape import MeshSearcher
from autoshard.search.options import SearchOptions
from autoshard.search.prepare import prepare
from autoshard.search.schemes_solved import solved_scheme, with_schemes
from autoshard.solve import Outcome, Report, Status
from autoshard.solve import evaluate as evaluate_problem
from autoshard.solve.limit_hit import LimitHit
from tests.helpers import toy_machine

NOTHING = Outcome(
    Status.UNKNOWN, None, Report(Status.UNKNOWN, math.inf, 1e-9, math.inf, 0.5, LimitHit.TIME)
)


@pytest.fixture(scope="module")
def program() -> Program:
    fn, args, options = models.tiny("mlp")
    return trace(fn, *args, **options)


@pytest.fixture(scope="module")
def searcher(program) -> MeshSearcher:
    found, _ = prepare(program, toy_machine(8), SearchOptions())
    return found


def prices_of_schemes(built) -> dict[str, float]:
    """Of those with one axis that keep the memory limit."""
    found = {}
    for scheme in SCHEMES[:3]:
        outcome, _ = solved_scheme(scheme, built, 20.0)
        assert outcome is not None
        assert outcome.solution is not None
        if not evaluate_problem(built.problem, outcome.solution.choices).violations:
            found[scheme.name] = outcome.report.objective
    return found


def test_the_best_scheme_stands_where_nothing_was_found(searcher, monkeypatch):
    built = searcher._built((8,))
    monkeypatch.setattr(schemes_solved, "SCHEME_SECONDS", 20.0)
    found = with_schemes(built, NOTHING, range(1, 2))
    prices = prices_of_schemes(built)
    assert len(prices) == 3
    assert found.report.objective == min(prices.values())
    assert (found.status, found.report.limit_hit) == (Status.FEASIBLE, LimitHit.TIME)
    assert 0 < found.report.gap < 1
    better = replace(found, report=replace(found.report, objective=min(prices.values()) / 2))
    assert with_schemes(built, better, range(1, 2)) is better
    assert with_schemes(built, NOTHING, range(3, 4)) is NOTHING


def test_schemes_that_do_not_fit_do_not_stand(searcher, monkeypatch):
    built = searcher._built((8,))
    monkeypatch.setattr(schemes_solved, "SCHEME_SECONDS", 20.0)
    peaks = {}
    for scheme in SCHEMES[:3]:
        outcome, _ = solved_scheme(scheme, built, 20.0)
        assert outcome is not None
        assert outcome.solution is not None
        peaks[scheme.name] = evaluate_problem(built.problem, outcome.solution.choices).peak
    assert peaks["FSDP"] < peaks["data parallel"]
    between = (peaks["FSDP"] + peaks["data parallel"]) / 2
    tight = replace(built, problem=replace(built.problem, limit=between))
    left = prices_of_schemes(tight)
    assert "FSDP" in left
    assert with_schemes(tight, NOTHING, range(1, 2)).report.objective == min(left.values())
    none = replace(built, problem=replace(built.problem, limit=1.0))
    assert with_schemes(none, NOTHING, range(1, 2)) is NOTHING


def test_a_search_whose_solver_finds_nothing_has_a_scheme(program, monkeypatch):
    """Of the coarsest mesh shape here, as the finer ones are left without any plan."""

    def of_one_axis(built, outcome, axes):
        return with_schemes(built, outcome, axes) if 1 in axes else outcome

    monkeypatch.setattr(schemes_solved, "SCHEME_SECONDS", 20.0)
    monkeypatch.setattr(one_shape, "with_schemes", of_one_axis)
    monkeypatch.setattr(one_shape, "solve", lambda problem, **options: NOTHING)
    searcher, shapes = prepare(program, toy_machine(8), SearchOptions())
    found = explore(searcher, shapes)
    assert found.shape == shapes[0]
    assert len(found.shape.sizes) > 1
    assert searcher.cutoff == min(prices_of_schemes(searcher._built((8,))).values())


def test_without_time_left_the_plan_of_the_coarsest_shape_is_taken(program):
    searcher, shapes = prepare(program, toy_machine(8), SearchOptions(time_limit=0.0))
    assert len(shapes[0].sizes) > 1
    found = explore(searcher, shapes)
    assert set(searcher.found) == {(8,)}  # no other problem was built
    assert found.shape == shapes[0]
    assert searcher.found[8,].outcome.report.objective == searcher.cutoff
    assert len(found.decisions.stored[program.inputs[0]] or ()) == len(shapes[0].sizes)
