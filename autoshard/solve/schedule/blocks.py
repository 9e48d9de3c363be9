"""Named schedules that repeat one block of tasks, for two stages a mesh placed down and up again.

One microbatch is laid out on all meshes, and every next one six slots later, as F, B and W of two
stages take a slot each (https://arxiv.org/abs/2405.15362, V-Half and V-Min). With d the mesh, p
meshes, and steps f0, f1, b1, b0 from one mesh to the next,

    F of the first stage of mesh d     slot          f0 d
    F of the second                    slot   c1 -   f1 d
    B of the second                    slot   c2 +   b1 d
    B of the first                     slot   c3 -   b0 d

where c1, c2, c3 are the least with which a task comes after what it reads, and none of a mesh fall
on equal slots of two microbatches. Each W takes the first slot that is left after its B.

A stage keeps a microbatch from F to B, of which there are (f0 + f1 + b1 + b0) p / 12 at most, so
that small steps keep little in memory, and leave meshes waiting where F, B and W do not take the
same. 1F1B keeps p.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, vee_faults
from autoshard.solve.schedule.task import Order, Task

PERIOD = 6
"""Slots of a mesh for one microbatch: F, B and W of two stages."""
HALF = 2, 1, 2, 1
MIN = 1, 1, 1, 1


def v_half(instance: Instance) -> Order:
    """V-Half: about half of what 1F1B keeps."""
    return _repeated(instance, "V-Half", HALF)


def v_min(instance: Instance) -> Order:
    """V-Min: about a third of what 1F1B keeps."""
    return _repeated(instance, "V-Min", MIN)


@dataclass(frozen=True, slots=True)
class _Block:
    """Slots of the tasks of the first microbatch: F and B of the first and second stage of a mesh.

    Attributes:
      steps: f0, f1, b1, b0.
      starts: 0, c1, c2, c3.
    """

    steps: tuple[int, int, int, int]
    starts: tuple[int, int, int, int]

    def slots(self, mesh: int) -> tuple[int, int, int, int]:
        """F of the first, F of the second, B of the second, B of the first."""
        f0, f1, b1, b0 = self.steps
        _, c1, c2, c3 = self.starts
        return f0 * mesh, c1 - f1 * mesh, c2 + b1 * mesh, c3 - b0 * mesh

    def fits(self, meshes: int) -> bool:
        """Whether no two tasks of a mesh fall together, of whichever microbatches."""
        return all(len({slot % PERIOD for slot in self.slots(mesh)}) == 4 for mesh in range(meshes))


def _block(steps: tuple[int, int, int, int], meshes: int) -> _Block:
    """The shortest block with these steps."""
    f0, f1, b1, b0 = steps
    last = meshes - 1
    delays = sorted(itertools.product(range(PERIOD), repeat=3), key=lambda one: (sum(one), one))
    for later in delays:
        c1 = (f0 + f1) * last + 1 + later[0]
        c2 = c1 + 1 + later[1]
        c3 = c2 + (b1 + b0) * last + 1 + later[2]
        block = _Block(steps, (0, c1, c2, c3))
        if block.fits(meshes):
            return block
    raise AssertionError(f"no block has the steps {steps} on {meshes} meshes")


def _repeated(instance: Instance, what: str, steps: tuple[int, int, int, int]) -> Order:
    if faults := vee_faults(instance):
        raise ScheduleError(what, faults)
    block = _block(steps, instance.meshes)
    return tuple(_of_mesh(instance, block, mesh) for mesh in range(instance.meshes))


def _of_mesh(instance: Instance, block: _Block, mesh: int) -> tuple[Task, ...]:
    first, second = mesh, 2 * instance.meshes - 1 - mesh
    f0, f1, b1, b0 = block.slots(mesh)
    taken = {slot % PERIOD for slot in (f0, f1, b1, b0)}
    slots = {("F", first): f0, ("F", second): f1, ("B", second): b1, ("B", first): b0}
    for stage, after in ((second, b1), (first, b0)):
        slot = next(s for s in itertools.count(after + 1) if s % PERIOD not in taken)
        taken.add(slot % PERIOD)
        slots["W", stage] = slot
    times = {
        Task(kind, stage, microbatch): slot + PERIOD * microbatch  # pyright: ignore[reportArgumentType]
        for (kind, stage), slot in slots.items()
        for microbatch in range(instance.microbatches)
    }
    return tuple(sorted(times, key=times.__getitem__))
