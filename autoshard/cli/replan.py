"""`autoshard search --from PLAN --max-changes K` and `autoshard check PLAN`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from autoshard.cli.common import FAILED, CommandError, program_of
from autoshard.cli.search import find_machine, find_program, load_plan, requirements_of_words

if TYPE_CHECKING:
    from autoshard.machine.machine import Machine
    from autoshard.plan.plan import Plan
    from autoshard.program.trace import Program


def replanned(
    before: Plan, program: Program, machine: Machine, count: int, asked: dict[str, Any]
) -> Plan:
    """Return the best plan with few changes; print the curve to stderr.

    Raises:
      CommandError: the requested mesh is not the plan's, or the inputs differ.
    """
    from autoshard.plan.plan import PlanError
    from autoshard.search.replan import replan

    mesh = asked.pop("mesh", None)
    known = dict(zip(before.mesh.names, before.mesh.sizes, strict=True))
    if mesh is not None and mesh != known:
        raise CommandError(
            f"--max-changes keeps the mesh of the plan ({before.mesh}); leave --mesh out"
        )
    try:
        found = replan(program, machine, before, max_changes=count, **asked)
    except PlanError as error:
        raise CommandError(str(error)) from error
    print(found, end="\n\n", file=sys.stderr)
    return found.plan


def check_command(options: argparse.Namespace) -> int:
    """Run `autoshard check`."""
    from autoshard.plan.fits import needed_bytes
    from autoshard.plan.plan import PlanError
    from autoshard.program.select import RequirementError
    from autoshard.search.replan import reprice
    from autoshard.terminal import table
    from autoshard.units import format_bytes, format_seconds

    plan = load_plan(options.plan)
    reference = program_of(options, plan.program)
    _, program = find_program(reference, plan)
    machine = find_machine(options.machine or plan.machine)
    words = [one["requirement"] for one in plan.requirements if "requirement" in one]
    try:
        from autoshard.problem.requirements.text import from_json

        asked = [*map(from_json, words), *requirements_of_words(options.require)]
        now = reprice(
            plan,
            program,
            machine,
            memory_limit=options.memory_limit,
            requirements=asked,
            constraints=not options.ignore_constraints,
        )
    except (PlanError, RequirementError) as error:
        raise CommandError(str(error)) from error
    faults = faults_of(now)
    if options.json:
        print(json.dumps({"fits": not faults, "faults": faults, "plan": now.to_json()}))
    else:
        rows = [["", "in the plan", f"{reference} on {machine.name}"]]
        for name, key in (("step", "step"), ("compute", "compute"), ("collectives", "collective")):
            seconds = (getattr(one.estimate, f"{key}_seconds") for one in (plan, now))
            rows.append([name, *map(format_seconds, seconds)])
        rows.append(["memory", *(format_bytes(needed_bytes(one.estimate)) for one in (plan, now))])
        rows.append(["limit", *(format_bytes(one.memory_limit) for one in (plan, now))])
        print(table(rows, right=(1, 2)))
        for one in now.requirements:
            print(f"  {'kept' if one['kept'] else 'dropped':<8} {one['text']}")
    if faults:
        raise CommandError("\n  - ".join([f"{options.plan} does not hold:", *faults]), FAILED)
    return 0


def faults_of(plan: Plan) -> list[str]:
    """Return why a plan is not valid: it does not fit, or breaks a hard requirement."""
    from autoshard.plan.fits import fits, refusal

    faults = []
    if not fits(plan.estimate, plan.memory_limit):
        faults.append(refusal(plan.estimate, plan.memory_limit))
    hard = [one for one in plan.requirements if not one["kept"] and _is_hard(one)]
    faults += [f"it does not keep {one['text']}: {'; '.join(one['how'])}" for one in hard]
    return faults


def _is_hard(verdict: dict[str, Any] | Any) -> bool:
    from autoshard.problem.requirements.text import from_json

    return "requirement" not in verdict or from_json(verdict["requirement"]).hard
