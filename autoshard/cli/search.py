"""`autoshard search`: find a plan, write it, print it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoshard.cli.common import INFEASIBLE, TIME_LIMIT, CommandError
from autoshard.cli.outputs import OWN_FILE, PLAN, require_outputs, write_file, written
from autoshard.cli.progress import Phases, ProgressLine
from autoshard.units import listed, them

if TYPE_CHECKING:
    from autoshard.machine.machine import Machine
    from autoshard.models.find import Found
    from autoshard.plan.plan import Plan
    from autoshard.program.trace import Program
    from autoshard.search.search import SearchProgress


def search_command(options: argparse.Namespace) -> int:
    """Run `autoshard search`."""
    from autoshard.program.notes import dead_code

    if options.own is not None:
        return _write_own_file(options)
    if options.meshes is not None:
        from autoshard.cli.meshes.search import search_meshes_command

        return search_meshes_command(options)
    alone = ("stages", "microbatches", "svg", "trace")
    if given := [f"--{name}" for name in alone if getattr(options, name) is not None]:
        raise CommandError(
            f"{listed(given)} {'apply' if len(given) > 1 else 'applies'} to --meshes alone: leave "
            f"{them(given)} out, or name several meshes"
        )
    require_outputs(options, output=PLAN)
    machine = find_machine(options.machine)
    phases = Phases()
    phases.enter("trace")
    try:
        with ProgressLine(quiet=options.quiet) as line:
            line.show(f"tracing {options.program}", group="trace")
            found, program = find_program(options.program, machine=machine)
            if dead := dead_code(program):
                print(f"autoshard: {dead}", file=sys.stderr)
            plan = _search(options, machine, found, program, line, phases)
    finally:
        if said := phases.beyond(options.time_limit):
            print(f"autoshard: {said}", file=sys.stderr)
    with written({options.output: lambda: json.dumps(plan.to_json())}, quiet=options.quiet):
        if options.json:
            print(json.dumps(plan.to_json()))
        else:
            from autoshard.plan.text.page import format_plan

            print(format_plan(plan), end="")
        if plan.proof.limit_hit == "interrupted":
            print("autoshard: interrupted; this is the best plan so far", file=sys.stderr)
    return 0


def _write_own_file(options: argparse.Namespace) -> int:
    """Write the best plan that a framework's own file can express."""
    from autoshard.cli.own_file import best_own_file, refuse_what_no_file_says

    refuse_what_no_file_says(options)
    require_outputs(options, output=OWN_FILE)
    machine = find_machine(options.machine)
    with ProgressLine(quiet=options.quiet) as line:
        found = best_own_file(options, machine, line)
    with written({options.output: lambda: found.text}, quiet=options.quiet):
        if options.json:
            print(json.dumps({"plan": found.plan.to_json(), "file": found.text}))
        elif options.output is None:
            print(found.text, end="")
        else:
            print("\n".join(found.summary))
    return 0


def find_machine(name: str) -> Machine:
    """Return the machine that a user names."""
    from autoshard.machine.file import MachineError
    from autoshard.machine.load import load

    try:
        return load(name)
    except MachineError as error:
        raise CommandError(str(error)) from error


def find_program(
    reference: str, plan: Plan | None = None, machine: Machine | None = None
) -> tuple[Found, Program]:
    """Return the step that a user names, and its trace; of a plan, as the plan has it rewritten.

    It is made for the machine, by default the plan's.
    """
    from autoshard.models.find import ProgramError, find
    from autoshard.models.trusted import remember
    from autoshard.program.graph import REWRITES
    from autoshard.program.rules.ask_shardy import NoRuleError
    from autoshard.program.trace import TraceError, trace

    try:
        named = plan.machine if machine is None and plan is not None else machine
        found = find(reference, machine=named)
        remember(reference)
        told = {} if plan is None else {k: plan.options[k] for k in REWRITES if k in plan.options}
        options = {**found.options, **told}
        return found, trace(found.fn, *found.args, name=found.reference, **options)
    except (ProgramError, TraceError, NoRuleError) as error:
        raise CommandError(str(error)) from error


