"""Fusion, phases, liveness and exposure of small programs, worked out by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import models
from autoshard.cost.reordering import stack_bytes
from autoshard.machine.load import load
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate
from autoshard.program.readers import Phase
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from tests.helpers import case, toy_machine

FLOAT = 4


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def result(program: Program, primitive: str, number: int = 0) -> int:
    """The value that the given op of its kind makes."""
    return [op for op in program.ops if op.primitive == primitive][number].outputs[0]


def replicated_peak(fn: Any, *args: Any, **options: Any) -> int:
    """Peak bytes on one chip, where every layout is whole."""
    given = case(fn, *args, mesh={"x": 1}, machine=toy_machine(1), **options)
    program = given.program
    decisions = Decisions(
        stored=tuple(None if value.free else (-1,) for value in program.values),
        copy=(None,) * len(program.values),
        mode=(0,) * len(program.values),
        assignment=tuple(
            None if all(program.values[o].free for o in op.outputs) else (-1,) for op in program.ops
        ),
    )
    return evaluate(given.built.prices, decisions, ("x",)).estimate.peak_bytes


def test_an_elementwise_chain_never_reaches_memory() -> None:
    def step(x: Any, w: Any) -> Any:
        return jnp.sum(jnp.tanh(jnp.exp(x @ w)) * 2.0)

    program = trace(step, array(8, 4), array(4, 6))
    flow = analyse(program)
    assert flow.materialised[result(program, "dot_general")]
    for primitive in ("exp", "tanh", "mul"):
        value = result(program, primitive)
        assert not flow.materialised[value]
        assert flow.start[value] == flow.stop[value]


def test_what_a_product_reads_reaches_memory() -> None:
    program = trace(lambda x, w: jnp.tanh(x) @ w, array(8, 4), array(4, 6))
    assert analyse(program).materialised[result(program, "tanh")]


def test_a_result_of_the_step_reaches_memory() -> None:
    program = trace(lambda x: (jnp.tanh(x), jnp.exp(jnp.tanh(x))), array(8, 4))
    assert analyse(program).materialised[result(program, "tanh")]


def test_phases_of_a_weight() -> None:
    """Read forward by the product, backward by the gradient of x, after it by the update."""

    def step(w: Any, v: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.sum(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]))

        gw, gv = jax.grad(loss)((w, v))
        return w - gw, v - gv

    program = trace(step, array(4, 4), array(4, 4), array(8, 4), donate_argnums=(0, 1))
    flow = analyse(program)
    first, second, data = program.inputs
    assert [use.phase for use in flow.readers[second]] == [
        Phase.FIRST,
        Phase.SECOND,
        Phase.AFTER,
    ]
    kinds = [program.ops[use.op].primitive for use in flow.readers[second]]
    assert kinds[:2].count("dot_general") + kinds[1:2].count("transpose") >= 1
    # The gradient of the data is not asked for: the first weight has no backward reader.
    assert Phase.SECOND not in {use.phase for use in flow.readers[first]}
    assert Phase.SECOND in {use.phase for use in flow.readers[data]}
    forward = result(program, "dot_general", 0)
    assert not program.ops[program.values[forward].producer].backward


def test_lifetimes_of_a_chain() -> None:
    """dot 0, dot 1, dot 2, return 3: every product dies where the next one has read it."""

    def step(x: Any, a: Any, b: Any, c: Any) -> Any:
        return ((x @ a) @ b) @ c

    program = trace(step, *(array(4, 4) for _ in range(4)), donate_argnums=0)
    flow = analyse(program)
    assert [op.primitive for op in program.ops] == ["dot_general"] * 3 + ["return"]
    spans = [
        (flow.start[v], flow.stop[v]) for v in (result(program, "dot_general", k) for k in range(3))
    ]
    assert spans == [(0, 2), (1, 3), (2, 2)]  # the last is written where x was
    x, a, _, _ = program.inputs
    assert (flow.start[x], flow.stop[x]) == (0, 5)  # donated: the result takes its place
    assert (flow.start[a], flow.stop[a]) == (0, 5)  # the caller keeps it


def test_a_donated_input_without_a_result_to_hold_is_freed() -> None:
    program = trace(lambda x, a: jnp.sum(x @ a, axis=0), array(4, 6), array(6, 4), donate_argnums=0)
    flow = analyse(program)
    assert (flow.start[program.inputs[0]], flow.stop[program.inputs[0]]) == (0, 1)


@pytest.mark.parametrize(
    ("donated", "expected"),
    [
        ((), 3 * 16 + 2 * 16),  # all inputs, and two products at a time
        ((0,), 3 * 16 + 1 * 16),  # the second product is written where x was
    ],
)
def test_peak_of_a_chain(donated: tuple[int, ...], expected: int) -> None:
    def step(x: Any, a: Any, b: Any) -> Any:
        return (x @ a) @ b

    peak = replicated_peak(step, *(array(4, 4) for _ in range(3)), donate_argnums=donated)
    assert peak == expected * FLOAT


def test_an_update_overwrites_donated_state() -> None:
    def step(w: Any, g: Any) -> Any:
        return w - 0.1 * g

    kept = replicated_peak(step, array(8, 8), array(8, 8))
    donated = replicated_peak(step, array(8, 8), array(8, 8), donate_argnums=0)
    assert kept == 3 * 64 * FLOAT
    assert donated == 2 * 64 * FLOAT


def test_a_loop_keeps_what_it_reads_and_collects() -> None:
    """x and w live through the loop; the stacked results occupy their full size from its start."""
    trips = 3

    def step(x: Any, w: Any) -> Any:
        def body(carry: Any, _: None) -> Any:
            carry = carry @ w
            return carry, carry

        return jax.lax.scan(body, x, None, length=trips)

    program = trace(step, array(4, 4), array(4, 4))
    flow = analyse(program)
    region = program.regions[1]
    assert region.trips == trips
    stacked = result(program, "scan_stack")
    assert flow.start[stacked] == region.start
    weight = program.inputs[1]
    entered = [use for use in flow.readers[weight] if program.ops[use.op].primitive == "enter"]
    assert all(use.last == region.stop - 1 for use in entered)
    assert program.ops[program.values[result(program, "dot_general")].producer].trips == trips
    # x, w, carry, product, stacked results; more is not alive at once
    peak = replicated_peak(step, array(4, 4), array(4, 4))
    assert (2 + trips + 1) * 16 * FLOAT <= peak <= (2 + trips + 2) * 16 * FLOAT


def test_what_can_be_prefetched_and_what_is_awaited() -> None:
    """A weight and its cast can be gathered early; a gradient is reduced when nobody waits."""

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.sum(jnp.tanh(x @ w.astype(jnp.bfloat16).astype(jnp.float32)))

        return w - jax.grad(loss)(w)

    program = trace(step, array(4, 4), array(8, 4), donate_argnums=0)
    flow = analyse(program)
    assert flow.prefetchable[program.inputs[0]]
    assert flow.prefetchable[result(program, "convert_element_type")]
    forward = result(program, "dot_general", 0)
    gradient = result(program, "dot_general", 1)
    assert not flow.prefetchable[forward]
    assert flow.awaited[forward]  # the gradient's product waits for it
    assert not flow.awaited[gradient]


def test_what_the_backward_pass_does_not_read_is_read_after_it() -> None:
    """An embedding's own readers are the lookup and the update, a whole pass later."""

    def step(table: Any, w: Any, ids: Any) -> Any:
        def loss(both: Any) -> Any:
            return jnp.sum(jnp.tanh(both[0][ids] @ both[1]))

        found = jax.grad(loss)((table, w))
        return table - found[0], w - found[1]

    ids = jax.ShapeDtypeStruct((8,), jnp.int32)
    program = trace(step, array(16, 4), array(4, 4), ids, donate_argnums=(0, 1))
    phases = [use.phase for use in analyse(program).readers[program.inputs[0]]]
    assert phases == [Phase.FIRST, Phase.AFTER]


