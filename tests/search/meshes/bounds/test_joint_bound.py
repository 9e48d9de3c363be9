"""The bound holds for every cut, placement and order; what a block takes is in every stage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from autoshard.lower.mpmd.partition import partition_step
from autoshard.machine.cluster import load_cluster
from autoshard.machine.load import load
from autoshard.models.llama import Llama, llama
from autoshard.plan.plan import MeshShape
from autoshard.search.meshes.bounds.block_bound import Block, BlockBound
from autoshard.search.meshes.bounds.bricks import Bricks, Quarry, bricks, stacked
from autoshard.search.meshes.bounds.joint_bound import joint_bound
from autoshard.search.meshes.bounds.relaxation import relaxation
from autoshard.search.meshes.choices import Placement
from autoshard.search.meshes.cuts import even, rounded, tapered
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.stage_program import stage_programs
from autoshard.solve.schedule.instance import Instance
from tests.helpers import LONG, sampled
from tests.lower.mpmd.cases import small_step, tiny_llama
from tests.solve.schedule.optimise.brute_force import best_value

PLACEMENTS = [
    Placement("v1", (0, 1)),
    Placement("loop", (0, 1, 0, 1)),
    Placement("v", (0, 1, 1, 0)),
]
MACHINES = {1: "2 x h100-1", 2: "h100-1 + a100-1"}


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to share blocks among stages, each of which has one or more."""
    for stops in itertools.combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *stops, total)))


class Work:
    """Blocks with times of their own, by kind and machine, and what they take together."""

    def __init__(self, seed: int, cluster, microbatches: int, blocks: int) -> None:
        dice = np.random.default_rng(seed)
        self.m, self.cluster = microbatches, cluster
        self.names = tuple(dict.fromkeys(machine.name for machine in cluster.meshes))
        classes = (0, *(1,) * (blocks - 2), 2)
        # (machine, class, F and B and W and update)
        self.times = dice.integers(1, 9, (len(self.names), 3, 4)) * [[[1, 1, 1, 3]]]
        self.state = dice.integers(1, 9, 3)
        self.bricks = Bricks(
            microbatches,
            tuple(f"layer_{k}" for k in range(blocks)),
            classes,
            (0, 1, blocks - 1),
            tuple(
                {
                    name: BlockBound({}, float(busy), float(f), float(f + b + w), float(state))
                    for name, (f, b, w, update) in zip(self.names, self.times[:, k], strict=True)
                    for busy in [microbatches * (f + b + w) + update]
                }
                for k, state in enumerate(self.state)
            ),
            int(seed % 2 * 1e11),  # a few seconds
        )

    def best(self, placement: Placement, mode: str, counts: tuple[int, ...]) -> float:
        """The best step of one cut, over all orders."""
        stops = np.cumsum((0, *counts))
        total = np.zeros((placement.stages, 4), int)
        for s, mesh in enumerate(placement.mesh_of):
            machine = self.names.index(self.cluster.meshes[mesh].name)
            for block in range(stops[s], stops[s + 1]):
                total[s] += self.times[machine, self.bricks.classes[block]]
        fused = mode == "fused"
        f, b, w, update = total.T.tolist()
        zeros = (0,) * placement.stages
        instance = Instance(
            meshes=2,
            microbatches=self.m,
            forward=tuple(f),
            backward=tuple(x + y if fused else x for x, y in zip(b, w, strict=True)),
            weight=zeros if fused else tuple(w),
            placement=placement.mesh_of,
            transfer=tuple(
                tuple(self.cluster.seconds(a, b, self.bricks.sent_bytes) for b in (0, 1))
                for a in (0, 1)
            ),
            time_scale=(1, 1),
            memory_forward=zeros,
            memory_backward=zeros,
            memory_weight=zeros,
        )
        value = best_value(instance, "makespan")
        assert value is not None
        return float(value) + max(np.bincount(placement.mesh_of, update))


