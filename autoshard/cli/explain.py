"""`autoshard explain PLAN VALUE` and `autoshard annotate PLAN`.

The first explains why a value has its layout and what another layout costs. The second prints a few
constraints from which Shardy propagates the whole plan.
"""

from __future__ import annotations

import argparse

from autoshard.cli.common import CommandError, program_of
from autoshard.cli.progress import ProgressLine
from autoshard.cli.search import find_machine, find_program, load_plan

MOST = 6
NOT_REACHED = 5
"""The exit code if no constraints reproduce the plan: verification failed."""


def explain_command(options: argparse.Namespace) -> int:
    """Run `autoshard explain`."""
    from autoshard.plan.plan import PlanError
    from autoshard.program.select import RequirementError
    from autoshard.search.explain import Explainer, values_to_explain
    from autoshard.search.padding import about

    plan = load_plan(options.plan)
    reference = program_of(options, plan.program)
    _, program = find_program(reference, plan)
    machine = find_machine(options.machine or plan.machine)
    targets = [*options.value, *(f"line {line}" for line in options.line)]
    if not targets and options.against is None:
        raise CommandError("name a value, such as params.w1, or a line with --line FILE:N")
    try:
        values = [v for t in targets for v in values_to_explain(program, plan, t)]
        explainer = Explainer(program, machine, plan, time_limit=options.time_limit)
        texts = []
        if options.against is not None:
            other = load_plan(options.against)
            texts.append(explainer.against(other, values))
        else:
            texts = [
                str(explainer.explain(value, time_limit=options.time_limit))
                for value in values[:MOST]
            ]
        if len(values) > MOST and options.against is None:
            texts.append(f"and {len(values) - MOST} more values; name fewer of them")
        said = [note for one in values for note in about(plan.notes, program.values[one])]
        texts += [f"Note: {note}." for note in dict.fromkeys(said)]
    except (PlanError, RequirementError) as error:
        raise CommandError(str(error)) from error
    print("\n\n".join(texts))
    return 0


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

            def heard(count: int, enough: bool) -> None:
                nonlocal checks
                checks += 1
                verdict = "enough" if enough else "not enough"
                line.show(f"check {checks}: {count} lines are {verdict}", group="annotate")

            lowered = lower(plan, found.fn, *found.args)
            few = fewest(lowered, found.fn, machine=machine, heard=heard)
    except (PlanError, LoweringError) as error:
        raise CommandError(str(error)) from error
    print(few)
    return 0 if few.enough else NOT_REACHED