def test_readers_of_one_pass_are_in_two_phases() -> None:
    """A copy that a product reads need not wait for the residual sum behind two more products."""

    def step(x: Any, v: Any, w: Any) -> Any:
        y = jnp.tanh(x)
        return y + jnp.tanh(jnp.tanh(y @ v) @ w) @ v.T

    program = trace(step, array(8, 4), array(4, 16), array(16, 16))
    value = result(program, "tanh")
    kinds = [program.ops[use.op].primitive for use in analyse(program).readers[value]]
    phases = [use.phase for use in analyse(program).readers[value]]
    assert dict(zip(kinds, phases, strict=True)) == {
        "dot_general": Phase.FIRST,
        "add": Phase.SECOND,
    }
    program = trace(lambda x, w: (jnp.tanh(x) + 1.0, jnp.tanh(x) @ w), array(8, 4), array(4, 4))
    for uses in analyse(program).readers:
        assert {use.phase for use in uses} <= {Phase.FIRST}


def test_phases_are_the_same_on_every_machine() -> None:
    """A plan says which phase a copy serves: it is read where nothing of the machine is known."""
    step = models.build("mlp")
    program = trace(step.fn, *step.args)

    def phases(name: str | None) -> list[list[tuple[int, int, Phase]]]:
        flow = analyse(program, load(name).chip if name else None)
        return [[(u.op, u.position, u.phase) for u in uses] for uses in flow.readers]

    assert phases(None) == phases("h100-8") == phases("v5p-16")
    h100, unknown = analyse(program, load("h100-8").chip), analyse(program)
    assert h100.when != unknown.when  # although the ops run in another order


