"""Prices ask the compiler: where a habit is denied, something costs otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard.cost
from autoshard.cost.collective import Kind, MeshTopology
from autoshard.cost.combined import latency_share, settled_seconds
from autoshard.cost.reordering import transposing
from autoshard.cost.reshard import ReshardCache
from autoshard.cost.several_slices import axes_between
from autoshard.cost.tiling import padding
from autoshard.machine.compiler import LAWS
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.evaluate import evaluate
from tests.helpers import case, random_plan, with_compiler, with_lost_habits
from tests.xla.habit_cases import disagreeing
from tests.xla.test_denied_habits import asked_in

Price = Callable[[Machine], Any]


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def shared(kind: str) -> Price:
    """The share of a latency that one of three collectives pays."""
    return lambda machine: latency_share(3, np.array([1e3]), machine.chip, kind).tolist()


def settled(mesh: tuple[int, ...], stored: tuple[int, ...], *axes: int, together: int) -> Price:
    """Seconds of scattering a sum of a megabyte that may be combined with others."""

    def price(machine: Machine) -> Any:
        topology, kinds = MeshTopology(machine, mesh), ("all_reduce", "reduce_scatter")
        size, layout = np.array([1e6]), np.array([stored])
        found = settled_seconds(topology, "reduce_scatter", axes, size, layout, together, kinds)
        return found.tolist()

    return price


def rate(kind: Kind, *mesh: int) -> Price:
    """What a collective over all chips costs."""
    return lambda machine: MeshTopology(machine, mesh).rate(kind, tuple(range(len(mesh))))


def resharded(*shape: int) -> Price:
    """Seconds between all layouts of an array."""

    def price(machine: Machine) -> Any:
        cache = ReshardCache(MeshTopology(machine, (machine.chips,)))
        return cache.table(shape, 4).seconds.tolist()

    return price


def filled(*sizes: int) -> Price:
    """How much room tiles take."""
    return lambda machine: padding(np.array([sizes]), machine.chip).tolist()


def usual(machine: Machine) -> Machine:
    """The machine with a compiler that denies nothing."""
    return with_compiler(machine, without=frozenset())


def planned(fn: Callable[..., Any], *args: Any, seeds: int = 1) -> Price:
    """Estimates of random plans, which are drawn and analysed where nothing is denied."""

    def price(machine: Machine) -> Any:
        mesh = {"x": 2, "y": machine.chips // 2}
        given = case(fn, *args, mesh=mesh, machine=usual(machine))
        plans = [random_plan(given, seed) for seed in range(seeds)]
        prices = replace(given.built.prices, machine=machine)
        return [evaluate(prices, plan.decisions, plan.mesh.names).estimate for plan in plans]

    return price


def transposed(fn: Callable[..., Any], *args: Any) -> Price:
    """Bytes that transpositions of operands move, of uncut arrays."""

    def price(machine: Machine) -> Any:
        given = case(fn, *args, mesh={"x": machine.chips}, machine=usual(machine))
        prices, ops = replace(given.built.prices, machine=machine), given.program.ops
        assert prices.dataflow.transposed
        strategies = given.built.op_strategies
        moved = (
            transposing(prices, ops[op], strategies[op])[0] for op in prices.dataflow.transposed
        )
        return [one.max() for one in moved]

    return price


def exposed(machine: Machine) -> Any:
    """The share of a collective's time that adds to a step of a machine that could hide half."""
    given = case(
        jnp.sin, array(8), mesh={"x": machine.chips}, machine=replace(machine, overlap=0.5)
    )
    return given.built.prices.exposed(True)


