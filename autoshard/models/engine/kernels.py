"""The kernels of a serving engine: one op each, with a rule by which it may be cut.

Engines write by hand what a compiler would make several passes of: attention that never writes
scores, norms that add and cast in one pass, experts of which those alone are read that a token
uses. Sizes are letters: `b` sequences (or tokens), `s` places of the cache, `d` width, `k` heads of
keys, `g` queries to each, `h` and `v` their sizes, `l` a latent, `e` experts, `f` hidden width.

Bodies compute what engines do; prices are what they read and write once, and the FLOP named here.
Experts are hit at random and independently, so that `b` tokens with `a` experts each read

    e (1 - (1 - a / e)^b)

of them in the mean, as each token leaves one out with `1 - a / e`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.program.kernels.ruled import kernel


def hit_experts(experts: int, active: int, tokens: float) -> float:
    """How many of a layer's experts some token uses, in the mean.

    >>> hit_experts(256, 8, 1)
    8.0
    >>> round(hit_experts(8, 2, 16), 2)
    7.92
    """
    return experts * (1.0 - (1.0 - active / experts) ** tokens)


@kernel("b, t d -> b d", replicate=("t",), bytes=lambda ids, table: 4.0 * ids.shape[0]
        * table.shape[1])  # fmt: skip
def look_up(ids: jax.Array, table: jax.Array) -> jax.Array:
    """Rows of a table; read and written once."""
    return table[ids]


def normed(dtype: str) -> Callable[..., Any]:
    """`(x + y, rms_norm(x + y) * scale)`, the latter in a dtype; of `[b, d]`."""

    @kernel("b d, b d, d -> b d, b d", replicate=("d",), flops=0.0)
    def add_and_norm(x: jax.Array, y: jax.Array, scale: jax.Array) -> Any:
        total = x + y
        return total, cast(_norm(total) * scale, dtype)

    return add_and_norm


def norm_alone(dtype: str) -> Callable[..., Any]:
    """`rms_norm(x) * scale` in a dtype; of `[b, d]`."""

    @kernel("b d, d -> b d", replicate=("d",), flops=0.0)
    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        return cast(_norm(x) * scale, dtype)

    return norm


def _norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)


def cast(x: jax.Array, dtype: str) -> jax.Array:
    """`x` in a dtype, with a scale of one."""
    return x.astype(dtype)


def activated(dtype: str, *, gated: bool) -> Callable[..., Any]:
    """`silu(gate) * up` of `[b, 2, f]`, or `gelu(up)` of `[b, 1, f]`, in a dtype; `[b, f]`."""

    @kernel("b c f -> b f", replicate=("c",), flops=0.0)
    def activate(x: jax.Array) -> jax.Array:
        out = jax.nn.silu(x[:, 0]) * x[:, 1] if gated else jax.nn.gelu(x[:, 0])
        return cast(out, dtype)

    return activate


def expert_activated(dtype: str, *, gated: bool) -> Callable[..., Any]:
    """`activated` of `[e, r, c, f]`; `[e, r, f]`."""

    @kernel("e r c f -> e r f", replicate=("c",), flops=0.0)
    def activate(x: jax.Array) -> jax.Array:
        out = jax.nn.silu(x[:, :, 0]) * x[:, :, 1] if gated else jax.nn.gelu(x[:, :, 0])
        return cast(out, dtype)

    return activate


def turned(group: int, cache: str) -> Callable[..., Any]:
    """Rotated queries `[b, k, g, h]`, and keys and values as the cache has them, of
    `[b, k, g + 2, h]`, in one pass."""

    @kernel("b k j h -> b k g h, b k h, b k h", replicate=("j", "g", "h"), flops=0.0)
    def turn(x: jax.Array) -> Any:
        left, right = jnp.split(x[:, :, : group + 1], 2, axis=-1)
        both = jnp.concatenate([-right, left], axis=-1)
        return (
            both[:, :, :group],
            cast(both[:, :, group], cache),
            cast(x[:, :, group + 1], cache),
        )

    return turn


def over_cache(dtype: str) -> Callable[..., Any]:
    """Attention of one query a sequence, `[b, k, g, h]`, over a cache `[b, k, s, h]`."""

    @kernel(
        "b k g h, b k s h, b k s h -> b k g h",
        replicate=("g", "s", "h"),
        flops=lambda queries, keys, _: 4.0 * math.prod(queries.shape) * keys.shape[2],
    )
    def attend(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        wide = queries.astype(jnp.bfloat16)
        scores = jnp.einsum("bkgh,bksh->bkgs", wide, keys.astype(wide.dtype))
        shares = jax.nn.softmax(scores / math.sqrt(queries.shape[-1]), axis=-1)
        return cast(jnp.einsum("bkgs,bksh->bkgh", shares, values.astype(wide.dtype)), dtype)

    return attend


def over_latent(values: int, scale: float) -> Callable[..., Any]:
    """Attention of `[b, n, l]` over a cache `[b, s, l]` of which the first `values` are values."""

    def flops(queries: Any, cache: Any) -> float:
        batch, heads, latent = queries.shape
        return 2.0 * batch * heads * cache.shape[1] * (latent + values)

    @kernel("b n l, b s l -> b n v", replicate=("l", "s", "v"), flops=flops)
    def attend(queries: jax.Array, cache: jax.Array) -> jax.Array:
        wide = cache.astype(jnp.bfloat16)
        scores = jnp.einsum("bnl,bsl->bns", queries, wide) * scale
        shares = jax.nn.softmax(scores, axis=-1)
        return jnp.einsum("bns,bsv->bnv", shares, wide[..., :values])

    return attend


def over_prompt(dtype: str, window: int) -> Callable[..., Any]:
    """Causal attention within prompts: queries `[b, s, k, g, h]` over `[b, s, k, h]`; scores that
    the mask hides are left out."""

    def flops(queries: Any, keys: Any, values: Any) -> float:
        batch, length, heads, group, size = queries.shape
        seen = seen_pairs(length, window)
        return 2.0 * batch * heads * group * seen * (size + values.shape[-1])

    @kernel(
        "b s k g h, b t k h, b t k v -> b s k g v",
        replicate=("s", "t", "g", "h", "v"),
        flops=flops,
    )
    def attend(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        scores = jnp.einsum("bskgh,btkh->bkgst", queries, keys) / math.sqrt(queries.shape[-1])
        places = jnp.arange(queries.shape[1])
        behind = places[:, None] - places
        visible = (behind >= 0) & (behind < window) if window else behind >= 0
        shares = jax.nn.softmax(jnp.where(visible, scores, -1e30), axis=-1)
        return cast(jnp.einsum("bkgst,btkv->bskgv", shares, values), dtype)

    return attend


def seen_pairs(length: int, window: int) -> float:
    """Pairs of a query and a key that a causal mask and a window leave.

    >>> seen_pairs(4, 0), seen_pairs(4, 2)
    (10.0, 7.0)
    """
    reach = min(window or length, length)
    return reach * (reach + 1) / 2.0 + (length - reach) * float(reach)


def shares_of(active: int) -> Callable[..., Any]:
    """The largest of `[b, e]` router outputs, as shares `[b, a]`."""

    @kernel("b e -> b a", replicate=("e", "a"), flops=0.0)
    def shares(x: jax.Array) -> jax.Array:
        return jax.lax.top_k(jax.nn.softmax(x.astype(jnp.float32), axis=-1), active)[0]

    return shares


def experts_in(active: int, experts: int, dtype: str) -> Callable[..., Any]:
    """The first product of the experts that tokens `[b, d]` use, with weights `[e, d, c, f]` and
    the experts' numbers `[e]`; `[e, r, c, f]` for `r` rows an expert, see `uses`."""

    def moved(x: Any, weights: Any, _: Any) -> float:
        read = hit_experts(experts, active, x.shape[0]) / experts
        wide = x.shape[1] * x.dtype.itemsize + 2.0 * math.prod(weights.shape[2:])
        return read * bytes_of(weights) + x.shape[0] * active * wide

    def flops(x: Any, weights: Any, _: Any) -> float:
        return 2.0 * x.shape[0] * active * math.prod(weights.shape[1:])

    @kernel("b d, e d c f, e -> e r c f", replicate=("b", "d", "c", "r"), flops=flops, bytes=moved)
    def first(x: jax.Array, weights: jax.Array, numbers: jax.Array) -> jax.Array:
        tokens = jnp.minimum(uses(numbers, x.shape[0], active, experts) // active, x.shape[0] - 1)
        return narrow_product("erd,edcf->ercf", x[tokens], weights.astype(dtype))

    return first


def experts_out(active: int, experts: int) -> Callable[..., Any]:
    """The second product of experts, of `[e, r, f]` with weights `[e, f, d]`, summed for each token
    by its shares `[b, a]`; `[b, d]`, of which parts of experts and widths give terms."""

    def moved(hidden: Any, weights: Any, _: Any, shares: Any) -> float:
        tokens = shares.shape[0]
        read = hit_experts(experts, active, tokens) / experts
        rows = tokens * active * weights.shape[1] * hidden.dtype.itemsize
        return read * bytes_of(weights) + rows + 2.0 * tokens * weights.shape[2]

    def flops(_: Any, weights: Any, __: Any, shares: Any) -> float:
        return 2.0 * shares.shape[0] * active * math.prod(weights.shape[1:])

    @kernel(
        "e r f, e f d, e, b a -> b d",
        reduction={"e": "sum", "f": "sum"},
        replicate=("r", "d", "b", "a"),
        flops=flops,
        bytes=moved,
    )
    def second(hidden: jax.Array, weights: jax.Array, numbers: Any, shares: jax.Array) -> jax.Array:
        out = narrow_product("erf,efd->erd", hidden, weights.astype(hidden.dtype))
        used = uses(numbers, shares.shape[0], active, experts)
        mine = shares.reshape(-1).at[used].get(mode="fill", fill_value=0)
        total = jnp.zeros((shares.shape[0], out.shape[-1]), out.dtype)
        return total.at[used // active].add(out * mine[..., None].astype(out.dtype), mode="drop")

    return second


def uses(numbers: jax.Array, tokens: int, active: int, experts: int) -> jax.Array:
    """Which uses `[e, r]` come to experts of these numbers, where all have the same: use `u` is
    that of token `u // active`, and of expert `u % experts`. Those beyond all tokens are none."""
    rows = max(math.ceil(tokens * active / experts), 1)
    return jnp.arange(rows) * experts + numbers[:, None]


def narrow_product(equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    """An einsum of operands of one dtype, the weight's, with a result in bfloat16."""
    whole = jnp.issubdtype(weight.dtype, jnp.integer)
    wanted = jnp.int32 if whole else jnp.bfloat16
    out = jnp.einsum(equation, x.astype(weight.dtype), weight, preferred_element_type=wanted)
    return out.astype(jnp.bfloat16)


def bytes_of(array: Any) -> float:
    """Bytes of an array in memory; those of four bits lie two to a byte."""
    bits = 4 if "float4" in str(array.dtype) else 8 * array.dtype.itemsize
    return math.prod(array.shape) * bits / 8.0
