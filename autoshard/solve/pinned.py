"""One problem solved many times, each time with another node pinned.

What every solve would find anew is found once: the problem laid flat, its memory rows, the messages
of the first solve and the choices without support. From there

1. messages pass with the pinned node cut down, a few at a time;
2. nodes whose choice in the plan before is within a hair of the bound keep it, and those that must
   change, then also the nodes around them, are solved alone. Where that plan costs what the bound
   proves, it is optimal, and close to the plan before;
3. where neither the bound rises nor such a plan is found, the solve is an ordinary one
   that begins with the messages and the plan.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.evaluate import evaluate
from autoshard.solve.kernels import GONE
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import (
    Duals,
    Node,
    Outcome,
    Problem,
    Report,
    Solution,
    Status,
    relative_gap,
)
from autoshard.solve.state import OPTIMAL_GAP
from autoshard.solve.whole import ascent_of

PASSES = 10
"""Passes of messages between two looks for a plan."""
SETTLED = 1e-3
"""A look pays once the passes raise the bound by less than this part of its rise so far."""
ROUNDS = 5
"""A look is taken after so many times as many passes in any case."""
HAIRS = (1e-9, 1e-7)
"""Choices this close to the bound, relatively, may belong to a plan that costs no more than it;
look by look. After the last the solve is an ordinary one."""
RINGS = (0, 2, 6)
"""How far around the nodes that must change others may change too, in links."""


@dataclass(slots=True, eq=False)
class PinnedSolves:
    """Solves of `problem` with one node pinned at a time; `outcome` is that without pins."""

    problem: Problem
    outcome: Outcome
    _ascent: DualAscent | None
    _times: np.ndarray
    _edges: list[list[int]]

    @classmethod
    def of(cls, problem: Problem, outcome: Outcome) -> PinnedSolves:
        """Prepare; `tightened` makes the outcome worth more here."""
        edges: list[list[int]] = [[] for _ in problem.nodes]
        for number, edge in enumerate(problem.edges):
            edges[edge.u].append(number)
            edges[edge.v].append(number)
        warm = outcome.duals.messages is not None
        ascent, times = ascent_of(problem, outcome.duals) if warm else (None, np.zeros(0))
        return cls(problem, outcome, ascent, times, edges)

    def solve(
        self,
        node: int,
        choices: np.ndarray,
        before: Sequence[int],
        *,
        time_limit: float = 60.0,
        gap: float = 0.0,
    ) -> Outcome:
        """The cheapest plan in which a node takes one of some choices.

        Args:
          node, choices: what is pinned.
          before: a plan without the pin, to which an equally good one is close.
          time_limit, gap: as in `autoshard.solve.pipeline.solve`.
        """
        started = time.monotonic()
        plans: list[tuple[int, ...]] = []
        duals, proven = self.outcome.duals, -np.inf
        if self._ascent is not None:
            ascent = self._begun(node, choices)
            plan, proven = self._quickly(ascent, node, choices, before, started + time_limit)
            if plan is not None:
                objective = evaluate(self.problem, plan).objective
                bound = min(proven, objective)
                if relative_gap(objective, bound) <= max(OPTIMAL_GAP, gap):
                    return _outcome(plan, objective, bound, started)
                plans.append(plan)
            pairs = zip(self._times.tolist(), ascent.best_prices.tolist(), strict=True)
            messages = np.where(np.abs(ascent.best_messages) < GONE, ascent.best_messages, 0.0)
            duals = Duals(tuple((when, price) for when, price in pairs if price > 0), messages)
        return solve(
            self.problem,
            pins={node: choices},
            warm_start=plans,
            warm_duals=duals,
            known_bound=max(self.outcome.report.bound, proven),
            time_limit=max(time_limit - (time.monotonic() - started), 0.1),
            gap=gap,
        )

    def _quickly(
        self,
        ascent: DualAscent,
        node: int,
        choices: np.ndarray,
        before: Sequence[int],
        until: float,
    ) -> tuple[tuple[int, ...] | None, float]:
        """The best plan met, and a bound of all."""
        offset = self.problem.offset
        best, cost = None, np.inf
        first = ascent.bound
        for hair in HAIRS:
            for _ in range(ROUNDS):
                bound = ascent.bound
                ascent.run(np.inf, until, PASSES)
                if ascent.bound - bound <= SETTLED * (ascent.bound - first):
                    break
            value, _, extra = ascent.appraisal()
            good = extra <= hair * abs(value + offset)
            plan = self._around(node, choices, tuple(before), good, until)
            if plan is not None:
                found = evaluate(self.problem, plan)
                if not found.violations and found.objective < cost:
                    best, cost = plan, found.objective
            if relative_gap(cost, value + offset) <= OPTIMAL_GAP or time.monotonic() >= until:
                break
        return best, ascent.check() + offset

    def _begun(self, node: int, choices: np.ndarray) -> DualAscent:
        """An ascent where that without pins ended."""
        base = self._ascent
        assert base is not None
        ascent = DualAscent(base.flat)
        start, stop = base.flat.node_start[node], base.flat.node_start[node + 1]
        ascent.alive[:] = base.alive
        ascent.alive[start:stop] = False
        ascent.alive[start + choices] = base.alive[start + choices]
        ascent.begin_with(base.best_prices, base.best_messages)
        gone = np.abs(base.best_messages) >= GONE
        ascent.messages[gone] = ascent.best_messages[gone] = base.best_messages[gone]
        ascent.bound = ascent.check()
        return ascent

    def _around(
        self,
        pinned: int,
        choices: np.ndarray,
        before: tuple[int, ...],
        good: np.ndarray,
        until: float,
    ) -> tuple[int, ...] | None:
        """The cheapest plan of good choices that changes only nodes about those that must change.

        The memory limit is left aside.
        """
        assert self._ascent is not None
        start = self._ascent.flat.node_start
        must = {pinned, *np.flatnonzero(~good[start[:-1] + np.array(before)]).tolist()}
        for ring in RINGS:
            free = self._ring(must, ring)
            kept = {n: np.flatnonzero(good[start[n] : start[n + 1]]) for n in free}
            kept[pinned] = np.intersect1d(kept[pinned], choices)
            if not all(len(left) for left in kept.values()):
                return None
            small = self._part(kept, before)
            if small is None:
                continue
            outcome = solve(small, time_limit=max(0.2 * (until - time.monotonic()), 0.05))
            if outcome.solution is not None:
                plan = list(before)
                for choice, (n, left) in zip(outcome.solution.choices, kept.items(), strict=True):
                    plan[n] = int(left[choice])
                return tuple(plan)
        return None

    def _ring(self, nodes: set[int], links: int) -> list[int]:
        """The nodes within so many links of some."""
        found = set(nodes)
        for _ in range(links):
            edges = {number for node in found for number in self._edges[node]}
            found |= {
                end for e in edges for end in (self.problem.edges[e].u, self.problem.edges[e].v)
            }
        return sorted(found)

    def _part(self, kept: dict[int, np.ndarray], before: tuple[int, ...]) -> Problem | None:
        """The problem of some nodes, all others as before; None where a node has no choice.

        The choices kept are cut down to those that the nodes around allow. There is no limit.
        """
        problem = self.problem
        numbers = {n: k for k, n in enumerate(kept)}
        touching = [problem.edges[e] for e in sorted({e for n in kept for e in self._edges[n]})]
        costs = {n: problem.nodes[n].costs[left] for n, left in kept.items()}
        for edge in touching:
            if edge.v not in kept:
                row = edge.table[edge.left[kept[edge.u]], edge.right[before[edge.v]]]
                costs[edge.u] = costs[edge.u] + edge.weight * row
            elif edge.u not in kept:
                row = edge.table[edge.left[before[edge.u]], edge.right[kept[edge.v]]]
                costs[edge.v] = costs[edge.v] + edge.weight * row
        for n, cost in costs.items():
            kept[n] = kept[n][cost < np.inf]
            if not len(kept[n]):
                return None
        nodes = tuple(Node(problem.nodes[n].name, c[c < np.inf]) for n, c in costs.items())
        edges = tuple(
            edge.among(kept, numbers) for edge in touching if edge.u in kept and edge.v in kept
        )
        return Problem(nodes, edges, (), None)


def _outcome(plan: tuple[int, ...], objective: float, bound: float, started: float) -> Outcome:
    gap = relative_gap(objective, bound)
    status = Status.OPTIMAL if gap <= OPTIMAL_GAP else Status.FEASIBLE
    hit = None if status is Status.OPTIMAL else "gap"
    seconds = time.monotonic() - started
    report = Report(status, objective, bound, gap, seconds, hit, ())
    return Outcome(status, Solution(plan), report, Duals())
