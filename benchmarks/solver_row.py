"""One row of `autoshard bench solvers`, in a process of its own: see `benchmarks/solvers.py`."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.solve import Problem
    from autoshard.solve.backends.exact import ExactResult

GRACE_SECONDS = 5.0
"""After this much more than its time limit a row is ended."""
BYTES_PER_COEFFICIENT = 250
"""What a solver needs at least: the model, its own copies by rows and by columns, and factors."""


def measure_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row, in this process."""
    from autoshard.solve import ProblemError
    from autoshard.solve.iopddl import ForbiddenError

    try:
        problem = read_problem(row["problem"])
    except ForbiddenError as error:
        return {"status": "infeasible", "note": str(error)}
    except (OSError, ProblemError) as error:
        return {"status": "failed", "note": str(error)}
    if row["solver"] == "autoshard":
        return _by_us(problem, row)
    return _by_model(problem, row)


def read_problem(word: str) -> Problem:
    """The problem of a contest file, or of PROGRAM@MACHINE@MESH."""
    if "@" not in word:
        from autoshard.solve.iopddl import read

        return read(word).problem
    import autoshard
    from autoshard.cost.step_prices import step_prices
    from autoshard.models import find as reference
    from autoshard.problem.build import build
    from autoshard.program.repeats import find_repeats
    from autoshard.xla import analyse

    name, machine_name, mesh = word.split("@")
    found, machine = reference.find(name), autoshard.load_machine(machine_name)
    program = autoshard.trace(found.fn, *found.args, **found.options)
    prices = step_prices(
        program,
        analyse(program, machine.chip),
        machine,
        tuple(int(size) for size in mesh.split("x")),
    )
    return build(prices, find_repeats(program), limit=machine.chip.usable_bytes).problem


def _by_us(problem: Problem, row: Mapping[str, Any]) -> dict[str, Any]:
    from autoshard.solve import Status, solve

    started = time.monotonic()
    watch = _Watch(row["time_limit"], {})
    outcome = solve(problem, time_limit=row["time_limit"])
    answer = watch.stop({"seconds": time.monotonic() - started})
    choices = None if outcome.solution is None else outcome.solution.choices
    return answer | _priced(
        problem, choices, outcome.report.bound, outcome.status is Status.INFEASIBLE
    )


def _by_model(problem: Problem, row: Mapping[str, Any]) -> dict[str, Any]:
    from autoshard.solve.backends.complete import complete_model, complete_size
    from autoshard.solve.backends.exact import Solver, Verdict, solve_linear
    from autoshard.solve.flat import flatten
    from autoshard.solve.reduce.presolve import InfeasibleError, presolve

    started = time.monotonic()
    small, trail = problem, None
    if row["form"] == "presolved":
        try:
            small, trail = presolve(problem)
        except InfeasibleError as error:
            return {
                "build": time.monotonic() - started,
                "status": "infeasible",
                "note": f"found by presolve: {error}",
            }
    flat = flatten(small)
    size = complete_size(flat)
    answer: dict[str, Any] = {
        "variables": size.variables,
        "rows": size.rows,
        "coefficients": size.coefficients,
        "memory": "sums" if size.sums else "rows",
    }
    needed = size.coefficients * BYTES_PER_COEFFICIENT
    if needed > row["memory_limit"]:
        note = (
            f"{needed / 2**30:.1f} GiB at least, with {BYTES_PER_COEFFICIENT} bytes a coefficient"
        )
        return answer | {"status": "too large", "note": note}
    model = complete_model(flat)
    answer |= {"build": time.monotonic() - started, "coefficients": int(model.matrix.nnz)}
    watch = _Watch(row["time_limit"], answer)
    _limit_memory(row["memory_limit"])
    started = time.monotonic()
    result = solve_linear(
        model,
        solver=Solver(row["solver"]),
        time_limit=row["time_limit"],
        threads=row["threads"],
    )
    answer = watch.stop(answer | {"seconds": time.monotonic() - started, "note": result.note})
    if math.isfinite(result.handover_seconds):
        answer["handover"] = result.handover_seconds
    answer |= _priced(
        problem,
        _choices(flat.node_start, result, trail),
        result.bound + small.offset,
        result.verdict is Verdict.INFEASIBLE,
    )
    if result.verdict is Verdict.BROKEN:
        answer["status"] = "invalid"
    elif result.verdict is Verdict.FAILED and "objective" not in answer:
        answer["status"] = "failed"
    return answer


def _choices(starts: Any, result: ExactResult, trail: Any) -> Sequence[int] | None:
    if result.values is None:
        return None
    values = result.values
    picked = [int(values[slice(*span)].argmax()) for span in itertools.pairwise(starts)]
    return picked if trail is None else trail.expand(picked)


def _priced(
    problem: Problem, choices: Sequence[int] | None, bound: float, infeasible: bool
) -> dict[str, Any]:
    """Status, objective and bound, the plan being priced on the problem as given."""
    from autoshard.solve import evaluate
    from autoshard.solve.problem import relative_gap

    answer: dict[str, Any] = {"status": "infeasible" if infeasible else "none"}
    if math.isfinite(bound):
        answer["bound"] = float(bound)
    if choices is None:
        return answer
    found = evaluate(problem, choices)
    if found.violations:
        return answer | {"status": "invalid", "note": found.violations[0]}
    proven = relative_gap(found.objective, bound) <= 1e-9
    return answer | {
        "status": "optimal" if proven else "feasible",
        "objective": float(found.objective),
    }


class _Watch:
    """Ends the process with what is known if it does not answer in time."""

    def __init__(self, limit: float, known: Mapping[str, Any]) -> None:
        self._known = {**known, "status": "killed", "seconds": limit + GRACE_SECONDS}
        self._timer = threading.Timer(limit + GRACE_SECONDS, self._end)
        self._timer.daemon = True
        self._timer.start()

    def stop(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._timer.cancel()
        return answer

    def _end(self) -> None:
        print(json.dumps(self._known), flush=True)
        os._exit(0)


def _limit_memory(size: float) -> None:
    """Let this process and those that it starts have so many more bytes of address space."""
    import resource

    statistics = Path("/proc/self/statm")
    if not statistics.exists():  # not Linux
        return
    has = int(statistics.read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + int(size), hard))


if __name__ == "__main__":
    print(json.dumps(measure_row(json.loads(sys.argv[1]))))
