"""Transfers to the host and back: their price, and memory on both sides."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.cost.transfers import exposed_share, is_transfer
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import Plan
from autoshard.plan.text.page import format_plan
from autoshard.plan.transfers import host_notes
from autoshard.program.notes import unknown_arithmetic
from autoshard.units import format_bytes, format_seconds
from tests.helpers import case, random_plan, toy_machine, with_compiler
from tests.host_steps import ACTIVATIONS, MOMENTS, SPACE, activations, f32, moments, momentum

MESH = {"x": 2, "y": 4}
MOMENT_BYTES = 2 * 16 * 64 * 4


@pytest.mark.parametrize("seed", range(3))
def test_what_lies_on_the_host_is_counted_there(seed: int) -> None:
    given = case(moments, *MOMENTS, mesh=MESH, donate_argnums=(0, 1))
    plan = random_plan(given, seed)
    sizes = {path: MOMENT_BYTES / 2 / shards(plan, path) for path in ("[1]['a']", "[1]['b']")}
    assert plan.estimate.host_bytes == sum(sizes.values())
    kinds = [(one.kind, one.bytes) for one in plan.transfers]
    assert sorted(kinds) == sorted(
        (kind, size) for kind in ("to_host", "from_host") for size in sizes.values()
    )
    host = toy_machine().host
    assert host is not None
    for one in plan.transfers:
        rate = host.to_bandwidth if one.kind == "to_host" else host.from_bandwidth
        assert one.seconds == pytest.approx(one.bytes / rate)
        assert 0 <= one.exposed_seconds <= one.seconds
    estimate = plan.estimate
    waited = sum(one.exposed_seconds for one in (*plan.moves, *plan.transfers))
    assert estimate.step_seconds == pytest.approx(estimate.compute_seconds + waited)
    assert estimate.transfer_seconds == pytest.approx(sum(one.seconds for one in plan.transfers))


def shards(plan: Plan, path: str) -> int:
    sizes = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    count = 1
    for entry in plan.specs["inputs"][path]:
        for axis in entry if isinstance(entry, tuple) else (entry,) if entry else ():
            count *= sizes[axis]
    return count


def test_what_a_value_on_the_host_costs_is_said() -> None:
    given = case(moments, *MOMENTS, mesh=MESH, donate_argnums=(0, 1))
    plan = random_plan(given, 0)
    found = {}
    for value in given.program.inputs:
        told = host_notes(given.built.prices, plan.decisions, value, given.mesh.names)
        found[given.program.values[value].path] = told
    assert [path for path, told in found.items() if told] == ["[1]['a']", "[1]['b']"]
    lies, fetched = found["[1]['a']"]
    fitting = [
        f"{format_bytes(one.bytes)} each: {format_seconds(one.seconds)} a step, "
        f"{format_seconds(one.exposed_seconds)} of it exposed ({one.line})"
        for one in plan.transfers
        if one.kind == "from_host" and lies.endswith(f": {format_bytes(one.bytes)} per device")
    ]
    assert lies.startswith("it lies in the memory of the host: ")
    assert fetched in [f"from_host, {said}" for said in fitting]
    assert unknown_arithmetic(given.program.ops) == ()


def test_stacks_on_the_host_take_no_memory_of_the_device() -> None:
    """Uncut, a stack of three times 64 x 64 floats lies there, and not on the device."""
    given = case(activations, *ACTIVATIONS, mesh={"x": 1}, machine=toy_machine(1))
    plan = random_plan(given, 0)
    assert plan.estimate.host_bytes == 3 * 64 * 64 * 4
    assert [(one.kind, one.bytes, one.count) for one in plan.transfers] == [
        ("to_host", 64 * 64 * 4, 3),
        ("from_host", 64 * 64 * 4, 3),
    ]
    flow = given.built.prices.dataflow
    on_host = [v.index for v in given.program.values if v.host]
    assert all(flow.start[value] == flow.stop[value] for value in on_host)


def test_a_transfer_hides_behind_the_products_of_its_loop() -> None:
    """A layer's forward pass has two products, and its backward pass four beside them."""
    machine = toy_machine(1)
    assert machine.host is not None
    found = []
    for rate in (1e9, 1e6, 1.0):
        host = replace(machine.host, to_bandwidth=rate, from_bandwidth=rate)
        given = case(activations, *ACTIVATIONS, mesh={"x": 1}, machine=replace(machine, host=host))
        found.append([one.exposed_seconds for one in random_plan(given, 0).transfers])
    fast, some, slow = found
    assert fast[0] < 1e-3
    assert all(one < other for one, other in zip(some, slow, strict=True))
    product = 2 * 64 * 64 * 16 / 1e6
    there = 64 * 64 * 4
    assert slow[0] == pytest.approx(3 * (there - product))  # one product runs behind what it keeps


