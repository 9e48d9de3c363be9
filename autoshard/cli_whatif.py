"""`autoshard whatif`: many clusters and sizes, one table."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from autoshard.cli_errors import INFEASIBLE, CommandError
from autoshard.cli_progress import ProgressLine
from autoshard.cli_search import require_writable

if TYPE_CHECKING:
    from autoshard.whatif.sweep import SweepProgress
    from autoshard.whatif.table import WhatIf


def whatif_command(options: argparse.Namespace) -> int:
    """Run `autoshard whatif`."""
    require_writable(options.csv)
    require_writable(options.output)
    with ProgressLine(quiet=options.quiet) as line:
        found = _sweep(options, line)
    try:
        if options.csv is not None:
            with open(options.csv, "w", encoding="utf-8", newline="") as file:
                file.write(found.to_csv())
        if options.output is not None:
            found.save(options.output)
    except OSError as error:
        raise CommandError(f"cannot write {error.filename!r}: {error.strerror}") from error
    print(json.dumps(found.to_json()) if options.json else str(found).rstrip("\n"))
    if found.interrupted:
        print("autoshard: interrupted; the same command again goes on from here", file=sys.stderr)
    if found.best is None:
        quick = "" if options.latency is None else f" with a step of at most {options.latency:g} s"
        raise CommandError(f"no row of the sweep has a plan{quick}", INFEASIBLE)
    return 0


def _sweep(options: argparse.Namespace, line: ProgressLine) -> WhatIf:
    from autoshard.program import TraceError
    from autoshard.reference import ProgramError
    from autoshard.requirements import RequirementError
    from autoshard.rules import NoRuleError
    from autoshard.whatif.sweep import whatif
    from autoshard.whatif.words import SweepError

    def heard(news: SweepProgress) -> None:
        line.show(str(news), group="" if news.known else str(news.done))

    workers = options.workers or len(os.sched_getaffinity(0))
    line.show(f"sweeping {options.program} with {workers} processes", group="start")
    try:
        return whatif(
            options.program,
            options.sweep,
            objective=options.objective,
            prices=options.prices,
            tokens=_tokens(options.tokens),
            time_limit=options.time_limit,
            gap=options.gap,
            train_tokens=options.train_tokens,
            latency=options.latency,
            workers=workers,
            scheduler=options.scheduler,
            folder=options.keep,
            keep=not options.no_cache,
            progress=heard,
        )
    except (SweepError, ProgramError, RequirementError, TraceError, NoRuleError) as error:
        raise CommandError(str(error)) from error


def _tokens(text: str | None) -> int | list[str] | None:
    if text is None:
        return None
    if text.strip().isdigit():
        return int(text)
    return [name.strip() for name in text.split("*")]
