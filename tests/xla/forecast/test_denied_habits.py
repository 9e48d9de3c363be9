"""Rules over a plan ask the compiler: where a habit is denied, something else is forecast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autoshard.xla
from autoshard.cost.collective import MeshTopology
from autoshard.cost.reshard import ReshardCache
from autoshard.cost.step_prices import StepPrices
from autoshard.machine.compiler import LAWS
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch
from autoshard.plan.decisions import Decisions
from autoshard.program.graph import Region
from autoshard.xla import forecast
from autoshard.xla.forecast.gpu_collective_estimate import UNKNOWN_SECONDS, between_hosts
from autoshard.xla.forecast.pipelined import Pipelined
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.forecast.task_graph import TaskGraph
from autoshard.xla.fusion import fuse
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.op_order import arranged
from tests.helpers import Case, case, moved_by, random_plan, toy_machine, with_compiler
from tests.random_programs import random_program
from tests.xla.forecast.test_forecast import looped
from tests.xla.forecast.test_tpu_late_products import ARGS, step
from tests.xla.test_denied_habits import asked_in


class Step(NamedTuple):
    """A step, what it is given, and what it may write over."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donated: tuple[int, ...] = ()


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Grouped queries, with a gradient of the values."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqkgh,bskh->bkgqs", q, k).astype(jnp.float32)
        shares = jax.nn.softmax(scores).astype(jnp.bfloat16)
        return jnp.sum(jnp.einsum("bkgqs,bskh->bqkgh", shares, v).astype(jnp.float32))

    return jax.grad(loss, (0, 1, 2))(q, k, v)


def descent(weights: Any, x: Any) -> Any:
    """Three layers that learn, two of them narrow."""

    def loss(weights: Any) -> Any:
        hidden = x
        for weight in weights:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.sum(hidden)

    slopes = jax.grad(loss)(weights)
    return [one - 0.1 * slope for one, slope in zip(weights, slopes, strict=True)]


def learnt_in_loop(stack: Any, x: Any) -> Any:
    """The gradient of layers of two weights each, which a loop converts."""

    def loss(stack: Any, x: Any) -> Any:
        def body(x: Any, pair: Any) -> tuple[Any, None]:
            one, other = (weight.astype(jnp.bfloat16) for weight in pair)
            hidden = jnp.tanh(x @ one)
            return jnp.tanh(hidden @ other) + hidden, None

        return jnp.sum(lax.scan(body, x, stack)[0].astype(jnp.float32))

    slopes = jax.grad(loss)(stack, x)
    return jax.tree.map(lambda one, slope: one - slope, stack, slopes)


