"""`autoshard explain PLAN VALUE`: why a value is laid out so, and what another layout costs."""

from __future__ import annotations

import argparse

from autoshard.cli_errors import CommandError
from autoshard.cli_search import find_machine, find_program, load_plan

MOST = 6


def explain_command(options: argparse.Namespace) -> int:
    """Run `autoshard explain`."""
    from autoshard.explain import Explainer, values_to_explain
    from autoshard.plan import PlanError
    from autoshard.requirements import RequirementError

    plan = load_plan(options.plan)
    reference = options.program or plan.program
    _, program = find_program(reference)
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
    except (PlanError, RequirementError) as error:
        raise CommandError(str(error)) from error
    print("\n\n".join(texts))
    return 0
