"""What `gmm_v2` and `tgmm_v2` compute, in plain JAX: for CPUs, which cannot run their kernels.

Rows that the kernel quantises itself stay as they are here, so that results differ from the
kernel's by its rounding. Rows of no group are zero, where the kernel may leave what was there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax


def plain_product(function: Callable[..., Any], told: Mapping[str, Any]) -> Any:
    """Rows `[m, k]`, each by the matrix `[k, n]` of its group; see `gmm_v2` for all others.

    Args:
      function: `gmm_v2`, whose module knows its activations.
      told: its operands and options, by name.
    """
    rows, matrices = told["lhs"], _unpacked(told)
    if told.get("transpose_rhs"):
        matrices = matrices.mT
    scale = told.get("rhs_scale")
    if scale is not None:
        each = matrices.shape[1] // scale.shape[1]
        matrices = matrices.astype(jnp.float32) * jnp.repeat(scale[:, :, 0], each, axis=1)
        matrices = matrices.astype(rows.dtype)
    sizes = _own_sizes(told, matrices.shape[0])
    around = [(1, 1), (0, 0), (0, 0)]
    out = _product(rows, jnp.pad(matrices.astype(rows.dtype), around), sizes)
    bias = told.get("rhs_bias")
    if bias is not None:
        added = jnp.pad(bias[:, 0].astype(out.dtype), around[:2])
        out = out + jnp.repeat(added, sizes, axis=0, total_repeat_length=rows.shape[0])
    if told.get("fuse_act"):
        module = sys.modules[function.__module__]
        halves = module.interleave_lane(*jnp.split(out, 2, axis=-1))
        out = module.apply_act_fn(halves, told["fuse_act"])
    if told.get("partial_sum") is not None:
        out = out + told["partial_sum"].astype(out.dtype)
    return out.astype(told["preferred_element_type"])


def plain_gradient(function: Callable[..., Any], told: Mapping[str, Any]) -> Any:
    """Of rows `[m, k]` and `[m, n]`, the product `[k, n]` of each group; see `tgmm_v2`."""
    del function
    left, right, groups = told["lhs"], told["rhs"], told["num_actual_groups"]
    sizes = _own_sizes(told, groups)
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    dtype = jnp.promote_types(left.dtype, right.dtype)
    out = lax.ragged_dot_general(
        left.astype(dtype),
        right.astype(dtype),
        sizes,
        numbers,
        preferred_element_type=jnp.float32,
    )[1:-1]
    if told.get("rhs_scale") is not None:
        out = out * told["rhs_scale"]
    if told.get("partial_sum") is not None:
        out = out + told["partial_sum"].astype(out.dtype)
    return out.astype(told["preferred_element_type"])


def _product(rows: Any, matrices: Any, sizes: Any) -> Any:
    return lax.ragged_dot(rows, matrices, sizes, preferred_element_type=jnp.float32)


def _own_sizes(told: Mapping[str, Any], groups: int) -> Any:
    """Sizes of groups: of all rows before the own groups, of these, and of the rest."""
    sizes = told["group_sizes"].astype(jnp.int32)
    offset = told.get("group_offset")
    first = jnp.int32(0) if offset is None else offset.reshape(())
    own = lax.dynamic_slice(sizes, (first,), (groups,))
    before = jnp.sum(jnp.where(jnp.arange(sizes.shape[0]) < first, sizes, 0))
    rest = told["lhs"].shape[0] - before - jnp.sum(own)
    return jnp.concatenate([before[None], own, jnp.maximum(rest, 0)[None]])


def _unpacked(told: Mapping[str, Any]) -> Any:
    """The matrices; of types that are kept in wider ones, their own values.

    What lies packed along a dimension comes apart as the last one of a bit cast, low bits first.
    """
    matrices = told["rhs"]
    if matrices.shape[1 if not told.get("transpose_rhs") else 2] == told["lhs"].shape[1]:
        return matrices
    apart = lax.bitcast_convert_type(matrices, told["rhs_quant_dtype"])
    return jnp.moveaxis(apart, -1, 2).reshape(matrices.shape[0], -1, matrices.shape[2])