def pooled(x: Any, w: Any) -> Any:
    """The gradient of a pool behind a product."""

    def loss(x: Any, w: Any) -> Any:
        made = jnp.einsum("bhwc,cd->bhwd", x, w)
        most = lax.reduce_window(made, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.sum(most * most)

    return jax.grad(loss, (0, 1))(x, w)


def updated(w: Any, mean: Any, square: Any, x: Any, y: Any) -> Any:
    """Updates in place by what is made of a gradient, which sums read too."""
    slope = jnp.tanh(x @ y)
    mean, square = 0.9 * mean + slope, 0.9 * square + slope * slope
    return w - mean / square, mean, square, jnp.sum(slope, 0), jnp.sum(slope, 1)


def beside_loops(x: Any, w: Any, y: Any) -> Any:
    """Products around a loop that multiplies, too, and a loop that counts."""

    def body(x: Any, _: Any) -> tuple[Any, None]:
        return jnp.tanh(x @ w), None

    first = jnp.tanh(x.T @ y)
    count = lax.scan(lambda n, _: (n + 1.0, None), jnp.zeros(()), None, length=3)[0]
    return lax.scan(body, x, None, length=3)[0], first @ y.T, w @ first, count


def scattered(tokens: Any, x: Any, y: Any) -> Any:
    """A scatter onto zeros that is added to a product."""
    return jnp.zeros((16, 16)).at[tokens].add(x) + x.T @ y


def masked(q: Any, k: Any, v: Any) -> Any:
    """Grouped queries of one sequence, whose shares two products read."""
    scores = jnp.einsum("qkgh,skh->kgqs", q, k).astype(jnp.float32)
    most = jnp.max(scores, axis=-1, keepdims=True)
    powers = jnp.exp(scores - most)
    shares = (powers / jnp.sum(powers, axis=-1, keepdims=True)).astype(jnp.bfloat16)
    return jnp.einsum("kgqs,skh->qkgh", shares, v), jnp.einsum("kgqs,qkgh->skh", shares, q)


def stacked(x: Any, w: Any) -> Any:
    """What a loop stacks is read by another one in another order."""

    def forward(x: Any, _: Any) -> tuple[Any, Any]:
        made = jnp.tanh(x @ w)
        return made, made

    def backward(x: Any, one: Any) -> tuple[Any, None]:
        return (x @ w) * (1 - one * one), None

    last, stack = lax.scan(forward, x, None, length=3)
    return lax.scan(backward, last, stack)[0]


PAIR = (array(3, 16, 16), array(3, 16, 16))
STEPS: dict[str, Step] = {
    **{f"random {seed}": Step(*random_program(seed)[:2]) for seed in range(8)},
    **{f"looped {seed}": Step(*looped(seed)) for seed in range(8)},
    "table": Step(step, ARGS),
    "attention": Step(
        attention,
        tuple(
            array(*shape, dtype=jnp.bfloat16)
            for shape in ((4, 8, 4, 2, 8), (4, 8, 4, 8), (4, 8, 4, 8))
        ),
    ),
    "one sequence": Step(
        attention,
        tuple(
            array(*shape, dtype=jnp.bfloat16)
            for shape in ((1, 8, 4, 2, 8), (1, 8, 4, 8), (1, 8, 4, 8))
        ),
    ),
    "descent": Step(
        descent,
        ([array(16, 16)] * 3, array(32, 16)),
        (0,),
    ),
    "loop": Step(learnt_in_loop, (PAIR, array(32, 16, dtype=jnp.bfloat16)), (0,)),
    "update": Step(
        updated,
        (*(array(16, 16),) * 3, *(array(16, 16, dtype=jnp.bfloat16),) * 2),
        (0, 1, 2),
    ),
    "beside": Step(beside_loops, (array(16, 16),) * 3),
    "scattered": Step(scattered, (array(16, dtype=jnp.int32), array(16, 16), array(16, 16))),
    "masked": Step(
        masked,
        tuple(
            array(*shape, dtype=jnp.bfloat16) for shape in ((16, 4, 2, 8), (256, 4, 8), (256, 4, 8))
        ),
    ),
    "stacked": Step(stacked, (array(16, 16),) * 2),
    "pool": Step(pooled, (array(4, 8, 8, 8), array(8, 8))),
}


def toy(compiler: str, *, hides: bool = True, hosts: int = 1, **chip: Any) -> Machine:
    """A machine of four chips with latencies, within one host or in two."""
    machine = toy_machine(4)
    network = tuple(
        Switch(size, chip_bandwidth=rate, latency_seconds=1e-5, efficiency=1.0)
        for size, rate in ((4 // hosts, 1e9), (hosts, 1e8))
        if size > 1
    )
    chip = {"launch_seconds": 1e-6, "memory_efficiency": 0.9, **chip}
    machine = replace(machine, network=network, chip=replace(machine.chip, **chip))
    size = 1000.0 if compiler == "xla:gpu" else 0.0
    return with_compiler(machine, name=compiler, hides_collectives=hides, workspace_bytes=size)


def cluster() -> Machine:
    """Two hosts of two GPUs."""
    whole = load("b200-16")
    return replace(whole, network=tuple(replace(level, size=2) for level in whole.network))


@functools.cache
def machine_of(name: str) -> Machine:
    tpu = {"vector_memory_bytes": 3000.0, "lanes": 4, "sublanes": 2}
    made = {
        "gpu": lambda: toy("xla:gpu"),
        "gpus": lambda: toy("xla:gpu", hosts=2),
        "recipe gpu": lambda: with_compiler(toy("xla:gpu"), flags="recipe"),
        "cluster": cluster,
        "quiet gpu": lambda: toy("xla:gpu", hides=False),
        "tpu": lambda: toy("xla:tpu", **tpu),
        "quiet tpu": lambda: toy("xla:tpu", hides=False, **tpu),
    }
    if name in made:
        return made[name]()
    small = load(name)
    return replace(small, chip=replace(toy("xla:tpu", **tpu).chip, compiler=small.chip.compiler))


@functools.cache
def built(name: str, machine: str) -> Case:
    one, chips = STEPS[name], machine_of(machine)
    mesh = {"x": 2, "y": chips.chips // 2}
    return case(one.fn, *one.args, mesh=mesh, machine=chips, donate_argnums=one.donated)


@functools.cache
def drawn(name: str, machine: str, seed: int) -> tuple[StepPrices, Decisions]:
    given = built(name, machine)
    return given.built.prices, random_plan(given, seed).decisions


def denied(prices: StepPrices, *habits: str) -> StepPrices:
    """The prices where the compiler has not these habits, with the facts of one that has them."""
    machine = with_compiler(prices.machine, without=frozenset(habits))
    prices = replace(prices, dataflow=moved_by(machine.chip.compiler, prices))
    topology = MeshTopology(machine, prices.mesh_shape)
    return replace(prices, machine=machine, topology=topology, reshards=ReshardCache(topology))


def tasks(prices: StepPrices, decisions: Decisions) -> list[object]:
    """What the scheduler is given: roles, times, and how much each task needs, by region."""
    decided, found = Decided(prices, decisions), list[object]()
    fusion = fuse(prices.program, prices.machine.chip)

    def look(region: Region, kernels: Sequence[Kernel]) -> Sequence[int]:
        graph = TaskGraph(decided, fusion, (), region, kernels, Pipelined(decided))
        every = [*graph.tasks, *(end for one in graph.flights for end in (one.begin, one.end))]
        found.extend((one.role, one.seconds, one.latency, len(one.before)) for one in every)
        return range(len(kernels))

    arranged(prices.program, fusion, look)
    return found


FORECAST: dict[str, dict[str, tuple[str, int]]] = {
    "gpu": {
        "gpu.all-to-alls-cut-first-dimension": ("attention", 0),
        "gpu.batches-read-in-order": ("attention", 1),
        "gpu.collectives-begin-and-end": ("attention", 0),
        "gpu.gathers-combined": ("attention", 2),
        "gpu.gathers-combined-in-loops": ("loop", 0),
        "gpu.gathers-combined-to-30-mib": ("attention", 2),
        "gpu.gathers-hidden": ("attention", 0),
        "gpu.inner-rows-copied-for-scatters": ("pool", 2),
        "gpu.kernels-at-full-bandwidth": ("attention", 0),
        "gpu.longest-chain-first": ("attention", 0),
        "gpu.loops-with-collectives-alone": ("beside", 0),
        "gpu.made-of-scattered-lies-so": ("update", 19),
        "gpu.one-collective-at-a-time": ("attention", 0),
        "gpu.pool-gradients-scatter": ("pool", 0),
        "gpu.products-are-calls": ("attention", 0),
        "gpu.scalar-sums-take-no-time": ("looped 3", 0),
        "gpu.scatters-along-first-dimension": ("update", 19),
        "gpu.scatters-combined": ("attention", 0),
        "gpu.stacked-out-of-order": ("loop", 11),
        "gpu.stacks-written-in-turn": ("loop", 0),
        "gpu.sums-combined": ("looped 3", 0),
        "gpu.sums-combined-in-loops": ("loop", 0),
        "gpu.sums-combined-to-30-mib": ("attention", 0),
        "gpu.sums-hidden": ("attention", 0),
        "gpu.waits-counted-in-views": ("attention", 0),
    },
    "recipe gpu": {
        "gpu.gathers-a-turn-ahead-by-recipe": ("loop", 0),
        "gpu.sums-a-turn-behind-by-recipe": ("loop", 0),
    },
    "cluster": {"gpu.workspace-of-blackwell": ("attention", 0)},
    "gpus": {
        "gpu.gathers-along-first-dimension": ("loop", 1),
        "gpu.gathers-as-it-lies": ("loop", 1),
        "gpu.loop-edges-as-numbered": ("loop", 1),
        "gpu.results-beside": ("update", 4),
    },
    "quiet gpu": {
        "gpu.gathers-first-on-ampere": ("attention", 0),
        "gpu.least-memory-in-loops": ("loop", 1),
    },
    "tpu": {
        "tpu.elementwise-into-products": ("descent", 0),
        "tpu.fixed-costs-of-kernels": ("attention", 2),
        "tpu.gradients-are-combined-in-loops": ("loop", 2),
        "tpu.half-of-vector-memory-stays": ("attention", 0),
        "tpu.identical-gathers-are-one": ("attention", 1),
        "tpu.late-products": ("table", 57),
        "tpu.schedules-from-the-end": ("attention", 0),
        "tpu.shares-of-turned-scores-written": ("masked", 7),
        "tpu.short-lived-in-vector-memory": ("attention", 0),
        "tpu.slopes-of-turned-scores-made-anew": ("attention", 3),
        "tpu.softmaxes-of-five-dimensions-in-one-kernel": ("attention", 1),
        "tpu.sums-in-place": ("looped 0", 0),
        "tpu.v5e-hides-gathers": ("attention", 0),
    },
    "quiet tpu": {
        "tpu.scores-of-one-sequence-written": ("attention", 2),
        "tpu.stacks-converted-before-loops": ("loop", 0),
    },
    "v5e-16": {
        "tpu.readers-cut-whole-sums": ("table", 1),
        "tpu.sums-are-combined": ("attention", 13),
    },
}
"""By machine and habit: a step, and the seed of a plan of which something else is forecast.

A version of JAX that traces a step otherwise draws other plans from a seed: there it may be one of
the first `SEEDS`.
"""
SEEDS = 32
TASKS: dict[str, dict[str, tuple[str, int]]] = {
    "gpu": {"gpu.scatters-start-from-terms": ("scattered", 1)},
    "cluster": {
        "gpu.gathers-between-hosts-reckoned": ("scattered", 0),
        "gpu.sums-between-hosts-reckoned": ("scattered", 2),
    },
    "tpu": {"tpu.scatters-start-from-products": ("scattered", 1)},
}
"""Likewise where the scheduler is given other tasks."""
STRANGE = "gpu.strange-groups-unknown"


def rows(cases: dict[str, dict[str, tuple[str, int]]]) -> list[tuple[str, str, str, int]]:
    return [(machine, habit, *plan) for machine, of in cases.items() for habit, plan in of.items()]


def differs(
    of: Callable[[StepPrices, Decisions], object], machine: str, habit: str, name: str, seed: int
) -> bool:
    """Whether a plan of a step shows a habit: that of a seed, or one of the first."""
    plans = (drawn(name, machine, one) for one in (seed, *range(SEEDS)))
    return any(of(denied(p, habit), plan) != of(denied(p), plan) for p, plan in plans)


@pytest.mark.parametrize(("machine", "habit", "name", "seed"), rows(FORECAST))
def test_without_a_habit_something_else_is_forecast(machine, habit, name, seed):
    assert differs(forecast, machine, habit, name, seed)


@pytest.mark.parametrize(("machine", "habit", "name", "seed"), rows(TASKS))
def test_without_a_habit_the_scheduler_sees_something_else(machine, habit, name, seed):
    assert differs(tasks, machine, habit, name, seed)


def test_strange_groups_take_what_others_take_where_they_are_known() -> None:
    whole = load("h100-64")
    known = MeshTopology(with_compiler(whole, without=frozenset({STRANGE})), (4, 16))
    unknown = between_hosts(MeshTopology(whole, (4, 16)), "all_gather", (0,), 1.0)
    assert unknown is not None
    assert unknown.seconds == UNKNOWN_SECONDS
    assert between_hosts(known, "all_gather", (0,), 1.0) is None


@pytest.mark.parametrize("machine", list(FORECAST))
def test_without_a_compiler_nothing_is_forecast(machine: str) -> None:
    name, seed = next(iter(FORECAST[machine].values()))
    prices, decisions = drawn(name, machine, seed)
    chip = replace(prices.machine.chip, compiler=LAWS)
    lawful = replace(prices, machine=replace(prices.machine, chip=chip))
    assert (forecast(lawful, decisions), forecast(prices, decisions) is None) == (None, False)


def test_every_habit_that_is_asked_for_has_a_case() -> None:
    folder = Path(autoshard.xla.__file__).parent
    files = [
        *(folder / "forecast").glob("*.py"),
        folder / "latency_hiding.py",
        folder / "pipelined.py",
    ]
    asked = {name for file in files for name in asked_in(file)}
    cases = {habit for of in (*FORECAST.values(), *TASKS.values()) for habit in of}
    assert asked == cases | {STRANGE}
