"""HiGHS (https://highs.dev) as a back end: integer models, and relaxations by the simplex method.

It takes a start, reports bounds and solutions while it works, and stops when told to, but for its
root phases, which look neither at the clock nor at the flag: hence `apart`. Its own wrapper of
threads is not used: that one holds a lock of the whole process, and once a solver does not come
back no other one can be started.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

import highspy
import numpy as np

from autoshard.interrupts import LEFT_RUNNING
from autoshard.solve.backends.task import Answer, Task, Tell, Verdict

TOLERANCE = 1e-9
"""By how much values may miss whole numbers and rows their sides; the default is 1e-6. With rows
whose largest coefficient is one, a limit of 10 GB is then kept to about 10 bytes."""
POLL_SECONDS = 0.02
PATIENCE_SECONDS = 0.5
"""How long a solver that was told to stop is waited for."""
LONGEST_SECONDS = 60.0
"""How long the end of Python waits for one: where it comes before that, C++ aborts the process."""


def solve(task: Task, tell: Tell, keep_going: Callable[[], bool] | None = None) -> Answer:
    """Solve a task.

    `keep_going` is called again and again, and stops the solver by returning False. A solver that
    does not listen is left to its thread, and what it told is the answer.
    """
    highs = _Silent()
    heard = _Listener(highs, tell, mip=not task.relax)
    if highs.passModel(_program(task)) == highspy.HighsStatus.kError:
        return Answer(Verdict.FAILED, note="HiGHS does not accept the model")
    _set_options(highs, task)
    if task.start is not None and not task.relax:
        given = highspy.HighsSolution()
        given.col_value = task.start.tolist()
        given.value_valid = True
        highs.setSolution(given)
    tell(-np.inf, None)
    failures: list[str] = []

    def work() -> None:
        try:
            highs.run()
        except Exception as error:  # out of memory, say
            failures.append(f"{type(error).__name__}: {error}")

    worker = threading.Thread(target=work, daemon=True, name=LEFT_RUNNING)
    worker.start()
    try:
        while worker.is_alive() and time.monotonic() < task.deadline:
            if keep_going is None:
                worker.join(POLL_SECONDS)
            elif not keep_going():
                break
    finally:
        heard.stop = True
        worker.join(PATIENCE_SECONDS)
    if worker.is_alive():
        atexit.register(worker.join, LONGEST_SECONDS)
        return Answer(Verdict.STOPPED, heard.bound, heard.values)
    if failures:
        return Answer(Verdict.FAILED, heard.bound, heard.values, note=failures[0])
    return _read(highs, task, heard)


class _Silent(highspy.Highs):
    """A solver that says nothing, not even its name as it is made: that is before one can ask."""

    def enableCallbacks(self) -> None:  # noqa: N802, its own name
        self.silent()
        super().enableCallbacks()


class _Listener:
    """Hears what HiGHS reports from its own thread, and tells it when to stop."""

    def __init__(self, highs: highspy.Highs, tell: Tell, *, mip: bool) -> None:
        self.stop = False
        self.bound = -np.inf
        self.values: np.ndarray | None = None
        self._tell = tell
        if mip:
            highs.cbMipInterrupt.subscribe(self._ask)
            highs.cbMipImprovingSolution.subscribe(self._improve)
        else:
            highs.cbSimplexInterrupt.subscribe(self._ask_simplex)

    def _ask(self, event: Any) -> None:
        event.interrupt(self.stop)
        self._hear(event.data_out.mip_dual_bound, None)

    def _ask_simplex(self, event: Any) -> None:
        event.interrupt(self.stop)

    def _improve(self, event: Any) -> None:
        self._hear(event.data_out.mip_dual_bound, np.array(event.data_out.mip_solution))

    def _hear(self, bound: float, values: np.ndarray | None) -> None:
        better = bound > self.bound and abs(bound) < highspy.kHighsInf
        if better:
            self.bound = float(bound)
        if values is not None:
            self.values = values
        if better or values is not None:
            self._tell(self.bound, values)


def _program(task: Task) -> highspy.HighsLp:
    size = task.costs.size
    linear = highspy.HighsLp()
    linear.num_col_, linear.num_row_ = size, task.lower.size
    linear.col_cost_ = task.costs
    linear.col_lower_ = np.zeros(size)
    linear.col_upper_ = task.top
    linear.row_lower_ = np.where(np.isfinite(task.lower), task.lower, -highspy.kHighsInf)
    linear.row_upper_ = np.where(np.isfinite(task.upper), task.upper, highspy.kHighsInf)
    matrix: Any = linear.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = task.row_start
    matrix.index_ = task.column
    matrix.value_ = task.coefficient
    if not task.relax:
        kinds = np.array([highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger])
        linear.integrality_ = kinds[task.integer.astype(int)].tolist()
    return linear


def _set_options(highs: highspy.Highs, task: Task) -> None:
    options: dict[str, Any] = {
        "time_limit": max(0.01, task.deadline - time.monotonic()),
        "threads": task.threads,
    }
    if task.relax:
        # Few pivots are needed on these models; the solver's own presolve takes longer than them.
        options |= {"solver": "simplex", "presolve": "off"}
    else:
        options |= {
            "mip_rel_gap": 1e-10,
            "mip_abs_gap": 1e-12,
            "mip_feasibility_tolerance": TOLERANCE,
            "primal_feasibility_tolerance": TOLERANCE,
        }
    for name, value in options.items():
        highs.setOptionValue(name, value)


def _read(highs: highspy.Highs, task: Task, heard: _Listener) -> Answer:
    status = highs.getModelStatus()
    kinds = highspy.HighsModelStatus
    # All variables are bounded, so that "unbounded or infeasible" is the latter.
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        return Answer(Verdict.INFEASIBLE, np.inf)
    if status in (kinds.kModelError, kinds.kPresolveError, kinds.kSolveError, kinds.kMemoryLimit):
        note = highs.modelStatusToString(status)
        return Answer(Verdict.FAILED, heard.bound, heard.values, note=note)
    info, solution = highs.getInfo(), highs.getSolution()
    values = heard.values
    if solution.value_valid and (task.relax or info.primal_solution_status == 2):
        values = np.array(solution.col_value)
    bound, duals = heard.bound, None
    if task.relax:
        duals = np.array(solution.row_dual) if solution.dual_valid else None
    elif abs(info.mip_dual_bound) < highspy.kHighsInf:
        bound = max(bound, info.mip_dual_bound)
    verdict = Verdict.OPTIMAL if status == kinds.kOptimal else Verdict.STOPPED
    return Answer(verdict, bound, values, duals)
