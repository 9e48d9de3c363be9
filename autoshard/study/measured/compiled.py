"""A run's own configuration and our plan of it, both compiled without devices.

XLA:TPU and XLA:GPU compile for machines that are not there (`autoshard.compiler`). Both plans are
lowered and compiled alike, so that the compiler says which of the two is faster. A pipeline and a
machine that no compiler is here for are not compiled, and said so.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.compiler.compiled import compile_plan
from autoshard.compiler.target import CompileError
from autoshard.lower.spmd import LoweringError, lower
from autoshard.machine.machine import Machine
from autoshard.models.training import Step
from autoshard.plan.plan import Plan, PlanError


@dataclass(frozen=True, slots=True)
class Found:
    """What a compiler says of a plan: seconds of a step and bytes of a device."""

    seconds: float
    peak_bytes: float


def compiled(plan: Plan, step: Step, machine: Machine, *, time_limit: float) -> Found | str:
    """The plan compiled for the machine, or why it is not.

    Args:
      plan: of the step on the machine.
      step: what the plan's program was traced from.
      machine: with the flags that the compiler is to have.
      time_limit: seconds.
    """
    try:
        made = compile_plan(lower(plan, step.fn, *step.args), machine, time_limit=time_limit)
    except (CompileError, LoweringError, PlanError) as error:
        return " ".join(str(error).split())[:300]
    if made.timeline is None:
        return f"the compiler's schedule for {machine.name} has no times"
    return Found(made.timeline.seconds, made.memory.peak_bytes)