def test_products_hide_transfers_at_the_rate_of_what_they_read() -> None:
    """Those of int8 are sums in int32, at which no unit multiplies so fast."""

    def step(kept: Any, x: Any, w: Any, *, sums: Any) -> Any:
        there = jax.device_put(jnp.sin(kept), SPACE.Host)
        made = jnp.dot(x, w, preferred_element_type=sums)
        return made.astype(jnp.float32), jnp.sin(jax.device_put(there, SPACE.Device))

    def exposed(sums: Any) -> float:
        args = [jax.ShapeDtypeStruct((8192, 8192), jnp.int8)] * 2
        made = partial(step, sums=sums)
        given = case(made, f32(4096, 4096), *args, mesh={"x": 8}, machine=load("v5p-8"))
        prices, ops = given.built.prices, given.program.ops
        return max(exposed_share(prices, one) for one in ops if is_transfer(one))

    assert exposed(jnp.int32) == pytest.approx(exposed(jnp.int8))
    assert exposed(jnp.int32) > 0.5


def test_the_evaluator_and_the_problem_price_alike() -> None:
    """What a solution of the problem costs is what the evaluator says of it."""
    given = case(moments, *MOMENTS, mesh=MESH, donate_argnums=(0, 1))
    for seed in range(3):
        decisions = random_plan(given, seed).decisions
        choices = given.built.encode(decisions)
        assert choices is not None
        costs = sum(
            node.costs[choice]
            for node, choice in zip(given.built.problem.nodes, choices, strict=True)
        )
        evaluation = evaluate(given.built.prices, decisions, tuple(MESH))
        assert costs == pytest.approx(evaluation.estimate.step_seconds)


def test_a_machine_that_says_nothing_of_its_host_is_refused() -> None:
    with pytest.raises(MachineError) as error:
        case(
            lambda x: jax.device_put(jnp.sin(x), SPACE.Host),
            *(f32(8),),
            mesh={"x": 8},
            machine=replace(toy_machine(), host=None),
        )
    assert str(error.value) == (
        "<lambda> keeps f32<host>[8] in the memory of the host, of which the file of toy says "
        "nothing: write a table [host] with chips, memory_bytes, to_bandwidth, from_bandwidth, "
        "efficiency and latency_seconds"
    )


def test_the_page_lists_transfers_and_plans_keep_them() -> None:
    given = case(moments, *MOMENTS, mesh=MESH, donate_argnums=(0, 1))
    plan = random_plan(given, 1)
    again = Plan.from_json(plan.to_json())
    assert again.transfers == plan.transfers
    assert again.estimate == plan.estimate
    page = format_plan(plan)
    assert "host memory" in page
    assert "from_host" in page


def test_arrays_on_the_host_are_not_resharded() -> None:
    def step(kept: Any) -> Any:
        return jnp.sin(jax.device_put(kept, SPACE.Device)), kept

    mesh_kept = jax.eval_shape(lambda: jnp.zeros((8, 8)))
    given = case(lambda x: step(jax.device_put(x, SPACE.Host)), mesh_kept, mesh=MESH)
    for seed in range(5):
        copies = random_plan(given, seed).decisions.copy
        assert all(copies[v.index] is None for v in given.program.values if v.host)


def test_state_held_on_the_host_comes_late() -> None:
    """It is in the device's memory only when gradients are there, so that the peak falls."""
    peaks = []
    for host in ([], ["kept"]):
        given = case(
            momentum,
            *MOMENTS,
            mesh={"x": 1},
            machine=with_compiler(toy_machine(1), name="xla:gpu"),
            donate_argnums=(0, 1),
            host=host,
        )
        plan, flow = random_plan(given, 0), given.built.prices.dataflow
        peaks.append(plan.estimate.peak_bytes)
        products = [op for op in given.program.ops if op.primitive == "dot_general"]
        for op in given.program.ops:
            if op.primitive == "from_host":
                assert flow.start[op.outputs[0]] > min(flow.when[one.index] for one in products)
    assert peaks[1] < peaks[0]
    assert plan.estimate.host_bytes == MOMENT_BYTES
