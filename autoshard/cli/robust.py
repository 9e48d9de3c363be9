"""`autoshard robust`: shows how the ranges of a machine's numbers affect its plans."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from autoshard.cli.common import INFEASIBLE, TIME_LIMIT, CommandError
from autoshard.cli.outputs import PLAN, RANGES, require_outputs, table, written
from autoshard.cli.progress import ProgressLine
from autoshard.cli.search import find_machine, find_program, requirements_of_words
from autoshard.files import csv_text

if TYPE_CHECKING:
    from autoshard.study.robust.record import Robust


def robust_command(options: argparse.Namespace) -> int:
    """Run `autoshard robust`."""
    require_outputs(options, output=PLAN, csv=table("low", "high"), record=RANGES)
    with ProgressLine(quiet=options.quiet) as line:
        found = _found(options, line)
    texts = {
        # Store the machine as the user named it, so that its file can be found again.
        options.output: lambda: json.dumps(replace(found.plan, machine=options.machine).to_json()),
        options.csv: lambda: csv_text(found.records()),
        options.record: lambda: json.dumps(found.to_json()),
    }
    with written(texts, quiet=options.quiet):
        print(json.dumps(found.to_json()) if options.json else str(found).rstrip("\n"))
    if found.limit_hit == "interrupted":
        print("autoshard: interrupted; this is what is known so far", file=sys.stderr)
    return 0


def _found(options: argparse.Namespace, line: ProgressLine) -> Robust:
    from autoshard.machine.file import MachineError
    from autoshard.program.select import RequirementError
    from autoshard.search.all_shapes import InfeasibleError, NoPlanError
    from autoshard.search.search import MeshError
    from autoshard.study.robust.answer import robust

    machine = find_machine(options.machine)
    line.show(f"tracing {options.program}", group="trace")
    found, program = find_program(options.program, machine=machine)
    line.within(options.time_limit)
    try:
        return robust(
            program,
            machine,
            ranges=dict(options.range),
            spread=options.spread,
            tolerance=options.tolerance,
            mesh=options.mesh,
            memory_limit=options.memory_limit,
            time_limit=options.time_limit,
            options=found.plan_options,
            requirements=requirements_of_words(options.require),
            progress=lambda words: line.show(f"searching: {words}", group=words),
        )
    except (MachineError, MeshError, RequirementError) as error:
        raise CommandError(str(error)) from error
    except InfeasibleError as error:
        raise CommandError(str(error), INFEASIBLE) from error
    except NoPlanError as error:
        raise CommandError(str(error), TIME_LIMIT) from error