@pytest.mark.parametrize("kinds", MACHINES)
@pytest.mark.parametrize("mode", ["fused", "split"])
def test_no_cut_and_no_order_is_below_the_bound(kinds, mode):
    cluster = load_cluster(MACHINES[kinds])
    above = 0
    for seed, placement in itertools.product(range(12), PLACEMENTS):
        # As many tasks as can be put in all orders.
        work = Work(seed, cluster, 4 // placement.stages, 4)
        relaxed = relaxation(work.bricks, placement, mode, cluster)
        bound = joint_bound(relaxed, work.bricks, cluster, (1e9, 1e9))
        best = {
            counts: work.best(placement, mode, counts)
            for counts in compositions(4, placement.stages)
        }
        assert bound.seconds <= min(best.values())
        above += bound.seconds > bound.work / 2 * (1 + 1e-6)
        for counts, value in best.items():
            known = relaxed.seconds(counts, np.ones(placement.stages)).max()
            assert bound.seconds <= known + 1e-9
            assert known <= value + 1e-9
    assert above >= 20  # filling and whole blocks count, not work alone


def test_state_that_fits_nowhere_has_an_infinite_bound():
    cluster = load_cluster(MACHINES[1])
    work = Work(0, cluster, 2, 5)
    relaxed = relaxation(work.bricks, PLACEMENTS[0], "fused", cluster)
    whole = float(sum(work.state[k] for k in work.bricks.classes))
    ample = joint_bound(relaxed, work.bricks, cluster, (whole, whole))
    tight = joint_bound(relaxed, work.bricks, cluster, (whole * 0.35, whole * 0.75))
    short = joint_bound(relaxed, work.bricks, cluster, (whole / 2, whole / 2 - 1))
    assert ample.seconds < tight.seconds < float("inf")
    assert short.seconds == float("inf")


def test_cuts_are_the_best_of_all():
    cluster = load_cluster(MACHINES[2])
    for seed in range(6):
        work = Work(seed, cluster, 3, 9)
        for placement in PLACEMENTS:
            relaxed = relaxation(work.bricks, placement, "fused", cluster)
            bound = joint_bound(relaxed, work.bricks, cluster, (1e9, 1e9))
            scale = np.ones(placement.stages)
            options = list(compositions(9, placement.stages))
            lowest = min(relaxed.seconds(one, scale).max() for one in options)
            chosen = tapered(relaxed, bound.blocks, scale)
            assert chosen in options
            assert relaxed.seconds(chosen, scale).max() <= lowest * 1.1

            longest = {
                one: np.bincount(placement.mesh_of, relaxed.stage_seconds(one, scale)).max()
                for one in options
            }
            assert longest[even(relaxed, scale)] <= min(longest.values()) * 1.1


def test_rounding_keeps_the_sum_and_one_block_each():
    assert rounded((0.2, 3.4, 6.4)) == (1, 3, 6)
    assert rounded((0.1, 0.1, 2.8)) == (1, 1, 1)
    assert rounded((2.5, 2.5)) in ((2, 3), (3, 2))


@pytest.mark.parametrize(
    ("layers", "scan", "modes"),
    sampled(
        [(4, False, ("fused",)), (7, True, ("fused",)), (7, True, ("fused", "split"))],
        lambda one: one == (7, True, ("fused",)),
    ),
)
def test_a_stage_takes_what_its_blocks_take(layers, scan, modes):
    machine, pricer = load("h100-2"), Pricer(seconds=30)
    shapes = pricer.candidates(machine)
    machines = {machine.name: (machine, shapes)}

    def cutter(microbatches):
        step = tiny_llama(layers=layers, scan=scan, microbatches=microbatches)
        return lambda stages: partition_step(
            step.fn, *step.args, stages=stages, donate_argnums=(0, 1)
        )

    cut = cutter(4)
    names = cut(1).cut.stages.names[0]
    fewer = bricks(cutter(2), names, machines, "fused").finer(4)
    for mode in modes:
        worked = bricks(cut, names, machines, mode)
        quarry = Quarry.of(cut, machines, mode, worked)
        assert len(quarry.open) == (1 if layers > 4 else len(worked.bounds))
        while quarry.open:
            quarry.ask(60)
        found = quarry.bricks
        rose = [b for one in found.bounds for b in one.values() if b.seconds > b.work_seconds]
        assert rose  # communication or whole ops count, beside perfectly shared work
        for counts in ((2, layers - 2), (layers,)):
            partition = cut(counts)
            for stage, program in enumerate(stage_programs(partition, mode)):
                for shape in shapes:
                    price = pricer.price(program, machine, {shape: 0.0}, 1e12, 30)
                    assert isinstance(price, StagePrice)
                    blocks = partition.cut.stages.names[stage]
                    for one in (worked, fewer, found):
                        least = one.stage_seconds(blocks, machine.name, shape)
                        assert least <= price.busy_seconds(4) * (1 + 1e-9)


@LONG
def test_transpositions_of_scanned_blocks_count():
    machine = load("h100-8")
    shapes = Pricer().candidates(machine)
    machines = {machine.name: (machine, shapes)}
    config = Llama(10, 512, 8, 2, 1024, vocabulary=512)
    step = llama(config, 16, 512, microbatches=1)

    def cut(stages):
        return partition_step(step.fn, *step.args, stages=stages, donate_argnums=(0, 1))

    worked = bricks(cut, cut(1).cut.stages.names[0], machines, "fused")
    quarry = Quarry.of(cut, machines, "fused", worked)
    quarry.ask(60)
    (block,) = quarry.blocks.values()
    assert (block.count, block.scanned) == (8, True)
    (shape,) = shapes
    alone = Block(block.stage, block.program, block.count)
    assert quarry.blocks[1].solved(machine, shape, 60) > 1.01 * alone.solved(machine, shape, 60)


def test_a_stack_that_can_be_cut_as_any_shorter_one():
    shape = MeshShape(("x", "y"), (2, 4))
    assert stacked(32, [shape]) == 24
    assert stacked(34, [shape]) == 32
    assert stacked(32, [MeshShape(("x",), (64,))]) == 30  # no axis cuts 31 blocks or fewer
    assert stacked(5, [shape]) == 3  # none of 4 lies between the first and the last


def test_equal_blocks_are_bounded_once():
    step = small_step(layers=6)

    def cut(stages):
        return partition_step(step.fn, *step.args, stages=stages, donate_argnums=(0, 1))

    names = cut(1).cut.stages.names[0]
    machine = load("h100-1")
    shapes = Pricer().candidates(machine)
    found = bricks(cut, names, {machine.name: (machine, shapes)}, "fused")
    assert found.classes == (0, 1, 1, 1, 1, 2)
    assert found.examples == (0, 1, 5)
    assert found.sent_bytes == 4 * 8 * 4


def test_what_the_solver_says_raises_the_class_and_the_ends_of_a_scan():
    shape = MeshShape(("x",), (1,))
    bounds = tuple({"m": BlockBound({shape: w}, w, 1.0, 2.0, 8.0)} for w in (3.0, 2.0, 5.0))
    plain = Bricks(2, ("a", "b", "c", "d"), (0, 1, 1, 2), (0, 1, 3), bounds, 100.0)
    scan = replace(plain, scanned=True)
    after = plain.raised(1, "m", shape, 4.0), scan.raised(1, "m", shape, 4.0)
    assert [[one["m"].seconds for one in b.bounds] for b in after] == [[3, 4, 5], [5, 4, 7]]
    finer = after[1].finer(4)
    assert [one["m"].seconds for one in finer.bounds] == [3, 2, 5]
    assert (finer.microbatches, finer.sent_bytes) == (4, 50.0)
    assert (finer.bounds[0]["m"].forward_seconds, finer.bounds[0]["m"].loop_seconds) == (0.5, 1.0)
