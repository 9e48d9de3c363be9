"""What a choice saves, computes again and sends to the host, as plans and messages say it."""

from __future__ import annotations

from collections.abc import Collection

from autoshard.plan.records import KeptValue
from autoshard.program.flops import is_matrix_op
from autoshard.program.keep import Residuals
from autoshard.program.layout import short_dtype


def kept_values(
    residuals: Residuals,
    chosen: Collection[str],
    away: Collection[str],
    *,
    every: bool = False,
) -> tuple[KeptValue, ...]:
    """What is saved, and the products that are computed again.

    Args:
      chosen: names of what is saved.
      away: those of stacks in the memory of the host.
      every: whether all that is computed again is meant, not products alone.
    """
    saved = set(residuals.on_stacks(chosen))
    again = set(residuals.recomputed(chosen))
    return tuple(
        KeptValue(
            name=one.name,
            type=f"{short_dtype(one.dtype)}[{','.join(map(str, one.shape))}]",
            turns=one.turns,
            bytes=one.bytes,
            lines=one.lines,
            label=one.label,
            saved=one.name in saved,
            offloaded=one.name in away,
        )
        for one in residuals.values
        if one.name in saved or (one.name in again and (every or is_matrix_op(one.primitive)))
    )


def stacked_bytes(residuals: Residuals, chosen: Collection[str], away: Collection[str]) -> float:
    """Bytes of the stacks that stay on devices, of all devices together; arguments as above."""
    kept = set(residuals.on_stacks(chosen)) - set(away)
    return sum(one.bytes for one in residuals.values if one.name in kept)
