"""`autoshard serving`: decode steps over batches, prefills, and how large a batch fits."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from autoshard.cli_errors import INFEASIBLE, CommandError
from autoshard.cli_progress import ProgressLine
from autoshard.cli_search import require_writable, write_files

if TYPE_CHECKING:
    from autoshard.whatif.served import Serving
    from autoshard.whatif.sweep import SweepProgress


def serving_command(options: argparse.Namespace) -> int:
    """Run `autoshard serving`."""
    require_writable(options.csv)
    require_writable(options.output)
    with ProgressLine(quiet=options.quiet) as line:
        found = _found(options, line)
    write_files(
        {
            options.csv: lambda: found.frame().to_csv(index=False),
            options.output: lambda: json.dumps(found.to_json(), indent=1),
        },
        quiet=options.quiet,
    )
    print(json.dumps(found.to_json()) if options.json else str(found).rstrip("\n"))
    if found.decode.interrupted:
        print("autoshard: interrupted; the same command again goes on from here", file=sys.stderr)
    if not found.within(found.latency):
        quick = "" if options.latency is None else f" with at most {options.latency:g} s a token"
        raise CommandError(f"no decode step has a plan{quick}", INFEASIBLE)
    return 0


def _found(options: argparse.Namespace, line: ProgressLine) -> Serving:
    from autoshard.program import TraceError
    from autoshard.reference import ProgramError
    from autoshard.rules import NoRuleError
    from autoshard.whatif.serving import serving
    from autoshard.whatif.words import SweepError

    def heard(news: SweepProgress) -> None:
        line.show(str(news), group="" if news.known else str(news.done))

    try:
        return serving(
            options.program,
            options.sweep,
            prefill=options.prefill,
            prompt=options.prompt,
            prompts=options.prompts,
            generate=options.generate,
            latency=options.latency,
            largest=not options.no_largest,
            prices=options.prices,
            time_limit=options.time_limit,
            gap=options.gap,
            workers=options.workers or len(os.sched_getaffinity(0)),
            folder=options.keep,
            keep=not options.no_cache,
            progress=heard,
        )
    except (SweepError, ProgramError, TraceError, NoRuleError) as error:
        raise CommandError(str(error)) from error
