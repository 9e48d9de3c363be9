"""Solving again after a small change, cold and from the last solution: `autoshard bench resolve`.

Each problem is solved once, and tightened (`autoshard.solve.whole.tightened`); then it is changed,
and solved twice: cold, and again from the first outcome
(`autoshard.solve.sensitivity.nearby.solve_again`).

    same          nothing changed
    pin           one node is held to a choice other than that of the plan, both drawn at random
    limit -3 %    the limit is lowered by 3 %
    peak -3 %     the limit is lowered to 3 % less than what the plan needs
    costs x1.2    the costs of a tenth of the nodes, drawn at random, rise by a fifth

The columns:

    first, tighten      seconds of the first solve, and of making duals for later ones
    cold, warm          seconds; ratio: how many times faster warm is
    cold_cost, warm_cost, cold_gap, warm_gap
                        objective, and (objective - bound) / |objective|
    note                what disagrees: a bound above the other's plan, a plan where there is none

Problems are named as in `autoshard bench solvers`. Each is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.solve import Outcome, Problem

CONTEST = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "iopddl"
LETTERS = "BGA"
PROGRAMS = ("llama3-8b@v5p-64@16x4", "llama3-8b@v5p-64@4x4x4")
LOWER, RISE, SHARE = 0.97, 1.2, 0.1
AGREE = 1e-6
"""A bound above a plan by more than this, relatively, is no matter of rounding."""
COLUMNS = (
    "problem", "change", "cold", "warm", "ratio", "cold_status", "warm_status", "cold_cost",
    "warm_cost", "cold_gap", "warm_gap", "first", "tighten",
)  # fmt: skip
WIDTHS = (25, 10, 8, 8, 7, 11, 11, 13, 13, 9, 9, 7, 7)


def default_problems() -> list[str]:
    """The contest files that are there, and two programs."""
    files = [CONTEST / f"{letter}.json.gz" for letter in LETTERS]
    return [*(str(file) for file in files if file.is_file()), *PROGRAMS]


def run(options: argparse.Namespace) -> int:
    """Measure and print all rows; a bound or a plan that another one refutes makes it fail."""
    from autoshard.cli.common import FAILED, INTERRUPTED, USAGE
    from autoshard.cli.rows import Rows, measure

    rows = Rows(COLUMNS, WIDTHS)
    options.told = rows.kept
    interrupted = False
    try:
        for problem in options.problems:
            asked = {
                "problem": problem, "time_limit": options.time_limit, "gap": options.gap,
                "pins": options.pins, "seed": options.seed,
            }  # fmt: skip
            answer = measure(__file__, asked)
            for row in answer.get("rows", [{"error": answer.get("error")}]):
                rows.add({"problem": Path(problem).name.split(".json")[0], **row})
    except KeyboardInterrupt:
        interrupted = True
    print("\nseconds; ratio: how many times faster warm is than cold")
    rows.write(options.csv)
    if interrupted:
        return INTERRUPTED
    if any(row.get("note") for row in rows.kept):
        return FAILED
    return USAGE if any(row.get("error") for row in rows.kept) else 0


def measure_rows(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All rows of one problem, in this process."""
    from solver_row import read_problem

    from autoshard.solve import ProblemError, solve, tightened

    try:
        problem = read_problem(asked["problem"])
    except (OSError, ProblemError) as error:
        return [{"error": str(error)}]
    limits: dict[str, Any] = {"time_limit": asked["time_limit"], "gap": asked["gap"]}
    solve(replace(problem, limit=None), time_limit=0.0)  # loads the compiled loops
    started = time.monotonic()
    outcome = solve(problem, **limits)
    solved = time.monotonic()
    outcome = tightened(problem, outcome)
    spent = {"first": solved - started, "tighten": time.monotonic() - solved}
    if outcome.solution is None:
        return [{**spent, "error": f"no plan to begin with: {outcome.report}"}]
    return [
        {"change": name, **spent, **_both(problem, outcome, after, pins, limits)}
        for name, after, pins in changes(problem, outcome, asked["pins"], asked["seed"])
    ]


def changes(
    problem: Problem, outcome: Outcome, pins: int, seed: int
) -> Iterator[tuple[str, Problem, dict[int, list[int]]]]:
    """The name of every change, the problem after it, and its pins."""
    import numpy as np

    from autoshard.solve import Part, evaluate, scaled

    assert outcome.solution is not None
    random = np.random.default_rng(seed)
    yield "same", problem, {}
    sizes = np.array([node.costs.size for node in problem.nodes])
    free = np.flatnonzero(sizes > 1)
    for node in random.choice(free, min(pins, free.size), replace=False).tolist():
        others = np.delete(np.arange(int(sizes[node])), outcome.solution.choices[node])
        yield "pin", problem, {node: [int(random.choice(others))]}
    if problem.limit is not None:
        yield "limit -3 %", replace(problem, limit=LOWER * problem.limit), {}
        peak = evaluate(problem, outcome.solution.choices).peak
        yield "peak -3 %", replace(problem, limit=LOWER * peak), {}
    chosen = random.choice(sizes.size, max(1, int(SHARE * sizes.size)), replace=False)
    yield "costs x1.2", scaled(problem, Part.of(problem, nodes=chosen.tolist()), RISE), {}


def _both(
    problem: Problem,
    outcome: Outcome,
    after: Problem,
    pins: Mapping[int, list[int]],
    limits: Mapping[str, Any],
) -> dict[str, Any]:
    """One row: cold and warm."""
    from autoshard.solve import solve, solve_again

    started = time.monotonic()
    cold = solve(after, pins=pins, **limits)
    between = time.monotonic()
    warm = solve_again(problem, outcome, after, pins=pins, **limits)
    row: dict[str, Any] = {"cold": between - started, "warm": time.monotonic() - between}
    row["ratio"] = row["cold"] / max(row["warm"], 1e-9)
    for name, found in (("cold", cold), ("warm", warm)):
        row[f"{name}_status"] = found.status.name.lower()
        if found.solution is not None:
            row[f"{name}_cost"] = found.report.objective
            row[f"{name}_gap"] = found.report.gap
    if note := disagreement(cold, warm):
        row["note"] = row["error"] = note
    return row


def disagreement(cold: Outcome, warm: Outcome) -> str:
    """What one outcome claims that the other refutes, or an empty string."""
    named = (("cold", cold, warm), ("warm", warm, cold))
    for name, one, other in named:
        if other.solution is None:
            continue
        best = other.report.objective
        if one.report.bound > best + AGREE * abs(best):
            claim = "no plan exists" if math.isinf(one.report.bound) else "no plan costs less than"
            claim += "" if math.isinf(one.report.bound) else f" {one.report.bound:.12g}"
            return f"{name} says that {claim}; the other has one of {best:.12g}"
    return ""


if __name__ == "__main__":
    print(json.dumps({"rows": measure_rows(json.loads(sys.argv[1]))}))
