"""The peak in the compiler's own order of a plan: what it must be, and by hand what moves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.plan.plan import Plan
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.xla import forecast
from tests.helpers import case, hiding, random_plan, toy_machine, with_compiler
from tests.random_programs import random_program


def looped(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A random program, three times in a loop; its arguments are what the loop reads."""
    fn, args, _ = random_program(seed)

    def step(*args: Any) -> Any:
        def body(carry: Any, _: Any) -> tuple[Any, Any]:
            return carry + 1.0, fn(*args)

        return jax.lax.scan(body, jnp.zeros(()), length=3)

    return step, args


@pytest.mark.parametrize("seed", range(12))
def test_any_plan_of_any_program_takes_what_its_arguments_take_at_least(seed: int) -> None:
    step, args = looped(seed)
    given = case(step, *args, mesh={"x": 2, "y": 2}, machine=hiding(4))
    plan, prices = random_plan(given, seed), given.built.prices
    found = forecast(prices, plan.decisions)
    assert found is not None
    assert found.bytes == plan.estimate.scheduled_bytes
    arguments = sum(
        float(prices.local_bytes(value, np.array(layout)))
        for value in given.program.inputs
        if (layout := plan.decisions.stored[value]) is not None
    )
    # No more lies anywhere than each value, its copy, and what either is made of and by.
    everything = sum(value.bytes for value in given.program.values)
    assert arguments - 1 <= found.bytes <= given.program.constant_bytes + 4 * everything


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_without_collectives_runs_in_the_order_that_the_solver_counts_in(seed: int) -> None:
    step, args = looped(seed) if seed % 2 else random_program(seed)[:2]
    machine = hiding(1)  # whose products a library computes: others read what is not written
    machine = with_compiler(machine, name="xla:gpu")
    plan = search(trace(step, *args), machine, mesh={"x": 1}, time_limit=10.0)
    assert plan.estimate.scheduled_bytes == plan.estimate.peak_bytes


def test_compilers_that_hide_nothing_have_one_order() -> None:
    step, args = looped(0)
    plan = search(trace(step, *args), toy_machine(2), mesh={"x": 2}, time_limit=10.0)
    assert plan.estimate.scheduled_bytes is None
    assert plan.estimate.expected_bytes == plan.estimate.peak_bytes


def test_without_hiding_a_vector_memory_alone_makes_the_difference() -> None:
    """The order is the solver's, and no more is counted than it counts.

    But for what products compute of their operands: of that, more lies until they run.
    """
    spared = 0
    for seed in range(6):
        step, args = looped(seed)
        written = frozenset({"tpu.elementwise-into-products"})
        machine = with_compiler(toy_machine(4), name="xla:tpu", without=written)
        given = case(step, *args, mesh={"x": 2, "y": 2}, machine=machine)
        plan = random_plan(given, seed)
        peaks = []
        for size in (1.0, 1e9):
            chip = replace(machine.chip, vector_memory_bytes=size)
            prices = replace(given.built.prices, machine=replace(machine, chip=chip))
            found = forecast(prices, plan.decisions)
            assert found is not None
            peaks.append(found.bytes)
        assert plan.estimate.scheduled_bytes is None
        assert plan.estimate.peak_bytes >= peaks[0] >= peaks[1]
        spared += peaks[0] > peaks[1]
    assert spared >= 3


def in_parts(plan: Plan, part: int) -> tuple[int, int]:
    """The peaks in the solver's order and in the compiler's, in parts of so many bytes."""
    return round(plan.estimate.peak_bytes / part), round(plan.estimate.expected_bytes / part)


def test_a_value_that_is_read_as_its_copy_alone_dies_when_the_copy_is_there() -> None:
    # Both products want all rows of the hidden layer; only the second one's result comes late.
    def step(x: Any, first: Any, second: Any) -> Any:
        hidden = jnp.tanh(x @ first)
        return jnp.tanh(second @ hidden) @ hidden

    array = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    plan = search(
        trace(step, array, array, array),
        hiding(4),
        mesh={"x": 4},
        requirements=[
            "pin x [x, None]",
            "pin first [None, None]",
            "pin second [x, None]",
            "pin result [x, None]",
            "limit all_to_all count 0",
        ],
        time_limit=10.0,
    )
    assert [move.kind for move in plan.moves] == ["all_gather"]
    # The arguments; the copy; the first product's result, which dies or not; the second's; its
    # own, or the last product's.
    assert in_parts(plan, 256 * 256) == (1 + 4 + 1 + 4 + 1 + 1 + 1, 1 + 4 + 1 + 4 + 1 + 1)


