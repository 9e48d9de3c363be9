"""The kernels of JAX's splash attention for TPUs, each of them called by itself on any mask.

What of a mask is left out, and what is masked within blocks, stands in arrays that belong to one
mask and one size of blocks (`MaskInfo`). Causal masks count places, full ones count nothing.
The library makes these arrays by looking at each block of a mask, whose places it computes one by
one: a sequence of 262,144 tokens has 65,536 blocks of a million places.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPLASH = "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel"


@dataclass(frozen=True, slots=True)
class SplashOptions:
    """How a kernel of splash attention is called, beside its arrays.

    Attributes:
      phase: "fwd", "dkv" or "dq".
      causal: whether queries see no keys behind them.
      shared: whether all heads share one head of keys, which has no dimension then.
      batches: how many dimensions stand before the heads.
      sizes: as the library names them, the sizes of blocks and what is said with them.
      hidden: what hidden scores are set to.
      cap: by what scores are capped, or None.
      small: whether the arrays of the mask have the smallest type that holds them.
      interpret: whether the kernel is interpreted.
    """

    phase: str
    causal: bool
    shared: bool
    batches: int
    sizes: Mapping[str, Any]
    hidden: float
    cap: float | None
    small: bool
    interpret: Any

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of blocks of queries, of keys, and of keys that are computed on."""
        behind = "" if self.phase == "fwd" else f"_{self.phase}"
        names = (f"block_q{behind}", f"block_kv{behind}", f"block_kv{behind}_compute")
        return names[:2] if self.phase == "dq" else names


@functools.cache
def _by_distance(kind: Any) -> Any:
    """A kind of masks by the distance of queries and keys alone, which computes a block once.

    Blocks that are as far from the diagonal are the same, and those that show all or nothing are
    two arrays.
    """

    class ByDistance(kind):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.blocks: dict[Any, Any] = {}

        def __getitem__(self, places: Any) -> Any:
            (top, bottom, _), (left, right, _) = (
                one.indices(size) for one, size in zip(places, self.shape, strict=True)
            )
            shape = bottom - top, right - left
            key = top - left, shape
            if key not in self.blocks:
                found = super().__getitem__(places)
                shown = "all" if found.all() else "some" if found.any() else "none"
                self.blocks[key] = (
                    found if shown == "some" else self.blocks.setdefault((shown, shape), found)
                )
            return self.blocks[key]

    return ByDistance


def causal_mask(rows: int, keys: int) -> Any:
    """The mask by which queries see no keys behind them."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    return _by_distance(masks.CausalMask)((rows, keys))


def local_mask(rows: int, keys: int, window: int) -> Any:
    """The causal mask by which queries look back at so many keys."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    return _by_distance(masks.LocalMask)((rows, keys), (window, 0), 0)


def splash_mask(options: SplashOptions, heads: int, rows: int, keys: int) -> tuple[Any, Any]:
    """The arrays of a mask, and the function that it computes within blocks, or None."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

    one = causal_mask(rows, keys) if options.causal else masks.FullMask((rows, keys))
    backward = options.phase == "dkv"
    process = info.process_mask_dkv if backward else info.process_mask
    blocks = tuple(options.sizes[name] for name in options.blocks[:2])
    more: dict[str, Any] = {"shrink_grid": True} if backward else {}
    return process(
        masks.MultiHeadMask([one] * heads),
        blocks,
        downcast_smem_data=options.small,
        head_shards=1,
        q_seq_shards=1,
        **more,
    )


def splash(arrays: Sequence[Any], options: SplashOptions, *, saved: bool = True) -> list[Any]:
    """What a kernel makes of arrays `[..., h, s, d]` and statistics of rows `[..., h, s]`.

    Args:
      arrays: queries, keys and values; backward also log-sum-exp, the output's cotangent, and its
        product with the output, summed over `d`.
      options: of the call.
      saved: forward, whether there is the log-sum-exp besides the output.
    """
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    module: Any = splash_attention_kernel
    heads, rows, _ = arrays[0].shape[options.batches :]
    mask, function = splash_mask(options, heads, rows, arrays[1].shape[-2])
    common: dict[str, Any] = {
        "mask_value": options.hidden,
        "is_mqa": options.shared,
        "mask_function": function,
        "attn_logits_soft_cap": options.cap,
        "interpret": options.interpret,
    }

    def forward(*parts: Any) -> list[Any]:
        found = module._splash_attention_forward(
            mask,
            *parts,
            None,
            None,
            block_sizes=module.BlockSizes(**options.sizes),
            residual_checkpoint_name=None,
            save_residuals=saved,
            **common,
        )
        return [found[0], found[1][0]] if saved else [found]

    def backward(*parts: Any) -> list[Any]:
        names = ("bq", "bkv", "bkv_compute")[: len(options.blocks)]
        sizes = {name: options.sizes[one] for name, one in zip(names, options.blocks, strict=True)}
        layouts = {f"{one}_layout": module.QKVLayout.HEAD_DIM_MINOR for one in "qkv"}
        given = (*parts[:3], None, None, *parts[3:])
        if options.phase == "dq":
            found = module._splash_attention_bwd_dq(
                *given, mask_info=mask, **sizes, **layouts, **common
            )
            return [found]
        _, *found = module._splash_attention_bwd_dkv(
            *given, mask_info=mask, use_fused_bwd_kernel=False, **sizes, **layouts, **common
        )
        return found

    call: Any = forward if options.phase == "fwd" else backward
    for _ in range(options.batches):
        call = jax.vmap(call)
    return call(*arrays)
