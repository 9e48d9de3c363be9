"""Plans of every kind for the tests: a toy machine on which sharding wins, and random plans.

On a real chip the best plan for a tiny program replicates everything, which tests nothing. So
`toy_machine` has slow compute, fast links, no latencies and no launch cost; `random_plan` throws
dice on the costs of a built problem, so that its solution is a valid plan that uses every kind of
strategy, copy, mode and settlement that the space holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from autoshard.cost.step_prices import StepPrices, step_prices
from autoshard.machine.chip import Chip
from autoshard.machine.compiler import Compiler
from autoshard.machine.host import Host
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate, tidy
from autoshard.plan.plan import MeshShape, Plan, Proof
from autoshard.problem.build import Built, build
from autoshard.program.facts import Facts
from autoshard.program.repeats import find_repeats
from autoshard.program.trace import Program, trace
from autoshard.search.assemble import assemble
from autoshard.solve import solve
from autoshard.solve.problem import Problem
from autoshard.xla import analyse
from autoshard.xla.pipelined import made_ahead, summed_behind

LONG = pytest.mark.long


def sampled(cases: Sequence[Any], among: Callable[[Any], bool]) -> list[Any]:
    """The parameters of a test, marked `long` but for those `among` the sample that always runs."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*one, marks=() if among(case) else LONG)
        for case, one in zip(cases, values, strict=True)
    ]


MESHES: Mapping[str, Mapping[str, int]] = {
    "8": {"x": 8},
    "2x4": {"x": 2, "y": 4},
    "2x2x2": {"x": 2, "y": 2, "z": 2},
}


def toy_machine(chips: int = 8, *, memory_bytes: float = 2.0**30) -> Machine:
    """A machine with slow chips and a fast network, where every bit of sharding pays."""
    chip = Chip(
        name="toy",
        peak_flops={"float32": 1e6, "bfloat16": 1e6},
        vector_flops=1e6,
        memory_bytes=memory_bytes,
        memory_bandwidth=1e7,
        reserve_bytes=0.0,
        launch_seconds=0.0,
        matmul_efficiency=1.0,
        memory_efficiency=1.0,
    )
    network = (Switch(chips, chip_bandwidth=1e9, latency_seconds=0.0, efficiency=1.0),)
    host = Host(chips, 8 * memory_bytes, to_bandwidth=1e6, from_bandwidth=2e6)
    return Machine("toy", "toy", chip, network, overlap=0.0, host=host)


def hiding(chips: int) -> Machine:
    """The toy machine with a compiler that orders every plan anew."""
    return with_compiler(toy_machine(chips), name="xla:tpu", hides_collectives=True)


def with_compiler(machine: Machine, **changes: Any) -> Machine:
    """The machine with another compiler, or another figure of its own."""
    chip = machine.chip
    return replace(machine, chip=replace(chip, compiler=replace(chip.compiler, **changes)))


