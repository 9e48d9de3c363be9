"""One small interface over the exact solvers: HiGHS, SCIP, CP-SAT (OR-Tools) and CBC (PuLP).

All of them solve the same `LinearModel`. HiGHS is the one that the pipeline uses; the others are
there to check it and to be compared with it.

                start    bound on the way    threads    arithmetic
    HiGHS       yes      yes                 any        floating point
    CP-SAT      yes      yes                 any        integers
    CBC         yes      yes                 any        floating point
    SCIP        yes      at the end          one        floating point

The time limit is kept: a solver runs in a process of its own (`apart`), which is ended when its
time is over, and what it had told by then is the result. Small models and relaxations are left to
HiGHS in this process, where they are solved in less time than it takes to start another.

What a solver says is a claim, and `judge` decides what of it is believed.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autoshard.solve.backends import apart, cbc, highs
from autoshard.solve.backends.judge import ExactResult, faults, judged, judged_relaxation, rounded
from autoshard.solve.backends.linear import LinearModel
from autoshard.solve.backends.task import Answer, Scales, Task, Verdict, scaled

__all__ = ["ExactResult", "Solver", "Verdict", "solve_linear"]

LONGEST_SECONDS = 1e7
"""Solvers count milliseconds in integers: more is not a limit at all."""
APART_COEFFICIENTS = 20_000
"""Integer models of at least so many coefficients get a process of their own."""


class Solver(enum.Enum):
    """The solvers; the value is how each calls itself."""

    HIGHS = "HiGHS"
    SCIP = "SCIP"
    CP_SAT = "CP-SAT"
    CBC = "CBC"


_MODULES = {
    Solver.HIGHS: "backends.highs",
    Solver.SCIP: "backends.scip",
    Solver.CP_SAT: "backends.cp_sat",
    Solver.CBC: "backends.cbc",
}


def solve_linear(
    model: LinearModel,
    *,
    solver: Solver = Solver.HIGHS,
    time_limit: float = 60.0,
    relax: bool = False,
    start: np.ndarray | None = None,
    meanwhile: Callable[[], bool] | None = None,
    news: Callable[[ExactResult], None] | None = None,
    threads: int = 1,
) -> ExactResult:
    """Solve a model, or with `relax` its linear relaxation (HiGHS only).

    Args:
      time_limit: seconds of wall clock, all told; kept within one second.
      start: values of all variables to begin with. They are never lost: the result is at least as
        good. A start that breaks the model is left out.
      meanwhile: called again and again while the solver runs; ends it by returning False.
      news: called with better values or a better bound of an integer model as they become known.
        Both are called from this thread.
      threads: how many the solver may use (see the table above).

    Raises:
      ValueError: a relaxation is asked of another solver than HiGHS.
      FileNotFoundError: CBC is asked for, and PuLP neither holds nor finds it.
    """
    if solver is Solver.CBC:
        cbc.program()
    if relax and solver is not Solver.HIGHS:
        raise ValueError(f"{solver.value} does not give relaxations here; use Solver.HIGHS")
    began = time.monotonic()
    if start is not None:
        start = np.asarray(start, dtype=np.float64)
        start = None if relax or faults(model, start) else rounded(model, start)
    if time_limit <= 0 or model.size == 0:
        return judged(model, _without_solver(model), start)
    task = Task(
        costs=model.costs,
        integer=model.integer,
        top=model.top,
        row_start=model.matrix.indptr,
        column=model.matrix.indices,
        coefficient=model.matrix.data,
        lower=model.lower,
        upper=model.upper,
        deadline=began + min(time_limit, LONGEST_SECONDS),
        threads=threads,
        relax=relax,
        start=start,
    )
    scales = Scales(1.0, np.ones(model.lower.size), np.ones(model.size))
    if solver is not Solver.CP_SAT:
        task, scales = scaled(task)
    heard = _Heard()

    def keep_going() -> bool:
        if news is not None and (known := heard.take()) is not None:
            news(judged(model, scales.undo(known), start))
        if meanwhile is None:
            time.sleep(apart.POLL_SECONDS)
            return True
        return meanwhile()

    answer = _ask(solver, task, heard, None if news is None and meanwhile is None else keep_going)
    answer = scales.undo(answer)
    result = judged_relaxation(model, answer) if relax else judged(model, answer, start)
    return replace(result, handover_seconds=heard.first - began)


class _Heard:
    """What a solver has told so far, from whichever thread."""

    def __init__(self) -> None:
        self.first = np.nan
        self._bound = -np.inf
        self._values: np.ndarray | None = None
        self._fresh = False

    def tell(self, bound: float, values: np.ndarray | None) -> None:
        if np.isnan(self.first):
            self.first = time.monotonic()
        if values is not None:
            self._values = values
        self._fresh |= values is not None or bound > self._bound
        self._bound = max(self._bound, bound)

    def take(self) -> Answer | None:
        """What is known, or None when that has not changed since the last time."""
        if not self._fresh:
            return None
        self._fresh = False
        return Answer(Verdict.STOPPED, self._bound, self._values)


def _ask(
    solver: Solver, task: Task, heard: _Heard, keep_going: Callable[[], bool] | None
) -> Answer:
    small = task.relax or task.coefficient.size < APART_COEFFICIENTS
    if solver is Solver.HIGHS and small and task.threads == 1:
        return highs.solve(task, heard.tell, keep_going)
    return apart.ask(_MODULES[solver], task, heard.tell, keep_going)


def _without_solver(model: LinearModel) -> Answer:
    """The answer for a model without variables, or when there is no time."""
    if model.size:
        return Answer(Verdict.STOPPED)
    if faults(model, np.zeros(0)):
        return Answer(Verdict.INFEASIBLE, np.inf)
    return Answer(Verdict.OPTIMAL, 0.0, np.zeros(0))
