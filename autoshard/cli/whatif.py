"""`autoshard whatif`: many clusters and sizes, one table."""

from __future__ import annotations

import argparse
import json

from autoshard.cli.common import INFEASIBLE, CommandError
from autoshard.cli.search import write_files
from autoshard.cli.sweep import say_interrupted, sweeping


def whatif_command(options: argparse.Namespace) -> int:
    """Run `autoshard whatif`."""
    with sweeping(options) as keywords:
        from autoshard.study.whatif.sweep import whatif

        found = whatif(
            options.program,
            options.sweep,
            objective=options.objective,
            tokens=_tokens(options.tokens),
            train_tokens=options.train_tokens,
            scheduler=options.scheduler,
            **keywords,
        )
    write_files(
        {
            options.csv: found.to_csv,
            options.output: lambda: json.dumps(found.to_json(), indent=1) + "\n",
        },
        quiet=options.quiet,
    )
    print(json.dumps(found.to_json()) if options.json else str(found).rstrip("\n"))
    if found.interrupted:
        say_interrupted(found.ended)
    if found.best is None:
        quick = "" if options.latency is None else f" with a step of at most {options.latency:g} s"
        raise CommandError(f"no row of the sweep has a plan{quick}", INFEASIBLE)
    return 0


def _tokens(text: str | None) -> int | list[str] | None:
    if text is None:
        return None
    if text.strip().isdigit():
        return int(text)
    return [name.strip() for name in text.split("*")]
