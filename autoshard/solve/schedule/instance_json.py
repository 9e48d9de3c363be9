"""Schedule problems as JSON.

p, m          meshes and microbatches
S             stages; by default as many as F has
F, B, W       times by stage, or one number for all
BW            optional, time of the fused backward by stage
comm          transfer time between different meshes, or a p x p matrix
placement     the mesh of each stage; by default stage s is on mesh s % p
dev_scale     what times are multiplied by, by mesh; by default 1
mem_F, mem_B, mem_W   change of the memory taken, by stage; by default 1, 0, -1
mem_limit     optional, one number or one for each mesh
mem_limits    optional, limits by name: {"1f1b": 16, "none": null}
edges         optional, [[stage, stage that reads it], ...]; by default a chain
static_mem    optional, what a stage always occupies
name; v, het, place   labels; only the name is kept
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.files.errors import shown
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, chain
from autoshard.units import counted

REQUIRED = ("p", "m", "F", "B", "W")
KNOWN = (
    *REQUIRED, "S", "BW", "comm", "placement", "dev_scale", "mem_F", "mem_B", "mem_W", "mem_limit",
    "mem_limits", "edges", "static_mem", "name", "v", "het", "place",
)  # fmt: skip

MOST_MESHES, MOST_STAGES, MOST_MICROBATCHES = 4096, 2**16, 2**20
MOST_TASKS = 2**22
"""Of all stages for all microbatches: more than any order is found for."""


def instance_from_json(written: Any) -> Instance:
    """The instance that a JSON object describes.

    Raises:
      ScheduleError: a field is missing, unknown or damaged, or the numbers contradict each other;
        all faults are listed.
    """
    if not isinstance(written, Mapping):
        raise ScheduleError("this instance", [f"it is a {type(written).__name__}; give an object"])
    faults = [f"there is no {name}; give it" for name in REQUIRED if name not in written]
    unknown = [name for name in written if name not in KNOWN]
    faults += [f"{name!r} is not a field; known are {', '.join(KNOWN)}" for name in unknown]
    faults += [
        f"{name} is {shown(written[name])}; give a whole number from 1 to {most:,}"
        for name, most in (("p", MOST_MESHES), ("m", MOST_MICROBATCHES), ("S", MOST_STAGES))
        if name in written and not _is_count(written[name], most)
    ]
    faults += _shape_faults(written)
    if faults:
        raise ScheduleError(_what(written), faults)
    stages, meshes = _stages(written), written["p"]
    if stages * written["m"] > MOST_TASKS:
        fault = (
            f"{counted(stages, 'stage', ',')} for {written['m']:,} microbatches are too "
            "many tasks; the most"
        )
        raise ScheduleError(_what(written), [f"{fault} are {MOST_TASKS:,} pairs"])
    comm = written.get("comm", 0)
    if not isinstance(comm, list):
        comm = [[0 if a == b else comm for b in range(meshes)] for a in range(meshes)]
    limit, edges = written.get("mem_limit"), written.get("edges")
    return Instance(
        meshes=meshes,
        microbatches=written["m"],
        forward=_spread(written["F"], stages),
        backward=_spread(written["B"], stages),
        weight=_spread(written["W"], stages),
        fused=None if written.get("BW") is None else _spread(written["BW"], stages),
        placement=_placement(written.get("placement") or [s % meshes for s in range(stages)]),
        transfer=tuple(map(tuple, comm)),
        time_scale=_spread(written.get("dev_scale", 1), meshes),
        memory_forward=_spread(written.get("mem_F", 1), stages),
        memory_backward=_spread(written.get("mem_B", 0), stages),
        memory_weight=_spread(written.get("mem_W", -1), stages),
        memory_limit=None if limit is None else _spread(limit, meshes),
        edges=tuple(tuple(edge) for edge in (edges or chain(stages))),  # pyright: ignore[reportArgumentType]
        static_memory=_spread(written.get("static_mem", 0), stages),
        named_limits=tuple((written.get("mem_limits") or {}).items()),
        name=written.get("name", ""),
    )


def instance_to_json(instance: Instance) -> dict[str, Any]:
    """The instance as a JSON object that `instance_from_json` reads as the same instance."""
    written: dict[str, Any] = {
        "name": instance.name,
        "p": instance.meshes,
        "m": instance.microbatches,
        "S": instance.stages,
        "F": list(instance.forward),
        "B": list(instance.backward),
        "W": list(instance.weight),
        "comm": [list(row) for row in instance.transfer],
        "placement": list(instance.placement),
        "dev_scale": list(instance.time_scale),
        "mem_F": list(instance.memory_forward),
        "mem_B": list(instance.memory_backward),
        "mem_W": list(instance.memory_weight),
        "mem_limit": None if instance.memory_limit is None else list(instance.memory_limit),
        "edges": [list(edge) for edge in instance.edges],
        "static_mem": list(instance.static_memory),
    }
    if instance.fused is not None:
        written["BW"] = list(instance.fused)
    if instance.named_limits:
        written["mem_limits"] = dict(instance.named_limits)
    return written


def _what(written: Mapping[str, Any]) -> str:
    return f"the instance {written['name']!r}" if written.get("name") else "this instance"


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _stages(written: Mapping[str, Any]) -> int:
    if "S" in written:
        return written["S"]
    return len(written["F"]) if isinstance(written["F"], list) else written["p"]


def _spread(value: Any, count: int) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,) * count


def _placement(written: list[Any]) -> tuple[int, ...]:
    return tuple(place[0] if isinstance(place, list) else place for place in written)


def _shape_faults(written: Mapping[str, Any]) -> list[str]:
    """Fields of the wrong JSON type, where the records could not tell."""
    faults = []
    comm, edges = written.get("comm"), written.get("edges")
    if isinstance(comm, list) and not all(isinstance(row, list) for row in comm):
        faults.append("comm is a list, but not of lists; give one number or a p x p matrix")
    if edges is not None and not _lists(edges):
        faults.append("edges is not a list of pairs; write [[0, 1], [1, 2]]")
    placement = written.get("placement") or []
    if not isinstance(placement, list):
        faults.append(f"placement is {placement!r}; give the mesh of each stage")
        placement = []
    for stage, place in enumerate(placement):
        if isinstance(place, list) and len(place) != 1:
            faults.append(
                f"placement[{stage}] is {place}; a stage is on one mesh, replicas are not planned"
            )
    limits = written.get("mem_limits")
    if limits is not None and not isinstance(limits, dict):
        faults.append(f"mem_limits is {limits!r}; give limits by name")
    if not isinstance(written.get("name", ""), str):
        faults.append(f"name is {written['name']!r}; give a text")
    return faults


def _lists(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, list) for row in value)
