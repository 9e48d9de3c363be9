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

from autoshard.build import Built, build
from autoshard.cost.step import step_prices
from autoshard.dataflow import analyse
from autoshard.decisions import Decisions
from autoshard.evaluate import evaluate, tidy
from autoshard.machine import Chip, Machine, Switch
from autoshard.plan import MeshShape, Plan, Proof
from autoshard.program import Program, trace
from autoshard.repeats import find_repeats
from autoshard.search import _specs, reshards_of
from autoshard.solve import solve

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
    return Machine("toy", "toy", chip, network, overlap=0.0)


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
        return Plan(
            program=self.program.name,
            fingerprint=self.program.fingerprint,
            options=dict(self.options),
            machine=prices.machine.name,
            memory_limit=float("inf"),
            mesh=self.mesh,
            estimate=evaluation.estimate,
            proof=Proof("feasible", seconds, 0.0, 1.0, 0.0, "gap"),
            specs=_specs(self.program, decisions, self.mesh),
            moves=evaluation.moves,
            baselines=(),
            decisions=decisions,
            reshards=reshards_of(prices, decisions),
        )


def case(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Mapping[str, int],
    machine: Machine | None = None,
    limit: float | None = None,
    fold: bool = True,
    **options: Any,
) -> Case:
    """Trace `fn` and build its problem on the toy machine; `options` go to `trace`."""
    program = trace(fn, *args, **options)
    shape = MeshShape(tuple(mesh), tuple(mesh.values()))
    prices = step_prices(program, analyse(program), machine or toy_machine(), shape.sizes)
    built = build(prices, find_repeats(program, fold=fold), limit=limit)
    return Case(program, options, shape, built)


def best_plan(given: Case, *, seconds: float = 12.0) -> Plan:
    """The plan that the solver finds best, within a loose gap."""
    outcome = solve(given.built.problem, time_limit=seconds, gap=0.1)
    assert outcome.solution is not None, "no plan was found"
    return given.plan(given.built.decode(outcome.solution.choices))


def random_plan(
    given: Case, seed: int, *, seconds: float = 12.0, copies: float = 0.5
) -> Plan:
    """A valid plan drawn with `seed`; `copies` in [0, 1] is the liking for resharded copies."""
    problem = given.built.problem
    dice = np.random.default_rng(seed)
    liked: dict[int, np.ndarray] = {}
    for number, node in given.built.value_node.items():
        choices = given.built.value_choices[number]
        bonus = np.where(choices.stored != choices.copy, dice.random() < copies, 0.0)
        replicated = choices.table.shards.prod(axis=1) == 1
        liked[node] = bonus - 0.5 * replicated[choices.stored]
    nodes = tuple(
        replace(node, costs=dice.random(node.costs.size) - liked.get(k, 0.0))
        for k, node in enumerate(problem.nodes)
    )
    outcome = solve(replace(problem, nodes=nodes), time_limit=seconds, gap=0.5, seed=seed)
    assert outcome.solution is not None, "no plan was found"
    return given.plan(given.built.decode(outcome.solution.choices))


def moves_by_kind(plan: Plan) -> dict[str, int]:
    """How often each kind of collective is planned."""
    counts: dict[str, int] = {}
    for move in plan.moves:
        counts[move.kind] = counts.get(move.kind, 0) + move.count
    return counts


def zeros_like(args: Sequence[Any]) -> Any:
    """Random arrays for abstract arguments: floats from a normal law, integers in {0, 1, 2}."""
    import jax
    import jax.numpy as jnp

    dice = np.random.default_rng(0)

    def array(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(dice.normal(size=leaf.shape), leaf.dtype)
        if leaf.dtype == bool:
            return jnp.asarray(dice.random(leaf.shape) < 0.5)
        return jnp.asarray(dice.integers(0, 3, leaf.shape), leaf.dtype)

    return jax.tree.map(array, tuple(args))
