"""Products that start from what is there, worked out by hand and checked against brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.cost.step_prices import step_prices
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from autoshard.xla.fusion import fuse
from tests.helpers import toy_machine


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def sums(program: Program) -> dict[int, list[str]]:
    """By addition, the primitives of what it adds; accumulated ones in capitals."""
    fusion = fuse(program)
    result = {}
    for op in program.ops:
        if op.primitive in ("add", "add_any"):
            makers = [program.values[v].producer for v in op.inputs if v >= 0]
            taken = fusion.accumulated.get(op.index)
            result[op.index] = [
                name.upper() if maker == taken else name
                for maker in makers
                for name in [program.ops[maker].primitive if maker >= 0 else "input"]
            ]
    return result


def test_the_left_product_starts_from_the_right_one() -> None:
    program = trace(lambda a, b, c, d: a @ b + c @ d, *(array(8, 8),) * 4)
    assert list(sums(program).values()) == [["DOT_GENERAL", "dot_general"]]


def test_of_three_terms_two_have_one_buffer() -> None:
    def left(a: Any, b: Any, c: Any, w: Any) -> Any:
        return (a @ w + b @ w + c @ w) @ w

    def right(a: Any, b: Any, c: Any, w: Any) -> Any:
        return (c @ w + (a @ w + b @ w)) @ w

    for fn, third in ((left, ["add", "dot_general"]), (right, ["dot_general", "add"])):
        program = trace(fn, *(array(8, 8),) * 4)
        flow = analyse(program)
        products = [op.outputs[0] for op in program.ops if op.primitive == "dot_general"][:3]
        lives = [flow.stop[value] > flow.start[value] for value in products]
        assert sorted(lives) == [False, True, True]
        assert list(sums(program).values()) == [["DOT_GENERAL", "dot_general"], third]


def test_a_product_that_others_read_or_of_another_dtype_keeps_its_buffer() -> None:
    def read_twice(a: Any, b: Any, x: Any) -> Any:
        product = a @ b
        return product + x, jnp.sin(product)

    def converted(a: Any, b: Any, x: Any) -> Any:
        return (a @ b).astype(jnp.float32) + x

    wide, narrow = array(8, 8), array(8, 8, dtype=jnp.bfloat16)
    assert not fuse(trace(read_twice, wide, wide, wide)).accumulated
    assert not fuse(trace(converted, narrow, narrow, wide)).accumulated
    assert not fuse(trace(lambda a, b, x: a @ b + x, wide, wide, wide)).accumulated


def test_the_product_reads_what_it_adds_to_and_the_addition_costs_nothing() -> None:
    machine = toy_machine()
    # So slow a memory that only bytes count.
    chip = replace(machine.chip, memory_bandwidth=1e3, memory_efficiency=1.0, launch_seconds=0.0)
    machine = replace(machine, chip=chip)
    program = trace(lambda a, b, c: a @ b + a @ c, array(8, 16), array(16, 32), array(16, 32))
    prices = step_prices(program, analyse(program, chip), machine, (8,))
    moved = 4 * (2 * (8 * 16 + 16 * 32) + 3 * 8 * 32)
    seconds = prices.ideal_seconds([[op.index] for op in program.ops])
    np.testing.assert_allclose(seconds, moved / 1e3 / 8)


def test_a_product_that_is_added_can_still_be_resharded() -> None:
    program = trace(lambda a, b, c: a @ b + a @ c, array(8, 16), array(16, 32), array(16, 32))
    flow = analyse(program)
    product = next(op.outputs[0] for op in program.ops if op.primitive == "dot_general")
    assert not flow.materialised[product]
    assert flow.can_be_copied(program, product)
