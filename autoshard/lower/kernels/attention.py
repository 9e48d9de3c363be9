"""cuDNN's fused attention on one device's part, and the same in plain JAX where there is no GPU.

cuDNN runs on GPUs alone. On CPU, where plans are held to the numbers of the unsharded step, a call
of it is computed as it is written: scores in float32 (or wider), mask, softmax, weighted sum; the
backward pass by the formulas of FlashAttention-2 (https://arxiv.org/abs/2307.08691, algorithm 2)
from the same log-sum-exp. What is compared is so the cut, not cuDNN's rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from autoshard import compat
from autoshard.lower.kernels.ring import RingPlace, ring_backward, ring_forward
from autoshard.lower.parts.cut import Cut
from autoshard.program.kernels.ring import length_dimension

MASKED = -1e30


def run_attention(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The results of cuDNN's attention on one device, from its parts of the operands.

    Where the sequence is cut, keys and values go round (`autoshard.lower.kernels.ring`).
    """

    def of(call: Call) -> Callable[..., list[Any]]:
        return lambda *given: attention_in_parts(equation, given, cut, call)

    if why_not_plain(equation):
        return of(compat.bind_fused_attention)(*arrays)
    return list(
        lax.platform_dependent(
            *arrays, cpu=of(plain_attention), default=of(compat.bind_fused_attention)
        )
    )


Call = Callable[[Any, Sequence[Any], "bool | None"], Sequence[Any]]
"""Results of an equation's attention on other arrays: under its own mask (None), a causal one or
none; then with the log-sum-exp."""


def attention_in_parts(equation: Any, arrays: Sequence[Any], cut: Cut, call: Call) -> list[Any]:
    """The same with any call in the place of cuDNN's."""
    said = compat.fused_attention(equation)
    length = length_dimension(said)
    axes = tuple(axis for axis in cut.axes(0, length) if cut.devices.sizes[axis] > 1)
    if not axes:
        return list(call(equation, arrays, None))
    place = RingPlace(cut.devices, axes, length, said.causal)
    rest = arrays[3:10]
    if not said.backward:

        def attend(*given: Any) -> Any:
            *three, causal = given
            return call(equation, [*three, *rest], causal)

        count = len(equation.outvars)
        return ring_forward(place, arrays[:3], attend, lambda made: made[:count])

    def derive(rows: Sequence[Any], keys: Sequence[Any], causal: bool) -> Any:
        queries, *others = rows
        found = call(equation, [queries, *keys, *rest, *others], causal)
        return found[:1], found[1:3]

    rows, dims = [arrays[0], *arrays[10:13]], (length, place.statistic, length, length)
    to_queries, to_keys = ring_backward(place, rows, dims, arrays[1:3], derive)
    return [*to_queries, *to_keys]


def opaque_attention(equation: Any, arrays: Sequence[Any], cut: Cut) -> Sequence[Any]:
    """`run_attention` with opaque calls, for platforms that have no cuDNN: to be read, not run."""
    length = length_dimension(compat.fused_attention(equation))
    name, backward = equation.primitive.name, compat.fused_attention(equation).backward

    def called(equation: Any, arrays: Sequence[Any], causal: bool | None) -> Sequence[Any]:
        avals = [var.aval for var in equation.outvars]
        if causal is None:
            shapes = list(map(compat.shape_struct, avals, cut.local_results))
        elif backward:
            shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in arrays[:3]]
        else:
            batch, heads, rows = (arrays[0].shape[d] for d in (0, 3 - length, length))
            out = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
            shapes = [out, jax.ShapeDtypeStruct((batch, heads, rows), jnp.float32)]
        return jax.ffi.ffi_call(name, shapes)(*arrays)

    return attention_in_parts(equation, arrays, cut, called)


def why_not_plain(equation: Any) -> str:
    """Why a call of cuDNN has no equal in plain JAX, or an empty string."""
    call = compat.fused_attention(equation)
    odd = {
        "dropout": call.dropout > 0,
        "packed sequences": call.packed,
        "paged keys": call.paged,
        "a score_mod": call.modified,
    }
    found = " and ".join(name for name, there in odd.items() if there)
    return f"cuDNN attention with {found} has no equal in plain JAX" if found else ""


def plain_attention(equation: Any, arrays: Sequence[Any], causal: bool | None = None) -> list[Any]:
    """What cuDNN computes for an equation that has an equal in plain JAX (`why_not_plain`).

    If `causal` is given, the mask is so, and there is the log-sum-exp, too.
    """
    call, count = compat.fused_attention(equation), len(equation.outvars)
    if causal is not None:
        call, count = replace(call, causal=causal), 3 if call.backward else 2
    queries, keys, values, bias, *lengths = arrays[:6]
    if call.heads_first:
        queries, keys, values = (jnp.swapaxes(one, 1, 2) for one in (queries, keys, values))
    inside = _Inside(call, queries, keys, values, bias, lengths)
    if not call.backward:
        out, log_sum = inside.forward()
        out = jnp.swapaxes(out, 1, 2) if call.heads_first else out
        return [out, log_sum][:count]
    log_sum, out, error = arrays[10:13]
    if call.heads_first:
        out, error = jnp.swapaxes(out, 1, 2), jnp.swapaxes(error, 1, 2)
    *gradients, to_bias = inside.backward(log_sum, out, error)
    if call.heads_first:
        gradients = [jnp.swapaxes(one, 1, 2) for one in gradients]
    return [*gradients, to_bias][:count]


