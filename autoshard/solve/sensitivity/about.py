"""Solves of one problem about one node: everything else is reduced once, for all of them.

The choices of the node fall into groups, of which one is asked for at a time. Presolve may take out
nodes, join them and drop what is dominated, but must not drop a group for another one. Of all that
it knows, only memory keeps choices apart, so each group is a row of memory of its own:

    row of group g:   1 where the node takes a choice of g   +   1 - d_g   <=   1

with a node d_g of two choices, of which the one that takes nothing costs something. Whatever the
rows say is left out of the reduced problem again; they only tell which choices are of which group.
The memory limit is left aside: a plan that breaks it is found anew without reductions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.solve.evaluate import evaluate
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import (
    Duals,
    Integers,
    Node,
    Outcome,
    Problem,
    Report,
    Solution,
    Status,
    Usage,
)
from autoshard.solve.reduce.presolve import presolve
from autoshard.solve.reduce.trail import InfeasibleError, Trail
from autoshard.solve.sensitivity.pinned import PinnedSolves
from autoshard.solve.state import OPTIMAL_GAP
from autoshard.solve.whole import tightened


@dataclass(frozen=True, slots=True, eq=False)
class _Reduced:
    """The reduced problem, the way back, and the node and its choices that stand for each group."""

    solves: PinnedSolves
    trail: Trail
    node: int
    groups: Integers
    before: tuple[int, ...]


class SolvesAbout:
    """Solves with one node's choice in one group after another.

    Args:
      base: solves of the whole problem.
      node: that is asked about.
      groups: the group of each of its choices.
      before: a plan, to which equally good ones may stay close.
    """

    def __init__(
        self, base: PinnedSolves, node: int, groups: Integers, before: Sequence[int]
    ) -> None:
        self._base, self._node, self._groups = base, node, groups
        self._before = tuple(before)
        binding = bool(base.outcome.duals.prices) or base.outcome.solution is None
        self._reduced = None if binding else _reduce(base, node, groups, self._before)

    def solve(self, group: int, *, time_limit: float = 60.0, gap: float = 0.0) -> Outcome:
        """The cheapest plan in which the node takes a choice of a group."""
        started = time.monotonic()
        choices = np.flatnonzero(self._groups == group)
        reduced = self._reduced
        if reduced is None:
            return self._base.solve(
                self._node, choices, self._before, time_limit=time_limit, gap=gap
            )
        pinned = np.flatnonzero(reduced.groups == group)
        if not pinned.size:
            return _infeasible(started)
        found = reduced.solves.solve(
            reduced.node, pinned, reduced.before, time_limit=time_limit, gap=gap
        )
        if found.status is Status.INFEASIBLE:
            return found
        plans = []
        if found.solution is not None:
            plan = reduced.trail.expand(found.solution.choices)[: len(self._before)]
            priced = evaluate(self._base.problem, plan)
            if not priced.violations:
                report = replace(found.report, objective=priced.objective)
                return Outcome(found.status, Solution(plan), report, Duals())
            plans.append(plan)
        # Messages know nothing of memory, so that they would only prove again what is known.
        return self._base.search(
            self._node,
            choices,
            until=started + time_limit,
            gap=gap,
            bound=found.report.bound,
            duals=Duals(),
            plans=plans,
        )


def _reduce(
    base: PinnedSolves, node: int, groups: Integers, before: tuple[int, ...]
) -> _Reduced | None:
    """None where presolve did not keep the groups apart in one node."""
    try:
        rows = _with_rows(base.problem, node, groups)
        problem, trail = presolve(rows, compared=base.compared)
    except InfeasibleError:
        return None
    rows = [usage for usage in problem.usages if problem.nodes[usage.node].costs.size != 2]
    owners = {usage.node for usage in rows}
    if len(owners) != 1:
        return None
    (owner,) = owners
    taken = np.zeros((int(groups.max()) + 1, problem.nodes[owner].costs.size))
    for usage in rows:
        taken[usage.start // 2] += usage.amounts
    if not ((taken == 0) | (taken == 1)).all() or not (taken.sum(axis=0) == 1).all():
        return None
    free = replace(problem, usages=(), limit=None)
    known = base.outcome
    plans = [before] if known.solution is None else [before, known.solution.choices]
    dummies = [0] * len(taken)
    found = _known_best(free, [trail.project((*p, *dummies), exact=True) for p in plans], known)
    if found is None:
        return None
    known, best = found
    known = tightened(free, Outcome(known.status, Solution(best), known.report, Duals()))
    return _Reduced(PinnedSolves.of(free, known), trail, owner, taken.argmax(axis=0), best)


def _known_best(
    free: Problem, nears: Sequence[Sequence[int]], known: Outcome
) -> tuple[Outcome, tuple[int, ...]] | None:
    """A cheapest plan of the reduced problem, and what is known of it; None where there is none.

    What it costs is known. Where presolve dropped choices of a plan near by (-1), equally good ones
    take their place: then only these nodes are decided anew, if the plan is as cheap as is known.
    """
    report = known.report
    enough = report.objective + OPTIMAL_GAP * abs(report.objective)
    for near in nears:
        if min(near, default=0) >= 0:
            found, cost = tuple(near), evaluate(free, near).objective
        else:
            pins = {node: [choice] for node, choice in enumerate(near) if choice >= 0}
            outcome = solve(free, pins=pins, known_bound=report.bound)
            found = () if outcome.solution is None else outcome.solution.choices
            cost = outcome.report.objective
        if found and cost <= enough:
            return known, found
    outcome = solve(free, known_bound=report.bound)
    return None if outcome.solution is None else (outcome, outcome.solution.choices)


def _with_rows(problem: Problem, node: int, groups: Integers) -> Problem:
    """The problem with a row of memory for every group in place of its own."""
    nodes, usages = list(problem.nodes), []
    for group in range(int(groups.max()) + 1):
        inside = (groups == group).astype(np.float64)
        usages.append(Usage(node, inside, 2 * group, 2 * group + 1))
        usages.append(Usage(len(nodes), np.array([1.0, 0.0]), 2 * group, 2 * group + 1))
        nodes.append(Node(f"group {group}", np.array([0.0, 1.0])))
    return Problem(tuple(nodes), problem.edges, tuple(usages), 1.0, problem.offset)


def _infeasible(started: float) -> Outcome:
    seconds = time.monotonic() - started
    report = Report(Status.INFEASIBLE, np.inf, np.inf, np.inf, seconds)
    return Outcome(Status.INFEASIBLE, None, report, Duals())
