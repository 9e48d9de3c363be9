"""Prices a plan from the definition alone: no presolve, no bound, no solver.

Everything the solver claims is checked here. The memory profile is an integral of jumps: each
usage adds its amount at `start` and takes it away at `stop`, so the load after every jump is one
cumulative sum over the sorted event times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.solve.problem import Problem, check_choices

# Loads are sums of up to a million doubles; whole bytes below 2**53 are summed without error.
LOAD_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The price of one plan: objective (units of the costs), peak bytes and when, violations."""

    objective: float
    peak: float
    peak_time: int | None
    violations: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        return not self.violations


def evaluate(problem: Problem, choices: Sequence[int]) -> Evaluation:
    """The objective, peak memory and violated rules of a plan.

    Raises ProblemError when a choice does not exist. A forbidden pair makes the objective +inf.
    """
    picked = check_choices(problem, choices)
    violations = []
    terms = [float(node.costs[i]) for node, i in zip(problem.nodes, picked.tolist(), strict=True)]
    for edge in problem.edges:
        cost = edge.cost(int(edge.left[picked[edge.u]]), int(edge.right[picked[edge.v]]))
        terms.append(edge.weight * cost)
        if cost == np.inf:
            violations.append(
                f"{problem.nodes[edge.u].name} choice {picked[edge.u]} and "
                f"{problem.nodes[edge.v].name} choice {picked[edge.v]} exclude each other"
            )
    objective = problem.offset + float(np.sum(terms))
    times, loads = memory_profile(problem, picked.tolist())
    if times.size == 0:
        return Evaluation(objective, 0.0, None, tuple(violations))
    peak = int(loads.argmax())
    if problem.limit is not None and loads[peak] > problem.limit * (1 + LOAD_TOLERANCE):
        over = int((loads > problem.limit * (1 + LOAD_TOLERANCE)).sum())
        violations.append(
            f"memory: {loads[peak]:.17g} bytes at time {times[peak]}, limit "
            f"{problem.limit:.17g} ({over} times over)"
        )
    return Evaluation(objective, float(loads[peak]), int(times[peak]), tuple(violations))


def memory_profile(problem: Problem, choices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Event times (sorted) and the bytes in use from each until the next."""
    live = [usage for usage in problem.usages if usage.start < usage.stop]
    if not live:
        return np.zeros(0, np.int64), np.zeros(0)
    amounts = np.array([usage.amounts[choices[usage.node]] for usage in live])
    starts = np.array([usage.start for usage in live])
    stops = np.array([usage.stop for usage in live])
    times, where = np.unique(np.concatenate([starts, stops]), return_inverse=True)
    jumps = np.bincount(where, np.concatenate([amounts, -amounts]), minlength=times.size)
    return times, np.cumsum(jumps)
