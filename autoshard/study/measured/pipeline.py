"""The pipeline of a run: how its layers and microbatches go through stages, one after another.

The stages of a pipeline lie on equal parts of the machine, the outermost ranks, as Megatron-LM has
them (github.com/NVIDIA/Megatron-LM, parallel_state.py: tensor, context, expert, data, pipeline).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch
from autoshard.solve.schedule import NAMED
from autoshard.study.measured.table import Run

SCHEDULES = (
    ("zbv", "zb-v"),
    ("zbb", "zb-h1"),
    ("v-half", "v-half"),
    ("v-min", "v-min"),
    ("interleaved", "interleaved"),
    ("1f1b", "1f1b"),
)
"""What the schedules of `autoshard.solve.schedule` are called in tables; the first that fits."""
VEE = frozenset({"zb-v", "v-half", "v-min"})
"""Schedules of two stages a mesh, placed down the meshes and up again."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline.

    Attributes:
      meshes: parts of the machine, one after another.
      chunks: stages on each.
      schedule: by its name in `autoshard.solve.schedule`.
      machine: all parts.
    """

    meshes: int
    chunks: int
    schedule: str
    machine: Machine

    def __post_init__(self) -> None:
        if self.schedule not in NAMED:
            raise ValueError(f"no schedule is called {self.schedule}; known: {', '.join(NAMED)}")

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return self.meshes * self.chunks

    @property
    def placement(self) -> tuple[int, ...]:
        """The mesh of every stage."""
        if self.schedule in VEE:
            return (*range(self.meshes), *reversed(range(self.meshes)))
        return tuple(stage % self.meshes for stage in range(self.stages))

    def transfer_seconds(self, bytes_a_device: float) -> tuple[tuple[float, ...], ...]:
        """Seconds in which every device of a mesh sends so much to one of another mesh."""
        part = self.machine.chips // self.meshes
        inner = self.machine.network[0]

        def seconds(a: int, b: int) -> float:
            if a == b:
                return 0.0
            outside = a * part // inner.chips != b * part // inner.chips
            level = self.machine.network[-1] if outside else inner
            if not isinstance(level, Switch):
                return bytes_a_device / (level.link_bandwidth * level.efficiency)
            rate = min(level.chip_bandwidth, level.pair_bandwidth) * level.efficiency
            return level.start_seconds + level.latency_seconds + bytes_a_device / rate

        return tuple(tuple(seconds(a, b) for b in range(self.meshes)) for a in range(self.meshes))


def pipeline_of(run: Run, machine: Machine, notes: list[str]) -> Pipeline | None:
    """The pipeline of a run, or None where all of it lies on one mesh.

    Raises:
      ValueError: its schedule has no name that is known.
    """
    meshes = run.pp or 1
    if meshes == 1:
        return None
    words = run.schedule.lower()
    schedule = next((name for word, name in SCHEDULES if word in words), "")
    if words and not schedule:
        raise ValueError(
            f"the schedule {run.schedule!r} is not known; known: "
            f"{', '.join(word for word, _ in SCHEDULES)}"
        )
    chunks = run.vpp or 1
    if not words:
        schedule = "interleaved" if chunks > 1 else "1f1b"
        notes.append(f"schedule not published: taken to be {schedule}")
    if schedule == "interleaved" and chunks == 1:
        schedule = "1f1b"
    chunks = 2 if schedule in VEE else chunks if schedule == "interleaved" else 1
    return Pipeline(meshes, chunks, schedule, machine)


def layers_of_stages(layers: int, stages: int) -> list[int]:
    """Layers of each stage: the same of all, or one fewer where embedding and logits stand.

    Megatron-LM counts these two as a layer each where that makes stages equal
    (account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split). Else the
    stages with one layer more are the middle ones.
    """
    counted = layers + 2 if layers % stages and not (layers + 2) % stages else layers
    least, more = divmod(counted, stages)
    first = math.ceil((stages - more) / 2)
    found = [least + (first <= stage < first + more) for stage in range(stages)]
    if counted != layers:
        found[0] -= 1
        found[-1] -= 1
    return found
