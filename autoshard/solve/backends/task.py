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
from typing import Protocol

import numpy as np

Tell = Callable[[float, np.ndarray | None], None]
"""Takes the best bound so far and, where there is a new one, the best values."""

LARGEST_COST = 1e6
"""Costs are handed over with their largest entry near this."""


class Timed(Protocol):
    """A task of any kind: it has a deadline, in seconds of `time.monotonic`."""

    @property
    def deadline(self) -> float: ...


class Verdict(enum.Enum):
    """How a solver ended; the value says it in words."""

    OPTIMAL = "solved"
    INFEASIBLE = "no solution exists"
    STOPPED = "stopped early"
    BROKEN = "its answer breaks the model"
    FAILED = "it failed"


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """minimise costs . y  with  lower <= A y <= upper,  0 <= y <= top,  y[integer] whole.

    Attributes:
      top: 1 where y is whole.
      row_start, column, coefficient: A by rows; row r is from row_start[r] to row_start[r + 1].
      deadline: when to stop, in seconds of `time.monotonic`, a clock that all processes share.
      threads: how many the solver may use.
      relax: whether to leave wholeness out.
      start: values to begin with, which keep all rows, or None.
    """

    costs: np.ndarray
    integer: np.ndarray
    top: np.ndarray
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


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """What the numbers of a task were divided by: its costs, its rows, its variables."""

    cost: float
    rows: np.ndarray
    variables: np.ndarray

    def undo(self, answer: Answer) -> Answer:
        """An answer to the scaled task, as one to the task itself."""
        values, duals = answer.values, answer.row_duals
        return replace(
            answer,
            bound=answer.bound * self.cost,
            values=None if values is None else values * self.variables,
            row_duals=None if duals is None else duals * self.cost / self.rows,
        )


def scaled(task: Task) -> tuple[Task, Scales]:
    """The task in sizes that suit solvers of floating point numbers, and how to undo it.

    Tolerances of such solvers are absolute. So variables that are not whole get tops of about one,
    costs a largest of about `LARGEST_COST`, and every row a largest coefficient of about one. All
    factors are powers of two: no digit of a number is lost.
    """
    variables = np.where(task.integer, 1.0, _power_below(task.top))
    costs = task.costs * variables
    coefficient = task.coefficient * variables[task.column]
    rows = _power_below(largest_coefficients(task.row_start, coefficient))
    largest = float(np.abs(costs).max(initial=0.0))
    cost = 1.0 if largest == 0.0 else 2.0 ** math.floor(math.log2(largest / LARGEST_COST))
    return (
        replace(
            task,
            costs=costs / cost,
            top=task.top / variables,
            coefficient=coefficient / np.repeat(rows, np.diff(task.row_start)),
            lower=task.lower / rows,
            upper=task.upper / rows,
            start=None if task.start is None else task.start / variables,
        ),
        Scales(cost, rows, variables),
    )


def _power_below(sizes: np.ndarray) -> np.ndarray:
    """The largest power of two that is at most the size; 1 for a size of zero."""
    powers = np.ones(sizes.size)
    powers[sizes > 0] = 2.0 ** np.floor(np.log2(sizes[sizes > 0]))
    return powers


def largest_coefficients(row_start: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
    """The largest absolute coefficient of every row; zero for an empty one."""
    tops = np.zeros(row_start.size - 1)
    filled = np.diff(row_start) > 0
    if filled.any():
        tops[filled] = np.maximum.reduceat(np.abs(coefficient), row_start[:-1][filled])
    return tops
