"""`autoshard report`: writes a plan as one HTML file, and in formats of other tools.

Files other than plans for one mesh have their own pages; see `autoshard.cli.kinds.pages`.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from autoshard.cli import outputs
from autoshard.cli.common import CommandError, program_of
from autoshard.cli.kinds.pages import is_plan_file, other_files, read_verification, two_plans
from autoshard.cli.progress import ProgressLine
from autoshard.cli.search import find_machine, find_program, load_plan

if TYPE_CHECKING:
    from autoshard.machine.machine import Machine
    from autoshard.models.find import Found
    from autoshard.plan.plan import Plan
    from autoshard.show.profile import Profile
    from autoshard.study.advice import Advice
    from autoshard.study.robust.record import Robust

FILES = {
    "output": outputs.PAGE,
    "trace": outputs.TRACE,
    "model_explorer": outputs.GRAPH,
    "node_data": outputs.NODE_DATA,
    "rules": outputs.RULES,
    "shardings": outputs.SHARDINGS,
}
NEED_PROGRAM = ("trace", "model_explorer", "node_data")
LEFT_OUT = "memory over time, compute and sensitivity"


def report_command(options: argparse.Namespace) -> int:
    """Run `autoshard report`."""
    paths = {name: getattr(options, name) for name in FILES if getattr(options, name) is not None}
    if not paths:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in FILES)
        raise CommandError(f"nothing to write: name a file with -o, or with one of {words}")
    outputs.require_outputs(options, **FILES)
    if options.program is not None and is_plan_file(options.program):
        outputs.write_files(two_plans(options, paths), quiet=options.quiet)
        _say(paths, (), options)
        return 0
    if (files := other_files(options, paths)) is not None:
        outputs.write_files(files, quiet=options.quiet)
        _say(paths, (), options)
        return 0
    plan = load_plan(options.plan)
    verdicts = None if options.verification is None else read_verification(options.verification)
    needed = [name for name in paths if name in NEED_PROGRAM]
    found: Profile | None = None
    step: Found | None = None
    missing: tuple[str, ...] = ()
    if needed or "output" in paths:
        with ProgressLine(quiet=options.quiet or options.json) as line:
            step, found, missing = _profile(plan, options, line)
    if found is None and needed:
        words = " and ".join(f"--{name.replace('_', '-')}" for name in needed)
        raise CommandError(f"{words} need the program and the machine: {'; '.join(missing)}")
    for why in missing:
        print(f"autoshard: warning: left out: {LEFT_OUT}: {why}", file=sys.stderr)
    for name, path in paths.items():
        outputs.write_file(path, _text(name, plan, step, found, options, verdicts, missing))
        outputs.say_written(path, quiet=options.quiet)
    _say(paths, missing, options)
    return 0


def _say(paths: dict[str, str], missing: tuple[str, ...], options: argparse.Namespace) -> None:
    """Print what was written where, if that is asked for."""
    if options.json:
        left_out = [f"{LEFT_OUT}: {why}" for why in missing]
        print(json.dumps({"wrote": paths, "left_out": left_out}))


def _text(
    name: str,
    plan: Plan,
    step: Found | None,
    found: Profile | None,
    options: argparse.Namespace,
    verdicts: Any,
    missing: tuple[str, ...],
) -> str:
    """Return the text for the output file of one option."""
    from autoshard.show import shardings

    if name == "output":
        from autoshard.show.page import Material, page

        left_out = tuple(f"{LEFT_OUT}: {why}" for why in missing)
        unknown = None if options.robust is None else _robust(options.robust)
        machine = _machine_text(options, plan)
        advised = () if found is None else _advice(found, step, options)
        return page(Material(plan, found, machine, verdicts, left_out, unknown, advised))
    if name == "rules":
        return shardings.logical_rules(plan)
    if name == "shardings":
        return json.dumps(shardings.shardings(plan), indent=1)
    assert found is not None
    if name == "trace":
        from autoshard.show.trace import chrome_trace

        return json.dumps(chrome_trace(found))
    from autoshard.show.model_explorer import graph_collection, node_data

    return json.dumps(graph_collection(found) if name == "model_explorer" else node_data(found))


def _advice(found: Profile, step: Found | None, options: argparse.Namespace) -> tuple[Advice, ...]:
    from autoshard.study.advice import advice

    with ProgressLine(quiet=options.quiet or options.json) as line:
        line.show("pricing what could be done about the step", group="advice")
        return advice(found.plan, found.prices, step)


def _profile(
    plan: Plan, options: argparse.Namespace, line: ProgressLine
) -> tuple[Found | None, Profile | None, tuple[str, ...]]:
    """Return the step and the plan op by op, or why there is none; names that are given exist."""
    from autoshard.plan.plan import PlanError
    from autoshard.show.profile import profile

    parts: list[Any] = []

    def step_and_program() -> Any:
        name = program_of(options, plan.program)
        line.show(f"tracing {name}", group="trace")
        return find_program(name, plan)

    for named, find in (
        (options.program, step_and_program),
        (options.machine, lambda: _machine(options, plan)),
    ):
        try:
            parts.append(find())
        except CommandError as error:
            if named is not None:
                raise
            return None, None, (str(error).splitlines()[0],)
    (step, program), machine = parts
    line.show("pricing every operation", group="profile")
    try:
        return step, profile(plan, program, machine), ()
    except PlanError as error:
        raise CommandError(str(error)) from error


def _machine(options: argparse.Namespace, plan: Plan) -> Machine:
    try:
        return find_machine(options.machine or plan.machine)
    except CommandError as error:
        if options.machine is not None:
            raise
        raise CommandError(f"{str(error).splitlines()[0]}; give --machine") from error


def _machine_text(options: argparse.Namespace, plan: Plan) -> str | None:
    from autoshard.machine.file import MachineError
    from autoshard.show.sources import machine_text

    try:
        return machine_text(options.machine or plan.machine)
    except MachineError:
        return None  # the warning about the profile already says so


def _robust(path: str) -> Robust:
    from autoshard.files import FileError, read_json
    from autoshard.study.robust.record import Robust

    try:
        data = read_json(path, "the ranges")
    except FileError as error:
        raise CommandError(str(error)) from error
    try:
        return Robust.from_json(data)
    except ValueError as error:
        what = f"{path!r} is not what `autoshard robust --record` wrote"
        raise CommandError(f"{what}: {error}") from error
