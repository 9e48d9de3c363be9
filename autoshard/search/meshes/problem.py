"""Builds the schedule problem of stages with prices, in nanoseconds and bytes per device.

    limit of a mesh = usable bytes
                      - sum over its stages of state and totals of gradients
                      - the largest workspace of its stages
    F allocates what a microbatch keeps (or what B hands to W, if more); B and W free it

What a microbatch keeps in the memory of the host is freed with its last task. It is within the
host's part of each device, less what lies there always (`autoshard.solve.schedule.elsewhere`).

Every transfer between two meshes takes the time of the largest transfer that a microbatch makes
between stages of these meshes. With BW, the backward pass is B, and W takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.lower.mpmd.partition import Partition
from autoshard.machine.cluster import Cluster
from autoshard.machine.machine import Machine
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.stage_program import Mode
from autoshard.solve.schedule.elsewhere import within
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.merging import enqueued, paying_merges
from autoshard.solve.schedule.optimise import smallest_limit
from autoshard.solve.schedule.optimise.variants import Variant
from autoshard.solve.schedule.task import Order, Task
from autoshard.solve.schedule.timeline import simulate
from autoshard.units import format_bytes

TICK = 1e-9
"""The schedule problem's unit of time, in seconds."""


class MemoryShortageError(ValueError):
    """Some meshes cannot hold their stages; names all of them, and the least memory needed."""


def schedule_problem(
    partition: Partition,
    prices: Sequence[StagePrice],
    mesh_of: Sequence[int],
    cluster: Cluster,
    limits: Sequence[float],
    mode: Mode,
    *,
    name: str = "",
) -> Instance:
    """Return the schedule problem of a partition on meshes.

    Args:
      prices: the price of every stage on its mesh.
      mesh_of: the mesh of every stage.
      limits: usable bytes per device, by mesh.
      mode: whether the backward pass is one task.

    Raises:
      MemoryShortageError: a mesh cannot hold its stages and one microbatch.
    """
    stages = range(partition.stages)
    backward = "BW" if mode == "fused" else "B"
    kept = [math.ceil(prices[s].kept_bytes) for s in stages]
    after_b = [0 if mode == "fused" else math.ceil(prices[s].handed_bytes) for s in stages]
    after_f = [max(k, b) for k, b in zip(kept, after_b, strict=True)]
    room = []
    faults = []
    for mesh, limit in enumerate(limits):
        here = [s for s in stages if mesh_of[s] == mesh]
        fixed = sum(prices[s].resident_bytes for s in here)
        fixed += max((prices[s].workspace_bytes for s in here), default=0.0)
        one = sum(after_f[s] for s in here)
        room.append(max(math.floor(limit - fixed), 0))
        if limit - fixed < one:
            faults.append(
                f"mesh {mesh} ({cluster.meshes[mesh].name}) may use {format_bytes(limit)} of each "
                f"device; its stages {', '.join(map(str, here))} need {format_bytes(fixed + one)}"
            )
    if faults:
        raise MemoryShortageError("\n  * ".join(["too little memory:", *faults]))
    meshes = len(cluster.meshes)
    made = Instance(
        meshes=meshes,
        microbatches=partition.microbatches,
        forward=tuple(max(ticks(prices[s].seconds.get("F", 0.0)), 1) for s in stages),
        backward=tuple(ticks(prices[s].seconds.get(backward, 0.0)) for s in stages),
        weight=tuple(ticks(prices[s].seconds.get("W", 0.0)) for s in stages),
        placement=tuple(mesh_of),
        transfer=transfers(partition, mesh_of, cluster),
        time_scale=(1,) * meshes,
        memory_forward=tuple(after_f),
        memory_backward=tuple(b - f for f, b in zip(after_f, after_b, strict=True)),
        memory_weight=tuple(-b for b in after_b),
        memory_limit=tuple(room),
        name=name,
    )
    return _within_hosts(made, prices, cluster)


def _within_hosts(instance: Instance, prices: Sequence[StagePrice], cluster: Cluster) -> Instance:
    """Return the problem with limits within which the hosts have room for what stages keep there.

    Raises:
      MemoryShortageError: a host lacks room for one microbatch.
    """
    hosted, rooms = host_kept(prices), host_room(prices, instance.placement, cluster)
    made = within(instance, hosted, rooms)
    assert made.memory_limit is not None
    least, faults = smallest_limit(made), []
    for mesh, room in enumerate(rooms):
        here = instance.on(mesh)
        one = sum(hosted[s] for s in here)
        if one > room or made.memory_limit[mesh] < least[mesh]:
            faults.append(
                f"mesh {mesh} ({cluster.meshes[mesh].name}) has {format_bytes(room)} of its hosts "
                f"for each device; of its stages {', '.join(map(str, here))} a microbatch keeps "
                f"{format_bytes(one)} there"
            )
    if faults:
        raise MemoryShortageError("\n  * ".join(["too little memory of hosts:", *faults]))
    return made


