"""Products computed in other orders: the same numbers, and nothing large is transposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.compiler.compiled import Compiled, compile_plan
from autoshard.compiler.target import why_missing
from autoshard.lower.products import product_in_order
from autoshard.lower.spmd import lower
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan
from autoshard.plan.text.page import format_plan
from autoshard.plan.types.plan_check import PlanTypeError
from autoshard.program.dim_order import ProductOrder, is_coalesced, large_of, possible_orders
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from tests.helpers import MESHES, case, concrete_like, random_plan, toy_machine, with_compiler


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def transacting() -> Machine:
    """The toy machine with memory that is read in transactions, and XLA:GPU."""
    machine = with_compiler(toy_machine(), name="xla:gpu")
    return replace(machine, chip=replace(machine.chip, transaction_bytes=64.0))


def attention(queries: Any, keys: Any, values: Any) -> Any:
    """Plain attention with grouped queries."""
    scores = jnp.einsum("bqkgh,bskh->bkgqs", queries, keys)
    shares = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(values.dtype)
    return jnp.einsum("bkgqs,bskh->bqkgh", shares, values)


def slopes(queries: Any, keys: Any, values: Any) -> Any:
    def loss(*arrays: Any) -> Any:
        return jnp.sum(attention(*arrays).astype(jnp.float32) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2))(queries, keys, values)


HEADS = array(2, 64, 8, 4, 32), array(2, 64, 8, 32), array(2, 64, 8, 32)


def jumping(program: Program, machine: Machine) -> list[str]:
    """The ops that read large operands element by element."""
    flow = analyse(program, machine.chip)
    found = []
    for index, here in flow.transposed.items():
        for one in here:
            shape = program.values[program.ops[index].inputs[one.position]].shape
            lies, wanted = (large_of(order, shape) for order in (one.lies, one.wanted[0]))
            if one.jumps and not one.alone and not is_coalesced(shape, lies, wanted):
                found.append(str(program.ops[index]))
    return found


@pytest.mark.parametrize("step", [attention, slopes])
def test_attention_with_grouped_queries_transposes_nothing_element_by_element(step: Any) -> None:
    program = trace(step, *HEADS)
    machine = load("h100-8")
    assert analyse(program, machine.chip).product_orders
    assert jumping(program, machine) == []
    assert jumping(program, transacting()) == []


def test_without_transactions_products_are_computed_as_they_are_written() -> None:
    program = trace(slopes, *HEADS)
    assert analyse(program, load("v5p-8").chip).product_orders == {}
    assert analyse(program).product_orders == {}


def test_where_all_dimensions_are_large_products_are_computed_as_they_are_written() -> None:
    heads = array(2, 64, 8, 32, 32), array(2, 64, 8, 32), array(2, 64, 8, 32)
    assert analyse(trace(slopes, *heads), load("h100-8").chip).product_orders == {}


def test_equal_blocks_are_computed_alike() -> None:
    def blocks(queries: Any, keys: Any, values: Any) -> Any:
        for _ in range(4):
            with jax.named_scope("block"):
                queries = attention(queries, keys, values)
        return queries

    program = trace(blocks, *HEADS)
    orders = analyse(program, load("h100-8").chip).product_orders
    products = [op.index for op in program.ops if op.primitive == "dot_general"]
    told = [orders.get(index) for index in products]
    assert any(told)
    assert told[2:4] == told[4:6]


def einsum(text: str) -> Callable[..., Any]:
    return lambda left, right: jnp.einsum(text, left, right, precision=("high", "highest"))


PRODUCTS = [
    ("bqkgh,bskh->bkgqs", (2, 6, 3, 4, 5), (2, 7, 3, 5)),
    ("bkgqs,bqkgh->bksh", (2, 3, 4, 6, 7), (2, 6, 3, 4, 5)),  # two dimensions are summed
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("bij,bj->bi", (2, 3, 4), (2, 4)),  # the right operand has no dimension of its own
    ("ij,kl->ijkl", (2, 3), (4, 5)),  # nothing is summed
]


@pytest.mark.parametrize(("text", "left", "right"), PRODUCTS)
def test_in_every_order_a_product_is_the_same(text: str, left: Any, right: Any) -> None:
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (left, right)]
    closed = jax.make_jaxpr(einsum(text))(*structs)
    program = trace(einsum(text), *structs)
    (op,) = (op for op in program.ops if op.primitive == "dot_general")
    (equation,) = (one for one in closed.jaxpr.eqns if one.primitive.name == "dot_general")
    dice = np.random.default_rng(0)
    operands = [dice.integers(-4, 5, var.aval.shape).astype(np.float32) for var in equation.invars]
    (expected,) = (equation.primitive.bind(*operands, **equation.params),)
    orders = list(possible_orders(op.rule))
    assert len(set(orders)) == len(orders)
    for order in orders:
        found = product_in_order(equation, operands, order)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("mesh", ["8", "2x4"])
def test_a_lowered_plan_computes_its_products_in_order(mesh: str, explicit: bool) -> None:
    args = tuple(replace_dtype(one) for one in HEADS)
    given = case(slopes, *args, mesh=MESHES[mesh], machine=transacting())
    for seed in range(3):
        plan = random_plan(given, seed)
        assert plan.product_orders
        lowered = lower(plan, slopes, *args, explicit=explicit)
        arrays = concrete_like(args)
        found = lowered.jit()(*jax.device_put(arrays, lowered.in_shardings))
        for mine, theirs in zip(found, slopes(*arrays), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-4)


def replace_dtype(one: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(one.shape, jnp.float32)


def test_orders_are_kept_in_plan_files_and_checked(tmp_path: Path) -> None:
    given = case(slopes, *HEADS, mesh={"x": 8}, machine=transacting())
    plan = random_plan(given, 0)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").product_orders == plan.product_orders
    index = next(iter(plan.product_orders))
    other = next(op.index for op in given.program.ops if op.primitive == "exp")
    order = ProductOrder((0, 1, 1))
    wrong = replace(plan, product_orders={index: order, other: order, 10_000: order})
    with pytest.raises(PlanTypeError) as caught:
        lower(wrong, slopes, *HEADS)
    text = str(caught.value)
    assert f"product_orders: {given.program.ops[index]} cannot be computed as {order}" in text
    assert f"product_orders: {given.program.ops[other]} cannot" in text
    assert "product_orders: there is no op 10000" in text


needs_gpu_compiler = pytest.mark.skipif(
    bool(why_missing("gpu")), reason=why_missing("gpu") or "installed"
)


def compiled(plan: Plan, args: Sequence[Any], folder: Path) -> Compiled:
    return compile_plan(autoshard.lower(plan, slopes, *args), load("h100-8"), cache=folder)


@needs_gpu_compiler
def test_the_compiler_agrees_that_attention_is_faster_so(tmp_path: Path) -> None:
    args = array(8, 2048, 4, 4, 64), array(8, 2048, 4, 64), array(8, 2048, 4, 64)
    pins = [f"pin {name} [x, ...]" for name in ("queries", "keys", "values")]
    plan = autoshard.search(
        trace(slopes, *args), load("h100-8"), mesh={"x": 8}, requirements=pins, time_limit=10.0
    )
    told = compiled(plan, args, tmp_path)
    plain = compiled(replace(plan, product_orders={}), args, tmp_path)
    assert told.timeline is not None
    assert plain.timeline is not None
    assert told.timeline.compute_seconds < 0.5 * plain.timeline.compute_seconds
    assert told.memory.peak_bytes <= plain.memory.peak_bytes


@pytest.mark.parametrize(("axes", "barred"), [("[None, None, x, ...]", True), ("[x, ...]", False)])
def test_a_barrier_stands_where_all_batches_but_the_first_are_cut_to_one(
    axes: str, barred: bool
) -> None:
    """XLA:GPU undoes orders there: in Llama-3 1B on `h100-8`, by 10 ms of 220."""
    args = tuple(array(8, *one.shape[1:]) for one in HEADS)
    plan = autoshard.search(
        trace(slopes, *args),
        transacting(),
        mesh={"x": 8},
        requirements=[
            *(f"pin {name} {axes}" for name in ("queries", "keys", "values")),
            *(f"pin result[{k}] {axes}" for k in range(3)),
        ],
        time_limit=10.0,
    )
    assert plan.product_orders
    assert not plan.moves
    text = lower(plan, slopes, *args).jit().lower(*args).as_text()
    assert ("optimization_barrier" in text) == barred


def test_the_report_says_how_many_products_are_computed_otherwise() -> None:
    plan = random_plan(case(slopes, *HEADS, mesh={"x": 8}, machine=transacting()), 0)
    rows = (line.split() for line in format_plan(plan).splitlines())
    (row,) = (row for row in rows if row[:1] == ["products"])
    assert row[1] == str(len(plan.product_orders))
    plain = replace(plan, product_orders={})
    assert "computed in another order" not in format_plan(plain)
