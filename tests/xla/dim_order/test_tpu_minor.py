"""Which dimensions are innermost in memory, where the compiler does not take any."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

from autoshard.machine.load import load
from autoshard.program.trace import trace
from autoshard.xla.dim_order.tpu_minor import innermost_dimensions
from tests.helpers import case


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def shares(queries: jax.Array, keys: jax.Array) -> jax.Array:
    return jnp.exp(jnp.einsum("bqnh,bsnh->bnqs", queries, keys))


def test_what_a_product_reads_and_writes_lies_by_what_is_no_batch_of_it() -> None:
    program = trace(shares, array(128, 20, 4, 8), array(128, 24, 4, 8))
    found = innermost_dimensions(program, [op.primitive == "exp" for op in program.ops])
    by_shape = {program.values[value].shape: dims for value, dims in found.items()}
    assert by_shape == {
        (128, 4, 20, 24): (2, 3),
        (128, 20, 4, 8): (1, 3),
        (128, 24, 4, 8): (1, 3),
    }
    assert len(found) == 4  # the operands, the scores, and their exponentials


def test_products_without_a_batch_lie_anyhow() -> None:
    program = trace(lambda x, w: jnp.tanh(x @ w), array(64, 32), array(32, 16))
    assert not innermost_dimensions(program, [True] * len(program.ops))


def test_scores_of_few_keys_fill_tiles_although_their_batch_would_not_have_to() -> None:
    """128 sequences would fill the lanes of a tile; 24 keys do not."""
    given = case(
        shares,
        array(128, 20, 4, 8),
        array(128, 24, 4, 8),
        mesh={"x": 1},
        machine=load("v5e-1"),
    )
    prices = given.built.prices
    scores = next(v for v in given.program.values if v.shape == (128, 4, 20, 24))
    held = float(prices.held_bytes(scores.index, np.array([[-1]]))[0])
    assert held == pytest.approx(128 * 4 * 24 * 128 * 2)  # of 20 x 24: 24 sublanes, 128 lanes


def test_constants_are_not_taken_for_one_value():
    """Operands without a value (-1), as what has no elements: of a product, and of a transpose."""

    def step(a, b, c):
        return jnp.einsum("bqd,bdk->bqk", a, b), jnp.transpose(c)

    shapes = ((4, 8, 16), (4, 16, 8), (8, 16))
    program = trace(step, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    constant = [replace(op, inputs=(-1,) * len(op.inputs)) for op in program.ops]
    found = innermost_dimensions(replace(program, ops=tuple(constant)), [False] * len(constant))
    (product,) = (op.outputs[0] for op in program.ops if op.primitive == "dot_general")
    assert found == {product: (1, 2)}


def attend(queries: jax.Array, stack: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A loop whose kernel reads slices of a stack, and whose results are stacked."""

    def kernel(left: Any, right: Any, made: Any) -> None:
        made[...] = left[...] + right[...]

    call = pallas.pallas_call(kernel, jax.ShapeDtypeStruct(queries.shape, queries.dtype))

    def turn(queries: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        made = call(queries, keys)
        return jnp.tanh(made), made

    return jax.lax.scan(turn, queries, stack)


def test_kernels_read_and_write_as_dimensions_are_numbered_in_stacks_too() -> None:
    program = trace(attend, array(4, 256, 64), array(8, 4, 256, 64))
    found = innermost_dimensions(program, [False] * len(program.ops))
    (stack,) = (op.outputs[0] for op in program.ops if op.primitive == "scan_stack")
    (call,) = (op for op in program.ops if op.kernel is not None)
    assert found[program.inputs[1]] == found[stack] == (3,)
    assert {found[value] for value in (*call.inputs, *call.outputs)} == {(2,)}


@pytest.mark.parametrize(("denied", "lanes"), [((), 128), (("tpu.kernels-read-as-numbered",), 64)])
def test_heads_of_64_take_128_lanes_where_a_kernel_reads_them(
    denied: tuple[str, ...], lanes: int
) -> None:
    machine = load("v5e-1")
    compiler = replace(machine.chip.compiler, without=frozenset(denied))
    machine = replace(machine, chip=replace(machine.chip, compiler=compiler))
    given = case(attend, array(4, 256, 64), array(8, 4, 256, 64), mesh={"x": 1}, machine=machine)
    stack = given.program.inputs[1]
    held = float(given.built.prices.held_bytes(stack, np.array([[-1]]))[0])
    assert held == 8 * 4 * 256 * lanes * 2
