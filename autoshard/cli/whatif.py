"""`autoshard whatif`: many clusters and sizes, one table. `frontier`: memory against time."""

from __future__ import annotations

import argparse
import json
import sys

from autoshard.cli.common import INFEASIBLE, TIME_LIMIT, CommandError
from autoshard.cli.outputs import FRONTIER, SWEEP, require_outputs, written
from autoshard.cli.progress import ProgressLine
from autoshard.cli.search import find_machine, find_program
from autoshard.cli.sweep import say_interrupted, sweeping


def whatif_command(options: argparse.Namespace) -> int:
    """Run `autoshard whatif`."""
    with sweeping(options, SWEEP) as keywords:
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
    texts = {
        options.csv: found.to_csv,
        options.output: lambda: json.dumps(found.to_json(), indent=1) + "\n",
    }
    with written(texts, quiet=options.quiet):
        print(json.dumps(found.to_json()) if options.json else str(found).rstrip("\n"))
    if found.interrupted:
        say_interrupted(found.ended)
    if found.best is None:
        quick = "" if options.latency is None else f" with a step of at most {options.latency:g} s"
        raise CommandError(f"no row of the sweep has a plan{quick}; its table says why", INFEASIBLE)
    return 0


def _tokens(text: str | None) -> int | list[str] | None:
    if text is None:
        return None
    if text.strip().isdigit():
        return int(text)
    return [name.strip() for name in text.split("*")]


def frontier_command(options: argparse.Namespace) -> int:
    """Run `autoshard frontier`."""
    from autoshard.program.select import RequirementError
    from autoshard.program.trace import TraceError
    from autoshard.search.search import InfeasibleError, MeshError, NoPlanError
    from autoshard.study.frontier import frontier

    require_outputs(options, output=FRONTIER)
    machine = find_machine(options.machine)
    with ProgressLine(quiet=options.quiet) as line:
        line.show(f"tracing {options.program}", group="trace")
        _, program = find_program(options.program, machine=machine)
        line.within(options.time_limit)
        try:
            found = frontier(
                program,
                machine,
                points=options.points,
                mesh=options.mesh,
                memory_limit=options.memory_limit,
                time_limit=options.time_limit,
                remat=options.remat,
                accumulate=options.accumulate,
                heard=lambda news: line.show(news, group=news.partition(":")[0]),
            )
        except (MeshError, RequirementError, TraceError) as error:
            raise CommandError(str(error)) from error
        except InfeasibleError as error:
            raise CommandError(str(error), INFEASIBLE) from error
        except NoPlanError as error:
            raise CommandError(str(error), TIME_LIMIT) from error
    text = json.dumps(found.to_json(), indent=1) + "\n"
    with written({options.output: lambda: text}, quiet=options.quiet):
        print(text if options.json else found, end="" if options.json else "\n")
        if found.interrupted:
            print("autoshard: interrupted; these are the plans so far", file=sys.stderr)
    return 0
