"""Compares a plan for several meshes with the step on one device, in double precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from autoshard.lower.mpmd.recording import Recording
from autoshard.lower.numbers.double import wide, widened
from autoshard.lower.numbers.numeric import Difference, compare_outputs
from autoshard.lower.verify import DOUBLE_FLOOR, DOUBLE_TOLERANCE
from autoshard.search.meshes.lower import lower_plan
from autoshard.search.meshes.plan import PipelinePlan


def numeric_differences(
    plan: PipelinePlan,
    fn: Callable[..., Any],
    concrete: Sequence[Any],
    *,
    devices: Sequence[Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
) -> tuple[list[Difference], Recording]:
    """Return where a step as planned differs from the step on one device, and a recording.

    It is cut as it is written, since names of what it saves are those of its own types, and each
    program runs in double precision. The step runs twice, so that the recorded run does not include
    compilation.

    Args:
      plan: the plan of this step.
      fn, concrete: the step and its arguments, real arrays.
      devices, donate_argnums: as for `autoshard.search.meshes.lower.lower_plan`.

    Raises:
      PlanError: the plan is for another step.
      LoweringError: there are too few devices.
      NotWidenedError: the step has operations that do not support double precision.
    """
    double = widened(fn, *concrete)
    lowered = lower_plan(
        plan,
        fn,
        *concrete,
        devices=devices,
        donate_argnums=donate_argnums,
        otherwise=lambda program, shapes: widened(program, *shapes),
    )
    with jax.enable_x64(True):
        arguments = wide(concrete)
        expected = jax.jit(double)(*arguments)
        lowered.run(*jax.tree.map(lambda leaf: leaf + 0, arguments))
        result, recording = lowered.record(*arguments)
        differences = compare_outputs(
            expected,
            lowered.whole(result),
            tolerances={"float64": DOUBLE_TOLERANCE, "complex128": DOUBLE_TOLERANCE},
            floor=DOUBLE_FLOOR,
        )
    return differences, recording
