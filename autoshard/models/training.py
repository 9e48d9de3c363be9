"""What the built-in training steps share: losses, the optimizer step, random arguments.

Mixed precision as practised: weights and Adam moments are stored in float32, the model casts each
weight to bfloat16 where it is used (so that a sharded weight can be gathered in bfloat16), and the
cast's transpose returns float32 gradients.

Cross-entropy is `logsumexp(logits) - logits[target]` in float32. The target's logit is selected by
comparing an iota with the target, not by a gather: the form is elementwise plus a sum, so it stays
local under any sharding of the classes, and its gradient is a select rather than a scatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from autoshard.lower.mpmd.accumulate import accumulate_grads


class Step(NamedTuple):
    """A step function, its abstract arguments, and what `jax.jit` is told besides them."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


def abstract(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An array of this shape without its values."""
    return jax.ShapeDtypeStruct(shape, dtype)


def stacked(layer: Any, layers: int, *, scan: bool) -> Any:
    """The weights of `layers` equal layers: one leading dimension for `scan`, else a list."""
    if not scan:
        return [jax.tree.map(lambda leaf: leaf, layer) for _ in range(layers)]
    return jax.tree.map(lambda leaf: abstract(layers, *leaf.shape, dtype=leaf.dtype), layer)


def repeat(
    layer: Callable[..., tuple[Any, Any]],
    carry: Any,
    weights: Any,
    *constants: Any,
    checkpoint: bool = True,
) -> tuple[Any, Any]:
    """Apply `layer(carry, weights, *constants) -> (carry, output)` once per layer.

    Stacked weights are scanned, a list of weights is unrolled (each layer under its own name).
    Outputs come back stacked. With `checkpoint`, a layer keeps only its input for the backward
    pass; scan already keeps the compiler from merging the two computations, an unrolled layer
    needs a barrier. JAX keeps what it traced by function: each call here is a function of its own.
    """
    unrolled = isinstance(weights, list)
    if checkpoint:
        layer = jax.checkpoint(jax.tree_util.Partial(layer), prevent_cse=unrolled)
    if not unrolled:

        def step(carry: Any, one: Any) -> tuple[Any, Any]:
            return layer(carry, one, *constants)

        with jax.named_scope("layers"):
            return lax.scan(step, carry, weights)
    outputs = []
    for index, one in enumerate(weights):
        with jax.named_scope(f"layer_{index}"):
            carry, output = layer(carry, one, *constants)
        outputs.append(output)
    return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)


def project(equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    """An einsum of `x` with a stored weight, in the precision of `x`."""
    return jnp.einsum(equation, x, weight.astype(x.dtype))


def look_up(table: jax.Array, indices: jax.Array) -> jax.Array:
    """Rows of `table`: one gather, whose gradient is one scatter-add.

    Indices are promised to be in range, so that no clamping and no handling of negative indices
    surrounds the gather.
    """
    return table.at[indices].get(mode="promise_in_bounds", wrap_negative_indices=False)


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Layer normalisation over the last dimension, in float32 (https://arxiv.org/abs/1607.06450)."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return (centred * lax.rsqrt(variance + 1e-6) * scale + bias).astype(x.dtype)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean negative log-likelihood of integer `targets` under `logits` (one dimension more)."""
    logits = logits.astype(jnp.float32)
    peak = lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    shifted = logits - peak
    normaliser = jnp.log(jnp.sum(jnp.exp(shifted), axis=-1))
    classes = lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    chosen = jnp.sum(jnp.where(classes == targets[..., None], shifted, 0.0), axis=-1)
    return jnp.mean(normaliser - chosen)


def adamw_step(
    loss: Callable[[Any, Any], jax.Array],
    params: Any,
    batch: Any,
    *,
    learning_rate: float = 3e-4,
    microbatches: int | None = None,
    moments: str = "float32",
) -> Step:
    """The train step `(params, opt_state, batch) -> (loss, params, opt_state)` of `loss` by AdamW.

    AdamW: https://arxiv.org/abs/1711.05101. Parameters and optimizer state are donated. With
    `microbatches`, gradients are accumulated over as many parts of the batch. The first moment is
    kept in the dtype `moments`.
    """
    optimizer = optax.adamw(learning_rate, b1=0.9, b2=0.95, weight_decay=0.1, mu_dtype=moments)
    if microbatches is None:
        value_and_grad = jax.value_and_grad(loss)
    else:
        value_and_grad = accumulate_grads(loss, microbatches=microbatches)

    def train_step(params: Any, opt_state: Any, batch: Any) -> tuple[jax.Array, Any, Any]:
        value, gradients = value_and_grad(params, batch)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(gradients, opt_state, params)
            params = optax.apply_updates(params, updates)
        return value, params, opt_state

    opt_state = jax.eval_shape(optimizer.init, params)
    return Step(train_step, (params, opt_state, batch), {"donate_argnums": (0, 1)})


def parameter_count(params: Any) -> int:
    """The number of scalars in `params`."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


_ZERO = ("bias", "mean", "mu", "nu", "count", "trace", "keys", "values")
_ONE = ("scale", "norm", "variance")


def sample(args: Any, seed: int, bounds: Mapping[str, int] | None = None) -> Any:
    """Random arrays for the abstract `args`; integers lie below the bound of their name.

    Floating-point leaves are normal with the deviation `1 / sqrt(longest dimension)`, or 1 where
    they are data (under a name in `bounds`); optimizer state, caches and biases are zero, scales
    are one. Integers whose name has no bound are zero.
    """
    generator = np.random.default_rng(seed)
    bounds = bounds or {}

    def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        keys = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        name = next((key for key in reversed(keys) if key), "")
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            values = generator.integers(0, bounds.get(name, 1), leaf.shape)
        elif name in bounds:
            values = generator.standard_normal(leaf.shape)
        elif any(key in _ZERO for key in keys) or name.endswith(_ZERO):
            values = np.zeros(leaf.shape)
        elif name.endswith(_ONE):
            values = np.ones(leaf.shape)
        else:
            values = generator.standard_normal(leaf.shape) / math.sqrt(max(leaf.shape, default=1))
        return jnp.asarray(values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, args)