def host_kept(prices: Sequence[StagePrice]) -> list[int]:
    """Return the bytes of a device that a microbatch keeps in its host's memory, by stage."""
    return [math.ceil(one.host_bytes) for one in prices]


def host_room(prices: Sequence[StagePrice], mesh_of: Sequence[int], cluster: Cluster) -> list[int]:
    """Return the bytes of a device in its host's memory that are left for microbatches, by mesh."""
    return [
        host_limit(machine)
        - math.ceil(
            sum(p.host_resident_bytes for p, m in zip(prices, mesh_of, strict=True) if m == mesh)
        )
        for mesh, machine in enumerate(cluster.meshes)
    ]


def host_limit(machine: Machine) -> int:
    """Return the bytes of a device in its host's memory; none where its file says nothing of it."""
    return 0 if machine.host is None else math.floor(machine.host.bytes_per_chip)


def transfers(
    partition: Partition, mesh_of: Sequence[int], cluster: Cluster
) -> tuple[tuple[int, ...], ...]:
    """Return the ticks of a transfer from one mesh (row) to another (column)."""
    meshes = range(len(cluster.meshes))
    found = [[0] * len(meshes) for _ in meshes]
    for (source, reader), size in sent_bytes(partition).items():
        a, b = mesh_of[source], mesh_of[reader]
        if a != b:
            found[a][b] = max(found[a][b], ticks(cluster.seconds(a, b, size)))
    return tuple(map(tuple, found))


def variant_of(price: StagePrice, mode: Mode) -> Variant:
    """Return a stage with this price as one of several ways to run it, in ticks and bytes."""
    backward = "BW" if mode == "fused" else "B"
    after_b = 0 if mode == "fused" else math.ceil(price.handed_bytes)
    return Variant(
        forward=max(ticks(price.seconds.get("F", 0.0)), 1),
        backward=ticks(price.seconds.get(backward, 0.0)),
        weight=ticks(price.seconds.get("W", 0.0)),
        after_forward=max(math.ceil(price.kept_bytes), after_b),
        after_backward=after_b,
        resident=math.ceil(price.resident_bytes),
        workspace=math.ceil(price.workspace_bytes),
        once=ticks(price.update_seconds),
        elsewhere=math.ceil(price.host_bytes),
    )


def sent_bytes(partition: Partition) -> dict[tuple[int, int], int]:
    """Return the bytes that a stage receives from another, for each pair of stages.

    The bytes are of whole values, and the maximum over the kinds of tasks that receive them.
    """
    result: dict[tuple[int, int], int] = {}
    for (stage, kind), fragment in partition.cut.fragments.items():
        if kind == "BW":
            continue
        sizes: dict[int, int] = {}
        for one in fragment.inputs:
            if one.stage not in (stage, -1):
                size = partition.cut.graph.bytes(one.value)
                sizes[one.stage] = sizes.get(one.stage, 0) + size
        for source, size in sizes.items():
            result[source, stage] = max(result.get((source, stage), 0), size)
    return result


def outer_seconds(
    partition: Partition, prices: Sequence[StagePrice], mesh_of: Sequence[int], cluster: Cluster
) -> tuple[float, ...]:
    """Return the seconds of the work around the loop, by mesh: updates and transfers for them.

    Meshes send each other sums of gradients and copies of weights that several stages share, and
    the values that the update of one mesh needs from another.
    """
    around = partition.around(mesh_of)
    spent = [0.0] * len(cluster.meshes)
    for stage, one in enumerate(prices):
        spent[mesh_of[stage]] += one.update_seconds
    for value, needing in around.needs.items():
        homes = around.homes.get(value, ())
        size = partition.outer.graph.bytes(value)
        for mesh in needing:
            if homes and mesh not in homes:
                spent[mesh] += cluster.seconds(homes[0], mesh, size)
    return tuple(spent)


def loop_seconds(
    instance: Instance, order: Order, mode: Mode, dispatch_seconds: Sequence[float]
) -> float:
    """Return the seconds of the loop.

    It ends when its last task ends and the controller has enqueued all programs. Tasks are merged
    if the controller would otherwise be late.

    Args:
      dispatch_seconds: seconds to enqueue one program, by mesh.
    """
    order = runnable(order, mode)
    dispatch = [seconds / TICK for seconds in dispatch_seconds]
    makespan = simulate(instance, order).makespan
    if enqueued(order, (), dispatch) > makespan:
        merges = paying_merges(instance, order, dispatch=dispatch)
        merged = simulate(instance, order, merges=merges, limited=False).makespan
        makespan = max(merged, enqueued(order, merges, dispatch))
    return float(makespan) * TICK


def runnable(order: Order, mode: Mode) -> Order:
    """Return the order in tasks that programs run: if backward is fused, BW for B and no W."""
    if mode == "split":
        return order
    return tuple(
        tuple(
            Task("BW", task.stage, task.microbatch) if task.kind != "F" else task
            for task in tasks
            if task.kind != "W"
        )
        for tasks in order
    )


def ticks(seconds: float) -> int:
    """Return seconds in the schedule problem's unit of time, rounded up."""
    return math.ceil(seconds / TICK)
