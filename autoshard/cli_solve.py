"""`autoshard solve`: the solver alone, on a choice problem in the contest's format."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.cli_errors import INFEASIBLE, TIME_LIMIT, CommandError
from autoshard.cli_progress import ProgressLine
from autoshard.cli_search import require_writable

if TYPE_CHECKING:
    from autoshard.solve import Outcome, Progress
    from autoshard.solve.iopddl import Instance


def solve_command(options: argparse.Namespace) -> int:
    """Run `autoshard solve`."""
    require_writable(options.output)
    with ProgressLine(quiet=options.quiet) as line:
        line.show(f"reading {options.file}", group="read")
        instance = read_instance(options.file)
        outcome = _solve(instance, options, line)
    from autoshard.solve import Status

    if outcome.status is Status.INFEASIBLE:
        raise CommandError(f"{options.file} has no solution", INFEASIBLE)
    if outcome.solution is None:
        raise CommandError(
            f"the time limit of {options.time_limit:g} s passed before any solution was found",
            TIME_LIMIT,
        )
    report = outcome.report
    if options.output is not None:
        choices = instance.original(outcome.solution.choices)
        _write(
            options.output,
            {
                "name": instance.name,
                "status": outcome.status.name.lower(),
                "objective": report.objective,
                "bound": report.bound,
                "solution": list(choices),
            },
        )
        if not options.quiet:
            print(f"autoshard: wrote {options.output}", file=sys.stderr)
    print(
        f"{instance.name or options.file}: {outcome.status.name.lower()}, "
        f"objective {report.objective:.12g}, bound {report.bound:.12g}, gap {report.gap:.4%}, "
        f"{report.seconds:.1f} s" + (f", stopped: {report.limit_hit}" if report.limit_hit else "")
    )
    return 0


def read_instance(path: str) -> Instance:
    """The choice problem in a file."""
    from autoshard.solve import ProblemError
    from autoshard.solve.iopddl import read

    try:
        return read(path)
    except OSError as error:
        raise CommandError(f"cannot read {path!r}: {error.strerror or error}") from error
    except ProblemError as error:
        raise CommandError(f"{path!r} is no choice problem: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError) as error:
        raise CommandError(
            f"{path!r} is no choice problem in the contest's format: "
            f"{type(error).__name__}: {error}"
        ) from error


def _solve(instance: Instance, options: argparse.Namespace, line: ProgressLine) -> Outcome:
    from autoshard.solve.pipeline import solve

    def progress(news: Progress) -> None:
        line.show(
            f"[{news.seconds:6.1f} s] {news.phase}: best {news.objective:.12g}, "
            f"bound {news.bound:.12g}, gap {news.gap:.4%}, {news.nodes_left:,} nodes, "
            f"{max(options.time_limit - news.seconds, 0):.0f} s left",
            group=news.phase,
        )

    return solve(
        instance.problem, time_limit=options.time_limit, gap=options.gap, progress=progress
    )


def _write(path: str, data: Any) -> None:
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(handle, "w") as file:
        json.dump(data, file)
    os.replace(temporary, target)
