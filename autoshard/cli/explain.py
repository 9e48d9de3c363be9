"""`autoshard explain PLAN VALUE` and `autoshard annotate PLAN`.

The first explains why a value has its layout and what another layout costs, with `--keep` what it
costs to keep a value otherwise for the backward pass; of plans for several meshes
`autoshard.cli.meshes.explain` does. The second prints a few constraints from
which Shardy propagates the whole plan.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from autoshard.cli.common import CommandError, program_of
from autoshard.cli.meshes.verify import is_for_meshes
from autoshard.cli.progress import ProgressLine
from autoshard.cli.search import find_machine, find_program, load_plan
from autoshard.units import counted

if TYPE_CHECKING:
    from autoshard.machine.machine import Machine
    from autoshard.plan.plan import Plan
    from autoshard.program.trace import Program
    from autoshard.search.dearest import Dear

MOST = 6
LISTED = 16
"""Values that are listed where none is named."""
NOT_REACHED = 5
"""The exit code if no constraints reproduce the plan: verification failed."""


def explain_command(options: argparse.Namespace) -> int:
    """Run `autoshard explain`."""
    from autoshard.plan.plan import PlanError
    from autoshard.program.select import RequirementError
    from autoshard.search.explain import Explainer, values_to_explain
    from autoshard.search.padding import about

    if is_for_meshes(options.plan):
        from autoshard.cli.meshes.explain import explain_pipeline

        return explain_pipeline(options)
    _refuse(options)
    plan = load_plan(options.plan)
    reference = program_of(options, plan.program)
    _, program = find_program(reference, plan)
    machine = find_machine(options.machine or plan.machine)
    targets = [*options.value, *(f"line {line}" for line in options.line)]
    if options.keep is not None:
        try:
            print(_kept(program, machine, plan, options))
        except (PlanError, RequirementError) as error:
            raise CommandError(str(error)) from error
        return 0
    if not targets and options.against is None:
        try:
            print(_dearest(program, machine, plan, options))
        except PlanError as error:
            raise CommandError(str(error)) from error
        return 0
    try:
        values = [v for t in targets for v in values_to_explain(program, plan, t)]
        explainer = Explainer(program, machine, plan, time_limit=options.time_limit)
        if options.against is not None:
            answers = [explainer.against(load_plan(options.against), values)]
        else:
            limit = options.time_limit
            answers = [explainer.explain(value, time_limit=limit) for value in values[:MOST]]
        said = [note for one in values for note in about(plan.notes, program.values[one])]
        notes = list(dict.fromkeys(said))
    except (PlanError, RequirementError) as error:
        raise CommandError(str(error)) from error
    more = len(values) - MOST if options.against is None else 0
    if options.json:
        told = [one.to_json() for one in answers]
        print(json.dumps({"answers": told, "more": max(more, 0), "notes": notes}))
        return 0
    texts = [*map(str, answers), *(f"Note: {note}." for note in notes)]
    if more > 0:
        texts.insert(len(answers), f"and {counted(more, 'more value')}; name fewer of them")
    print("\n\n".join(texts))
    return 0


def _refuse(options: argparse.Namespace) -> None:
    """Refuse options that do not go together, or are for plans for several meshes."""
    if options.stage is not None:
        raise CommandError(
            f"--stage is of plans for several meshes, and {options.plan!r} is for one: leave it out"
        )
    if options.against is not None and is_for_meshes(options.against):
        raise CommandError(
            f"{options.plan!r} is for one mesh, and {options.against!r} for several: give two "
            "plans for one, or see both by `autoshard report`"
        )
    refuse_beside_keep(options)


def refuse_beside_keep(options: argparse.Namespace) -> None:
    """Refuse what --keep does not go with."""
    if options.keep is not None and (options.value or options.line or options.against):
        raise CommandError(
            "--keep cannot be combined with VALUE, --line or --against: leave them out"
        )


def _dearest(program: Program, machine: Machine, plan: Plan, options: argparse.Namespace) -> str:
    """The dearest values as a table, and how to ask about one; all of them as JSON."""
    from autoshard.search.dearest import dearest

    found = dearest(program, machine, plan)
    if options.json:
        return json.dumps({"dearest": [asdict(one) for one in found]})
    return (
        f"{dearest_table(found)}\n"
        "exposed: what their collectives add to a step, of all that they take\n"
        "Why one lies so, and what else it could:\n"
        f"  autoshard explain {options.plan} '{found[0].target}'"
    )


def dearest_table(found: Sequence[Dear], count: int = LISTED) -> str:
    """The dearest values as a table of so many, and how many more there are."""
    from autoshard.terminal import table
    from autoshard.units import format_bytes, format_seconds

    rows = [("dearest values as they lie", "layout", "exposed", "of", "on a device")]
    for one in found[:count]:
        rows.append(
            (
                one.target if one.count == 1 else f"{one.target}  ({one.count})",
                one.type,
                format_seconds(one.exposed_seconds),
                format_seconds(one.seconds),
                format_bytes(one.bytes) if one.bytes else "",
            )
        )
    more = f"  and {len(found) - count} more\n" if len(found) > count else ""
    return f"{table(rows, right=(2, 3, 4), indent=0)}\n{more}"


def _kept(program: Program, machine: Machine, plan: Plan, options: argparse.Namespace) -> str:
    """What it costs to keep values otherwise as a table, or as JSON."""
    from autoshard.search.keep.otherwise import keep_choices, otherwise
    from autoshard.terminal import paragraph, table
    from autoshard.units import format_bytes, format_seconds

    values = keep_choices(program, plan, options.keep)
    limit = options.time_limit
    found = []
    with ProgressLine(quiet=options.quiet or options.json) as line:
        for k, value in enumerate(values[:MOST]):
            line.show(f"{k + 1} of {min(len(values), MOST)}: {value.name}", group="keep")
            found.append(otherwise(program, machine, plan, value, time_limit=limit))
    more = len(values) - len(found)
    if options.json:
        return json.dumps({"answers": [one.to_json() for one in found], "more": more})
    rows = [("value", "of all layers", "now", "instead", "step", "on a device", "")]
    for one in found:
        value = one.value
        rows.append(
            (
                value.label or value.name,
                f"{value.type} x {value.turns}",
                one.now,
                one.instead,
                more_or_less(one.seconds, format_seconds),
                more_or_less(one.bytes, format_bytes),
                "" if one.fits else one.why if one.seconds is None else "does not fit",
            )
        )
    limit = format_bytes(plan.memory_limit)
    named = f"and {more} more: name them, as in --keep '*ffn*'\n" if more > 0 else ""
    return f"{table(rows, right=(4, 5), indent=0)}\n{named}\n" + paragraph(
        f"Each row is a plan of its own, found anew on mesh {plan.mesh} within {limit}: what it "
        f"takes more than this plan's {format_seconds(plan.estimate.step_seconds)} a step"
    )


def more_or_less(number: float | None, form: Callable[[float], str]) -> str:
    """A difference with its sign."""
    return "-" if number is None else f"{'-' if number < 0 else '+'}{form(abs(number))}"


def annotate_command(options: argparse.Namespace) -> int:
    """Run `autoshard annotate`."""
    from autoshard.lower.interpret import LoweringError
    from autoshard.lower.spmd import lower
    from autoshard.plan.plan import PlanError
    from autoshard.plan.same_program import for_program
    from autoshard.study.annotate.fewest import fewest

    plan = load_plan(options.plan)
    reference = program_of(options, plan.program)
    found, program = find_program(reference, plan)
    machine = find_machine(options.machine or plan.machine)
    if "microbatches" in plan.options:
        raise CommandError(
            "the plan also works on microbatches, which no constraint says: run it with "
            "autoshard.lower, or compute gradients with autoshard.accumulate_grads in the program, "
            "and search again"
        )
    if "saved" in plan.options:
        raise CommandError(
            "the plan also chooses what is saved for the backward pass, which no constraint says: "
            "run it with autoshard.lower, or write the jax.checkpoint policy that autoshard show "
            "prints into the program, and search again"
        )
    checks = 0
    try:
        plan = for_program(plan, program, reference)
        with ProgressLine(quiet=options.quiet) as line:
            line.within(options.time_limit)

            def heard(count: int, enough: bool) -> None:
                nonlocal checks
                checks += 1
                verdict = "enough" if enough else "not enough"
                line.show(f"check {checks}: {counted(count, 'line')} {verdict}", group="annotate")

            lowered = lower(plan, found.fn, *found.args)
            few = fewest(
                lowered,
                found.fn,
                machine=machine,
                heard=heard,
                time_limit=options.time_limit,
            )
    except (PlanError, LoweringError) as error:
        raise CommandError(str(error)) from error
    print(json.dumps(few.to_json()) if options.json else few)
    return 0 if few.enough else NOT_REACHED
