"""What a step waits for collectives: by hand, within bounds, and beside XLA:GPU's timeline."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.compiler.compiled import compile_plan
from autoshard.compiler.target import why_missing
from autoshard.plan.copies import value_trips
from autoshard.program.graph import Region
from autoshard.search.assemble import priced_anew, prices_of
from autoshard.xla import forecast
from autoshard.xla.forecast.exposed_time import Run, waited_seconds
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Role, Task
from tests.helpers import case, hiding, random_plan, with_compiler
from tests.random_programs import random_program

GATHERED = [f"limit {kind} count 0" for kind in ("all_to_all", "all_reduce", "reduce_scatter")]


def reckoned(runs: dict[int, list[tuple[str, float]]], monkeypatch: Any) -> float:
    """Of steps ("kernel" or "begin", seconds), ("end", number of the begin) or ("loop", region).

    Region 1 runs three times.
    """
    trips = {0: 1, 1: 3}
    seconds: dict[int, float] = {}
    regions = [Region(n, n - 1, 0, 0, trips[n], "scan") for n in runs]
    made = {}
    for number, steps in runs.items():
        kernels, tasks, flights = [], [], {}
        for kind, what in steps:
            if kind in ("kernel", "loop"):
                inner = regions[int(what)] if kind == "loop" else None
                role = Role.LOOP if kind == "loop" else Role.KERNEL
                tasks.append(Task(None, role, kernels=(len(kernels),)))
                kernels.append(Kernel(0, 1, 1, inner))
                seconds[id(kernels[-1])] = what
            elif kind == "begin":
                tasks.append(Task(None, Role.BEGIN))
                flights[tasks[-1]] = what
            else:
                end = Task(None, Role.END)
                end.reads([task for task in tasks if task.role is Role.BEGIN][int(what)])
                tasks.append(end)
        made[number] = Run(kernels, tasks, flights)
    ops = [SimpleNamespace(index=0, primitive="add")]  # of every kernel
    program = SimpleNamespace(regions=regions, ops=ops, values=())
    prices = SimpleNamespace(program=program, mesh_shape=(), evaluated={})
    decided: Any = SimpleNamespace(prices=prices, decisions=None)
    module = importlib.import_module("autoshard.xla.forecast.exposed_time")
    monkeypatch.setattr(module, "_kernel_seconds", lambda _, kernel: seconds[id(kernel)])
    return waited_seconds(decided, made)


@pytest.mark.parametrize(
    ("runs", "waited"),
    [
        ({0: [("begin", 4.0), ("kernel", 1.0), ("end", 0)]}, 3.0),
        ({0: [("begin", 4.0), ("kernel", 9.0), ("end", 0)]}, 0.0),
        # The second waits for the first.
        ({0: [("begin", 4.0), ("begin", 2.0), ("kernel", 1.0), ("end", 1), ("end", 0)]}, 5.0),
        # Three times in a loop, behind nothing and behind a kernel.
        ({0: [("loop", 1)], 1: [("begin", 2.0), ("end", 0), ("kernel", 5.0)]}, 6.0),
        ({0: [("loop", 1)], 1: [("begin", 2.0), ("kernel", 0.5), ("end", 0)]}, 4.5),
        # A loop begins when what is under way is done.
        (
            {0: [("begin", 7.0), ("kernel", 1.0), ("loop", 1), ("end", 0)], 1: [("kernel", 1.0)]},
            6.0,
        ),
    ],
)
def test_two_streams_by_hand(runs: Any, waited: float, monkeypatch: Any) -> None:
    assert reckoned(runs, monkeypatch) == waited


@pytest.mark.parametrize("seed", range(12))
def test_a_step_waits_no_longer_than_its_collectives_take(seed: int) -> None:
    step, args = random_program(seed)[:2]
    machine = hiding(4)
    machine = with_compiler(machine, name="xla:gpu")
    given = case(step, *args, mesh={"x": 2, "y": 2}, machine=machine)
    plan, prices = random_plan(given, seed), given.built.prices
    found = forecast(prices, plan.decisions)
    assert found is not None
    assert found.waited_seconds is not None
    decided = Decided(prices, plan.decisions)
    longest = sum(
        one.seconds * op.trips for op in prices.program.ops if (one := decided.of_sum(op))
    )
    for value in prices.program.values:
        once = sum(one.seconds for one in decided.steps_of_copy(value.index))
        if once:
            lives = sum(bool(life) for life in decided.served(value.index))
            longest += once * lives * value_trips(prices.program, value.index)
    assert 0 <= found.waited_seconds <= longest * (1 + 1e-9)
    estimate = plan.estimate
    assert estimate.expected_seconds == estimate.compute_seconds + found.waited_seconds


@pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")
@pytest.mark.parametrize(("batch", "hides"), [(65536, True), (1024, False)])
def test_gathers_hide_behind_products_as_in_the_compilers_timeline(
    batch: int, hides: bool, tmp_path: Path
) -> None:
    """Of weights of which each is larger than what is combined, but for the first one."""

    def step(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x

    weights = [jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)] * 6
    args = weights, jax.ShapeDtypeStruct((batch, 4096), jnp.bfloat16)
    machine = autoshard.load_machine("h100-8")
    pins = [*(f"pin weights[{k}] [x, None]" for k in range(6)), "pin x [x, None]"]
    plan = autoshard.search(
        autoshard.trace(step, *args),
        machine,
        mesh={"x": 8},
        requirements=[*pins, "pin result [x, None]", *GATHERED],
        time_limit=10.0,
    )
    assert [move.kind for move in plan.moves] == ["all_gather"] * 6
    compiled = compile_plan(autoshard.lower(plan, step, *args), machine, cache=tmp_path)
    assert compiled.timeline is not None
    waited = plan.estimate.expected_seconds - plan.estimate.compute_seconds
    hidden = 1 - waited / plan.estimate.collective_seconds
    assert (hidden > 0.7) == hides
    share = compiled.timeline.exposed_seconds / compiled.timeline.collective_seconds
    assert waited / plan.estimate.collective_seconds == pytest.approx(share, abs=0.15)


def test_where_memory_does_not_suffice_nothing_is_hidden() -> None:
    step, args = random_program(3)[:2]
    machine = with_compiler(hiding(4), name="xla:gpu")
    given = case(step, *args, mesh={"x": 2, "y": 2}, machine=machine)
    plan = random_plan(given, 3)
    assert plan.estimate.scheduled_bytes is not None
    for memory in (plan.estimate.scheduled_bytes, plan.estimate.scheduled_bytes - 1):
        small = replace(machine, chip=replace(machine.chip, memory_bytes=float(memory)))
        prices = prices_of(plan, given.program, small)
        estimate = priced_anew(plan, prices).estimate
        if memory == plan.estimate.scheduled_bytes:
            assert estimate.scheduled_seconds == plan.estimate.scheduled_seconds
        else:
            assert estimate.scheduled_seconds == estimate.upper_seconds
