"""`autoshard serving`: decode steps over batches, prefills, and how large a batch fits."""

from __future__ import annotations

import argparse
import json

from autoshard.cli.common import INFEASIBLE, CommandError
from autoshard.cli.outputs import SERVING, written
from autoshard.cli.sweep import say_interrupted, sweeping
from autoshard.files import csv_text


def serving_command(options: argparse.Namespace) -> int:
    """Run `autoshard serving`."""
    with sweeping(options, SERVING) as keywords:
        from autoshard.study.whatif.serving import serving

        found = serving(
            options.program,
            options.sweep,
            prefill=options.prefill,
            prompt=options.prompt,
            prompts=options.prompts,
            generate=options.generate,
            largest=not options.no_largest,
            **keywords,
        )
    texts = {
        options.csv: lambda: csv_text(found.records()),
        options.output: lambda: json.dumps(found.to_json(), indent=1),
    }
    with written(texts, quiet=options.quiet):
        print(json.dumps(found.to_json()) if options.json else str(found).rstrip("\n"))
    if found.decode.interrupted:
        say_interrupted(found.decode.ended)
    if not found.within(found.latency):
        quick = "" if options.latency is None else f" with at most {options.latency:g} s a token"
        raise CommandError(f"no decode step has a plan{quick}; its table says why", INFEASIBLE)
    return 0