class _Inside:
    """Scores `[b, k, g, t, s]` of queries `[b, t, n, h]` and keys `[b, s, k, h]`."""

    def __init__(
        self,
        call: compat.FusedAttention,
        queries: Any,
        keys: Any,
        values: Any,
        bias: Any,
        lengths: Sequence[Any],
    ) -> None:
        _, length, heads, _ = queries.shape
        self.call, self.dtype = call, queries.dtype
        self.scale = np.float32(call.scale)  # one number, whatever the precision
        self.wide = jnp.promote_types(jnp.float32, queries.dtype)
        self.kv_heads = keys.shape[2]
        self.group = heads // self.kv_heads
        self.queries = self._grouped(queries)
        self.keys, self.values = keys, values
        self.bias_shape, self.bias_dtype = bias.shape, bias.dtype
        scores = self._of("btkgh,bskh->bkgts", self.queries, keys) * self.scale
        if call.bias:
            wide = jnp.broadcast_to(
                bias.astype(self.wide), (*bias.shape[:1], heads, *bias.shape[2:])
            )
            scores = scores + wide.reshape(
                bias.shape[0], self.kv_heads, self.group, *bias.shape[2:]
            )
        self.scores = jnp.where(self._visible(length, keys.shape[1], lengths), scores, MASKED)

    def _of(self, equation: str, *arrays: Any) -> Any:
        return jnp.einsum(equation, *arrays, preferred_element_type=self.wide)

    def _grouped(self, array: Any) -> Any:
        return array.reshape(*array.shape[:2], self.kv_heads, self.group, array.shape[-1])

    def _visible(self, queries: int, keys: int, lengths: Sequence[Any]) -> Any:
        row = lax.broadcasted_iota(jnp.int32, (queries, keys), 0)
        column = lax.broadcasted_iota(jnp.int32, (queries, keys), 1)
        seen = jnp.ones((queries, keys), bool)
        if self.call.causal:
            seen &= column <= row
        if self.call.window is not None:
            seen &= column > row - self.call.window
        if not self.call.padded:
            return seen
        of_queries, of_keys = (one[:, None, None, None, None] for one in lengths)
        return seen & (row < of_queries) & (column < of_keys)

    def forward(self) -> tuple[Any, Any]:
        """The output `[b, t, n, h]` and the log-sum-exp `[b, n, t]`."""
        log_sum = jax.nn.logsumexp(self.scores, axis=-1)
        shares = jnp.exp(self.scores - log_sum[..., None]).astype(self.dtype)
        out = self._of("bkgts,bskh->btkgh", shares, self.values).astype(self.dtype)
        batch, length = out.shape[:2]
        return out.reshape(batch, length, -1, out.shape[-1]), log_sum.reshape(batch, -1, length)

    def backward(self, log_sum: Any, out: Any, error: Any) -> tuple[Any, Any, Any, Any]:
        """The gradients of queries, keys, values and bias."""
        batch, _, length = log_sum.shape
        out, error = self._grouped(out), self._grouped(error)
        offset = jnp.moveaxis(jnp.sum(error.astype(self.wide) * out.astype(self.wide), -1), 1, 3)
        log_sum = log_sum.reshape(batch, self.kv_heads, self.group, length, 1)
        shares = jnp.exp(self.scores - log_sum)
        to_values = self._of("bkgts,btkgh->bskh", shares.astype(self.dtype), error)
        inner = self._of("btkgh,bskh->bkgts", error, self.values) - offset[..., None]
        to_scores = shares * inner
        short = to_scores.astype(self.dtype)
        to_queries = self._of("bkgts,bskh->btkgh", short, self.keys) * self.scale
        to_keys = self._of("bkgts,btkgh->bskh", short, self.queries) * self.scale
        to_queries = to_queries.reshape(batch, length, -1, to_queries.shape[-1])
        to_bias = None
        if self.call.bias:
            to_bias = to_scores.reshape(batch, -1, *to_scores.shape[3:])
            summed = [d for d, size in enumerate(self.bias_shape) if size < to_bias.shape[d]]
            to_bias = jnp.sum(to_bias, axis=summed, keepdims=True).astype(self.bias_dtype)
        short = [one.astype(self.dtype) for one in (to_queries, to_keys, to_values)]
        return *short, to_bias
