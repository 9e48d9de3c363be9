"""What the solver says of the blocks of one microbatch bounds those of more: by brute force.

Steps of two small random blocks are planned on two random machines alike. The solver is asked about
one microbatch and backward passes in one task; the bounds that all other choices take over from
that may lie above no plan of their stages, all of which are written out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autoshard
from autoshard.cost.step_prices import step_prices
from autoshard.machine.cluster import Cluster, Link
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.problem.build import build
from autoshard.program.repeats import find_repeats
from autoshard.search.meshes.bounds.ranking import Ranking
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.request import Request, Step, request_of
from autoshard.search.meshes.stage_program import Mode, StageProgram, stage_programs
from autoshard.xla import analyse
from tests.random_programs import all_plans, prices_of, random_machine

ROWS = 8  # of all microbatches together
MICROBATCHES = (1, 2, 4)
MODES: tuple[Mode, ...] = ("fused", "split")
CUTS = ((1, 1), (2,))
MOST_PLANS = 10_000
SHAPE = MeshShape(("x",), (2,))
SIZES = (2, 3, 3, 3, 5, 5)  # few of which the mesh divides, so that plans can be written out


def random_steps(dice: np.random.Generator) -> Mapping[int, Step]:
    """The same step with one, two and four microbatches."""
    sizes = dice.choice(SIZES, 3).tolist()
    functions: list[Callable[[Any], Any]] = [jnp.tanh, jnp.negative, lambda x: x]
    function = functions[dice.integers(3)]

    def loss(weights: Any, batch: Any) -> Any:
        hidden = batch
        for number, weight in enumerate(weights):
            with jax.named_scope(f"layer_{number}"):
                hidden = function(hidden @ weight)
        return jnp.sum(hidden)

    def step_of(microbatches: int) -> Callable[..., Any]:
        def step(weights: Any, batch: Any) -> Any:
            accumulated = autoshard.accumulate_grads(loss, microbatches=microbatches)
            value, gradients = accumulated(weights, batch)
            return value, jax.tree.map(lambda w, d: w - d, weights, gradients)

        return step

    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in itertools.pairwise(sizes)]
    batch = jax.ShapeDtypeStruct((ROWS, sizes[0]), jnp.float32)
    return {m: (step_of(m), (weights, batch), {"donate_argnums": (0,)}) for m in MICROBATCHES}


def random_ranking(seed: int, transaction_bytes: float) -> Ranking:
    """All choices of a random step; of those with one microbatch, in one task, all was asked."""
    dice = np.random.default_rng(seed)
    steps, machine = random_steps(dice), random_machine(dice, SHAPE.sizes)
    machine = replace(machine, chip=replace(machine.chip, transaction_bytes=transaction_bytes))
    link = Link(1e6, 0.0)
    cluster = Cluster("two alike", (machine, machine), ((None, link), (link, None)))
    pricer = Pricer()
    assert pricer.candidates(machine) == [SHAPE]
    ranking = Ranking.of(request_of("random", steps, cluster, pricer), pricer, None, MODES)
    quarry = ranking.quarries[MICROBATCHES[0], MODES[0]]
    while quarry.open:
        quarry.ask(60)
    return ranking


def least_seconds(stage: StageProgram, machine: Machine) -> float | None:
    """What the cheapest plan of a stage takes, or None where there are too many plans."""
    program = stage.traced()
    prices = step_prices(program, analyse(program, machine.chip), machine, SHAPE.sizes)
    problem = build(prices, find_repeats(program, fold=False), limit=None).problem
    plans = all_plans(problem, MOST_PLANS)
    return None if plans is None else float(prices_of(problem, plans)[0].min())


def stages_with_blocks(
    request: Request, microbatches: int, mode: Mode
) -> Iterator[tuple[StageProgram, tuple[str, ...]]]:
    """The stages of all cuts, with the blocks that each has."""
    for counts in CUTS:
        partition = request.cut(microbatches, counts)
        for stage in stage_programs(partition, mode):
            yield stage, partition.cut.stages.names[stage.stage]


def test_what_is_borrowed_is_below_every_plan():
    compared, over_work, nearest = 0, 0, 0.0
    for seed in range(4):
        ranking = random_ranking(seed, transaction_bytes=0.0)
        request = ranking.request
        machine = request.cluster.meshes[0]
        for choice in ranking.choices():
            m, _, mode = choice.group
            if (m, mode) == (MICROBATCHES[0], MODES[0]):
                continue
            own = ranking.quarries[m, mode].bricks
            for stage, blocks in stages_with_blocks(request, m, mode):
                borrowed = choice.bricks.stage_seconds(blocks, machine.name, SHAPE)
                assert borrowed >= own.stage_seconds(blocks, machine.name, SHAPE) * (1 - 1e-9)
                least = least_seconds(stage, machine)
                if least is None:
                    continue
                assert borrowed <= least * (1 + 1e-9), f"seed {seed}, {choice.title}, {blocks}"
                compared += 1
                over_work += borrowed > own.stage_seconds(blocks, machine.name, SHAPE) * 1.01
                nearest = max(nearest, borrowed / least)
    assert compared >= 30
    assert over_work >= 15  # what the solver said counts, not work alone
    assert nearest > 0.9


def test_where_transpositions_are_priced_nothing_is_borrowed():
    ranking = random_ranking(1, transaction_bytes=16.0)
    for choice in ranking.choices():
        assert choice.bricks is ranking.quarries[choice.microbatches, choice.mode].bricks
