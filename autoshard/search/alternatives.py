"""Finds other good plans beside the best one, for users who can judge better than the cost model.

The alternatives are the best plans of other mesh shapes, the well-known schemes that fit, and plans
found under slightly distorted prices. All of them are priced at the true prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import Evaluation, evaluate, tidy
from autoshard.plan.fits import fits
from autoshard.plan.plan import MeshShape
from autoshard.search.assemble import forecasted
from autoshard.search.mesh_axes import AXIS_NAMES, coarsest_form
from autoshard.search.one_shape import MeshSearcher
from autoshard.solve import Problem
from autoshard.solve.pipeline import solve

MILD = (0.05, 0.2, 0.5)
"""Standard deviations of the log of the price factors, for plans near the best."""

Priced = tuple[MeshShape, Decisions, StepPrices, Evaluation]


def alternatives(
    searcher: MeshSearcher,
    best: Priced,
    schemes: Sequence[Priced],
    *,
    count: int,
    free_mesh: bool,
) -> list[Priced]:
    """Return up to `count` plans that differ from the best and each other, cheapest first.

    Args:
      searcher: the searcher after the search, with the results of every mesh shape.
      best: the best plan.
      schemes: well-known schemes that fit the memory limit.
      count: how many alternatives are wanted.
      free_mesh: whether plans on other mesh shapes count.
    """
    found = {_key(best): best}
    for one in (*schemes, *_other_meshes(searcher, best[0], free_mesh)):
        merged = _merged(searcher, one) if free_mesh else one
        found.setdefault(_key(merged), merged)
    if len(found) <= count:
        for one in _near(searcher, best):
            merged = _merged(searcher, one) if free_mesh else one
            found.setdefault(_key(merged), merged)
    others = [
        one
        for key, one in found.items()
        if key != _key(best) and fits(one[3].estimate, searcher.limit)
    ]
    return sorted(others, key=lambda one: one[3].estimate.step_seconds)[:count]


def distorted(problem: Problem, strength: float, dice: np.random.Generator) -> Problem:
    """Return the problem with every price multiplied by its own log-normal random factor.

    Args:
      problem: the problem whose node costs change.
      strength: the standard deviation of the factors' logarithm.
      dice: the random generator for the factors.
    """
    nodes = tuple(
        replace(node, costs=node.costs * dice.lognormal(0.0, strength, node.costs.size))
        for node in problem.nodes
    )
    return replace(problem, nodes=nodes)


def _other_meshes(searcher: MeshSearcher, best: MeshShape, free_mesh: bool) -> Iterator[Priced]:
    for sizes, result in list(searcher.found.items()):
        if result.decisions is None or not (free_mesh or sizes == best.sizes):
            continue
        names = AXIS_NAMES[: len(sizes)] if free_mesh else best.names
        yield _priced(searcher, MeshShape(names, sizes), result.decisions)


def _near(searcher: MeshSearcher, best: Priced) -> Iterator[Priced]:
    """Yield plans found on the best mesh under distorted prices."""
    shape = best[0]
    result = searcher.found.get(shape.sizes)
    if result is None:
        return
    dice = np.random.default_rng(0)
    for strength in MILD:
        left = searcher.left()
        if left <= 1.0:
            return
        odd = distorted(result.built.problem, strength, dice)
        outcome = solve(odd, time_limit=min(left, 10.0), gap=0.01)
        if outcome.solution is not None:
            decisions = result.built.decode(outcome.solution.choices)
            yield _priced(searcher, shape, decisions)


def _priced(searcher: MeshSearcher, shape: MeshShape, decisions: Decisions) -> Priced:
    prices = searcher.prices(shape.sizes)
    decisions = tidy(prices, decisions)
    plain = evaluate(prices, decisions, shape.names)
    return shape, decisions, prices, forecasted(prices, decisions, plain)


def _merged(searcher: MeshSearcher, one: Priced) -> Priced:
    """Return the plan on the coarsest mesh that can express it."""
    shape, decisions, prices, evaluation = one
    decisions, shape, prices, evaluation = coarsest_form(
        searcher.program, searcher.machine, prices, decisions, shape, evaluation
    )
    return shape, decisions, prices, forecasted(prices, decisions, evaluation)


def _key(one: Priced) -> tuple[tuple[int, ...], Decisions]:
    shape, decisions, _, _ = one
    return shape.sizes, decisions