def test_what_is_computed_again_reads_first() -> None:
    def step(x: Any, v: Any, w: Any) -> Any:
        @jax.checkpoint
        def block(x: Any, v: Any, w: Any) -> Any:
            return jnp.tanh(jnp.tanh(x @ v) @ w)

        return jax.grad(lambda both: jnp.sum(block(x, *both) ** 2))((v, w))

    program = trace(step, array(8, 4), array(4, 16), array(16, 4))
    flow = analyse(program)
    hidden = next(op.outputs[0] for op in program.ops if op.primitive == "tanh" and op.recomputed)
    uses = {use.op: use.phase for use in flow.readers[hidden]}
    assert {Phase.FIRST, Phase.SECOND} == set(uses.values())
    for op, phase in uses.items():
        assert program.ops[op].recomputed == (phase is Phase.FIRST)
    assert not any(op.recomputed and not op.backward for op in program.ops)


def test_slices_of_a_stack_know_it_and_the_next_loop_that_reads_it() -> None:
    def step(x: Any, weights: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            return jnp.tanh(x @ w.astype(jnp.bfloat16).astype(jnp.float32)), None

        return jax.lax.scan(body, jax.lax.scan(body, x, weights)[0], weights)[0]

    program = trace(step, array(8, 4), array(3, 4, 4))
    flow = analyse(program)
    lives = {
        (one.start, one.stop)
        for value, one in flow.slices.items()
        if one.stack == program.inputs[1] and program.values[value].shape == (4, 4)
    }
    first, second = (
        sorted(flow.when[r.start : r.stop]) for r in program.regions if r.kind == "scan"
    )
    assert lives == {(first[0], second[0]), (second[0], second[-1] + 1)}
    assert len(flow.slices) == 6  # each loop's slice, and both of its casts


def test_a_gather_of_an_inner_dimension_puts_the_whole_stack_in_order() -> None:
    def step(x: Any, weights: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    for machine, share in ((load("h100-4"), 1 / 4), (load("v5p-4"), 0.0)):
        given = case(step, array(8, 16), array(3, 16, 16), mesh={"x": 4}, machine=machine)
        prices = given.built.prices
        (value,) = prices.dataflow.slices
        before = np.array([[0], [1], [1], [-1]])
        after = np.array([[-1], [-1], [0], [-1]])
        found = stack_bytes(prices, value, before, after) / prices.scratch_factor
        assert found.tolist() == [0, 3 * 16 * 16 * FLOAT * share, 0, 0]