def gradient_step(rows: bool) -> Plan:
    """An update in place, of a weight whose gradient is gathered along its rows or columns."""

    def step(w: Any, x: Any, y: Any) -> Any:
        return w - (x @ y).astype(jnp.float32)

    def array(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((256, 256), dtype)

    given = hiding(4)
    rates = {"peak_flops": {"float32": 1e15, "bfloat16": 1e15}, "vector_flops": 1e15}
    fast = replace(given.chip, memory_bandwidth=1e15, **rates)
    cut = ("x [x, None]", "y [None, None]") if rows else ("x [None, None]", "y [None, x]")
    return search(
        trace(
            step,
            array(jnp.float32),
            *(array(jnp.bfloat16),) * 2,
            donate_argnums=(0,),
        ),
        replace(given, chip=fast),
        mesh={"x": 4},
        requirements=["pin w [None, None]", *(f"pin {one}" for one in cut)],
        time_limit=10.0,
    )


def test_an_update_that_reads_a_gathered_gradient_out_of_order_lies_beside_the_weight() -> None:
    """What the kernel makes of the gradient before the update lies nowhere, in whatever order."""
    rows, columns = gradient_step(rows=True), gradient_step(rows=False)
    for plan in (rows, columns):
        assert [(move.kind, move.value[:4]) for move in plan.moves] == [("all_gather", "bf16")]
    part = 256 * 256 // 2  # a quarter of an array in bfloat16
    assert rows.estimate.peak_bytes == columns.estimate.peak_bytes
    # The weight, one array and a quarter of the other, the gradient; and the update beside it.
    assert in_parts(rows, part)[1] == 8 + 4 + 1 + 4
    assert in_parts(columns, part)[1] == 8 + 4 + 1 + 4 + 8


@pytest.mark.parametrize(
    ("cut", "libraries", "orders"),
    [("[x, None]", True, 1), ("[None, x]", True, 2), ("[None, x]", False, 1)],
)
def test_what_a_loop_reads_of_an_array_that_is_gathered_out_of_order_lies_there_twice(
    cut: str, libraries: bool, orders: int
) -> None:
    """Where a library computes the products."""

    machine = hiding(4)

    def step(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, length=3)[0]

    plan = search(
        trace(
            step,
            jax.ShapeDtypeStruct((16, 1024), jnp.float32),
            jax.ShapeDtypeStruct((1024, 1024), jnp.float32),
        ),
        with_compiler(machine, name="xla:gpu" if libraries else "xla:tpu"),
        mesh={"x": 4},
        requirements=[
            "pin x [x, None]",
            f"pin w {cut}",
            "pin result [x, None]",
            "limit all_to_all count 0",
        ],
        time_limit=10.0,
    )
    assert [move.kind for move in plan.moves] == ["all_gather"]
    part = 1024 * 1024  # a quarter of the weight
    assert in_parts(plan, part) == (1 + 4, 1 + 4 * orders)


def test_gathers_of_several_weights_run_as_one_and_lie_in_memory_together() -> None:
    # Two weights that are gathered for a product each: begun together, both are there at once.
    def step(x: Any, first: Any, second: Any) -> Any:
        count, _ = jax.lax.scan(lambda n, _: (n + 1.0, None), jnp.zeros(()), length=3)
        return jnp.tanh(x @ first) @ second, count

    array = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    plan = search(
        trace(step, array, array, array),
        hiding(4),
        mesh={"x": 4},
        requirements=[
            "pin x [x, None]",
            "pin first [x, None]",
            "pin second [x, None]",
            "pin result[0] [x, None]",
        ],
        time_limit=10.0,
    )
    assert sum(move.kind == "all_gather" for move in plan.moves) == 2
    part = 256 * 256 * 4 // 4
    # The arguments, one gathered weight, what is between the products, and the result:
    assert round(plan.estimate.peak_bytes / part) == 3 + 4 + 1 + 1
    # The arguments, both gathered weights, and what is between the products:
    assert round(plan.estimate.expected_bytes / part) == 3 + 4 + 4 + 1


@pytest.mark.parametrize(("cut", "forms"), [("[x, None]", 2), ("[None, x]", 1)])
def test_what_is_sent_in_blocks_that_do_not_lie_together_is_written_in_their_order(
    cut: str, forms: int
) -> None:
    # A product is hidden behind an all-to-all of what it reads, too. Rows lie together.
    rows, given = cut == "[x, None]", hiding(4)
    given = with_compiler(given, name="xla:gpu")

    def step(x: Any, w: Any) -> Any:
        hidden = jnp.tanh(x)
        product = hidden @ w if rows else w @ hidden
        return jnp.max(product, axis=int(rows)), hidden.astype(jnp.float32)

    plan = search(
        trace(
            step,
            jax.ShapeDtypeStruct((256, 256), jnp.bfloat16),
            jax.ShapeDtypeStruct((256, 1024) if rows else (1024, 256), jnp.bfloat16),
        ),
        given,
        mesh={"x": 4},
        requirements=[
            f"pin x {cut}",
            "pin w [None, None]",
            "pin result[0] [x]",
            f"pin result[1] {'[None, x]' if rows else '[x, None]'}",
        ],
        time_limit=10.0,
    )
    assert [move.kind for move in plan.moves] == ["all_to_all"]
    part = 256 * 256 // 2  # a quarter of the hidden layer
    # The arguments; the hidden layer, as it is sent and as it arrives; and the product.
    assert in_parts(plan, part)[1] == 1 + 16 + forms + 1 + 4
