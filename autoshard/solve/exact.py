"""One small interface over the exact solvers: HiGHS, SCIP, CP-SAT (OR-Tools) and CBC (PuLP).

All of them solve the same `LinearModel`. HiGHS is the one the pipeline uses: it takes a start,
stops when told to, and reports a bound. The others are there to check it and to be compared with
it.
"""

from __future__ import annotations

import enum
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import highspy
import numpy as np

from autoshard.solve.linear import LinearModel


class Solver(enum.Enum):
    HIGHS = "HiGHS"
    SCIP = "SCIP"
    CP_SAT = "CP-SAT"
    CBC = "CBC"


class Verdict(enum.Enum):
    OPTIMAL = "solved"
    INFEASIBLE = "no solution exists"
    STOPPED = "stopped early"


@dataclass(frozen=True, slots=True, eq=False)
class ExactResult:
    """`values` is None when no solution was found; `row_duals` only for a relaxation."""

    verdict: Verdict
    objective: float
    bound: float
    values: np.ndarray | None
    row_duals: np.ndarray | None = None


def solve_linear(
    model: LinearModel,
    *,
    solver: Solver = Solver.HIGHS,
    time_limit: float = 60.0,
    relax: bool = False,
    start: np.ndarray | None = None,
    cutoff: float = np.inf,
    meanwhile: Callable[[], bool] | None = None,
) -> ExactResult:
    """Solve a model, or with `relax` its linear relaxation (HiGHS only).

    `start` gives values of all variables to begin with; solutions not below `cutoff` are of no
    interest. `meanwhile` is called again and again while the solver runs, and stops it by
    returning False. Raises ValueError for a relaxation by another solver than HiGHS.
    """
    if solver is Solver.HIGHS:
        return _highs(model, time_limit, relax, start, cutoff, meanwhile)
    if relax:
        raise ValueError(f"{solver.value} does not give relaxations here; use Solver.HIGHS")
    if solver is Solver.CBC:
        with warnings.catch_warnings():
            # PuLP 3 warns of names that PuLP 4 will drop; both are served by `_cbc`.
            warnings.simplefilter("ignore", DeprecationWarning)
            return _cbc(model, time_limit)
    return _ortools(model, solver, time_limit)


def _highs(
    model: LinearModel,
    time_limit: float,
    relax: bool,
    start: np.ndarray | None,
    cutoff: float,
    meanwhile: Callable[[], bool] | None,
) -> ExactResult:
    deadline = time.monotonic() + time_limit
    highs = highspy.Highs()
    highs.silent()
    highs.HandleUserInterrupt = True
    scale = _cost_scale(model)
    linear = highspy.HighsLp()
    linear.num_col_, linear.num_row_ = model.size, model.lower.size
    linear.col_cost_ = model.costs / scale
    linear.col_lower_ = np.zeros(model.size)
    linear.col_upper_ = np.ones(model.size)
    linear.row_lower_ = np.where(np.isfinite(model.lower), model.lower, -highspy.kHighsInf)
    linear.row_upper_ = np.where(np.isfinite(model.upper), model.upper, highspy.kHighsInf)
    linear.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    linear.a_matrix_.start_ = model.matrix.indptr  # pyright: ignore[reportAttributeAccessIssue]
    linear.a_matrix_.index_ = model.matrix.indices  # pyright: ignore[reportAttributeAccessIssue]
    linear.a_matrix_.value_ = model.matrix.data  # pyright: ignore[reportAttributeAccessIssue]
    if not relax:
        kinds = np.array([highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger])
        linear.integrality_ = kinds[model.integer.astype(int)].tolist()
    highs.passModel(linear)
    highs.setOptionValue("time_limit", max(0.01, time_limit))
    highs.setOptionValue("mip_rel_gap", 1e-10)
    highs.setOptionValue("mip_abs_gap", 1e-12)
    highs.setOptionValue("threads", 1)
    if relax:
        # Few pivots are needed on these models; the solver's own presolve takes longer than them.
        highs.setOptionValue("solver", "simplex")
        highs.setOptionValue("presolve", "off")
    if np.isfinite(cutoff) and not relax:
        highs.setOptionValue("objective_bound", float(cutoff / scale))
    if start is not None and not relax:
        given = highspy.HighsSolution()
        given.col_value = start.tolist()
        given.value_valid = True
        highs.setSolution(given)
    highs.startSolve()
    done = False
    try:
        while not done and time.monotonic() < deadline + 0.3:
            if meanwhile is None:
                done, _ = highs.wait(0.05)
            else:
                done, _ = highs.wait(0.0)
                if not done and not meanwhile():
                    break
    finally:
        if not done:
            highs.cancelSolve()
            done, _ = highs.wait(0.5)
    if not done:
        # It does not listen: leave its thread behind and keep our own time limit.
        return ExactResult(Verdict.STOPPED, np.inf, -np.inf, None)
    return _read_highs(highs, scale, relax)


