"""Hold a plan to oracles that are not ours.

Level 1: Shardy's own passes turn the lowered module into explicit collectives, with no device;
their kinds, counts, bytes and axes must be those of the plan's moves.
Level 2: the program on (fake) devices computes, in double precision, what the unsharded program
computes (`autoshard.lower.numbers.unsharded`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from autoshard import compat
from autoshard.lower.collectives import explicit_collectives
from autoshard.lower.compare import Comparison, compare
from autoshard.lower.explicit import written_collectives
from autoshard.lower.facts.loop_trips import loop_trips
from autoshard.lower.numbers.numeric import Difference, differences_message
from autoshard.lower.numbers.unsharded import (
    DOUBLE_FLOOR,
    DOUBLE_TOLERANCE,
    Reference,
    numeric_differences,
    reference,
)
from autoshard.lower.spmd import Lowered, lower
from autoshard.plan.plan import Plan
from autoshard.units import counted

__all__ = [
    "DOUBLE_FLOOR",
    "DOUBLE_TOLERANCE",
    "Reference",
    "Verification",
    "numeric_differences",
    "reference",
    "verify",
    "verify_collectives",
    "verify_written",
]


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict: planned against explicit collectives, and differences in numbers.

    Attributes:
      collectives: level 1.
      differences: level 2; None where it was not run, with `skipped` saying why.
    """

    collectives: Comparison
    differences: tuple[Difference, ...] | None
    skipped: str = ""

    @property
    def agrees(self) -> bool:
        """Whether nothing that was checked disagrees."""
        return self.collectives.agrees and not self.differences

    def __bool__(self) -> bool:
        return self.agrees

    def __str__(self) -> str:
        numbers = (
            f"numbers: not run ({self.skipped})"
            if self.differences is None
            else differences_message(list(self.differences))
            if self.differences
            else "numbers: equal to the unsharded run within tolerance"
        )
        return f"{self.collectives}\n{numbers}"


def verify_collectives(lowered: Lowered) -> Comparison:
    """Level 1 for a lowered plan; needs no device."""
    loops = loop_trips(lowered.program)
    found = explicit_collectives(lowered.to_read(), loops=loops)
    return compare(lowered.plan.moves, found)


def verify_written(lowered: Lowered) -> Comparison:
    """Level 1 for a plan that was lowered with `explicit=True`: the calls in its jaxpr.

    Raises:
      LoweringError: the step cannot be written out for one device.
    """
    with compat.no_other_mesh(lowered.mesh):
        jaxpr = jax.make_jaxpr(lowered.fn)(*lowered.in_shapes)
    trips = [loop.trips for loop in loop_trips(lowered.program)]
    found = written_collectives(jaxpr, loop_trips=trips)
    return compare(lowered.plan.moves, found)


def verify(
    plan: Plan,
    fn: Callable[..., Any],
    *args: Any,
    devices: Sequence[Any] | None = None,
    concrete: Any = None,
    explicit: bool = False,
) -> Verification:
    """Verify `plan` for `fn(*args)`.

    Args:
      plan, fn, args: as for `autoshard.lower`.
      devices: where to run level 2; default, the devices that JAX sees if there are enough.
      concrete: arguments with real arrays for level 2, of the shapes of `args`. Without them, level
        2 is not run.
      explicit: verify the step that is written out for one device: level 1 reads its own calls.

    Raises:
      PlanError: the plan is for another program.
    """
    lowered = lower(plan, fn, *args, devices=devices, explicit=explicit)
    comparison = verify_written(lowered) if explicit else verify_collectives(lowered)
    needed = math.prod(plan.mesh.sizes)
    if concrete is None:
        return Verification(comparison, None, "no concrete arguments were given")
    if devices is None and len(jax.devices()) != needed:
        skipped = f"the mesh needs {counted(needed, 'device')}, JAX sees {len(jax.devices())}"
        return Verification(comparison, None, skipped)
    return Verification(comparison, tuple(numeric_differences(lowered, fn, concrete)))
