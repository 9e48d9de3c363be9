"""Functions that compute the same are told from those that do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.program.kernels.known.alike import compute_alike
from autoshard.program.kernels.known.constants import Constants

X = jnp.ones((4, 8))


def traced(fn: Callable[..., Any], *arrays: Any) -> Any:
    return jax.make_jaxpr(fn)(*(arrays or (X,)))


def summed(x: Any, start: float = 0.0, sign: float = 1.0) -> Any:
    """A loop of which the constants are written in one way or another."""

    def turn(total: Any, row: Any) -> tuple[Any, None]:
        return total + sign * row, None

    return lax.scan(turn, jnp.full(x.shape[1], start), x)[0]


def chosen(x: Any, most: float = 2.0) -> Any:
    return lax.cond(x[0, 0] > 0, lambda x: x * most, lambda x: x - most, x)


def repeated(x: Any, turns: int = 3) -> Any:
    return lax.while_loop(lambda at: at[0] < turns, lambda at: (at[0] + 1, at[1] * 2), (0, x))[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 3, lambda x: jax.jit(lambda x, y: x + y)(x, jnp.float32(1) + 2)),
        (lambda x: x * jnp.arange(8), lambda x: x * np.arange(8)),
        (lambda x: (x * 2, x * 2), lambda x: (lambda y: (y, y))(x * 2)),
        (summed, lambda x: jax.jit(summed)(x, 1.0 - 1)),
        (jax.jit(repeated), repeated),
        (jax.jit(chosen), chosen),
    ],
)
def test_calls_constants_and_what_is_written_twice_make_no_difference(one: Any, other: Any) -> None:
    assert compute_alike(traced(one), traced(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 3, lambda x: x + 4),
        (lambda x: x * jnp.arange(8), lambda x: x * jnp.arange(8)[::-1]),
        (lambda x: x - x.T.T * 2, lambda x: x * 2 - x),
        (lambda x: x.astype(jnp.int32), lambda x: x.astype(jnp.int16)),
        (summed, partial(summed, start=1.0)),
        (summed, partial(summed, sign=-1.0)),
        (lambda x: summed(x), lambda x: summed(x[::-1])),
        (repeated, partial(repeated, turns=4)),
        (chosen, partial(chosen, most=3.0)),
        (lambda x: x, lambda x: (x, x)),
    ],
)
def test_others_are_told_apart(one: Any, other: Any) -> None:
    assert not compute_alike(traced(one), traced(other))


def test_inputs_are_told_apart_by_their_place() -> None:
    assert not compute_alike(traced(jnp.subtract, X, X), traced(lambda x, y: y - x, X, X))


def test_a_value_is_a_constant_where_no_input_decides_it_in_any_call() -> None:
    """Of a body that is called with one constant and with another, what both decide is unknown."""
    product = jax.jit(lambda x, y: (x * y, y + 1))

    def fn(x: Any) -> Any:
        first, second = product(x, jnp.float32(2))
        return lax.scan(lambda c, row: (c + row * second, None), first[0], x)[0], product(
            x, x[0, 0]
        )

    closed = traced(fn)
    constants = Constants(closed)
    calls = [one for one in closed.jaxpr.eqns if one.params.get("name") == "<lambda>"]
    (loop,) = (one for one in closed.jaxpr.eqns if one.primitive.name == "scan")
    assert constants.of(calls[0].outvars[1]) == 3
    assert constants.of(calls[0].outvars[0]) is None
    assert constants.of(calls[1].outvars[1]) is None
    inside = loop.params["jaxpr"].jaxpr.invars
    assert [constants.of(var) for var in inside] == [3, None, None]
    body = calls[0].params["jaxpr"].jaxpr
    assert constants.of(body.invars[1]) is None


def test_parts_of_a_shard_map_have_the_constants_that_no_axis_cuts() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    given = jnp.arange(4.0)

    def fn(x: Any) -> Any:
        inside = jax.shard_map(
            lambda x, whole, part: (x + whole.sum() + part.sum(), lax.axis_index("x")[None]),
            mesh=mesh,
            in_specs=(jax.P("x"), jax.P(), jax.P("x")),
            out_specs=(jax.P("x"), jax.P("x")),
        )
        return inside(x, given, given)

    closed = traced(fn)
    constants = Constants(closed)
    (call,) = closed.jaxpr.eqns
    body = call.params["jaxpr"]
    known = [constants.of(var) is not None for var in getattr(body, "jaxpr", body).invars]
    assert known == [False, True, False]
    assert constants.of(call.outvars[1]) is None


def test_what_all_parts_leave_alike_is_known_to_those_that_are_given_it_so() -> None:
    """And the whole of it to others; but not to parts that another axis cuts."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

    def mapped(fn: Any, given: Any, left: Any) -> Any:
        specs = {"in_specs": given, "out_specs": left}
        return jax.shard_map(fn, mesh=mesh, check_vma=False, **specs)

    def fn(x: Any) -> Any:
        made = mapped(lambda x: jnp.arange(3) * 2, jax.P(), jax.P(("x", "y")))(x)
        specs = jax.P(("x", "y")), jax.P(("y", "x")), jax.P()
        return mapped(lambda *parts: [one.sum() for one in parts], specs, jax.P())(made, made, made)

    closed = traced(fn)
    constants = Constants(closed)
    first, second = closed.jaxpr.eqns
    np.testing.assert_array_equal(constants.of(first.outvars[0]), [0, 2, 4] * 4)
    body = second.params["jaxpr"]
    inside = [constants.of(var) for var in getattr(body, "jaxpr", body).invars]
    np.testing.assert_array_equal(inside[0], [0, 2, 4])
    assert inside[1] is None
    np.testing.assert_array_equal(inside[2], [0, 2, 4] * 4)