def _cost_scale(model: LinearModel) -> float:
    """Costs are handed over with their largest entry near one million."""
    largest = float(np.abs(model.costs).max(initial=0.0))
    return 1.0 if largest == 0.0 else 2.0 ** np.floor(np.log2(largest / 1e6))


def _read_highs(highs: highspy.Highs, scale: float, relax: bool) -> ExactResult:
    status = highs.getModelStatus()
    info = highs.getInfo()
    kinds = highspy.HighsModelStatus
    solution = highs.getSolution()
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        return ExactResult(Verdict.INFEASIBLE, np.inf, np.inf, None)
    optimal = status == kinds.kOptimal
    values = None
    objective = np.inf
    if solution.value_valid and info.primal_solution_status == 2:
        values = np.array(solution.col_value)
        objective = info.objective_function_value * scale
    if relax:
        duals = np.array(solution.row_dual) * scale if optimal else None
        bound = objective if optimal else -np.inf
    else:
        duals = None
        bound = info.mip_dual_bound * scale if abs(info.mip_dual_bound) < 1e100 else -np.inf
    verdict = Verdict.OPTIMAL if optimal else Verdict.STOPPED
    return ExactResult(verdict, objective, bound, values, duals)


def _ortools(model: LinearModel, solver: Solver, time_limit: float) -> ExactResult:
    """Solve in a process of its own: see `apart`."""
    name = {Solver.SCIP: "SCIP", Solver.CP_SAT: "SAT"}[solver]
    scale = _cost_scale(model)
    question = pickle.dumps((replace(model, costs=model.costs / scale), name, time_limit))
    done = subprocess.run(
        [sys.executable, "-m", "autoshard.solve.apart"],
        input=question,
        capture_output=True,
        timeout=time_limit + 30.0,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{solver.value} failed:\n{done.stderr.decode()[-2000:]}")
    verdict, objective, bound, values = pickle.loads(done.stdout)
    return ExactResult(Verdict[verdict], objective * scale, bound * scale, values)


def _cbc(model: LinearModel, time_limit: float) -> ExactResult:
    import pulp

    scale = _cost_scale(model)
    program = pulp.LpProblem("choices", pulp.LpMinimize)
    # PuLP 3 names this `add_variable`; before, variables were made on their own.
    make = getattr(program, "add_variable", pulp.LpVariable)
    variables = [
        make(f"y{k}", 0, 1, pulp.LpBinary if whole else pulp.LpContinuous)
        for k, whole in enumerate(model.integer.tolist())
    ]
    program += pulp.LpAffineExpression(
        [(variable, cost / scale) for variable, cost in zip(variables, model.costs, strict=True)]
    )
    matrix = model.matrix
    for row in range(model.lower.size):
        span = range(matrix.indptr[row], matrix.indptr[row + 1])
        left = pulp.LpAffineExpression(
            [(variables[matrix.indices[k]], float(matrix.data[k])) for k in span]
        )
        if model.lower[row] == model.upper[row]:
            program += left == float(model.upper[row])
        else:
            program += left <= float(model.upper[row])
    program.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=time_limit))
    if program.status == pulp.LpStatusInfeasible:
        return ExactResult(Verdict.INFEASIBLE, np.inf, np.inf, None)
    if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return ExactResult(Verdict.STOPPED, np.inf, -np.inf, None)
    values = np.array([variable.value() or 0.0 for variable in variables])
    objective = float((values * model.costs).sum())
    optimal = program.sol_status == pulp.LpSolutionOptimal
    return ExactResult(
        Verdict.OPTIMAL if optimal else Verdict.STOPPED,
        objective,
        objective if optimal else -np.inf,
        values,
    )