def with_lost_habits(machine: Machine) -> Machine:
    """The machine with the compiler of the first tested jaxlib, when no habit was lost yet."""
    return with_compiler(machine, without=frozenset(), release="0.10.2")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A program with its problem on one mesh; plans are drawn from it."""

    program: Program
    options: Mapping[str, Any]
    mesh: MeshShape
    built: Built

    def plan(self, decisions: Decisions) -> Plan:
        """The plan that `decisions` amount to, priced and with its moves."""
        prices = self.built.prices
        decisions = tidy(prices, decisions)
        evaluation = evaluate(prices, decisions, self.mesh.names)
        seconds = evaluation.estimate.step_seconds
        return assemble(
            prices,
            decisions,
            self.mesh,
            evaluation,
            proof=Proof("feasible", seconds, 0.0, 1.0, 0.0, "gap"),
            memory_limit=float("inf"),
            options=self.options,
        )


def wires(name: str) -> Machine:
    """A preset on which reshards cost what their collectives do, and no transpositions."""
    machine = load(name)
    return replace(machine, chip=replace(machine.chip, transaction_bytes=0.0, sublanes=1))


def case(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Mapping[str, int],
    machine: Machine | None = None,
    limit: float | None = None,
    fold: bool = True,
    join_sums: bool = True,
    **options: Any,
) -> Case:
    """Trace `fn` and build its problem on the toy machine; `options` go to `trace`."""
    program = trace(fn, *args, **options)
    shape = MeshShape(tuple(mesh), tuple(mesh.values()))
    machine = machine or toy_machine()
    prices = step_prices(program, analyse(program, machine.chip), machine, shape.sizes)
    built = build(prices, find_repeats(program, fold=fold), limit=limit, join_sums=join_sums)
    return Case(program, options, shape, built)


def best_plan(given: Case, *, seconds: float = 12.0) -> Plan:
    """The plan that the solver finds best, within a loose gap."""
    outcome = solve(given.built.problem, time_limit=seconds, gap=0.1)
    assert outcome.solution is not None, "no plan was found"
    return given.plan(given.built.decode(outcome.solution.choices))


def random_plan(given: Case, seed: int) -> Plan:
    """A valid plan drawn with `seed`: node after node takes a choice that is still possible."""
    built = given.built
    dice = np.random.default_rng(seed)
    weights = [np.ones(node.costs.size) for node in built.problem.nodes]
    copies = 10.0 ** dice.uniform(-3, 0)  # how much a resharded copy is liked
    for number, node in built.value_node.items():
        choices = built.value_choices[number]
        shards = choices.table.shards.prod(axis=1).astype(float)
        moved = choices.stored != choices.copy
        share = copies * (~moved).sum() / max(moved.sum(), 1)
        weights[node] = shards[choices.stored] * np.where(moved, share, 1.0)
    for number, node in built.op_node.items():
        weights[node] = built.op_strategies[number].shards.astype(float)
    for _ in range(20):
        chosen = _toss(built.problem, weights, dice)
        if chosen is not None:
            return given.plan(built.decode(chosen))
    raise AssertionError("no plan was found")


def _toss(
    problem: Problem, weights: Sequence[np.ndarray], dice: np.random.Generator
) -> list[int] | None:
    """Choices drawn node by node, each followed by arc consistency; None at a dead end."""
    alive = [np.ones(node.costs.size, dtype=bool) for node in problem.nodes]
    touching: list[list[int]] = [[] for _ in problem.nodes]
    finite: dict[int, np.ndarray] = {}
    for number, edge in enumerate(problem.edges):
        touching[edge.u].append(number)
        touching[edge.v].append(number)
        finite.setdefault(id(edge.table), np.isfinite(edge.table))

    def settle(queue: list[int], undo: list[tuple[int, np.ndarray]]) -> bool:
        while queue:
            node = queue.pop()
            for number in touching[node]:
                edge = problem.edges[number]
                table = finite[id(edge.table)]
                here, there, other = edge.left, edge.right, edge.v
                if edge.v == node:
                    table, here, there, other = table.T, edge.right, edge.left, edge.u
                rows = np.zeros(len(table), dtype=bool)
                rows[here[alive[node]]] = True
                left = alive[other] & table[rows].any(axis=0)[there]
                if left.sum() < alive[other].sum():
                    undo.append((other, alive[other]))
                    alive[other] = left
                    if not left.any():
                        return False
                    queue.append(other)
        return True

    if not settle(list(range(len(alive))), []):
        return None
    for node in dice.permutation(len(alive)).tolist():
        for _ in range(30):
            odds = weights[node] * alive[node]
            if not odds.any():
                return None
            pick = int(dice.choice(len(odds), p=odds / odds.sum()))
            undo = [(node, alive[node])]
            alive[node] = np.arange(len(odds)) == pick
            if settle([node], undo):
                break
            for changed, before in reversed(undo):
                alive[changed] = before
            alive[node] = alive[node] & (np.arange(len(odds)) != pick)
        else:
            return None
    return [int(np.flatnonzero(row)[0]) for row in alive]


def moves_by_kind(plan: Plan) -> dict[str, int]:
    """How often each kind of collective is planned."""
    counts: dict[str, int] = {}
    for move in plan.moves:
        counts[move.kind] = counts.get(move.kind, 0) + move.count
    return counts


def concrete_like(args: Sequence[Any]) -> Any:
    """Random arrays for abstract arguments: floats from a normal law, integers in {0, 1, 2}."""
    import jax
    import jax.numpy as jnp

    dice = np.random.default_rng(0)

    def array(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(dice.normal(size=leaf.shape), leaf.dtype)
        if leaf.dtype == bool:
            return jnp.asarray(dice.random(leaf.shape) < 0.5)
        return jnp.asarray(dice.integers(0, 3, leaf.shape), leaf.dtype)

    return jax.tree.map(array, tuple(args))


def moved_by(compiler: Compiler, prices: StepPrices) -> Facts:
    """The facts of a step with what a compiler may move to other turns of its loops."""
    program, flow = prices.program, prices.dataflow
    behind = summed_behind(program, flow.readers, compiler)
    return replace(flow, made_ahead=made_ahead(program, compiler), summed_behind=behind)
