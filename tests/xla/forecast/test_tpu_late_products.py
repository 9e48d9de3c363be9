"""Products that are added to a table's other gradient: which wait for it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.plan.plan import Plan
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.forecast.tpu_kernels import late_products
from autoshard.xla.fusion import fuse
from tests.helpers import Case, case, random_plan, toy_machine

ARGS = (
    jax.ShapeDtypeStruct((64, 16), jnp.float32),
    jax.ShapeDtypeStruct((32,), jnp.int32),
)


def step(table: Any, ids: Any) -> Any:
    """Of a table that is looked up and multiplied with."""

    def loss(table: Any) -> Any:
        return jnp.sum(jnp.tanh(table[ids] @ table.T))

    return table - 0.1 * jax.grad(loss)(table)


def drawn(seed: int) -> tuple[Case, Plan, set[int]]:
    given = case(step, *ARGS, mesh={"x": 2, "y": 2}, machine=toy_machine(4))
    plan = random_plan(given, seed)
    return given, plan, set(late_products(Decided(given.built.prices, plan.decisions)))


def test_nothing_waits_where_nothing_moves() -> None:
    given = case(step, *ARGS, mesh={"x": 1}, machine=toy_machine(1))
    decided = Decided(given.built.prices, random_plan(given, 0).decisions)
    assert not list(late_products(decided))


def test_some_plans_let_the_product_wait_and_others_do_not() -> None:
    found = [bool(drawn(seed)[2]) for seed in range(30)]
    assert any(found)
    assert not all(found)


@pytest.mark.parametrize("seed", range(30))
def test_what_waits_is_the_product_and_goes_straight_to_the_sum(seed: int) -> None:
    given, plan, found = drawn(seed)
    decided, program = Decided(given.built.prices, plan.decisions), given.program
    scatter = next(op for op in program.ops if op.primitive == "scatter-add")
    for value in found:
        product = program.ops[program.values[value].producer]
        assert product.primitive == "dot_general"
        assert decided.of_sum(product) is None
        assert plan.decisions.copy[value] is None
        moved = decided.of_sum(scatter) is not None
        assert moved or plan.decisions.copy[scatter.outputs[0]] is not None
        # The kernel of the sum reads what the product does.
        fusion = fuse(program, None, unwritten=found)
        assert not fusion.materialised[value]
        reader = next(op for op in program.ops if value in op.inputs)
        assert fusion.sources[value] <= fusion.sources[reader.outputs[0]] | {reader.outputs[0]}
