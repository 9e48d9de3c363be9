"""Hold a plan to oracles that are not ours.

Level 1: Shardy's own passes turn the lowered module into explicit collectives, with no device;
their kinds, counts, bytes and axes must be those of the plan's moves.
Level 2: the program on (fake) devices computes, in double precision, what the unsharded program
computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard import compat
from autoshard.lower.collectives import explicit_collectives
from autoshard.lower.compare import Comparison, compare
from autoshard.lower.double import NotWidenedError, wide, widened
from autoshard.lower.explicit import loop_trips, written_collectives
from autoshard.lower.numeric import TOLERANCES, Difference, compare_outputs, differences_message
from autoshard.lower.spmd import Lowered, lower
from autoshard.plan.plan import Plan

DOUBLE_TOLERANCE = 1e-8
DOUBLE_FLOOR = 1e-12
# Soon compiled matters more than fast code; this changes no collective.
_QUICK_ON_CPU = compat.known_flags(
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)


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
    found = explicit_collectives(lowered.lower(platforms=("tpu",)))
    return compare(lowered.plan.moves, found)


def verify_written(lowered: Lowered) -> Comparison:
    """Level 1 for a plan that was lowered with `explicit=True`: the calls in its jaxpr.

    Raises:
      LoweringError: the step cannot be written out for one device.
    """
    jaxpr = jax.make_jaxpr(lowered.fn)(*lowered.in_shapes)
    found = written_collectives(jaxpr, loop_trips=loop_trips(lowered.program))
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
        skipped = f"the mesh needs {needed} devices, JAX sees {len(jax.devices())}"
        return Verification(comparison, None, skipped)
    return Verification(comparison, tuple(numeric_differences(lowered, fn, concrete)))


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What a function returns on one device, to hold several lowered steps to.

    Attributes:
      arguments: with which it was called, in double precision where it could be widened.
      outputs: of the function.
      double: whether it ran in double precision.
    """

    arguments: Sequence[Any]
    outputs: Any
    double: bool


def reference(fn: Callable[..., Any], concrete: Sequence[Any], *, device: Any = None) -> Reference:
    """`fn(*concrete)` on one device (default: the first), in double precision if that can be.

    Rounding neither hides an error nor feigns one there (`autoshard.lower.double`); steps with
    opaque operations run as they are.
    """
    device = jax.local_devices()[0] if device is None else device
    try:
        plain = widened(fn, *concrete)
    except NotWidenedError:
        return _plain_reference(fn, concrete, device)
    with jax.enable_x64(True):
        arguments = wide(concrete)
        return Reference(arguments, _run(plain, arguments, None, device), double=True)


def numeric_differences(
    lowered: Lowered,
    fn: Callable[..., Any],
    concrete: Sequence[Any],
    *,
    expected: Reference | None = None,
) -> list[Difference]:
    """Level 2: where the lowered step and `fn` differ on `concrete` arguments.

    Under `jax.distributed` every process calls it with the same arguments. Steps that cannot be
    widened to double precision are held to the tolerance of their types. `expected` is
    `reference(fn, concrete)`, where that is known.
    """
    device = lowered.mesh.local_devices[0]
    shardings = lowered.in_shardings, lowered.out_shardings
    known = reference(fn, concrete, device=device) if expected is None else expected
    try:
        sharded = widened(lowered.fn, *concrete) if known.double else lowered.fn
    except NotWidenedError:
        sharded, known = lowered.fn, _plain_reference(fn, concrete, device)
    if not known.double:
        actual = _run(sharded, known.arguments, shardings, device)
        return compare_outputs(known.outputs, actual, tolerances=_tolerances(lowered))
    with jax.enable_x64(True):
        actual = _run(sharded, known.arguments, shardings, device)
        return compare_outputs(
            known.outputs,
            actual,
            tolerances={"float64": DOUBLE_TOLERANCE, "complex128": DOUBLE_TOLERANCE},
            floor=DOUBLE_FLOOR,
        )


def _plain_reference(fn: Callable[..., Any], concrete: Sequence[Any], device: Any) -> Reference:
    return Reference(concrete, _run(fn, concrete, None, device), double=False)


def _run(fn: Callable[..., Any], arguments: Any, shardings: Any, device: Any) -> Any:
    options = _QUICK_ON_CPU if device.platform == "cpu" else {}
    if shardings is None:
        return jax.jit(fn, compiler_options=options)(*jax.device_put(arguments, device))
    into, out = shardings
    jitted = jax.jit(fn, in_shardings=into, out_shardings=out, compiler_options=options)
    # From the host: JAX compiles a program to cut an array that lies on a device.
    return jitted(*jax.device_put(jax.tree.map(_on_host, arguments), into))


def _on_host(array: Any) -> Any:
    whole = isinstance(array, jax.Array) and array.is_fully_addressable
    return np.asarray(array) if whole and not _is_key(array) else array


def _is_key(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _tolerances(lowered: Lowered) -> dict[str, float]:
    """Tolerances by dtype: a program that computes in a short type is held to that type's."""
    floats = {value.dtype for value in lowered.program.values if value.dtype in TOLERANCES}
    loosest = max((TOLERANCES[name] for name in floats), default=0.0)
    return dict.fromkeys(floats, loosest)
