"""Buffers are freed when dead: what JAX holds on each mesh is what the script says is alive."""

from __future__ import annotations

import gc

import jax
import pytest

from autoshard.lower.mpmd.instructions import Run, Slot, reads_and_writes
from autoshard.lower.mpmd.runtime import Controller
from autoshard.models import training
from autoshard.search.meshes.lower_step import lower_mpmd
from autoshard.solve.schedule.timeline import simulate
from tests.lower.mpmd.cases import small_step
from tests.lower.mpmd.runs import BOUNDS, meshes_of

MICROBATCHES = 6


class Watched(Controller):
    """After every instruction: bytes that JAX holds by device, and the slots that are used."""

    def __init__(self, lowered, before):
        super().__init__(lowered)
        self.before = before
        self.held, self.used = [], []
        self.touched: set[Slot] = set()

    def do(self, one):
        super().do(one)
        if isinstance(one, Run):
            self.touched.update(one.inputs, one.outputs)
        number = len(self.held)
        dead = self.lowered.script.frees[number]
        for slot in dead:
            self.slots.pop(slot, None)
        self.held.append(held_bytes(self.before))
        self.used.append([slot for slot in self.slots if slot in self.touched])


def held_bytes(before):
    """Bytes by device of the arrays that are not in `before`."""
    held = {}
    for array in jax.live_arrays():
        if id(array) in before or array.is_deleted():
            continue
        for shard in array.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return held


def watched(schedule, **options):
    if len(jax.devices()) < 2:
        pytest.skip("needs 2 devices")
    step = small_step(2, microbatches=MICROBATCHES)
    meshes = meshes_of(1, 1)
    lowered = lower_mpmd(
        step.fn, *step.args, meshes=meshes, schedule=schedule, donate_argnums=(0, 1), **options
    )
    lowered.run(*training.sample(step.args, 0, BOUNDS))  # compiled
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    args = training.sample(step.args, 0, BOUNDS)
    before |= {id(leaf) for leaf in jax.tree.leaves(args)}
    controller = Watched(lowered, before)
    controller.step(args)
    return lowered, controller


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("options", [{}, {"merge": ()}])
def test_nothing_is_held_but_what_is_read_later(schedule, options):
    lowered, controller = watched(schedule, **options)
    script = lowered.script
    partition = lowered.partition

    def size(slot):
        inner = slot.microbatch >= 0 and not slot.total
        graph = partition.cut.graph if inner else partition.outer.graph
        return graph.bytes(slot.value)

    last = {slot: len(script.instructions) for slots in script.outputs for slot in slots}
    first = {slot: -1 for pieces in script.inputs for slots in pieces for slot in slots}
    for number, one in enumerate(script.instructions):
        reads, writes = reads_and_writes(one)
        first.update((slot, number) for slot in writes)
        for slot in reads:
            last[slot] = max(last.get(slot, 0), number)
    sizes = {slot: size(slot) for slot in first}
    for number, held in enumerate(controller.held):
        for mesh, place in enumerate(lowered.meshes):
            alive = sum(
                sizes[slot]
                for slot, made in first.items()
                if slot.mesh == mesh and made <= number < last.get(slot, -1)
            )
            indices = 8 * MICROBATCHES  # of microbatches, and JAX's copies of them
            assert held.get(place.devices.flat[0], 0) <= alive + indices, (number, mesh)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_activations_are_never_more_than_the_schedule_has(schedule):
    lowered, controller = watched(schedule)
    partition = lowered.partition
    instance = partition.instance(2)
    peaks = simulate(instance, lowered.order).peak_memory
    graph = partition.cut.graph
    most = [0, 0]
    for used in controller.used:
        for mesh in range(2):
            taken = [s for s in used if s.mesh == mesh and s.microbatch >= 0 and not s.total]
            most[mesh] = max(most[mesh], sum(graph.bytes(slot.value) for slot in taken))
    sent = instance.static_memory  # of one microbatch, until it has been sent
    assert all(taken <= peak + more for taken, peak, more in zip(most, peaks, sent, strict=True))
    assert most[0] > 0
    if schedule == "1f1b":  # two microbatches in flight, of six
        every = simulate(instance, watched("gpipe")[0].order).peak_memory[0]
        assert 3 * (most[0] - sent[0]) <= every
