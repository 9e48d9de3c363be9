"""`autoshard solve`: runs only the solver, on a choice problem in the contest's format.

The time limit starts before the file is read. The solver's answer is priced again by the file's own
numbers before it is accepted. The solution file is JSON:

    name, status ("optimal" or "feasible"), limit_hit (null, "time", "gap" or "interrupted"),
    objective, bound (null while there is none), gap, seconds, peak_usage, usage_limit,
    choices: one per node, by the numbers of the file
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoshard.cli.common import FAILED, INFEASIBLE, TIME_LIMIT, CommandError
from autoshard.cli.kinds.text import solution_text
from autoshard.cli.outputs import SOLUTION, require_outputs, written
from autoshard.cli.progress import ProgressLine
from autoshard.units import counted, format_percent

if TYPE_CHECKING:
    from autoshard.solve import Outcome, Problem, Progress
    from autoshard.solve.iopddl import Instance

# For the smallest limit that works, after a problem was found infeasible.
LIMIT_SECONDS = 10.0


def solve_command(options: argparse.Namespace) -> int:
    """Run `autoshard solve`."""
    from autoshard.solve import Status

    require_outputs(options, output=SOLUTION)
    started = time.monotonic()
    deadline = started + options.time_limit
    with ProgressLine(quiet=options.quiet) as line:
        line.show(f"reading {options.file}", group="read")
        instance = read_instance(options.file)
        outcome = _solve(instance, options, line, deadline)
        if outcome.status is Status.INFEASIBLE:
            why = _why_infeasible(instance.problem, line, deadline)
            raise CommandError(f"{options.file!r} is infeasible: {why}", INFEASIBLE)
    if outcome.solution is None and outcome.report.limit_hit == "interrupted":
        raise KeyboardInterrupt
    if outcome.solution is None:
        raise CommandError(
            f"the time limit of {options.time_limit:g} s passed before any solution was found; "
            "give more with --time-limit",
            TIME_LIMIT,
        )
    answer = _answer(instance, outcome, time.monotonic() - started)
    report = outcome.report
    with written({options.output: lambda: json.dumps(answer)}, quiet=options.quiet):
        print(json.dumps(answer) if options.json else solution_text(answer, options.file))
        if report.limit_hit == "interrupted":
            print("autoshard: interrupted; this is the best solution so far", file=sys.stderr)
    return 0


def read_instance(path: str) -> Instance:
    """Return the choice problem in a file."""
    from autoshard.solve import ProblemError
    from autoshard.solve.iopddl import ForbiddenError, read

    try:
        return read(path)
    except OSError as error:
        raise CommandError(f"cannot read {path!r}: {error.strerror or error}") from error
    except ForbiddenError as error:
        raise CommandError(str(error), INFEASIBLE) from error
    except ProblemError as error:
        raise CommandError(str(error)) from error


def _solve(
    instance: Instance, options: argparse.Namespace, line: ProgressLine, deadline: float
) -> Outcome:
    from autoshard.solve.pipeline import solve

    def progress(news: Progress) -> None:
        known = f"best {news.objective:.12g}, gap {format_percent(news.gap, '.4f')}"
        line.show(
            f"[{news.seconds:6.1f} s] {news.phase}: "
            f"{known if news.objective < math.inf else 'no solution yet'}, "
            f"bound {news.bound:.12g}, {counted(news.nodes_left, 'node', ',')}, "
            f"{max(deadline - time.monotonic(), 0):.0f} s left",
            group=news.phase,
        )

    left = max(deadline - time.monotonic(), 0.0)
    return solve(instance.problem, time_limit=left, gap=options.gap, progress=progress)


def _why_infeasible(problem: Problem, line: ProgressLine, deadline: float) -> str:
    """Return the reason, as far as it is known, and the smallest limit that works."""
    from autoshard.solve.conflict import conflict

    why = conflict(problem)
    if why:
        return why
    by_pairs = "a search found that the forbidden pairs exclude every solution"
    if problem.limit is None:
        return by_pairs
    line.show("infeasible; looking for the smallest usage limit that works", group="limit")
    seconds = min(LIMIT_SECONDS, deadline - time.monotonic())
    smallest = _smallest_limit(problem, seconds) if seconds > 0 else None
    if smallest == math.inf:
        return f"{by_pairs}, whatever the limit"
    why = f"a search found that no solution stays within the limit of {problem.limit:.17g}"
    return why if smallest is None else f"{why}; a usage_limit of {smallest:.17g} works"


def _smallest_limit(problem: Problem, seconds: float) -> float | None:
    """Return about the smallest limit that works; +inf if none does, None if no time was left."""
    from autoshard.solve import Status
    from autoshard.solve.pipeline import solve
    from autoshard.solve.sensitivity.minimum import ANY_GAP, minimum_limit

    started = time.monotonic()
    free = solve(replace(problem, limit=None), time_limit=seconds, gap=ANY_GAP)
    if free.status is Status.INFEASIBLE:
        return math.inf
    left = seconds - (time.monotonic() - started)
    if free.solution is None or left <= 0 or problem.limit is None:
        return None
    plans = [free.solution.choices]
    return minimum_limit(problem, refused=problem.limit, warm_start=plans, time_limit=left).achieved


def _answer(instance: Instance, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """Return the contents of the solution file, after checking them by the file's own numbers."""
    assert outcome.solution is not None
    report = outcome.report
    choices = instance.original(outcome.solution.choices)
    complaint = instance.refute(choices, report.objective)
    if complaint:
        raise CommandError(
            f"the solver's answer is refuted by the numbers of the file: {complaint}; "
            "this is an error in autoshard, nothing was written",
            FAILED,
        )
    priced = instance.evaluate(choices)
    return {
        "name": instance.name,
        "status": outcome.status.name.lower(),
        "limit_hit": report.limit_hit,
        "objective": _number(priced.objective),
        "bound": _number(report.bound),
        "gap": _number(report.gap),
        "seconds": seconds,
        "peak_usage": _number(priced.peak),
        "usage_limit": None if instance.problem.limit is None else _number(instance.problem.limit),
        "choices": list(choices),
    }


def _number(value: float) -> int | float | None:
    """Return the number for JSON: whole numbers as integers, None if it is not finite."""
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(value)
