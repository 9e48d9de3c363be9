"""`while` loops test a scalar and carry what lives, and compute what they computed before."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun

from autoshard.program.as_run.loops import plain_loops
from autoshard.program.trace import trace
from tests.program.steps import f, of_kind

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
N = jnp.array([0, 3, 1, 5], dtype=jnp.int32)


def by_element(x, n):
    one = lambda x, n: lax.while_loop(  # noqa: E731
        lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1]) + n), (0, x)
    )[1]
    return jax.vmap(one)(x, n)


def by_two_elements(x, n):
    """Elements of two dimensions, in a loop of their own inside of a loop by element."""

    def one(x, n):
        inner = lambda x: lax.while_loop(  # noqa: E731
            lambda c: (c[0] < n) & (c[1] < 0.5), lambda c: (c[0] + 1, c[1] + 0.125), (0, x)
        )[1]
        turn = lambda c: (c[0] + 2, jax.vmap(inner)(c[1]) * 0.75)  # noqa: E731
        return lax.while_loop(lambda c: c[0] < n, turn, (0, x))[1]

    return jax.vmap(one)(x, n)


def until_small(x, n):
    return lax.while_loop(lambda v: jnp.sum(v * v) > 0.1, lambda v: v * 0.5, x) + n[:, None]


def inside_of_a_scan(x, n):
    return lax.scan(lambda v, m: (until_small(v, n) - m, by_element(v, n).sum()), x, X[:2, :1])


@pytest.mark.parametrize("fn", [by_element, by_two_elements, until_small, inside_of_a_scan])
def test_loops_are_planned_in_a_form_that_computes_the_same(fn):
    closed = jax.jit(fn).trace(X, N).jaxpr
    plain = plain_loops(closed)
    assert plain is not closed
    for one, other in zip(jaxpr_as_fun(plain)(X, N), jaxpr_as_fun(closed)(X, N), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_condition_by_element_is_one_test_and_one_any_a_turn():
    program = trace(by_element, f(4, 3), jax.ShapeDtypeStruct((4,), jnp.int32), trip_counts={0: 6})
    assert [op.trips for op in of_kind(program, "reduce_or")] == [1, 6]
    assert [op.trips for op in of_kind(program, "lt")] == [1, 6]
    assert {op.trips for op in of_kind(program, "select_n")} == {6}


def test_a_condition_on_arrays_runs_once_more_than_the_body():
    program = trace(until_small, f(4, 3), jax.ShapeDtypeStruct((4,), jnp.int32), trip_counts={0: 5})
    sums = of_kind(program, "reduce_sum")
    assert [op.trips for op in sums] == [1, 5]
    assert len({op.line for op in sums}) == 1
    assert sums[0].line.startswith("test_loops.py:")


def test_a_condition_on_scalars_stays_where_it_is():
    closed = jax.jit(counted).trace(X, jnp.int32(3)).jaxpr
    assert plain_loops(closed).jaxpr.eqns == closed.jaxpr.eqns


def counted(x, n):
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]


# -- dead code -------------------------------------------------------------------------------------


def unread_value(x, n):
    """The energy is computed for its gradient alone."""
    energy = lambda v: jnp.sum(jnp.tanh(v) ** 2)  # noqa: E731
    step = lambda c: (c[0] + 1, c[1] - 0.1 * jax.value_and_grad(energy)(c[1])[1])  # noqa: E731
    return lax.while_loop(lambda c: c[0] < n, step, (0, x))[1]


def unread_carry(x, n):
    """A sum goes round that nobody reads, through a carry that only it reads."""
    step = lambda c: (c[0] + 1, jnp.sin(c[1]), c[2] + jnp.sum(c[3]), jnp.exp(c[1]))  # noqa: E731
    return lax.while_loop(lambda c: c[0] < n, step, (0, x, 0.0, x))[1]


def unread_inside(x, n):
    """The same in a loop inside of the body of another, and in a scan."""
    step = lambda c: (c[0] + 1, unread_carry(c[1], n), jnp.sum(c[1]) + c[2])  # noqa: E731
    outer = lambda v: lax.while_loop(lambda c: c[0] < n, step, (0, v, 0.0))[1]  # noqa: E731
    return lax.scan(lambda v, _: (outer(v), None), x, None, length=2)[0]


def read_by_the_condition(x, n):
    """What only the condition reads is not dead code."""
    step = lambda c: (jnp.sin(c[0]), c[1] + jnp.sum(c[0]))  # noqa: E731
    return lax.while_loop(lambda c: c[1] < n, step, (x, 0.0))[0]


@pytest.mark.parametrize(
    ("fn", "sums"),
    [(unread_value, 0), (unread_carry, 0), (unread_inside, 0), (read_by_the_condition, 1)],
)
def test_what_no_result_and_no_condition_needs_is_not_computed(fn, sums):
    number = jax.ShapeDtypeStruct((), jnp.int32)
    program = trace(fn, f(4, 3), number, trip_counts=3)
    assert len(of_kind(program, "reduce_sum")) == sums
    closed = jax.jit(fn).trace(X + 1, jnp.int32(3)).jaxpr
    given = X + 1, jnp.int32(3)
    for one, other in zip(jaxpr_as_fun(plain_loops(closed))(*given), [fn(*given)], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(("layers", "products"), [(1, 1), (2, 3)])
def test_one_turn_computes_no_gradient_for_a_turn_before_it(layers, products):
    def loss(w, x):
        return lax.scan(lambda x, w: (x @ w, None), x, w)[0].sum()

    w, x = jnp.ones((layers, 3, 3)), X
    step = jax.grad(loss)
    assert len(of_kind(trace(step, f(layers, 3, 3), f(4, 3)), "dot_general")) == products
    closed = jax.jit(step).trace(w, x).jaxpr
    np.testing.assert_array_equal(jaxpr_as_fun(plain_loops(closed))(w, x)[0], step(w, x))
