"""`while` loops whose conditions read arrays, or that carry what nobody reads, are as planned.

The collectives of conditions and bodies are counted as often as they run, by the plan and by
Shardy's passes alike, in annotations and written out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.lower import lower
from autoshard.lower.verify import numeric_differences, verify_collectives, verify_written
from tests.helpers import best_plan, case, random_plan

F32, I32 = jnp.float32, jnp.int32
X, W, N = (
    jax.ShapeDtypeStruct(shape, dtype)
    for shape, dtype in (((64, 32), F32), ((32, 32), F32), ((64,), I32))
)


def by_element(x, w, n):
    one = lambda x, n: lax.while_loop(  # noqa: E731
        lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x)
    )[1]
    return jax.vmap(one)(x @ w, n)


def by_residual(x, w, n):
    """The carry is read in the condition and in the body."""
    return lax.while_loop(lambda v: jnp.sum(v * v) > 4.0, lambda v: jnp.tanh(v @ w) * 0.5, x)


def by_vector(x, w, n):
    """The same with a carry that a product needs whole."""
    return lax.while_loop(lambda v: jnp.sum(v) < 1e6, lambda v: jnp.tanh(v @ w) + v, x[0])


def in_order_and_within(x, w, n):
    """Two loops on one line, the first with a loop in its body."""
    until = lambda bound: lambda v: jnp.max(v) > bound  # noqa: E731
    halve = lambda v: lax.while_loop(until(0.25), lambda v: v * 0.5, v + 1)  # noqa: E731
    return lax.while_loop(until(2.0), halve, x) + lax.while_loop(until(9.0), jnp.sin, x @ w)


def unread_value(x, w, n):
    energy = lambda v: jnp.sum(jnp.tanh(v @ w) ** 2)  # noqa: E731
    step = lambda c: (c[0] + 1, c[1] - 0.1 * jax.value_and_grad(energy)(c[1])[1])  # noqa: E731
    return lax.while_loop(lambda c: c[0] < n[0], step, (0, x))[1]


PROGRAMS = {
    "by_element": (by_element, 5),
    "by_residual": (by_residual, {0: 4}),
    "by_vector": (by_vector, 3),
    "in_order_and_within": (in_order_and_within, [2, 3, 5]),
    "unread_value": (unread_value, {"0": 3}),
}


def planned(name, seed):
    fn, counts = PROGRAMS[name]
    given = case(fn, X, W, N, mesh={"x": 8}, trip_counts=counts)
    return (best_plan(given) if seed is None else random_plan(given, seed)), fn


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_collectives_of_loops_are_counted_as_often_as_they_run(name, seed):
    plan, fn = planned(name, seed)
    annotated = verify_collectives(lower(plan, fn, X, W, N))
    assert annotated.agrees, str(annotated)
    assert not annotated.counted_once
    written = verify_written(lower(plan, fn, X, W, N, explicit=True))
    assert written.agrees, str(written)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", ["by_element", "by_residual", "unread_value"])
def test_loops_compute_what_the_unsharded_ones_do(name, explicit):
    plan, fn = planned(name, None)
    key = jax.random.key(0)
    arguments = (
        jax.random.normal(key, X.shape),
        jax.random.normal(key, W.shape) * 0.1,
        jnp.arange(64, dtype=I32) % 7,
    )
    lowered = lower(plan, fn, X, W, N, explicit=explicit)
    assert numeric_differences(lowered, fn, arguments) == []
