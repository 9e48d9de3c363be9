"""Functions that call `jax.shard_map`, as people write them, small, over eight devices.

Each is a function with its arguments. `line` is a mesh of one axis of eight, `grid` of four by two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

Step = tuple[Callable[..., Any], tuple[Any, ...]]


def line() -> Mesh:
    return jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


def grid() -> Mesh:
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def with_gradients(step: Step) -> Step:
    """Loss and gradients of what a step returns, after all its arguments."""
    fn, args = step

    def loss(*given: Any) -> Any:
        return jnp.sum(fn(*given) ** 2)

    return jax.value_and_grad(loss, argnums=tuple(range(len(args)))), args


def cut_batch(*, check: bool = True) -> Step:
    """Every device computes its part of the batch; weights are whole."""

    def part(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w)

    mapped = jax.shard_map(
        part, mesh=line(), in_specs=(P(), P("x")), out_specs=P("x"), check_vma=check
    )
    return mapped, (normal(0, 16, 32), normal(1, 64, 16))


def megatron(*, check: bool = True) -> Step:
    """A perceptron whose hidden units are cut: one sum over the devices."""

    def part(up: Any, down: Any, x: Any) -> Any:
        return lax.psum(jax.nn.gelu(x @ up) @ down, "x")

    specs = P(None, "x"), P("x"), P()
    mapped = jax.shard_map(part, mesh=line(), in_specs=specs, out_specs=P(), check_vma=check)
    return mapped, (normal(0, 16, 64), normal(1, 64, 16), normal(2, 8, 16))


def fully_sharded(*, check: bool = True) -> Step:
    """Weights are gathered where they are used; the batch is cut."""

    def part(up: Any, down: Any, x: Any) -> Any:
        whole = partial(lax.all_gather, axis_name="x", tiled=True)
        return jax.nn.relu(x @ whole(up)) @ whole(down)

    specs = (P("x"),) * 3
    mapped = jax.shard_map(part, mesh=line(), in_specs=specs, out_specs=P("x"), check_vma=check)
    return mapped, (normal(0, 16, 32), normal(1, 32, 16), normal(2, 64, 16))


def experts(*, check: bool = True) -> Step:
    """An expert on each device; a device sends at most four tokens to each, and has them back."""

    def part(w: Any, x: Any) -> Any:
        chosen = jax.nn.one_hot(jnp.argmax(x, axis=-1), 8)
        place = (jnp.cumsum(chosen, axis=0) * chosen).sum(-1).astype(int) - 1
        sent = chosen[:, :, None] * jax.nn.one_hot(place, 4)[:, None]
        rows = lax.all_to_all(jnp.einsum("tec,td->ecd", sent, x), "x", 0, 1, tiled=True)
        rows = jnp.tanh(jnp.einsum("ecd,edf->ecf", rows, w))
        return jnp.einsum("tec,ecd->td", sent, lax.all_to_all(rows, "x", 1, 0, tiled=True))

    specs = P("x"), P("x")
    mapped = jax.shard_map(part, mesh=line(), in_specs=specs, out_specs=P("x"), check_vma=check)
    return mapped, (normal(0, 8, 8, 8), normal(1, 64, 8))


def ring_attention(*, check: bool = True) -> Step:
    """Causal attention; keys and values go round, and masks know whose they are."""
    mapped = jax.shard_map(
        _ring, mesh=line(), in_specs=(P("x"),) * 3, out_specs=P("x"), check_vma=check
    )
    return mapped, tuple(normal(k, 32, 8) for k in range(3))


def _ring(q: Any, k: Any, v: Any) -> Any:
    count, mine = lax.axis_size("x"), lax.axis_index("x")
    around = [(j, (j + 1) % count) for j in range(count)]
    rows = mine * len(q) + jnp.arange(len(q))

    def turn(state: Any, step: Any) -> Any:
        total, norm, top, k, v = state
        columns = (mine - step) % count * len(k) + jnp.arange(len(k))
        scores = jnp.where(rows[:, None] >= columns, q @ k.T, -1e9)
        new = jnp.maximum(top, scores.max(-1))
        weights, old = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
        total, norm = total * old[:, None] + weights @ v, norm * old + weights.sum(-1)
        return (total, norm, new, *(lax.ppermute(one, "x", around) for one in (k, v))), None

    start = v * 0, v[:, 0] * 0, v[:, 0] * 0 - 1e9, k, v
    (total, norm, *_), _ = lax.scan(turn, start, jnp.arange(count))
    return total / norm[:, None]


def in_checkpointed_layers(*, check: bool = True) -> Step:
    """A `shard_map` in the checkpointed body of a scan over layers."""

    def gathered(w: Any, x: Any) -> Any:
        return jax.shard_map(
            lambda w, x: lax.psum(jnp.tanh(x @ w), "x"),
            mesh=line(),
            in_specs=(P("x"), P(None, "x")),
            out_specs=P(),
            check_vma=check,
        )(w, x)

    def step(w: Any, x: Any) -> Any:
        layer = jax.checkpoint(lambda x, w: (x + gathered(w, x), None))
        return lax.scan(layer, x, w)[0]

    return step, (normal(0, 3, 16, 16), normal(1, 8, 16))


def two_axes(*, check: bool = True) -> Step:
    """Batch over one axis of the mesh, hidden units over the other; scaled by a maximum."""

    def part(up: Any, down: Any, x: Any) -> Any:
        y = lax.psum(jnp.sin(x @ up) @ down, "b")
        scale = lax.pmax(lax.stop_gradient(jnp.max(jnp.abs(y))), ("a", "b") if not check else "a")
        return y / scale

    specs = P(None, "b"), P("b"), P("a")
    mapped = jax.shard_map(part, mesh=grid(), in_specs=specs, out_specs=P("a"), check_vma=check)
    return mapped, (normal(0, 16, 32), normal(1, 32, 16), normal(2, 16, 16))


def partly_automatic(*, check: bool = True) -> Step:
    """One axis of the mesh by hand, the other automatic."""

    mapped = jax.shard_map(
        lambda w, x: lax.psum(x @ w, "a"),
        mesh=grid(),
        axis_names={"a"},
        in_specs=(P("a"), P(None, "a")),
        out_specs=P(),
        check_vma=check,
    )
    return lambda w, x: jnp.cos(mapped(w, x)), (normal(0, 16, 8), normal(1, 8, 16))


STEPS: dict[str, Callable[..., Step]] = {
    "cut_batch": cut_batch,
    "megatron": megatron,
    "fully_sharded": fully_sharded,
    "experts": experts,
    "ring_attention": ring_attention,
    "in_checkpointed_layers": in_checkpointed_layers,
    "two_axes": two_axes,
    "partly_automatic": partly_automatic,
}
