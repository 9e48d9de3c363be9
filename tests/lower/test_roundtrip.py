"""Small programs through the whole pipeline: traced, planned, lowered, and held to both oracles.

Every program is planned three times (the best plan on the toy machine, two random ones); each
lowered module must make the planned collectives and nothing else, and each must compute what the
plain function computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from tests.helpers import MESHES, best_plan, case, concrete_like, moves_by_kind, random_plan

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {}


def f(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def i(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def program(*args: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[fn.__name__] = (fn, args, options)
        return fn

    return keep


@program(f(16, 8), f(8, 32), f(32, 8))
def two_matmuls(x, a, b):
    return jnp.tanh(x @ a) @ b


@program({"w": f(16, 32), "v": f(32, 16)}, f(8, 16), donate_argnums=(0,))
def descent(params, x):
    def loss(p):
        return jnp.mean((jax.nn.relu(x @ p["w"]) @ p["v"] - x) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@program(f(4, 16, 16), f(8, 16))
def scanned_layers(weights, x):
    def layer(h, w):
        return jnp.tanh(h @ w), jnp.sum(h, axis=1)

    return lax.scan(layer, x, weights)


@program(f(4, 16, 16), f(8, 16))
def gradient_of_checkpointed_scan(weights, x):
    @jax.checkpoint
    def layer(h, w):
        return jnp.sin(h @ w), None

    return jax.grad(lambda w: jnp.sum(lax.scan(layer, x, w)[0] ** 2))(weights)


@program(f(16, 16), f(16, 16), f(8, 16))
def gradient_of_checkpointed_blocks(a, b, x):
    block = jax.checkpoint(lambda h, w: jnp.tanh(h @ w) @ w.T)
    return jax.grad(lambda a, b: jnp.sum(block(block(x, a), b)), argnums=(0, 1))(a, b)


@program(f(16, 16), f(8, 16))
def closed_over_in_a_loop(w, x):
    angles = jnp.cos(jnp.arange(16.0))
    return lax.scan(lambda h, k: ((h @ w) * angles * k, h * angles), x, jnp.arange(3.0))


@program(f(8, 16), f(16, 16), trip_counts=5)
def while_loop(x, w):
    def body(state):
        step, h = state
        return step + 1, jnp.tanh(h @ w)

    return lax.while_loop(lambda state: state[0] < 5, body, (0, x))[1]


@program(f(8, 16), f(16, 16), trip_counts=2)
def literals_out_of_bodies(x, w):
    def once(state):
        return jnp.sin(state[0]), False

    def halve(carry, row):
        flag = lax.cond(jnp.sum(row) > 0, lambda: True, lambda: False)
        return (True, jnp.where(flag, 0.5, 1.0) * carry[1] + row), 1.0

    first = lax.while_loop(lambda state: state[1], once, (x, jnp.any(x > 0)))
    each = jax.vmap(
        lambda row: lax.while_loop(lambda c: c[0], lambda c: (False, c[1] + 1), (True, row))
    )
    return first, lax.scan(halve, (False, x[0]), x), each(x)


@program(f(8, 16), f(16, 16), trip_counts=4)
def fori_loop(x, w):
    return lax.fori_loop(0, 4, lambda step, h: jnp.tanh(h @ w) + step, x)


@program(f(8, 16), f(16, 16), i())
def branches(x, w, which):
    return lax.cond(which > 0, lambda: jnp.tanh(x @ w), lambda: x * 2.0)


@program(f(8, 16), i())
def switch_of_three(x, which):
    return lax.switch(which, [jnp.sin, jnp.cos, lambda y: y @ y.T @ y], x)


@program(f(8, 16), f(16, 16))
def nested_jit(x, w):
    inner = jax.jit(lambda y: jnp.exp(-jax.jit(jnp.square)(y)))
    return inner(x @ w) + inner(x)


@program(f(8, 16))
def derivative_rule_forward(x):
    @jax.custom_jvp
    def g(y):
        return jnp.sin(y) * 2

    g.defjvp(lambda p, t: (g(*p), jnp.cos(p[0]) * 2 * t[0]))
    return jax.grad(lambda y: jnp.sum(g(y) ** 2))(x), g(x)


@program(f(8, 16), f(16, 8))
def derivative_rule_reverse(x, w):
    @jax.custom_vjp
    def g(y, v):
        return y @ v

    g.defvjp(lambda y, v: (y @ v, (y, v)), lambda r, t: (t @ r[1].T, r[0].T @ t))
    return jax.grad(lambda v: jnp.sum(jnp.tanh(g(x, v))))(w), g(x, w)


@program(f(8, 16), f(16, 8))
def rules_of_batches_and_checkpoints(x, w):
    @jax.custom_vjp
    def g(y, v):
        return y @ v

    back = lambda r, t: (t @ r[1].T, r[0].T @ t)  # noqa: E731
    g.defvjp(lambda y, v: (y @ v, (y, v)), back, optimize_remat=True)

    @jax.custom_batching.custom_vmap
    def h(y):
        return jnp.cos(y)

    h.def_vmap(lambda size, batched, y: (jnp.cos(y), batched[0]))
    return jax.grad(lambda v: jnp.sum(jnp.tanh(g(x, v))))(w), h(x)


@program(jax.eval_shape(lambda: jax.random.key(0)), f(8, 16))
def typed_key(key, x):
    return x * jax.random.bernoulli(key, 0.5, x.shape) + jax.random.normal(key, x.shape)


@program(jax.ShapeDtypeStruct((2,), jnp.uint32), f(8, 16))
def raw_key(key, x):
    first, second = jax.random.split(key)
    return x + jax.random.uniform(first, x.shape), second


@program(f(8, 16))
def sorted_rows(x):
    return jnp.sort(x, axis=1), jnp.argsort(x, axis=0)


@program(f(8, 16))
def top_of_rows(x):
    return lax.top_k(x, 4)


@program(f(8, 16))
def running_sums(x):
    return jnp.cumsum(x, axis=1), lax.cummax(x, axis=0)


@program(f(8, 16))
def extremes(x):
    return jnp.argmax(x, axis=1), jnp.max(x, axis=0), jnp.min(x), jnp.prod(x, axis=1)


@program(f(8, 16))
def fourier(x):
    return jnp.abs(jnp.fft.fft(x, axis=1))


@program(f(8, 4, 4))
def factorised(x):
    return jnp.linalg.cholesky(x @ jnp.swapaxes(x, 1, 2) + 4 * jnp.eye(4))


@program(f(8, 16), i(), f(8, 4))
def sliced_where_told(x, at, update):
    piece = lax.dynamic_slice(x, (0, at), (8, 4))
    return piece, lax.dynamic_update_slice(x, update, (0, at))


@program(f(32, 16), i(8, 4))
def looked_up(table, tokens):
    return jax.value_and_grad(lambda t: jnp.sum(jnp.tanh(t[tokens])))(table)


@program(f(32, 16), i(8), f(8, 16))
def scattered(table, rows, update):
    return table.at[rows].add(update), table.at[rows].set(update), table.at[rows].max(update)


@program(f(8, 16, 16, 8))
def pooled(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@program(f(8, 8, 8, 4), f(3, 3, 4, 8))
def convolved(x, k):
    numbers = ("NHWC", "HWIO", "NHWC")
    out = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=numbers)
    return jax.nn.gelu(out)


@program(f(8, 16, 16, 3), f(4, 4, 3, 16))
def gradient_of_patches(x, k):
    numbers = ("NHWC", "HWIO", "NHWC")

    def loss(k):
        out = lax.conv_general_dilated(x, k, (4, 4), "VALID", dimension_numbers=numbers)
        return jnp.sum(out**2)

    return jax.grad(loss)(k)


@program(f(8, 16), f(16))
def passed_through(x, unused):
    return x, x, x * 2


@program(f(8, 16), f(8, 8))
def constants_out(x, y):
    return jnp.ones((8, 16)), jnp.arange(8), 3.0, x + jnp.eye(8, 16), {}


@program({}, (), f(), i(8), jax.ShapeDtypeStruct((8,), jnp.bool_), donate_argnums=(3, 4))
def scalars_and_integers(nothing, empty, scale, counts, flags):
    return nothing, empty, scale * 2, counts + 1, ~flags & (counts > 1)


@program(f(0, 16), f(16, 8))
def no_rows(x, w):
    return x @ w, jnp.sum(x)


@program(f(8, 16))
def closed_over_array(x):
    return x @ jnp.asarray(TABLE)


@program(f(8, 12), f(5, 3))
def odd_sizes(x, y):
    return jnp.concatenate([x, x * 2], axis=1), jnp.pad(y, 1), x[:, 2:9], x[::-1]


@program(f(8, 16, dtype=jnp.bfloat16), f(16, 16, dtype=jnp.bfloat16))
def softmax_in_bfloat16(x, w):
    return jax.nn.softmax((x @ w).astype(jnp.float32), axis=-1).astype(jnp.bfloat16)


@program(f(4, 8, 2, 8), f(4, 8, 2, 8), f(4, 8, 2, 8))
def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    mask = jnp.tril(jnp.ones((8, 8), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


TABLE = jnp.arange(128.0).reshape(16, 8) / 100


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_oracles_agree_with_every_plan(name):
    fn, args, options = PROGRAMS[name]
    concrete = concrete_like(args)
    flat, cube = (case(fn, *args, mesh=MESHES[mesh], **options) for mesh in ("2x4", "2x2x2"))
    plans = [best_plan(flat), random_plan(flat, 0), random_plan(cube, 1)]
    for number, plan in enumerate(plans):
        lowered = lower(plan, fn, *args)
        comparison = verify_collectives(lowered)
        assert comparison.agrees, f"plan {number}\n{comparison}"
        if number:
            assert numeric_differences(lowered, fn, concrete) == [], f"plan {number}"


def test_random_plans_use_every_kind_of_move():
    fn, args, options = PROGRAMS["gradient_of_checkpointed_blocks"]
    seen: set[str] = set()
    given = case(fn, *args, mesh=MESHES["2x2x2"], **options)
    for seed in range(6):
        seen |= set(moves_by_kind(random_plan(given, seed)))
    assert {"all_gather", "all_reduce", "reduce_scatter", "all_to_all"} <= seen
