"""`autoshard verify`: checks a plan with several judges, each of which may reject it.

    program      only where it fails: most of what the step is given or computes is dead
    types        every value, op and collective has its type, and the types fit together
    price        the independent evaluator, on the whole program, finds the price in the file
    requirements only where there are some: its decisions keep those that it names, and those that
                 the program itself asks for
    collectives  Shardy's own passes create exactly the planned collectives; no device is needed
    numbers      on fake CPU devices the step computes the same numbers as unsharded
    explicit     with --explicit: written out for one device, the step calls exactly the planned
                 collectives, and computes the same numbers; no device is needed
    compiled     with --compile: a real compiler creates no other collectives, and its peak and
                 step equal the predicted ones within a tolerance; no device is needed
    device       with --compile gpu, if the GPUs are present: the step runs; its time is shown

A plan for several meshes has its own judges; see `autoshard.cli.meshes.verify`.

Fake devices must be requested before JAX starts, so a child process computes the numbers (`python
-m autoshard.cli.numbers`). A step that is too large to run here is reported as such, which is not a
failure.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import TYPE_CHECKING

from autoshard.cli.common import (
    FAILED,
    MOST_BYTES,
    MOST_DEVICES,
    PRICE_TOLERANCE,
    SMALLER,
    CommandError,
    Verdict,
    child_json,
    fake_devices,
    program_of,
    too_much_work,
)
from autoshard.cli.progress import ProgressLine
from autoshard.cli.search import find_machine, find_program, load_plan
from autoshard.terminal import is_terminal
from autoshard.units import counted

if TYPE_CHECKING:
    from autoshard.models.find import Found
    from autoshard.plan.evaluate import Evaluation
    from autoshard.plan.plan import Estimate, Plan
    from autoshard.program.trace import Program


def verify_command(options: argparse.Namespace) -> int:
    """Run `autoshard verify`."""
    from autoshard.cli.meshes.verify import is_for_meshes, verdicts_of
    from autoshard.plan.plan import PlanError
    from autoshard.plan.same_program import for_program
    from autoshard.program.notes import dead_code

    if is_for_meshes(options.plan):
        return _conclude(verdicts_of(options), options)
    if options.trace:
        raise CommandError("--trace is for plans for several meshes, not for one: leave it out")
    plan = load_plan(options.plan)
    reference = program_of(options, plan.program)
    found, program = find_program(reference, plan)
    try:
        plan = for_program(plan, program, reference)
        verdicts = [_types(plan, program), *_price(plan, program, options.machine)]
        typed = verdicts[0].agrees
        if dead := dead_code(program):
            verdicts.insert(0, Verdict("program", False, dead))
        if typed:  # a plan with wrong types cannot be lowered
            verdicts += [_collectives(plan, found), _numbers(plan, program, found, options)]
            if options.explicit:
                verdicts.append(_explicit(plan, program, found, options))
            if options.compile is not None:
                verdicts += _compiled(plan, found, options)
    except PlanError as error:
        raise CommandError(str(error)) from error
    return _conclude(verdicts, options)


def _conclude(verdicts: list[Verdict], options: argparse.Namespace) -> int:
    """Print the verdicts and return the exit code, a failure if a judge rejects the plan."""
    failed = [verdict.judge for verdict in verdicts if verdict.agrees is False]
    if options.json:
        print(
            json.dumps(
                {
                    "agrees": not failed,
                    "verdicts": [verdict.to_json() for verdict in verdicts],
                }
            )
        )
    else:
        print("\n".join(map(str, verdicts)))
    if failed:
        raise CommandError(
            f"{options.plan} is refuted by its {' and '.join(failed)}; do not run it: search again",
            FAILED,
        )
    return 0


def _types(plan: Plan, program: Program) -> Verdict:
    from autoshard.plan.types.plan_check import PlanTypeError, check_plan

    try:
        typed = check_plan(program, plan)
    except PlanTypeError as error:
        return Verdict("types", False, str(error))
    values = sum(value is not None for value in typed.stored)
    return Verdict(
        "types", True, f"{counted(values, 'value')}, {counted(len(typed.moves), 'collective')}"
    )


def _price(plan: Plan, program: Program, machine_name: str | None) -> list[Verdict]:
    """The verdicts on the price and on the requirements."""
    from autoshard.plan.consistency import InconsistentPlanError
    from autoshard.plan.evaluate import evaluate
    from autoshard.plan.fits import fits, refusal
    from autoshard.plan.text.page import format_bytes, format_seconds
    from autoshard.search.assemble import forecasted, prices_of

    try:
        machine = find_machine(machine_name or plan.machine)
    except CommandError as error:
        if machine_name is not None:
            raise
        return [Verdict("price", None, f"{str(error).splitlines()[0]}; give --machine")]
    prices = prices_of(plan, program, machine)
    try:
        plain = evaluate(prices, plan.decisions, plan.mesh.names)
        evaluation = forecasted(prices, plan.decisions, plain)
    except InconsistentPlanError as error:
        return [Verdict("price", False, str(error))]
    required = _requirements(plan, program, evaluation)
    found = evaluation.estimate
    faults = _differences(plan.estimate, found)
    if faults:
        heading = f"the plan's price is not that of its decisions on {machine.name}"
        return [Verdict("price", False, "\n".join([f"{heading}:", *faults])), *required]
    if not fits(found, plan.memory_limit):
        why = f"it does not fit: {refusal(found, plan.memory_limit)}"
        return [Verdict("price", False, why), *required]
    text = (
        f"{format_seconds(found.step_seconds)} a step, {format_bytes(found.peak_bytes)} at the "
        f"peak, on {machine.name}"
    )
    return [Verdict("price", True, text), *required]


def _requirements(plan: Plan, program: Program, evaluation: Evaluation) -> list[Verdict]:
    from autoshard.problem.requirements.demands import refuted
    from autoshard.program.select import RequirementError

    try:
        count, faults = refuted(program, plan, evaluation)
    except RequirementError as error:
        return [Verdict("requirements", False, str(error))]
    if not count and not faults:
        return []
    return [Verdict("requirements", not faults, "\n".join(faults) or f"{count} kept or priced")]


def _differences(planned: Estimate, found: Estimate) -> list[str]:
    names = (
        "step_seconds",
        "lower_seconds",
        "upper_seconds",
        "compute_seconds",
        "collective_seconds",
        "peak_bytes",
    )
    return [
        f"{name}: {getattr(planned, name)} in the file, {getattr(found, name)} priced again"
        for name in names
        if not math.isclose(getattr(planned, name), getattr(found, name), rel_tol=PRICE_TOLERANCE)
    ]


def _collectives(plan: Plan, found: Found) -> Verdict:
    from autoshard.lower.spmd import lower
    from autoshard.lower.verify import verify_collectives
    from autoshard.plan.plan import PlanError

    try:
        comparison = verify_collectives(lower(plan, found.fn, *found.args))
    except PlanError:
        raise
    except Exception as error:  # any JAX error on the user's program becomes the verdict
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        return Verdict("collectives", False, f"the step does not lower with its plan: {reason}")
    text = str(comparison).removeprefix("collectives: ")
    if comparison.agrees:
        text = text.split("\n")[0]
    return Verdict("collectives", comparison.agrees, text)


def _explicit(plan: Plan, program: Program, found: Found, options: argparse.Namespace) -> Verdict:
    from autoshard.lower.spmd import LoweringError, lower
    from autoshard.lower.verify import verify_written

    try:
        comparison = verify_written(lower(plan, found.fn, *found.args, explicit=True))
    except LoweringError as error:
        return Verdict("explicit", None, str(error))
    text = str(comparison).removeprefix("collectives: ")
    if not comparison.agrees:
        return Verdict("explicit", False, text)
    numbers = _numbers(plan, program, found, options, explicit=True)
    return Verdict(
        "explicit", numbers.agrees is not False, f"{text.splitlines()[0]}; {numbers.text}"
    )


def _numbers(
    plan: Plan,
    program: Program,
    found: Found,
    options: argparse.Namespace,
    *,
    explicit: bool = False,
) -> Verdict:
    why = _too_large(plan, program)
    if why:
        return Verdict("numbers", None, why)
    devices = math.prod(plan.mesh.sizes)
    words = [options.plan, found.reference, *(["explicit"] if explicit else [])]
    with ProgressLine(quiet=not is_terminal(sys.stderr)) as line:
        line.within(options.numbers_limit)
        line.show(f"running the step on {counted(devices, 'fake device')}", group="numbers")
        answer = child_json(
            "autoshard.cli.numbers",
            words,
            fake_devices(devices),
            time_limit=options.numbers_limit,
        )
    if isinstance(answer, str):
        return Verdict(
            "numbers", False, f"the step does not run on {counted(devices, 'device')}: {answer}"
        )
    if answer["skipped"]:
        return Verdict("numbers", None, answer["skipped"])
    if answer["differences"]:
        return Verdict("numbers", False, answer["differences"])
    return Verdict(
        "numbers",
        True,
        f"on {counted(devices, 'fake device')} as unsharded, within the dtypes' tolerance",
    )


def _compiled(plan: Plan, found: Found, options: argparse.Namespace) -> list[Verdict]:
    from autoshard.compiler.compiled import compile_plan
    from autoshard.compiler.target import CompileError
    from autoshard.compiler.verdict import judge
    from autoshard.lower.spmd import lower
    from autoshard.machine.file import MachineError

    machine = find_machine(options.machine or plan.machine)
    try:
        compiled = compile_plan(
            lower(plan, found.fn, *found.args),
            machine,
            kind=options.compile,
            use_cache=not options.no_cache,
            time_limit=options.compile_limit,
        )
    except (CompileError, MachineError) as error:
        raise CommandError(str(error)) from error
    verdict = judge(
        plan,
        compiled,
        memory_tolerance=options.memory_tolerance,
        step_tolerance=options.step_tolerance,
    )
    text = "\n".join([*verdict.faults, *str(verdict).split("\n")])
    verdicts = [Verdict("compiled", verdict.agrees, text, verdict.to_json())]
    if options.compile == "gpu":
        verdicts.append(_device(plan, found, options.plan))
    return verdicts


def _device(plan: Plan, found: Found, path: str) -> Verdict:
    """Return the result of a run on real GPUs, in a child process; it never rejects the plan."""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    answer = child_json("autoshard.cli.device", [path, found.reference], environment)
    if isinstance(answer, str):
        return Verdict("device", None, f"the step does not run: {answer}")
    if answer["skipped"]:
        return Verdict("device", None, answer["skipped"])
    from autoshard.plan.text.page import format_bytes, format_seconds

    peak = answer["peak_bytes"]
    held = "" if peak is None else f", {format_bytes(peak)} at the peak"
    text = (
        f"{format_seconds(answer['step_seconds'])} a step, the median of {len(answer['runs'])}, on "
        f"{math.prod(plan.mesh.sizes)} x {answer['device_kind']}{held}; predicted "
        f"{format_seconds(plan.estimate.step_seconds)}"
    )
    return Verdict("device", True, text, answer)


def _too_large(plan: Plan, program: Program) -> str:
    from autoshard.plan.text.page import format_bytes

    devices = math.prod(plan.mesh.sizes)
    if devices > MOST_DEVICES:
        return f"the mesh has {counted(devices, 'device')}; at most {MOST_DEVICES} are imitated"
    size = plan.estimate.peak_bytes * devices
    if size > MOST_BYTES:
        return (
            f"the step needs {format_bytes(size)} on all devices together; at most "
            f"{format_bytes(MOST_BYTES)} is run here{SMALLER}"
        )
    return too_much_work(program)
