"""The kernels of JAX's flash attention for TPUs, each of them called by itself.

`flash_attention` calls one forward and two backward; which of its results say how the rows of parts
are joined, it does not tell. The functions here do, and take blocks of their own for each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FLASH = "jax.experimental.pallas.ops.tpu.flash_attention"


@dataclass(frozen=True, slots=True)
class FlashOptions:
    """How a kernel of flash attention is called, beside its arrays.

    Attributes:
      causal: whether queries see no keys behind them.
      scale: of the scores.
      debug: whether the compiler shows the kernel.
      tiles: forward the sizes of blocks of the batch, of queries, of keys that are copied and that
        are computed on; for the gradients of keys those of queries that are copied and computed on,
        and those of keys; for that of queries those of queries and the two of keys.
    """

    causal: bool
    scale: float
    debug: bool
    tiles: tuple[int, ...]


def flash_output(arrays: Sequence[Any], options: FlashOptions, *, saved: bool) -> list[Any]:
    """Attention of queries, keys and values `[b, h, s, d]`.

    If `saved`, there are the sums of a row's exponentials and its largest score, too, `[b, h, s]`.
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as module

    batch, rows, keys, keys_inside = options.tiles
    queries, theirs, values = arrays
    found = module._flash_attention_impl(
        *(queries, theirs, values, None, None, saved, options.causal, options.scale),
        *(batch, rows, keys, keys_inside, options.debug),
    )
    return list(found) if saved else [found]


def flash_to_keys(arrays: Sequence[Any], options: FlashOptions) -> list[Any]:
    """The gradients of keys and values.

    Args:
      arrays: queries, keys, values `[b, h, s, d]`, sums and largest scores of whole rows, the
        output's cotangent, and its product with the output, summed over `d`.
      options: of the call.
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as module

    rows, rows_inside, keys, keys_inside = options.tiles
    return list(
        module._flash_attention_bwd_dkv(
            *(*arrays[:3], None, None, *arrays[3:]),
            block_q_major=rows,
            block_q=rows_inside,
            block_k_major=keys,
            block_k=keys_inside,
            **_backward(options),
        )
    )


def flash_to_queries(arrays: Sequence[Any], options: FlashOptions) -> list[Any]:
    """The gradient of queries, of the same arrays."""
    from jax.experimental.pallas.ops.tpu import flash_attention as module

    rows, keys, keys_inside = options.tiles
    found, _ = module._flash_attention_bwd_dq(
        *(*arrays[:3], None, None, *arrays[3:]),
        block_q_major=rows,
        block_k_major=keys,
        block_k=keys_inside,
        **_backward(options),
    )
    return [found]


def _backward(options: FlashOptions) -> dict[str, Any]:
    """What both backward kernels are told beside their blocks."""
    from jax.experimental.pallas.ops.tpu import flash_attention as module

    return {
        "sm_scale": options.scale,
        "causal": options.causal,
        "mask_value": module.DEFAULT_MASK_VALUE,
        "debug": options.debug,
    }
