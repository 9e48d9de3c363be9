"""The problem without its memory limit: a relaxation, solved freely, and often the answer.

Without the limit nodes can be eliminated whatever they occupy, and the linear relaxation of what is
left is integral on nearly all programs. Its optimum is a bound; where the optimal plan also keeps
the limit, it is the answer. Where a good plan of the relaxation already breaks the limit, the
relaxation is no more than a place to begin, and is not solved. Nor is it where a good plan is
enough and messages, rounded, give one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoshard.solve.backends.exact import Verdict, solve_linear
from autoshard.solve.backends.linear import linear_model, pair_count
from autoshard.solve.dual import DualAscent
from autoshard.solve.evaluate import evaluate
from autoshard.solve.flat import Flat, flatten
from autoshard.solve.primal import ForestSearch
from autoshard.solve.problem import Integers, Problem
from autoshard.solve.reduce.presolve import presolve
from autoshard.solve.reduce.trail import InfeasibleError
from autoshard.solve.state import DoneError, Search

PRESOLVE_CHOICES = 600_000
"""Above this many choices the relaxation is left out."""
COMPARED_CHOICES = 150_000
"""Above this many choices they are not compared with each other."""
LINEAR_PAIRS = 400_000
"""Above this many allowed pairs the linear program is left out."""
FOR_GOOD_PAIRS = 150_000
"""So it is above this many pairs, where a good plan is enough."""
LINEAR_SHARE, INTEGER_SHARE = 0.3, 0.05
"""At most these parts of the time left go to the linear and to the integer program."""
ROUNDING_PASSES, ROUNDING_WORK = 30, 5
"""Passes of messages, and decisions per node, for each plan that is rounded from them."""
SETTLED = 1e-3
"""Where a good plan is enough, more are rounded until passes raise the bound by less than this."""
LIFT = 2e-9
"""What the solver's tolerances may add to its bound, relative."""


def solve_unlimited(search: Search) -> tuple[int, ...] | None:
    """Bound the problem by its relaxation without the limit; raises DoneError if that solves it.

    Returns the relaxation's plan, which breaks the limit, where there is one.
    """
    relaxed = restricted(replace(search.problem, limit=None), search.kept)
    count = sum(node.costs.size for node in relaxed.nodes)
    if count > PRESOLVE_CHOICES:
        return None
    search.phase = "presolve"
    reduced, trail = presolve(relaxed, dominance=count < COMPARED_CHOICES, deadline=search.deadline)
    search.tell(len(reduced.nodes))

    def expand(picked: Sequence[int] | np.ndarray) -> tuple[int, ...]:
        plan = list(trail.expand([int(choice) for choice in picked]))
        for node, chosen in search.kept.items():
            plan[node] = int(chosen[plan[node]])
        return tuple(plan)

    if not reduced.nodes:
        plan = expand(())
        fits = _offer(search, plan)
        search.raise_bound(reduced.offset)
        if fits:
            raise DoneError
        return plan
    flat = flatten(reduced)
    if int(np.isfinite(flat.tables).sum()) > LINEAR_PAIRS:
        return None
    plan = None
    for picked, bound in _rounded(search, flat):
        plan = expand(picked)
        if not _offer(search, plan) and _breaks_limit(search.problem, plan):
            return plan
        search.raise_bound(bound + reduced.offset)
        if not search.is_for_good:
            break
    if search.is_for_good and pair_count(flat) > FOR_GOOD_PAIRS:
        return plan
    model = linear_model(flat)
    for relax in (True, False):
        search.phase = "linear program" if relax else "integer program"
        share = (LINEAR_SHARE if relax else INTEGER_SHARE) * search.left()
        result = solve_linear(model, relax=relax, time_limit=max(share, 0.1))
        if result.verdict is Verdict.INFEASIBLE:
            raise InfeasibleError("the linear program has no solution")
        if result.values is not None:
            plan = expand(picked_of(flat, result.values))
        fits = plan is not None and _offer(search, plan)
        bound = result.bound + reduced.offset
        whole = result.values is not None and (not relax or is_integral(flat, result.values))
        if np.isfinite(bound):
            exact = fits and whole and result.verdict is Verdict.OPTIMAL
            search.raise_bound(search.objective if exact else bound - LIFT * abs(bound))
        search.tell(len(reduced.nodes))
        if result.verdict is not Verdict.OPTIMAL or whole:
            break
    return plan


def _rounded(search: Search, flat: Flat) -> Iterator[tuple[np.ndarray, float]]:
    """Ever better plans of what is left, and bounds: messages, rounded, until they gain little."""
    dual, gained = DualAscent(flat), np.inf
    while gained == np.inf or gained > SETTLED * abs(dual.bound):
        before = dual.bound
        dual.run(np.inf, search.deadline, ROUNDING_PASSES)
        plans = ForestSearch(flat, dual.best_prices, dual.best_messages, search.seed)
        plans.run(ROUNDING_WORK * flat.node_count, search.deadline)
        yield plans.picked, dual.check()
        gained = dual.bound - before


def _breaks_limit(problem: Problem, plan: tuple[int, ...]) -> bool:
    """Whether a plan keeps all pairs allowed, but not the memory limit."""
    free = evaluate(replace(problem, limit=None), plan)
    return problem.limit is not None and not free.violations and free.peak > problem.limit


def _offer(search: Search, plan: tuple[int, ...]) -> bool:
    """Whether a plan keeps every limit; if it is the best, it is known from now on."""
    return search.offer_original(plan) or search.choices == plan


def restricted(problem: Problem, kept: Mapping[int, Integers]) -> Problem:
    """The problem with nodes cut down to some of their choices (usages are dropped)."""
    nodes = list(problem.nodes)
    for node, chosen in kept.items():
        nodes[node] = replace(nodes[node], costs=nodes[node].costs[chosen])
    edges = [edge.among(kept) for edge in problem.edges]
    return Problem(tuple(nodes), tuple(edges), (), None, problem.offset)


def picked_of(flat: Flat, values: np.ndarray) -> np.ndarray:
    """The choice of every node with the largest value."""
    starts = flat.node_start
    return np.array(
        [int(values[starts[i] : starts[i + 1]].argmax()) for i in range(flat.node_count)],
        dtype=np.int64,
    )


def is_integral(flat: Flat, values: np.ndarray) -> bool:
    """Whether every node takes one choice as a whole."""
    starts = flat.node_start[:-1]
    return bool((np.maximum.reduceat(values[: flat.costs.size], starts) > 1 - 1e-6).all())
