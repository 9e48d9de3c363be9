"""What a problem holds: encoding and decoding, ties, carries, the limit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.copies import ANEW, FIRST, KEPT, SECOND, copy_intervals
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate, tidy
from autoshard.plan.memory_events import buffer_events
from autoshard.program.readers import Phase
from autoshard.solve.evaluate import evaluate as evaluate_problem
from tests.helpers import _toss, case, toy_machine
from tests.random_programs import random_case


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_encode_is_the_inverse_of_decode() -> None:
    """On large random programs too, whose plans are too many to be written out."""
    dice = np.random.default_rng(0)
    encoded = 0
    for seed in range(90_000, 90_040):
        built = random_case(seed).built
        choices = _toss(built.problem, [np.ones(n.costs.size) for n in built.problem.nodes], dice)
        if choices is None:
            continue
        decisions = built.decode(choices)
        again = built.encode(decisions)
        assert again is not None, f"program {seed}"
        assert built.decode(again) == decisions
        price = evaluate_problem(built.problem, again)
        assert price.feasible
        estimate = evaluate(built.prices, decisions, ("x", "y")).estimate
        assert price.objective == pytest.approx(estimate.step_seconds, rel=1e-9)
        assert price.peak + built.prices.program.constant_bytes == estimate.peak_bytes
        encoded += 1
    assert encoded >= 35


def test_tidy_never_costs_anything() -> None:
    dice = np.random.default_rng(1)
    shorter = 0
    for seed in range(91_000, 91_030):
        built = random_case(seed).built
        choices = _toss(built.problem, [np.ones(n.costs.size) for n in built.problem.nodes], dice)
        if choices is None:
            continue
        decisions = built.decode(choices)
        tidied = tidy(built.prices, decisions)
        before, after = (
            evaluate(built.prices, each, ("x", "y")).estimate for each in (decisions, tidied)
        )
        assert after.step_seconds <= before.step_seconds
        assert after.peak_bytes <= before.peak_bytes
        shorter += tidied != decisions
    assert shorter >= 5


def train(w: Any, v: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.sum(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]))

    gw, gv = jax.grad(loss)((w, v))
    return w - gw, v - gv


def test_modes_of_a_copy() -> None:
    """A weight that both passes read may be gathered for one, for both at once, or twice."""
    given = case(
        train, array(4, 4), array(4, 4), array(8, 4), mesh={"x": 2},
        machine=toy_machine(2), donate_argnums=(0, 1), fold=False,
    )  # fmt: skip
    built = given.built
    first, second, _ = given.program.inputs
    modes = [
        set(built.value_choices[int(built.classes.value_class[value])].mode.tolist())
        for value in (first, second)
    ]
    assert modes[0] == {0, FIRST}
    assert modes[1] == {0, FIRST, SECOND, KEPT, ANEW}
    number = int(built.classes.value_class[second])
    choices = built.value_choices[number]
    costs = built.problem.nodes[built.value_node[number]].costs
    for a, b in {*zip(choices.stored.tolist(), choices.copy.tolist(), strict=True)}:
        same = (choices.stored == a) & (choices.copy == b)
        price = {int(m): float(c) for m, c in zip(choices.mode[same], costs[same], strict=True)}
        if a != b:
            assert price[FIRST] == price[SECOND] == price[KEPT] > 0
            assert price[ANEW] == pytest.approx(2 * price[KEPT])
    phases = {use.phase for use in built.prices.dataflow.readers[second]}
    assert phases == {Phase.FIRST, Phase.SECOND, Phase.AFTER}


def test_a_copy_need_not_wait_for_a_residual_sum() -> None:
    """What one pass reads in two phases is never made anew, but may be dropped in between."""

    def step(x: Any, v: Any, w: Any) -> Any:
        y = x * 2.0
        return y + jnp.tanh(jnp.tanh(y @ v) @ w) @ v.T

    def plan_of(mode: int) -> Any:
        stored = tuple(None if value.free else (-1,) for value in given.program.values)
        copy, modes = [None] * len(stored), [0] * len(stored)
        layouts = list(stored)
        layouts[value], copy[value], modes[value] = (0,), (-1,), mode
        assignment = tuple(
            None if all(given.program.values[o].free for o in op.outputs) else (-1,)
            for op in given.program.ops
        )
        return Decisions(tuple(layouts), tuple(copy), tuple(modes), assignment)

    given = case(
        step, array(8, 4), array(4, 16), array(16, 16), mesh={"x": 2}, machine=toy_machine(2),
    )  # fmt: skip
    built = given.built
    value = next(op.outputs[0] for op in given.program.ops if op.primitive == "mul")
    choices = built.value_choices[int(built.classes.value_class[value])]
    assert set(choices.mode.tolist()) == {0, FIRST, SECOND, KEPT}
    spans = dict(copy_intervals(built.prices.dataflow.readers[value]))
    kept = spans[frozenset({KEPT})]
    assert kept[0] == spans[frozenset({FIRST, ANEW})][0]
    assert kept[1] == spans[frozenset({SECOND, ANEW})][1]
    size = 8 * 4 * 4
    kept_events = buffer_events(built.prices, plan_of(KEPT), value)
    first_events = buffer_events(built.prices, plan_of(FIRST), value)
    factor = built.prices.scratch_factor
    end = spans[frozenset({FIRST, ANEW})][1]
    assert end < kept[1]
    assert first_events[end] == pytest.approx(kept_events.get(end, 0.0) - size * factor)


def test_state_and_carries_keep_their_layout() -> None:
    def step(state: Any, w: Any) -> Any:
        def body(carry: Any, _: None) -> Any:
            return jnp.tanh(carry @ w), None

        return jax.lax.scan(body, state, None, length=3)[0]

    given = case(
        step, array(4, 4), array(4, 4), mesh={"x": 2, "y": 2},
        machine=toy_machine(4), donate_argnums=0, fold=False,
    )  # fmt: skip
    program, built = given.program, given.built
    dice = np.random.default_rng(0)
    seen = set()
    for _ in range(10):
        choices = _toss(built.problem, [np.ones(n.costs.size) for n in built.problem.nodes], dice)
        assert choices is not None
        decisions = built.decode(choices)
        (carry,), (tie,) = program.carries, program.ties
        assert decisions.stored[carry[0]] == decisions.stored[carry[1]]
        before, after = program.inputs[tie[0]], program.outputs[tie[1]]
        assert decisions.stored[before] == decisions.stored[after]
        seen.add(decisions.stored[before])
    assert len(seen) > 1


def test_the_evaluator_refuses_what_contradicts_itself() -> None:
    given = case(train, array(4, 4), array(4, 4), array(8, 4), mesh={"x": 2},
                 machine=toy_machine(2), donate_argnums=(0, 1), fold=False)  # fmt: skip
    built = given.built
    dice = np.random.default_rng(0)
    refused = 0
    for _ in range(20):
        choices = [int(dice.integers(node.costs.size)) for node in built.problem.nodes]
        price = evaluate_problem(built.problem, choices)
        try:
            evaluate(built.prices, built.decode(choices), ("x",))
        except InconsistentPlanError:
            assert not price.feasible
            refused += 1
        else:
            assert price.feasible
    assert refused >= 15
