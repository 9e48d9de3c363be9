"""`autoshard schedule`: finds the best order of a pipeline's tasks, draws it and writes it.

`autoshard.solve.schedule.optimise.outcome_json` describes the file that -o writes; `autoshard
report` draws it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from autoshard.cli.common import INFEASIBLE, TIME_LIMIT, CommandError
from autoshard.cli.kinds.text import schedule_text
from autoshard.cli.outputs import DRAWING, SCHEDULE, TRACE, require_outputs, written
from autoshard.cli.progress import ProgressLine

if TYPE_CHECKING:
    from autoshard.solve.schedule.instance import Instance
    from autoshard.solve.schedule.optimise.outcome import ScheduleProgress
    from autoshard.solve.schedule.optimise.placements import PlacementChoice


def schedule_command(options: argparse.Namespace) -> int:
    """Run `autoshard schedule`."""
    require_outputs(options, output=SCHEDULE, svg=DRAWING, trace=TRACE)
    deadline = time.monotonic() + options.time_limit
    instances = {path: read_limited(path, options.memory_limit) for path in options.files}
    with ProgressLine(quiet=options.quiet) as line:
        choice = _solve(instances, options, line, deadline)
    outcome = choice.best
    with written(_texts(choice, options), quiet=options.quiet):
        if options.json:
            from autoshard.solve.schedule.optimise.outcome_json import choice_to_json

            print(json.dumps(choice_to_json(choice)))
        else:
            several = len(choice.outcomes) + len(choice.infeasible) > 1
            reason = choice.reason if several else ""
            print(schedule_text(outcome, choice.name, reason, options.columns), end="")
        if outcome.limit_hit == "interrupted":
            print("autoshard: interrupted; this is the best schedule so far", file=sys.stderr)
    return 0


def read_limited(path: str, limit: str | None) -> Instance:
    """Return the schedule problem in a file, with the memory limit of the command line."""
    from autoshard.files import FileError, read_json
    from autoshard.solve.schedule.faults import ScheduleError
    from autoshard.solve.schedule.instance_json import instance_from_json

    try:
        written = read_json(path, "the problem")
    except FileError as error:
        raise CommandError(str(error)) from error
    if isinstance(written, list):
        raise CommandError(f"{path!r} holds a list of {len(written)}; give a file with one problem")
    try:
        instance = instance_from_json(written)
        if limit is None:
            return instance
        return instance.with_limit(_number(limit) or instance.limit_named(limit))
    except ScheduleError as error:
        raise CommandError(f"{path!r}: {error}") from error


def _number(text: str) -> int | float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if not (math.isfinite(number) and number > 0):
        raise CommandError(f"--memory-limit {text} is not a limit; give a number of more than 0")
    return int(number) if number.is_integer() else number


def _solve(
    instances: dict[str, Instance],
    options: argparse.Namespace,
    line: ProgressLine,
    deadline: float,
) -> PlacementChoice:
    from autoshard.solve.schedule.faults import ScheduleError
    from autoshard.solve.schedule.optimise.placements import best_placement

    def progress(news: ScheduleProgress) -> None:
        known = "none yet" if news.value is None else f"{news.value:.12g}"
        line.show(
            f"[{news.seconds:6.1f} s] {news.phase}: {options.objective} {known}, bound "
            f"{news.bound:.12g}, {max(deadline - time.monotonic(), 0):.0f} s left",
            group=news.phase,
        )

    line.show("loading the solver", group="load")
    try:
        choice = best_placement(
            instances,
            time_limit=max(deadline - time.monotonic(), 0.0),
            objective=options.objective,
            gap=options.gap,
            threads=options.threads,
            seed=options.seed,
            progress=progress,
        )
    except ScheduleError as error:
        raise CommandError(str(error), INFEASIBLE) from error
    except TimeoutError as error:
        raise CommandError(f"{error}; give more with --time-limit", TIME_LIMIT) from error
    return choice


def _texts(
    choice: PlacementChoice, options: argparse.Namespace
) -> dict[str | None, Callable[[], str]]:
    """What is written to each file."""
    from autoshard.solve.schedule.drawing import draw_svg
    from autoshard.solve.schedule.optimise.outcome_json import choice_to_json
    from autoshard.solve.schedule.trace import chrome_trace

    instance, timeline = choice.best.instance, choice.best.timeline
    assert timeline is not None
    return {
        options.output: lambda: json.dumps(choice_to_json(choice)),
        options.svg: lambda: draw_svg(instance, timeline),
        options.trace: lambda: json.dumps(chrome_trace(instance, timeline)),
    }
