"""What is wrong with a schedule problem: every fault, with its values and the repair."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from autoshard.files.errors import shown
from autoshard.units import counted

if TYPE_CHECKING:
    from autoshard.solve.schedule.instance import Instance

LEAST, MOST = 1e-12, 1e18
"""Of times and memory, in whatever unit: beyond them sums are not numbers any more."""
BY_STAGE = {
    "forward": "F",
    "backward": "B",
    "weight": "W",
    "memory_forward": "mem_F",
    "memory_backward": "mem_B",
    "memory_weight": "mem_W",
    "static_memory": "static_mem",
    "fused": "BW",
    "placement": "placement",
}
"""Fields that have one number for each stage, and what JSON calls them."""


def faults_of(instance: Instance) -> list[str]:
    """All that is wrong with the numbers of an instance, in the words of its JSON."""
    sizes = list(_sizes(instance))
    if sizes:  # nothing else can be said of lists that do not fit
        return sizes
    return [*_numbers(instance), *_memory(instance), *_edges(instance)]


def _sizes(instance: Instance) -> Iterator[str]:
    for name, value in (("p", instance.meshes), ("m", instance.microbatches)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield f"{name} is {value!r}; give a whole number of at least 1"
            return
    if not instance.forward:
        yield "F is empty; give the time of at least one stage"
        return
    for attribute, name in BY_STAGE.items():
        values = getattr(instance, attribute)
        if values is None:
            continue
        if len(values) != instance.stages:
            yield (
                f"{name} has {counted(len(values), 'entry')} and F has {instance.stages}; "
                "give one for each stage"
            )
        else:
            yield from _no_numbers(name, values)
    meshes = instance.meshes
    limit = () if instance.memory_limit is None else instance.memory_limit
    for name, values in (("dev_scale", instance.time_scale), ("mem_limit", limit)):
        if len(values) != meshes and not (name == "mem_limit" and not values):
            yield (
                f"{name} has {counted(len(values), 'entry')}; give one for each of {meshes} meshes"
            )
        yield from _no_numbers(name, values)
    if len(instance.transfer) != meshes or any(len(row) != meshes for row in instance.transfer):
        yield f"comm is not a matrix of {meshes} x {meshes}; give that, or one number"
    for source, row in enumerate(instance.transfer):
        yield from _no_numbers(f"comm[{source}]", row)


def _no_numbers(name: str, values: Sequence[Any]) -> Iterator[str]:
    for at, value in enumerate(values):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            yield f"{name}[{at}] is {shown(value)}; give a finite number"
        elif value and not LEAST <= abs(value) <= MOST:
            yield f"{name}[{at}] is {value}; give 0, or a number from {LEAST:g} to {MOST:g}"


def _numbers(instance: Instance) -> Iterator[str]:
    stages, meshes = instance.stages, instance.meshes
    for at, mesh in enumerate(instance.placement):
        if not isinstance(mesh, int) or not 0 <= mesh < meshes:
            yield f"placement[{at}] is {mesh!r}; the meshes are 0 to {meshes - 1}"
    for attribute in ("forward", "backward", "weight", "fused"):
        name, values = BY_STAGE[attribute], getattr(instance, attribute)
        for at, value in enumerate(values or ()):
            if value < 0:
                yield f"{name}[{at}] is {value}; a time is at least 0"
            elif value == 0 and attribute in ("forward", "fused"):
                yield f"{name}[{at}] is 0; it must take some time"
    for at, scale in enumerate(instance.time_scale):
        if scale <= 0:
            yield f"dev_scale[{at}] is {scale}; it must be more than 0"
    for source, row in enumerate(instance.transfer):
        for target, time in enumerate(row):
            if time < 0 or (source == target and time != 0):
                wanted = "0 within a mesh" if source == target else "at least 0"
                yield f"comm[{source}][{target}] is {time}; it must be {wanted}"
    if instance.fused is not None:
        for at in range(stages):
            apart = instance.backward[at] + instance.weight[at]
            if instance.fused[at] > apart:
                yield (
                    f"BW[{at}] is {instance.fused[at]}, more than B and W apart ({apart}); "
                    "leave it out"
                )


def _memory(instance: Instance) -> Iterator[str]:
    for at in range(instance.stages):
        take = instance.memory_forward[at]
        backward, weight = instance.memory_backward[at], instance.memory_weight[at]
        if take < 0 or backward > 0 or weight > 0:
            yield (
                f"stage {at}: mem_F, mem_B, mem_W are {take}, {backward}, {weight}; "
                "F takes memory (0 or more), B and W give it back (0 or less)"
            )
        elif not math.isclose(take + backward + weight, 0, abs_tol=1e-9 * max(take, 1)):
            yield (
                f"stage {at}: mem_F + mem_B + mem_W is {take + backward + weight}; "
                "what F takes must be given back, so it must be 0"
            )
    for at, limit in enumerate(instance.memory_limit or ()):
        if limit < 0:
            yield f"mem_limit[{at}] is {limit}; it must be at least 0"


def _edges(instance: Instance) -> Iterator[str]:
    stages = instance.stages
    graph: dict[int, set[int]] = {stage: set() for stage in range(stages)}
    broken = False
    for edge in instance.edges:
        if len(edge) != 2 or not all(isinstance(s, int) and 0 <= s < stages for s in edge):
            yield f"edges: {list(edge)} is not a pair of stages 0 to {stages - 1}"
            broken = True
        else:
            graph[edge[1]].add(edge[0])
    if len(set(map(tuple, instance.edges))) != len(instance.edges):
        yield "edges: an edge is given twice; give each once"
    if not broken:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            yield f"edges: the stages {error.args[1]} form a cycle; data flows one way"
