"""Reductions of whole rows run inside of what reads them, where nothing else does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.machine.load import load
from autoshard.program.trace import trace
from autoshard.xla import analyse
from tests.helpers import case

CHIP = load("h100-8").chip


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


def norm(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def also_returned(x: Any) -> Any:
    most = jnp.max(x, axis=-1, keepdims=True)
    powers = jnp.exp(x - most)
    return powers / jnp.sum(powers, axis=-1, keepdims=True), most


def of_columns(x: Any) -> Any:
    return jax.nn.softmax(x, axis=0)


def of_something_else(x: Any, y: Any) -> Any:
    return y / jnp.sum(x, axis=-1, keepdims=True)


def of_the_whole(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.sum(x * x))


def of_two_dimensions(x: Any) -> Any:
    return x / jnp.sum(x, axis=(-2, -1), keepdims=True)


def also_multiplied(x: Any, w: Any) -> Any:
    sums = jnp.sum(x, axis=-1, keepdims=True)
    return x / sums, sums @ w


@pytest.mark.parametrize(
    ("step", "args", "inside"),
    [
        (softmax, [array(64, 256)], ["reduce_max", "reduce_sum"]),
        (norm, [array(64, 256)], ["reduce_sum"]),
        (of_columns, [array(64, 256)], []),
        (also_returned, [array(64, 256)], ["reduce_sum"]),
        (of_something_else, [array(64, 256), array(64, 256)], []),
        (also_multiplied, [array(64, 256), array(1, 8)], []),
        (lambda x: jnp.sum(x, axis=-1), [array(64, 256)], []),
        (of_the_whole, [array(64, 256)], []),
        (of_two_dimensions, [array(8, 64, 256)], []),
    ],
)
def test_what_runs_inside_of_its_readers(step: Any, args: Any, inside: list[str]) -> None:
    program = trace(step, *args)
    rows = analyse(program, CHIP).rows
    found = [op.primitive for op in program.ops if op.index in rows]
    assert found == inside


def test_rows_lie_as_products_write_them() -> None:
    """The maximum is over dimension 1, which the product's result has innermost."""

    def step(a: Any, b: Any) -> Any:
        return jax.nn.softmax((a @ b).T, axis=0)

    program = trace(step, array(64, 32), array(32, 256))
    rows = analyse(program, CHIP).rows
    assert {program.ops[index].primitive for index in rows} == {"reduce_max", "reduce_sum"}


def test_tpus_reduce_by_themselves() -> None:
    assert analyse(trace(softmax, array(64, 256)), load("v5p-8").chip).rows == frozenset()


def test_a_reduction_of_rows_is_free_unless_they_are_cut() -> None:
    given = case(softmax, array(64, 256), mesh={"x": 8}, machine=load("h100-8"))
    prices = given.built.prices
    for op in given.program.ops:
        if op.index not in prices.dataflow.rows:
            continue
        strategies = given.built.op_strategies[int(given.built.classes.op_class[op.index])]
        cut = strategies.reduced.any(axis=1)
        seconds = prices.compute_seconds(op, strategies)
        assert cut.any()
        assert not cut.all()
        assert (seconds[cut] > 0).all()
        assert (seconds[~cut] == 0).all()
