"""`autoshard search PROGRAM --meshes ...`: stages on several meshes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autoshard.cli.common import INFEASIBLE, TIME_LIMIT, CommandError
from autoshard.cli.outputs import DRAWING, PLAN, TRACE, require_outputs, written
from autoshard.cli.progress import ProgressLine
from autoshard.units import listed, them

if TYPE_CHECKING:
    from autoshard.models.providers import Target
    from autoshard.search.meshes.plan import PipelinePlan

MICROBATCHES = (8, 16, 32)
"""Numbers of microbatches to try if neither the user nor the program fixes one."""


def search_meshes_command(options: argparse.Namespace) -> int:
    """Run `autoshard search` for several meshes."""
    require_outputs(options, output=PLAN, svg=DRAWING, trace=TRACE)
    refused = {
        "--mesh": options.mesh,
        "--require": options.require,
        "--from": options.start,
        "--max-changes": options.max_changes,
        "--refine": options.refine,
    }
    given = [name for name, value in refused.items() if value]
    if given:
        raise CommandError(
            f"--meshes does not take {listed(given)}: leave {them(given)} out, or plan for one "
            "mesh with --machine"
        )
    started = time.monotonic()
    with ProgressLine(quiet=options.quiet) as line:
        plan = _found(options, line, started)
    with written(_texts(plan, options), quiet=options.quiet):
        if options.json:
            print(json.dumps(plan.to_json()))
        else:
            from autoshard.search.meshes.report import format_pipeline

            print(format_pipeline(plan), end="")
    if plan.limit_hit == "interrupted":
        print("autoshard: interrupted; this is the best plan so far", file=sys.stderr)
    return 0


def _found(options: argparse.Namespace, line: ProgressLine, started: float) -> PipelinePlan:
    from autoshard.lower.mpmd.accumulate import MicrobatchError
    from autoshard.lower.mpmd.cut.inference import PlacementError
    from autoshard.lower.mpmd.cut.loop import LoopError
    from autoshard.lower.mpmd.cut.stages import StageError
    from autoshard.machine.cluster import ClusterError, load_cluster
    from autoshard.models.find import ProgramError, find
    from autoshard.models.providers import Target
    from autoshard.program.rules.ask_shardy import NoRuleError
    from autoshard.program.trace import TraceError
    from autoshard.search.meshes.search import search_meshes
    from autoshard.search.search import InfeasibleError, NoPlanError

    line.show(f"tracing {options.program}", group="trace")
    try:
        cluster = load_cluster(options.meshes)
        target = Target.of_all(cluster.meshes)
        steps, whole = _steps(options, target)
        line.within(options.time_limit, started)
        return search_meshes(
            steps,
            cluster,
            name=find(options.program, machine=target).reference,
            whole_step=whole,
            stages=options.stages,
            memory_limit=options.memory_limit,
            time_limit=options.time_limit,
            gap=options.gap,
            compare=not options.no_baselines,
            remat=options.remat,
            progress=lambda news: line.show(news, group=news),
            started=started,
        )
    except InfeasibleError as error:
        raise CommandError(str(error), INFEASIBLE) from error
    except NoPlanError as error:
        raise CommandError(str(error), TIME_LIMIT) from error
    except (
        ClusterError,
        LoopError,
        MicrobatchError,
        NoRuleError,
        PlacementError,
        ProgramError,
        StageError,
        TraceError,
    ) as error:
        raise CommandError(str(error)) from error


def _steps(options: argparse.Namespace, target: Target) -> tuple[dict[int, Any], Any]:
    """Return the program for every number of microbatches, and the program without any."""
    import jax

    from autoshard.compat import traced_without_gpu
    from autoshard.lower.mpmd.accumulate import MicrobatchError
    from autoshard.lower.mpmd.partition import trace_step
    from autoshard.models.find import find, size_names
    from autoshard.models.trusted import remember

    def step(count: int | None) -> Any:
        given = {} if count is None else {"microbatches": count}
        found = find(options.program, given, machine=target)
        return found.fn, found.args, found.options

    names = size_names(options.program)
    remember(options.program)
    if tuple(options.accumulate) != (1,):
        return _cut_steps(options, step(None), built_in="microbatches" in names)
    if "microbatches" not in names:
        if options.microbatches:
            raise CommandError(
                f"{options.program} has its microbatches built in; give its function a parameter "
                "`microbatches` and use it, or leave --microbatches out"
            )
        found = find(options.program, machine=target)
        fixed = found.fn, found.args, found.options
        donate = found.options.get("donate_argnums", ())
        traced = trace_step(found.fn, *found.args, donate_argnums=donate)
        return {traced.step.microbatches: fixed}, None
    steps = {}
    faults = []
    for count in options.microbatches or MICROBATCHES:
        steps[count] = step(count)
        fn, args, _ = steps[count]
        try:
            with traced_without_gpu():
                jax.eval_shape(fn, *args)
        except MicrobatchError as error:
            del steps[count]
            faults.append(str(error))
    if faults and (options.microbatches or not steps):
        raise CommandError("\n".join(faults))
    return steps, step(None)


def _cut_steps(
    options: argparse.Namespace, step: Any, *, built_in: bool
) -> tuple[dict[int, Any], Any]:
    """Return a step that is not written in microbatches cut into each number, and as it is."""
    from autoshard.lower.mpmd.cut.loop import LoopError
    from autoshard.lower.mpmd.partition import trace_step

    counts = sorted(set(options.accumulate))
    if built_in or options.microbatches:
        instead = ",".join(map(str, options.microbatches or counts))
        raise CommandError(
            f"{options.program} has a parameter `microbatches`: with --meshes, give --microbatches "
            f"{instead} in place of --accumulate"
            if built_in
            else "--accumulate and --microbatches both say the microbatches of a pipeline: leave "
            "--microbatches out where the step is not written in microbatches"
        )
    if counts[0] < 2:
        raise CommandError(
            "a pipeline has 2 microbatches or more: give --accumulate with --meshes numbers from 2 "
            "on, such as 8,16"
        )
    fn, args, told = step
    steps, faults = {}, []
    for count in counts:
        try:
            donate = told.get("donate_argnums", ())
            trace_step(fn, *args, donate_argnums=donate, microbatches=count)
            steps[count] = fn, args, {**told, "microbatches": count}
        except LoopError as error:
            faults.append(str(error))
    if not steps:
        raise CommandError("\n".join(dict.fromkeys(faults)))
    for fault in faults:
        print(f"autoshard: {' '.join(fault.split())}", file=sys.stderr)
    return steps, step


def _texts(plan: PipelinePlan, options: argparse.Namespace) -> dict[str | None, Callable[[], str]]:
    """What is written to each file."""
    from autoshard.search.meshes.problem import TICK
    from autoshard.solve.schedule.drawing import draw_svg
    from autoshard.solve.schedule.trace import chrome_trace
    from autoshard.units import format_seconds

    return {
        options.output: lambda: json.dumps(plan.to_json()),
        options.svg: lambda: draw_svg(
            plan.instance, plan.timeline, written=lambda time: format_seconds(time * TICK)
        ),
        options.trace: lambda: json.dumps(
            chrome_trace(plan.instance, plan.timeline, microseconds=1e6 * TICK)
        ),
    }
