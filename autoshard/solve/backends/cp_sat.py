"""CP-SAT (OR-Tools, https://developers.google.com/optimization/cp) as a back end.

It computes in integers. Costs and rows of whole numbers are handed over as they are. Others are
multiplied by powers of two and rounded so that the integer model asks for less than the task does:
costs and the coefficients of upper limits downwards, and so on. Its bound is therefore a bound for
the task. Every variable is an integer, which is right where, as in the models of `linear`, the
others are whole once the integer ones are.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from autoshard.solve.backends.task import Answer, Task, Tell, Verdict

Row = tuple[list[int], list[int], float, float]
"""Columns, integer coefficients, lower and upper side (which may be infinite)."""
ROW_BITS = 36
"""Coefficients of a row that is not of whole numbers get so many bits."""
SUM_BITS = 50
"""The sum of all costs, where they are not whole numbers, gets so many bits."""
LARGEST_SUM = 2.0**61
"""CP-SAT refuses sums that might overflow 64 bits."""
NARROW_SUM = 2**31
"""One rule of its presolve sums coefficients in 32 bits and then calls feasible models infeasible
(https://github.com/google/or-tools/issues/5293): it is switched off where sums are larger."""


def solve(task: Task, tell: Tell) -> Answer:
    """Solve a task, telling solutions and bounds as they come."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    costs, scale = whole_costs(task.costs, task.top)
    rows = whole_rows(task)
    _fill(model.Proto(), rows, costs, task)
    solver = cp_model.CpSolver()
    reach = max(float(np.abs(row[1]) @ task.top[row[0]]) for row in rows) if rows else 0.0
    if reach >= NARROW_SUM:
        solver.parameters.presolve_inclusion_work_limit = 0
    tell(-np.inf, None)
    solver.parameters.max_time_in_seconds = max(0.01, task.deadline - time.monotonic())
    solver.parameters.num_workers = task.threads
    solver.parameters.random_seed = 0

    class Listener(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            tell(self.BestObjectiveBound() / scale, _values(self.Response()))

    solver.best_bound_callback = lambda bound: tell(bound / scale, None)
    status = solver.Solve(model, Listener())
    if status == cp_model.INFEASIBLE:
        return Answer(Verdict.INFEASIBLE, np.inf)
    if status == cp_model.MODEL_INVALID:
        return Answer(Verdict.FAILED, note="CP-SAT does not accept the model")
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    values = _values(solver.ResponseProto()) if found else None
    verdict = Verdict.OPTIMAL if status == cp_model.OPTIMAL else Verdict.STOPPED
    return Answer(verdict, solver.BestObjectiveBound() / scale, values)


def _values(response: Any) -> np.ndarray:
    return np.array(list(response.solution), dtype=np.float64)


def whole_costs(costs: np.ndarray, top: np.ndarray) -> tuple[np.ndarray, float]:
    """Integer costs, and by how much they exceed the costs given; never rounded upwards."""
    total = float(np.abs(costs) @ top)
    if total < LARGEST_SUM and np.array_equal(costs, np.round(costs)):
        return costs.astype(np.int64), 1.0
    scale = 2.0 ** (SUM_BITS - np.ceil(np.log2(total)))
    return np.floor(costs * scale).astype(np.int64), scale


def whole_rows(task: Task) -> list[Row]:
    """Rows of integers that the task's rows imply."""
    rows = []
    starts = task.row_start.tolist()
    for row, (lower, upper) in enumerate(
        zip(task.lower.tolist(), task.upper.tolist(), strict=True)
    ):
        span = slice(starts[row], starts[row + 1])
        columns, numbers = task.column[span].tolist(), task.coefficient[span]
        sides = [side for side in (lower, upper) if np.isfinite(side)]
        together = np.abs(numbers) @ task.top[task.column[span]] + sum(map(abs, sides))
        if together < LARGEST_SUM and np.array_equal(numbers, np.round(numbers)):
            rows.append(
                (columns, numbers.astype(np.int64).tolist(), np.ceil(lower), np.floor(upper))
            )
            continue
        scale = 2.0 ** (ROW_BITS - np.ceil(np.log2(np.abs(numbers).max(initial=1e-300))))
        if upper < np.inf:
            less = np.floor(numbers * scale).astype(np.int64).tolist()
            rows.append((columns, less, -np.inf, np.ceil(upper * scale)))
        if lower > -np.inf:
            more = np.ceil(numbers * scale).astype(np.int64).tolist()
            rows.append((columns, more, np.floor(lower * scale), np.inf))
    return rows


def _fill(proto: Any, rows: list[Row], costs: np.ndarray, task: Task) -> None:
    """Write variables, rows, objective and hint into a CpModelProto."""
    tops = np.floor(task.top).astype(np.int64)
    for top in tops.tolist():
        proto.variables.add().domain.extend((0, top))
    for columns, numbers, lower, upper in rows:
        linear = proto.constraints.add().linear
        linear.vars.extend(columns)
        linear.coeffs.extend(numbers)
        linear.domain.extend(_domain(columns, numbers, tops, lower, upper))
    priced = np.flatnonzero(costs)
    proto.objective.vars.extend(priced.tolist())
    proto.objective.coeffs.extend(costs[priced].tolist())
    if task.start is not None:
        proto.solution_hint.vars.extend(range(task.start.size))
        proto.solution_hint.values.extend(np.round(task.start).astype(np.int64).tolist())


def _domain(
    columns: list[int], numbers: list[int], tops: np.ndarray, lower: float, upper: float
) -> tuple[int, int]:
    """The sides without infinities, and in order even where no values reach them."""
    reach = [number * top for number, top in zip(numbers, tops[columns].tolist(), strict=True)]
    least = sum(number for number in reach if number < 0)
    most = sum(number for number in reach if number > 0)
    if lower > most:
        return int(lower), int(lower)
    if upper < least:
        return int(upper), int(upper)
    return int(max(lower, least)), int(min(upper, most))
