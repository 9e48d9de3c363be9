"""`autoshard verify` of a plan for several meshes.

order        the simulator finds the order valid, within the memory limit, and as long as in the
             file
numbers      on fake CPU devices the step computes the same numbers as on one device; --trace FILE
             saves the times of every program and transfer there
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from autoshard.cli.common import (
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
from autoshard.cli.outputs import TRACE, require_outputs
from autoshard.units import counted, listed, them

if TYPE_CHECKING:
    from autoshard.models.find import Found
    from autoshard.models.providers import Target
    from autoshard.search.meshes.plan import PipelinePlan


def is_for_meshes(path: str) -> bool:
    """Return whether a file holds a plan for several meshes."""
    from autoshard.files import FileError, read_json
    from autoshard.search.meshes.plan import KIND

    try:
        data = read_json(path, "the plan")
    except FileError:
        return False  # the reader of plans reports the reason
    return isinstance(data, dict) and data.get("kind") == KIND


def verdicts_of(options: argparse.Namespace) -> list[Verdict]:
    """Return the verdicts on a plan for several meshes.

    Raises:
      CommandError: an option applies only to one mesh, or a plan or program cannot be read.
    """
    from autoshard.plan.plan import PlanError
    from autoshard.search.meshes.plan import PipelinePlan

    given = {"--machine": options.machine, "--explicit": options.explicit}
    refused = [name for name, value in (given | {"--compile": options.compile}).items() if value]
    if refused:
        raise CommandError(
            f"a plan for several meshes is verified without {listed(refused)}: leave "
            f"{them(refused)} out"
        )
    require_outputs(options, trace=TRACE)
    try:
        plan = PipelinePlan.load(options.plan)
    except PlanError as error:
        raise CommandError(str(error)) from error
    return [_order(plan, options.plan), _numbers(plan, options)]


def step_of(plan: PipelinePlan, reference: str) -> Found:
    """Return the step of a plan, with its number of microbatches.

    Raises:
      CommandError: there is no such program.
    """
    from autoshard.models.find import ProgramError, find, size_names
    from autoshard.models.trusted import remember

    try:
        sizes = size_names(reference)
        given = {"microbatches": plan.microbatches} if "microbatches" in sizes else {}
        found = find(reference, given, machine=_target(plan))
        remember(reference)
        return found
    except ProgramError as error:
        raise CommandError(str(error)) from error


def _target(plan: PipelinePlan) -> Target | None:
    """What a program may depend on; None where a machine of the plan is not known here."""
    from autoshard.machine.file import MachineError
    from autoshard.models.providers import Target

    try:
        return Target.of_all(plan.machines)
    except MachineError:
        return None


def _order(plan: PipelinePlan, path: str) -> Verdict:
    from autoshard.files import read_json
    from autoshard.plan.text.page import format_bytes, format_seconds
    from autoshard.solve.schedule.faults import ScheduleError

    try:
        found, peaks = plan.step_seconds, plan.peak_bytes
    except ScheduleError as error:
        return Verdict("order", False, str(error))
    written = read_json(path, "the plan")["step_seconds"]
    if not math.isclose(found, written, rel_tol=PRICE_TOLERANCE):
        return Verdict(
            "order",
            False,
            f"the step takes {format_seconds(found)}, the file says {format_seconds(written)}",
        )
    over = [
        f"mesh {mesh} takes {format_bytes(peak)} of a device, its limit is {format_bytes(limit)}"
        for mesh, (peak, limit) in enumerate(zip(peaks, plan.memory_limit, strict=True))
        if peak > limit * (1 + PRICE_TOLERANCE)
    ]
    hosted = plan.host_bytes
    over += [
        f"mesh {mesh} takes {format_bytes(peak)} of its hosts for each device; they have "
        f"{format_bytes(limit)}"
        for mesh, (peak, limit) in enumerate(zip(hosted, plan.host_limit, strict=False))
        if peak > limit * (1 + PRICE_TOLERANCE)
    ]
    if over:
        return Verdict("order", False, "\n".join(over))
    tasks = sum(map(len, plan.order))
    there = f", {format_bytes(max(hosted))} of its host" if any(hosted) else ""
    return Verdict(
        "order",
        True,
        f"{counted(tasks, 'task')}, {format_seconds(found)} a step, "
        f"{format_bytes(max(peaks))} of a device{there}",
    )


def _numbers(plan: PipelinePlan, options: argparse.Namespace) -> Verdict:
    reference = program_of(options, plan.program)
    devices = sum(math.prod(shape.sizes) for shape in plan.shapes)
    why = _too_large(plan, step_of(plan, reference), devices)
    if why:
        return Verdict("numbers", None, why)
    words = [options.plan, reference, *([options.trace] if options.trace else [])]
    answer = child_json(
        "autoshard.cli.meshes.numbers",
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
    text = (
        f"on {counted(devices, 'fake device')} as on one, in double "
        f"precision\n{answer['recording']}"
    )
    return Verdict("numbers", True, text)


def _too_large(plan: PipelinePlan, found: Found, devices: int) -> str:
    from autoshard.plan.text.page import format_bytes
    from autoshard.program.trace import trace

    if devices > MOST_DEVICES:
        return f"the meshes have {counted(devices, 'device')}; at most {MOST_DEVICES} are imitated"
    sizes = [math.prod(shape.sizes) for shape in plan.shapes]
    peaks = zip(plan.peak_bytes, plan.host_bytes, sizes, strict=True)
    size = sum((peak + hosted) * count for peak, hosted, count in peaks)
    if size > MOST_BYTES:
        return (
            f"the step needs {format_bytes(size)} on all devices together; at most "
            f"{format_bytes(MOST_BYTES)} is run here{SMALLER}"
        )
    program = trace(found.fn, *found.args, **found.options)
    return too_much_work(program)
