"""Runs OR-Tools in a process of its own.

The wheels of highspy and OR-Tools each bring a library called libhighs, of different versions;
whichever is loaded second in a process finds the other's and fails to import. So OR-Tools is asked
here: `python -m autoshard.solve.apart` reads a pickled (model, solver name, seconds) from standard
input and writes the pickled (verdict, objective, bound, values) to standard output.
"""

from __future__ import annotations

import pickle
import sys

import numpy as np

from autoshard.solve.linear import LinearModel

Answer = tuple[str, float, float, np.ndarray | None]


def solve_model(model: LinearModel, name: str, time_limit: float) -> Answer:
    """Solve with the back end `name` ("SCIP" or "SAT"). Raises ValueError if it is absent."""
    from ortools.linear_solver import pywraplp

    back = pywraplp.Solver.CreateSolver(name)
    if back is None:
        raise ValueError(f"this OR-Tools has no {name}; use HiGHS")
    back.SetTimeLimit(max(1, int(time_limit * 1000)))
    variables = [
        back.IntVar(0, 1, "") if whole or name == "SAT" else back.NumVar(0, 1, "")
        for whole in model.integer.tolist()
    ]
    matrix = model.matrix
    for row in range(model.lower.size):
        lower, upper = float(model.lower[row]), float(model.upper[row])
        constraint = back.Constraint(max(lower, -back.infinity()), min(upper, back.infinity()))
        for k in range(matrix.indptr[row], matrix.indptr[row + 1]):
            constraint.SetCoefficient(variables[matrix.indices[k]], float(matrix.data[k]))
    objective = back.Objective()
    for variable, cost in zip(variables, model.costs.tolist(), strict=True):
        objective.SetCoefficient(variable, cost)
    objective.SetMinimization()
    status = back.Solve()
    if status == pywraplp.Solver.INFEASIBLE:
        return "INFEASIBLE", np.inf, np.inf, None
    if status not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return "STOPPED", np.inf, -np.inf, None
    values = np.array([variable.solution_value() for variable in variables])
    verdict = "OPTIMAL" if status == pywraplp.Solver.OPTIMAL else "STOPPED"
    return verdict, objective.Value(), objective.BestBound(), values


def main() -> None:
    """Answer one question."""
    model, name, time_limit = pickle.load(sys.stdin.buffer)
    pickle.dump(solve_model(model, name, time_limit), sys.stdout.buffer)


if __name__ == "__main__":
    main()
