"""Seconds of one operation on one chip, from its arithmetic and its memory traffic.

A chip computes and moves memory at the same time, so an operation of ``F`` FLOP that moves ``Q``
bytes to and from device memory takes

    seconds = launch + max( F / (peak * efficiency),  Q / (bandwidth * efficiency) ).

The peak depends on the unit and the dtype. Matmuls and convolutions run on the matrix unit at
JAX's default precision: a float32 matmul is a single bfloat16 pass on TPU and TF32 on NVIDIA GPUs
since Ampere, which is what the presets' `float32` rates are
(https://docs.jax.dev/en/latest/jax.lax.html#jax.lax.Precision). At `highest` precision a TPU makes
six passes, a GPU computes in true float32: divide the FLOP rate accordingly, or multiply `flops`.
All else runs on the vector unit, in float32.

Small products reach less: where the chip says so, `efficiency` is a curve over their FLOP.

The launch term keeps every operation dearer than nothing, which a search needs: free operations
make ties, and ties hide moves. Source: Williams, Waterman, Patterson, "Roofline", CACM 2009;
https://jax-ml.github.io/scaling-book/roofline/.
"""

from __future__ import annotations

from typing import Literal, overload

import numpy as np

from autoshard.machine.chip import Chip

Unit = Literal["matrix", "vector"]


@overload
def op_seconds(
    chip: Chip, flops: float, bytes: float, dtype: str = ..., *, unit: Unit = ...
) -> float: ...
@overload
def op_seconds(
    chip: Chip,
    flops: float | np.ndarray,
    bytes: float | np.ndarray,
    dtype: str = ...,
    *,
    unit: Unit = ...,
) -> float | np.ndarray: ...
def op_seconds(
    chip: Chip,
    flops: float | np.ndarray,
    bytes: float | np.ndarray,
    dtype: str = "bfloat16",
    *,
    unit: Unit = "matrix",
) -> float | np.ndarray:
    """Return the seconds of one operation on one chip.

    Args:
      chip: the accelerator.
      flops: FLOP of the local part (a multiply-add is two); a number or an array.
      bytes: bytes that the local part reads from and writes to device memory.
      dtype: of the operands, as JAX names it; it selects the matrix unit's peak.
      unit: "matrix" for matmuls and convolutions, "vector" for all else.

    Raises:
      ValueError: no such unit, or negative FLOP or bytes.

    >>> from autoshard.machine import load
    >>> chip = load("v5p-1").chip
    >>> f"{op_seconds(chip, 2 * 4096**3, 3 * 2 * 4096**2) * 1e6:.0f} us"
    '333 us'
    """
    if unit not in ("matrix", "vector"):
        raise ValueError(f"there is no unit {unit!r}; use 'matrix' or 'vector'")
    if np.min(flops) < 0 or np.min(bytes) < 0:
        raise ValueError(
            f"work of {np.min(flops)} FLOP and {np.min(bytes)} bytes; give counts of 0 or more"
        )
    rate = chip.vector_flops
    if unit == "matrix":
        rate = chip.matmul_flops(dtype) * chip.matmul_efficiency * chip.product_share(flops)
    busy = np.maximum(flops / rate, bytes / chip.memory_rate)
    seconds = chip.launch_seconds + busy
    return seconds if isinstance(seconds, np.ndarray) else float(seconds)