def load_plan(path: str) -> Plan:
    """Return the plan in a file."""
    from autoshard.plan.plan import Plan, PlanError

    try:
        return Plan.load(path)
    except PlanError as error:
        raise CommandError(str(error)) from error


def _search(
    options: argparse.Namespace,
    machine: Machine,
    found: Found,
    program: Program,
    line: ProgressLine,
    phases: Phases,
) -> Plan:
    from autoshard.models.find import ProgramError
    from autoshard.program.select import RequirementError
    from autoshard.program.trace import TraceError
    from autoshard.search.search import InfeasibleError, MeshError, NoPlanError, search

    def progress(news: SearchProgress) -> None:
        phases.enter(news.phase)
        line.show(str(news), group=f"{news.mesh} {news.phase}")

    phases.enter("analyse")
    asked = {
        "mesh": options.mesh,
        "memory_limit": options.memory_limit,
        "time_limit": options.time_limit,
        "gap": options.gap,
        "progress": progress,
        "options": found.plan_options,
        "constraints": not options.ignore_constraints,
        "join_sums": options.join_sums,
        "remat": options.remat,
        "accumulate": options.accumulate,
    }
    _refuse_together(options)
    try:
        asked["requirements"] = requirements_of_words(options.require)
        before = None if options.start is None else load_plan(options.start)
        if options.max_changes is not None:
            from autoshard.cli.replan import replanned

            if before is None or options.refine is not None:
                raise CommandError("--max-changes needs --from PLAN, and no --refine beside it")
            plan = replanned(before, program, machine, options.max_changes, asked)
        elif options.refine is None:
            asked["start"] = before
            asked |= {"complete": options.complete, "baselines": not options.no_baselines}
            plan = search(program, machine, **asked)
        else:
            plan = _refined(options.refine, machine, found, program, asked, line)
    except (MeshError, ProgramError, RequirementError, TraceError) as error:
        raise CommandError(str(error)) from error
    except InfeasibleError as error:
        text = str(error)
        if error.plan is not None and options.output is not None:
            write_file(options.output, json.dumps(_as_named(error.plan, options).to_json()))
            text += f"\n  {options.output} has the plan that needs least"
        raise CommandError(text, INFEASIBLE) from error
    except NoPlanError as error:
        raise CommandError(str(error), TIME_LIMIT) from error
    return _as_named(replace(plan, notes=(*plan.notes, *found.notes)), options)


def _refuse_together(options: argparse.Namespace) -> None:
    """Refuse what does not go together.

    Raises:
      CommandError: it says which option to leave out.
    """
    said = _rewrites(options) or ("--complete" if options.complete else "")
    if said and options.max_changes is not None:
        raise CommandError(f"leave out --max-changes: it does not go with {said}")
    if options.complete and options.refine is not None:
        raise CommandError("leave out --refine: it does not go with --complete")


def _as_named(plan: Plan, options: argparse.Namespace) -> Plan:
    """The plan with the machine as the user named it, so that `verify` can find its file again."""
    return replace(plan, machine=options.machine)


def _rewrites(options: argparse.Namespace) -> str:
    """The option by which a search may rewrite the step, or an empty string."""
    if options.remat != "respect":
        return f"--remat {options.remat}"
    return "" if options.accumulate == (1,) else "--accumulate"


def requirements_of_words(words: list[str]) -> list[Any]:
    """Return statements and the contents of TOML files, in the given order."""
    from autoshard.problem.requirements.text import parse, read_file

    found: list[Any] = []
    for one in words:
        found += read_file(one) if one.endswith(".toml") else [parse(one, source="--require")]
    return found


def _refined(
    count: int,
    machine: Machine,
    found: Found,
    program: Program,
    asked: dict[str, Any],
    line: ProgressLine,
) -> Plan:
    from autoshard.compiler.target import CompileError
    from autoshard.study.refine import Trial, refine

    def heard(trial: Trial) -> None:
        line.show(str(trial), group=f"compile {trial.plan.mesh} {id(trial)}")

    try:
        refined = refine(program, machine, found.fn, *found.args, count=count, heard=heard, **asked)
    except CompileError as error:
        raise CommandError(str(error)) from error
    print(refined, end="\n\n", file=sys.stderr)
    return refined.plan
