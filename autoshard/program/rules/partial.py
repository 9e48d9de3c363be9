"""Partial results, and what may be done to them before they are combined.

A reduction whose dimension is split leaves a partial result on every device. It can be combined
at once, or after a few more ops if these commute with the combination: a sum of reshaped parts is
the reshaped sum, a sum of scaled parts is the scaled sum, a maximum of clamped parts is the clamped
maximum; but a sum of squares is not the square of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoshard.compat import LoweredOp

# Ops that only move elements: they commute with every combination.
_MOVES = frozenset(
    {
        "stablehlo.reshape",
        "stablehlo.transpose",
        "stablehlo.broadcast_in_dim",
        "stablehlo.slice",
        "stablehlo.reverse",
        "stablehlo.optimization_barrier",
    }
)
_COMMUTING = {
    "sum": _MOVES | {"stablehlo.negate", "stablehlo.convert", "stablehlo.real", "stablehlo.imag"},
    "prod": _MOVES | {"stablehlo.convert"},
    "max": _MOVES | {"stablehlo.convert", "stablehlo.maximum", "stablehlo.clamp"},
    "min": _MOVES | {"stablehlo.convert", "stablehlo.minimum", "stablehlo.clamp"},
    "and": _MOVES | {"stablehlo.and"},
    "or": _MOVES | {"stablehlo.or"},
}
_SCALINGS = frozenset({"stablehlo.multiply", "stablehlo.dot_general"})
_SUMS_OF_PARTIALS = frozenset({"stablehlo.add", "stablehlo.subtract"})


def operator_of(op: LoweredOp) -> str | None:
    """How the partial results of a reduction factor of `op` are combined."""
    if op.name in ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.gather"):
        return "sum"
    return op.operator


def commutes(
    op: LoweredOp, operator: str, carriers: Sequence[bool], constants: Mapping[int, float]
) -> bool:
    """Whether partial values that enter `op` (where `carriers` says so) may be combined after it.

    `constants` are the values that are one number in every element.
    """
    if op.name in _COMMUTING[operator]:
        return True
    if operator != "sum":
        return False
    if op.name in _SCALINGS:
        return sum(carriers) == 1
    if op.name == "stablehlo.divide":
        return carriers == [True, False]
    if op.name in _SUMS_OF_PARTIALS:
        return all(carriers)
    if op.name == "stablehlo.select" and not carriers[0]:
        # Out-of-range elements of a gather become NaN or 0 on every device: so does their sum.
        others = [value for value, c in zip(op.operands, carriers, strict=True) if not c][1:]
        fills = [constants.get(value) for value in others]
        return all(fill is not None and (fill == 0 or math.isnan(fill)) for fill in fills)
    return False


def constant_values(ops: Sequence[LoweredOp]) -> dict[int, float]:
    """The values that are one known constant in every element."""
    splats: dict[int, float] = {}
    for op in ops:
        if op.splat is not None:
            splats[op.results[0]] = op.splat
        elif op.name in ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape"):
            known = splats.get(op.operands[0])
            if known is not None:
                splats[op.results[0]] = known
    return splats
