"""What an exact solver is asked, and what it answers: records of arrays that travel by pickle.

A back end is one function, `solve(task, tell) -> Answer`, in a module of its own (`highs`, `scip`,
`cp_sat`, `cbc`). While it works it may `tell(bound, values)` what it knows so far, so that nothing
is lost when it has to be killed; it does so first, with -inf and None, when the model is handed
over and the solver itself begins. What it answers is a claim: `exact` checks it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

Tell = Callable[[float, np.ndarray | None], None]
"""Takes the best bound so far and, where there is a new one, the best values."""

LARGEST_COST = 1e6
"""Costs are handed over with their largest entry near this."""


class Verdict(enum.Enum):
    """How a solver ended; the value says it in words."""

    OPTIMAL = "solved"
    INFEASIBLE = "no solution exists"
    STOPPED = "stopped early"
    BROKEN = "its answer breaks the model"
    FAILED = "it failed"


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """minimise costs . y  with  lower <= A y <= upper,  0 <= y <= 1, y[integer] whole.

    Attributes:
      row_start, column, coefficient: A by rows; row r is from row_start[r] to row_start[r + 1].
      deadline: when to stop, in seconds of `time.monotonic`, a clock that all processes share.
      threads: how many the solver may use.
      relax: whether to leave wholeness out.
      start: values to begin with, which keep all rows, or None.
    """

    costs: np.ndarray
    integer: np.ndarray
    row_start: np.ndarray
    column: np.ndarray
    coefficient: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    deadline: float
    threads: int
    relax: bool
    start: np.ndarray | None


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a solver claims.

    Attributes:
      values: of all variables, or None where it found none.
      row_duals: of a relaxation, or None.
      note: why, in the solver's own words, where the verdict needs a reason.
    """

    verdict: Verdict
    bound: float = -np.inf
    values: np.ndarray | None = None
    row_duals: np.ndarray | None = None
    note: str = ""


def scaled(task: Task) -> tuple[Task, float, np.ndarray]:
    """The task in sizes that suit solvers of floating point numbers, and how to undo it.

    Tolerances of such solvers are absolute, so costs are divided by the first factor (their largest
    becomes about `LARGEST_COST`) and every row by its own (its largest coefficient becomes about
    one). All factors are powers of two: no digit of a number is lost.
    """
    largest = float(np.abs(task.costs).max(initial=0.0))
    cost_factor = 1.0 if largest == 0.0 else 2.0 ** math.floor(math.log2(largest / LARGEST_COST))
    tops = largest_coefficients(task.row_start, task.coefficient)
    row_factors = np.ones(tops.size)
    row_factors[tops > 0] = 2.0 ** np.floor(np.log2(tops[tops > 0]))
    return (
        replace(
            task,
            costs=task.costs / cost_factor,
            coefficient=task.coefficient / np.repeat(row_factors, np.diff(task.row_start)),
            lower=task.lower / row_factors,
            upper=task.upper / row_factors,
        ),
        cost_factor,
        row_factors,
    )


def largest_coefficients(row_start: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
    """The largest absolute coefficient of every row; zero for an empty one."""
    tops = np.zeros(row_start.size - 1)
    filled = np.diff(row_start) > 0
    if filled.any():
        tops[filled] = np.maximum.reduceat(np.abs(coefficient), row_start[:-1][filled])
    return tops