def in_steps(machine: Machine) -> Any:
    """The axes over which sums are added up last."""
    return axes_between(MeshTopology(machine, (2, machine.chips // 2)))


def attention(q: Any, k: Any, v: Any) -> Any:
    shares = jax.nn.softmax(jnp.einsum("bqkgh,bskh->bkgqs", q, k))
    return jnp.einsum("bkgqs,bskh->bqkgh", shares, v)


def layers(stack: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]


def looked_up(table: Any, tokens: Any, x: Any) -> Any:
    return x @ table[tokens].astype(jnp.bfloat16).T


def by_group(x: Any, w: Any) -> Any:
    """The gradient of what every group's matrix makes of its rows."""
    sizes = jnp.full(w.shape[:1], x.shape[0] // w.shape[0], jnp.int32)
    return jax.grad(lambda w: jnp.sum(jnp.sin(jax.lax.ragged_dot(x, w, sizes))))(w)


def kept_on_host(x: Any, w: Any) -> Any:
    """What goes to the host while a product runs."""
    space = jax.memory.Space
    kept = jax.device_put(jnp.sin(x), space.Host)
    return jnp.tanh(x @ w @ w @ w) * jax.device_put(kept, space.Device)


def kept_in_loop_on_host(x: Any, weights: Any) -> Any:
    """What each turn makes goes to the host."""

    def turn(x: Any, w: Any) -> tuple[Any, Any]:
        made = jnp.tanh(x @ w)
        return made, jax.device_put(made, jax.memory.Space.Host)

    return jax.lax.scan(turn, x, weights)


FOURS = array(4, 64, 32), array(4, 32, 4), array(4, 4, 32), array(4, 32, 64)
HEADS = array(2, 64, 8, 4, 32), array(2, 64, 8, 32), array(2, 64, 8, 32)
GROUPED = planned(attention, *HEADS)
WEIGHTS = planned(layers, array(3, 64, 64), array(64, 64), seeds=10)
TOKEN = planned(layers, array(3, 1024, 1024), array(1, 1024), seeds=5)
POWERS = planned(lambda x: jnp.exp(jnp.sin(jnp.exp(x))), array(4096, 4096, dtype=jnp.bfloat16))
RAGGED = planned(by_group, array(8192, 512), array(8, 512, 512))
TABLE = planned(
    looked_up,
    *(array(64, 64), array(32, dtype=jnp.int32), array(16, 64, dtype=jnp.bfloat16)),
    seeds=10,
)

MOVED = planned(kept_on_host, array(64, 64), array(64, 64))
MOVED_IN_LOOP = planned(kept_in_loop_on_host, array(64, 64), array(4, 64, 64))

PRICES: dict[str, dict[str, Price]] = {
    "h100-8": {
        "gpu.collectives-begin-and-end": exposed,
        "gpu.functions-are-multiples": POWERS,
        "gpu.exponentials-of-hopper": POWERS,
        "gpu.gathers-along-first-dimension": resharded(64, 64),
        "gpu.gathers-as-it-lies": resharded(64, 64),
        "gpu.gathers-combined": shared("all_gather"),
        "gpu.gathers-combined-to-30-mib": shared("all_gather"),
        "gpu.sums-combined": shared("all_reduce"),
        "gpu.sums-combined-to-30-mib": shared("all_reduce"),
        "gpu.scatters-combined": shared("reduce_scatter"),
        "gpu.sums-are-scattered": rate("reduce_scatter", 8),
        "gpu.products-write-batch-left-right": GROUPED,
        "gpu.transposes-element-by-element": transposed(attention, *HEADS),
        "gpu.transposes-through-tiles": GROUPED,
        "gpu.tiles-of-sixteen-elements": transposed(attention, *HEADS),
        "gpu.stacks-put-in-order": WEIGHTS,
        "gpu.small-products-of-a-row-are-sums": TOKEN,
        "gpu.ragged-once-per-group": RAGGED,
        "gpu.ragged-gradients-once-per-group": RAGGED,
        "gpu.host-copies-beside-kernels": MOVED,
    },
    "v5e-8": {
        "tpu.v5e-hides-gathers": exposed,
        "tpu.host-copies-beside-kernels": MOVED,
    },
    "v5e-8@recipe": {"tpu.host-copies-in-another-turn": MOVED_IN_LOOP},
    "v5e-16": {"tpu.no-scatter-over-whole-square": rate("reduce_scatter", 4, 4)},
    "v5e-32": {"tpu.scatters-around-oblongs": rate("reduce_scatter", 4, 8)},
    "v5p-64": {
        "tpu.no-scatter-over-whole-cube": rate("reduce_scatter", 8, 8),
        "tpu.no-scatter-onto-two-dimensions": settled((4, 4, 4), (0, 1, -1), 0, 1, together=1),
    },
    "2xv5p-64": {
        "tpu.no-scatter-across-slices": rate("reduce_scatter", 2, 64),
        "tpu.gathers-over-cubes-of-several-are-sums": rate("all_gather", 2, 64),
        "tpu.sums-across-slices-in-steps": in_steps,
    },
    "v5p-8": {
        "tpu.ragged-gradients-once-per-group": RAGGED,
        "tpu.few-rows-turned-for-gathers": resharded(64, 16),
        "tpu.sums-are-combined": shared("all_reduce"),
        "tpu.own-rows-converted-after-lookup": TABLE,
        "tpu.products-read-transposed": transposed(disagreeing, *FOURS),
        "tpu.tiles-of-8-by-128": filled(10, 100),
        "tpu.tiles-of-few-rows": filled(2, 128),
        "tpu.tiles-waste-least": filled(128, 8, 2),
        "tpu.pads-go-tile-by-tile": planned(
            lambda x: jnp.sort(jnp.pad(x, ((0, 60), (0, 0)))), array(196, 1024)
        ),
    },
}
"""By machine and habit, a price in which it counts."""


@pytest.mark.parametrize(
    ("name", "habit"), [(name, habit) for name, of in PRICES.items() for habit in of]
)
def test_without_a_habit_something_costs_otherwise(name: str, habit: str) -> None:
    machine, price = with_lost_habits(load(name)), PRICES[name][habit]
    assert price(with_compiler(machine, without=frozenset({habit}))) != price(machine)


def test_without_a_compiler_prices_are_laws_alone() -> None:
    """Gathers copy nothing, nothing is combined, and a whole torus has a reduce-scatter."""
    for name in ("v5e-16", "v5p-64", "h100-8"):
        machine = load(name)
        machine = replace(machine, chip=replace(machine.chip, compiler=LAWS))
        topology = MeshTopology(machine, (machine.chips,))
        scatter, gather = (topology.rate(k, (0,)) for k in ("reduce_scatter", "all_gather"))
        assert scatter == gather
        assert not topology.leaves_whole((0,))
        bare = replace(machine, chip=replace(machine.chip, transaction_bytes=0.0, sublanes=1))
        assert resharded(64, 64)(machine) == resharded(64, 64)(bare)
        for kind in ("all_gather", "all_reduce", "reduce_scatter"):
            assert shared(kind)(machine) == [1.0]
        padded = filled(10, 100)(machine)  # tiles are the memory's, whatever the compiler
        assert padded == filled(10, 100)(load(name))


def test_every_habit_that_is_asked_for_has_a_price() -> None:
    folder = Path(autoshard.cost.__file__).parent
    asked = {name for file in folder.glob("*.py") for name in asked_in(file)}
    assert asked == {habit for of in PRICES.values() for habit in of}
