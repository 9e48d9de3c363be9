"""Collectives that loops run in another turn: which, what a step waits for, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autoshard
from autoshard.compiler.compiled import compile_plan
from autoshard.compiler.target import why_missing
from autoshard.machine.load import load
from autoshard.plan.plan import Plan
from autoshard.program.graph import Region
from autoshard.search.assemble import priced_anew, prices_of
from autoshard.xla import forecast
from autoshard.xla.forecast.event_marks import CopyBegins, SumEnds
from autoshard.xla.forecast.pipelined import Pipelined
from autoshard.xla.forecast.planned_collectives import Decided, region_read_in
from tests.helpers import case, random_plan, toy_machine, with_compiler
from tests.random_programs import random_program
from tests.xla.forecast.test_forecast import looped

Step = Callable[..., Any]


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def layers(stack: Any, x: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]


def train(stack: Any, x: Any) -> Any:
    def loss(stack: Any) -> Any:
        return jnp.sum(layers(stack, x).astype(jnp.float32) ** 2)

    return jax.grad(loss)(stack)


def planned(
    step: Step, args: Sequence[Any], pins: Sequence[str], *, tight: bool = True
) -> tuple[Plan, Any]:
    """A plan under pins on one axis of eight, and its program; where stacks do not fit whole."""
    program = autoshard.trace(step, *args)
    machine, limit = load("h100-8"), None
    for _ in range(1 + tight):  # stacks that fit whole are gathered at once
        plan = autoshard.search(
            program,
            machine,
            mesh={"x": 8},
            requirements=[f"pin {one}" for one in pins],
            memory_limit=limit,
            time_limit=10.0,
            baselines=False,
            by_schedule=False,
        )
        limit = 0.8 * plan.estimate.peak_bytes
    return plan, program


def moved(plan: Plan, program: Any, machine: str) -> tuple[set[CopyBegins], set[SumEnds]]:
    """Which collectives of its loops run in another turn."""
    decided = Decided(prices_of(plan, program, load(machine)), plan.decisions)
    found = Pipelined(decided)
    loops: dict[int, Region] = {one.index: one for one in program.regions if one.parent >= 0}
    for value in program.values:
        region, steps = region_read_in(program, value.index), decided.steps_of_copy(value.index)
        if region in loops and steps:
            found.gathers_ahead(loops[region], value.index, 0, steps)
    for op in program.ops:
        if op.region in loops and decided.of_sum(op):
            found.sums_behind(op)
    return found.gathers, found.sums


FSDP = ("stack [None, x, None]", "x [x, None]")


def test_gathers_of_stacked_weights_and_sums_of_their_gradients_move() -> None:
    plan, program = planned(
        train, (bf16(8, 4096, 4096), bf16(4096, 4096)), (*FSDP, "result [None, x, None]")
    )
    gathers, sums = moved(plan, program, "h100-8@recipe")
    assert len(gathers) == 2  # of the forward pass and of the backward pass
    assert len(sums) == 1
    assert moved(plan, program, "h100-8") == (set(), set())


def test_what_a_turn_makes_of_what_it_carries_is_gathered_in_its_own_turn() -> None:
    """Columns of the carry are gathered for products with columns of the weights."""

    def step(stack: Any, x: Any) -> Any:
        return lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, stack)[0]

    plan, program = planned(
        step,
        (bf16(8, 8192, 8192), bf16(64, 8192)),
        ("stack [None, None, x]", "x [None, x]", "result [None, x]"),
        tight=False,
    )
    shapes = {program.values[one.value].shape for one in moved(plan, program, "h100-8@recipe")[0]}
    loop = next(one for one in program.regions if one.parent >= 0)
    decided = Decided(prices_of(plan, program, load("h100-8@recipe")), plan.decisions)
    inside = [one for one in program.values if region_read_in(program, one.index) == loop.index]
    gathered = {one.shape for one in inside if decided.steps_of_copy(one.index)}
    assert (64, 8192) in gathered
    assert (64, 8192) not in shapes


def test_what_a_carry_adds_up_is_summed_in_its_own_turn() -> None:
    """Microbatches: gradients are added to a carry, and not stacked."""

    def step(xs: Any, w: Any) -> Any:
        def body(total: Any, x: Any) -> tuple[Any, None]:
            return total + x.T @ jnp.tanh(x @ w), None

        return lax.scan(body, jnp.zeros((2048, 2048), jnp.bfloat16), xs)[0]

    plan, program = planned(
        step,
        (bf16(4, 32768, 2048), bf16(2048, 2048)),
        ("xs [None, x, None]", "w [None, None]", "result [x, None]"),
        tight=False,
    )
    assert moved(plan, program, "h100-8@recipe")[1] == set()


def test_the_solver_takes_more_of_what_moves_to_be_hidden_and_no_more_of_the_rest() -> None:
    moves = planned(train, (bf16(8, 4096, 4096), bf16(4096, 4096)), FSDP[:1])
    stays = planned(
        lambda stack, x: lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, stack)[0],
        (bf16(8, 8192, 8192), bf16(64, 8192)),
        ("stack [None, None, x]", "x [None, x]", "result [None, x]"),
        tight=False,
    )
    plain, recipe = load("h100-8"), load("h100-8@recipe")
    share = recipe.chip.compiler.pipelined
    assert plain.chip.compiler.pipelined == 0.0 < plain.overlap == recipe.overlap < share
    for (plan, program), less in ((moves, True), (stays, False)):
        told = [
            [
                (one.kind, one.exposed_seconds / one.seconds)
                for one in priced_anew(plan, prices_of(plan, program, machine)).moves
                if "scan" in one.scope or one.count > 1
            ]
            for machine in (plain, recipe)
        ]
        assert [kind for kind, _ in told[0]] == [kind for kind, _ in told[1]] != []
        for (_, before), (_, after) in zip(*told, strict=True):
            hides = before == pytest.approx(1.0 - plain.overlap)
            assert after == pytest.approx(1.0 - share if less and hides else before)
        assert any(after < before for (_, before), (_, after) in zip(*told, strict=True)) == less


@pytest.mark.parametrize("seed", range(12))
def test_a_step_holds_no_less_and_waits_no_longer_than_all_its_collectives(seed: int) -> None:
    step, args = looped(seed) if seed % 2 else random_program(seed)[:2]
    machine = with_compiler(toy_machine(4), name="xla:gpu", hides_collectives=True, flags="recipe")
    given = case(step, *args, mesh={"x": 2, "y": 2}, machine=machine)
    plan = random_plan(given, seed)
    prices = given.built.prices
    found = forecast(prices, plan.decisions)
    usual = forecast(
        prices_of(plan, given.program, with_compiler(machine, flags="default")), plan.decisions
    )
    assert found is not None
    assert usual is not None
    assert found.waited_seconds is not None
    assert 0 <= found.waited_seconds <= plan.estimate.collective_seconds * (1 + 1e-9)
    if moved_none(given, plan):
        assert found == usual


def moved_none(given: Any, plan: Plan) -> bool:
    """Whether none of its collectives may move."""
    decided = Decided(given.built.prices, plan.decisions)
    return not any(
        decided.of_sum(op) for op in given.program.ops if given.program.regions[op.region].trips > 1
    ) and not any(
        decided.steps_of_copy(value.index)
        for value in given.program.values
        if given.program.regions[region_read_in(given.program, value.index)].trips > 1
    )


@pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")
def test_a_pipelined_step_waits_and_holds_what_the_compiler_says(tmp_path: Path) -> None:
    def step(stack: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, slope: w - 0.1 * slope, stack, train(stack, x))

    args = bf16(16, 8192, 8192), bf16(8192, 8192)
    plan, program = planned(step, args, (*FSDP, "result [None, x, None]"))
    waited, peaks = {}, {}
    for name in ("h100-8", "h100-8@recipe"):
        machine = load(name)
        found = priced_anew(plan, prices_of(plan, program, machine))
        compiled = compile_plan(autoshard.lower(found, step, *args), machine, cache=tmp_path)
        assert compiled.timeline is not None
        predicted = found.estimate.expected_seconds - found.estimate.compute_seconds
        waited[name] = predicted, compiled.timeline.exposed_seconds
        peaks[name] = found.estimate.expected_bytes, compiled.memory.peak_bytes
    before, after = waited.values()
    assert after[0] < before[0]
    assert after[1] < before[1]
    assert after[0] == pytest.approx(after[1], rel=0.3)
    predicted, compiled = peaks["h100-8@recipe"]
    assert predicted == pytest.approx(compiled, rel=0.1)
    assert predicted > peaks["h100-8"][0]
