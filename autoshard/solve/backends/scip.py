"""SCIP (https://scipopt.org), as OR-Tools brings it, as a back end: one thread, whatever is asked.

It takes a start as a hint, and reports its bound at the end only.
"""

from __future__ import annotations

import time

import numpy as np

from autoshard.solve.backends.task import Answer, Task, Tell, Verdict


def solve(task: Task, tell: Tell) -> Answer:
    """Solve a task; nothing is told once it has begun."""
    from ortools.linear_solver import pywraplp

    back = pywraplp.Solver.CreateSolver("SCIP")
    if back is None:
        return Answer(Verdict.FAILED, note="this OR-Tools comes without SCIP")
    variables = [
        back.BoolVar("") if whole else back.NumVar(0.0, top, "")
        for whole, top in zip(task.integer.tolist(), task.top.tolist(), strict=True)
    ]
    columns, coefficients = task.column.tolist(), task.coefficient.tolist()
    starts = task.row_start.tolist()
    for row, (lower, upper) in enumerate(
        zip(task.lower.tolist(), task.upper.tolist(), strict=True)
    ):
        constraint = back.Constraint(max(lower, -back.infinity()), min(upper, back.infinity()))
        for k in range(starts[row], starts[row + 1]):
            constraint.SetCoefficient(variables[columns[k]], coefficients[k])
    objective = back.Objective()
    for variable, cost in zip(variables, task.costs.tolist(), strict=True):
        objective.SetCoefficient(variable, cost)
    objective.SetMinimization()
    if task.start is not None:
        back.SetHint(variables, task.start.tolist())
    tell(-np.inf, None)
    back.SetTimeLimit(max(1, int((task.deadline - time.monotonic()) * 1000)))
    status = back.Solve()
    if status == pywraplp.Solver.INFEASIBLE:
        return Answer(Verdict.INFEASIBLE, np.inf)
    if status in (pywraplp.Solver.ABNORMAL, pywraplp.Solver.MODEL_INVALID):
        return Answer(Verdict.FAILED, note=f"SCIP ended with status {status}")
    values = None
    if status in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        values = np.array([variable.solution_value() for variable in variables])
    bound = objective.BestBound()
    verdict = Verdict.OPTIMAL if status == pywraplp.Solver.OPTIMAL else Verdict.STOPPED
    return Answer(verdict, bound if abs(bound) < 1e19 else -np.inf, values)
