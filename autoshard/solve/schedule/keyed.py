"""Named schedules that are a key for each task: a mesh runs its tasks by ascending key.

With d the mesh, p meshes, m microbatches, k a microbatch, and slots counted from the mesh's first
backward:

    GPipe            all F, then all BW
    1F1B             F k in slot k - (p - 1 - d), BW k in slot k
    circular         all F, stage by stage; then all BW, last stage first
    interleaved      1F1B over v stages a mesh: F and BW number i in slots i - w and i, where
                     w = 2 (p - 1 - d) + (v - 1) p, numbered in groups of p microbatches, stage
                     by stage (https://arxiv.org/abs/2104.04473)
    interleaved ZB   the same, with W number i apart, in slot i + d
    ZB-H1, ZB-H2     F k in slot k - h (p - 1 - d), B k in slot k, W k in slot k + h d, with h = 1
                     or 2 (https://arxiv.org/abs/2401.10241)

Within a slot F comes before B, and B before W. As keys are compared by pairs of tasks, each of
these is a comparator function too (`autoshard.solve.schedule.comparators`).
"""

from __future__ import annotations

from collections.abc import Callable

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, chain
from autoshard.solve.schedule.task import Order, Task

Key = Callable[[Task], tuple[int, ...]]
"""What a mesh sorts its tasks by."""

IN_SLOT = {"F": 0, "B": 1, "BW": 1, "W": 2}


def gpipe_key(instance: Instance) -> Key:
    """GPipe (https://arxiv.org/abs/1811.06965): microbatch by microbatch, F before BW."""
    depth = depths(instance)

    def key(task: Task) -> tuple[int, ...]:
        if task.kind == "F":
            return (0, task.microbatch, depth[task.stage])
        return (1, task.microbatch, -depth[task.stage])

    return key


def circular_key(instance: Instance) -> Key:
    """Circular: as GPipe, but all microbatches of a stage before those of the next."""
    depth = depths(instance)

    def key(task: Task) -> tuple[int, ...]:
        if task.kind == "F":
            return (0, depth[task.stage], task.microbatch)
        return (1, -depth[task.stage], task.microbatch)

    return key


def one_f_one_b_key(instance: Instance) -> Key:
    """1F1B (https://arxiv.org/abs/1806.03377): as few microbatches in flight as keep all busy."""
    return _in_line(instance, "1F1B", in_flight=1)


def zb_h1_key(instance: Instance) -> Key:
    """ZB-H1: 1F1B with W apart and late; the memory of 1F1B."""
    return _in_line(instance, "ZB-H1", in_flight=1)


def zb_h2_key(instance: Instance) -> Key:
    """ZB-H2: twice as many microbatches in flight, no bubble where F, B and W take the same."""
    return _in_line(instance, "ZB-H2", in_flight=2)


def interleaved_key(instance: Instance) -> Key:
    """Interleaved 1F1B, for stages that go round the meshes in a loop."""
    p, v = instance.meshes, instance.stages // instance.meshes
    faults = _chain_faults(instance)
    if list(instance.placement) != [stage % p for stage in range(v * p)]:
        faults.append(f"stages must go round the {p} meshes, not {list(instance.placement)}")
    if instance.microbatches % p:
        faults.append(f"{instance.microbatches} microbatches are not a multiple of the {p} meshes")
    if faults:
        raise ScheduleError("interleaved 1F1B", faults)

    def key(task: Task) -> tuple[int, ...]:
        mesh, turn = task.stage % p, task.stage // p
        group, inside = divmod(task.microbatch, p)
        if task.kind == "F":
            number = group * p * v + turn * p + inside
            return (number - 2 * (p - 1 - mesh) - (v - 1) * p, IN_SLOT["F"])
        number = group * p * v + (v - 1 - turn) * p + inside
        return (number + mesh if task.kind == "W" else number, IN_SLOT[task.kind])

    return key


def order_by_key(instance: Instance, key: Key, *, fused: bool) -> Order:
    """The order in which every mesh runs its tasks by ascending key."""
    kinds = ("F", "BW") if fused else ("F", "B", "W")
    order = []
    for mesh in range(instance.meshes):
        tasks = [
            Task(kind, stage, microbatch)
            for stage in instance.on(mesh)
            for microbatch in range(instance.microbatches)
            for kind in kinds
        ]
        order.append(tuple(sorted(tasks, key=key)))
    return tuple(order)


def _in_line(instance: Instance, what: str, *, in_flight: int) -> Key:
    p = instance.meshes
    faults = _chain_faults(instance)
    if list(instance.placement) != list(range(p)):
        faults.append(f"stage s must be on mesh s, not {list(instance.placement)}")
    if faults:
        raise ScheduleError(what, faults)

    def key(task: Task) -> tuple[int, ...]:
        slot = task.microbatch
        if task.kind == "F":
            slot -= in_flight * (p - 1 - task.stage)
        elif task.kind == "W":
            slot += in_flight * task.stage
        return (slot, IN_SLOT[task.kind])

    return key


def _chain_faults(instance: Instance) -> list[str]:
    if instance.is_chain:
        return []
    return [f"the edges must be those of a chain, {chain(instance.stages)}"]


def depths(instance: Instance) -> list[int]:
    """The length of the longest way to every stage."""
    depth = [0] * instance.stages
    for _ in range(instance.stages):
        for source, reader in instance.edges:
            depth[reader] = max(depth[reader], depth[source] + 1)
    return depth
