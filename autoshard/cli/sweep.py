"""Shared parts of `autoshard whatif` and `autoshard serving`: options, progress and errors."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from autoshard.cli.common import CommandError
from autoshard.cli.outputs import Kind, require_outputs, table
from autoshard.cli.progress import ProgressLine
from autoshard.units import counted

if TYPE_CHECKING:
    from autoshard.study.whatif.sweep import SweepProgress


@contextlib.contextmanager
def sweeping(options: argparse.Namespace, output: Kind) -> Iterator[dict[str, Any]]:
    """Yield the keyword arguments of a sweep, as read by `autoshard.cli.parsers.whatif.add_sweep`.

    `output` is the kind of file that -o writes. While the context is open, a progress line shows
    the rows as they are computed. Errors of sweeps and programs become errors of the command line.
    """
    from autoshard.models.trusted import remember

    require_outputs(options, csv=table("step_seconds"), output=output)
    remember(options.program)
    workers = options.workers or len(os.sched_getaffinity(0))
    with ProgressLine(quiet=options.quiet) as line, _told():
        line.show(f"sweeping {options.program} with {counted(workers, 'process')}", group="start")

        def heard(news: SweepProgress) -> None:
            line.show(str(news), group="" if news.known else str(news.done))

        yield {
            "prices": options.prices,
            "time_limit": options.time_limit,
            "gap": options.gap,
            "workers": workers,
            "folder": options.keep,
            "keep": not options.no_cache,
            "latency": options.latency,
            "progress": heard,
        }


def say_interrupted(ended: str) -> None:
    """Print what ended a sweep before all rows were answered."""
    if ended in ("", "interrupted"):
        ended = "interrupted; the same command again goes on from here"
    print(f"autoshard: {ended}", file=sys.stderr)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    from autoshard.models.find import ProgramError
    from autoshard.program.rules.ask_shardy import NoRuleError
    from autoshard.program.select import RequirementError
    from autoshard.program.trace import TraceError
    from autoshard.study.whatif.words import SweepError

    try:
        yield
    except (SweepError, ProgramError, RequirementError, TraceError, NoRuleError) as error:
        raise CommandError(str(error)) from error
