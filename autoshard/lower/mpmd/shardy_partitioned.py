"""What Shardy:MPMD's passes make of a module, and whether that is the plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autoshard import compat
from autoshard.compat import MpmdFragment, MpmdMerge
from autoshard.lower.mpmd.instructions import Send, Unit
from autoshard.lower.mpmd.place import LoweredMpmd
from autoshard.solve.schedule.task import Task


@dataclass(frozen=True, slots=True, eq=False)
class ExportedMpmd:
    """A module for Shardy:MPMD and what its passes are told.

    Attributes:
      text: the module, before partitioning.
      meshes: (name, axes) of every mesh.
      assignment: the mesh of every named computation, with its stage where it has one.
      input_meshes, output_meshes: the mesh of every argument and result.
      order: for every mesh its tasks, as schedule rules.
      merges: fragments that become one.
      donated: positions of arguments that may be overwritten.
    """

    text: str
    meshes: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    assignment: Mapping[str, str | tuple[str, int]]
    input_meshes: tuple[str, ...]
    output_meshes: tuple[str, ...]
    order: tuple[tuple[MpmdFragment, ...], ...]
    merges: tuple[MpmdMerge, ...]
    donated: tuple[int, ...]

    def partition(self) -> PartitionedMpmd:
        """The module through Shardy:MPMD's passes, down to IFRT IR."""
        text, ifrt = compat.partition_mpmd(
            self.text,
            meshes=self.meshes,
            assignment=self.assignment,
            input_meshes=self.input_meshes,
            output_meshes=self.output_meshes,
            order=self.order,
            merges=self.merges,
            donated=self.donated,
        )
        return PartitionedMpmd(text, fragments_of(text), ifrt)


@dataclass(frozen=True, slots=True, eq=False)
class PartitionedMpmd:
    """What Shardy:MPMD made of a module.

    Attributes:
      text: the module after its passes: fragment calls and transfers.
      fragments: (mesh, origins) of every fragment call in program order; an origin is (name of a
        computation, transpose count). Deduplicated fragments have lost their call counters.
      ifrt_text: the module as IFRT IR.
    """

    text: str
    fragments: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    ifrt_text: str

    def on(self, mesh: str) -> tuple[tuple[str, int], ...]:
        """The computations of the stages that a mesh runs, one after another."""
        return tuple(
            origin
            for place, origins in self.fragments
            if place == mesh
            for origin in origins
            if origin[0].startswith("stage")
        )

    @property
    def transfers(self) -> int:
        """How many transfers there are between meshes."""
        return len(re.findall(r"= mpmd\.transfer ", self.text))

    @property
    def programs(self) -> tuple[str, ...]:
        """The different programs that fragments call."""
        return tuple(dict.fromkeys(re.findall(r"mpmd\.fragment_call<[^@]*@([\w.]+)", self.text)))


def fragments_of(text: str) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    """(mesh, origins) of every fragment call in the text of a partitioned module."""
    calls = re.findall(r"mpmd\.fragment_call<mesh=\"([^\"]*)\", origin=\[([^\]]*)\]", text)
    return tuple(
        (
            mesh,
            tuple(
                (name, int(count or 0))
                for name, count in re.findall(r"\"([^\"]*)\"(?:\((\d+)\))?", origins)
            ),
        )
        for mesh, origins in calls
    )


def disagreements(lowered: LoweredMpmd, partitioned: PartitionedMpmd) -> list[str]:
    """Where Shardy:MPMD's fragments, order or transfers are not those of the lowered step.

    W is only counted: nothing waits for it, and the passes may let it move.
    """
    faults = []
    script = lowered.unmerged
    units = {
        unit.name for unit in script.units if isinstance(unit, Unit) and (unit.outputs or unit.adds)
    }
    for mesh, tasks in enumerate(lowered.order):
        planned = [origin_of(task) for task in tasks if f"{task.kind}{task.stage}" in units]
        found = partitioned.on(mesh_name(mesh))
        in_order = [[one for one in names if not _is_w(one)] for names in (planned, found)]
        if in_order[0] != in_order[1]:
            faults.append(f"mesh {mesh} runs {in_order[1]}, the plan has {in_order[0]}")
        if sorted(filter(_is_w, planned)) != sorted(filter(_is_w, found)):
            faults.append(f"mesh {mesh} has other weight gradients than the plan")
    sends = sum(isinstance(one, Send) for one in script.instructions)
    sends += sum(len(slots) - 1 for pieces in script.inputs for slots in pieces)
    if partitioned.transfers != sends:
        faults.append(f"there are {partitioned.transfers} transfers, the plan has {sends}")
    return faults


def _is_w(origin: tuple[str, int]) -> bool:
    return origin[0].endswith("_weights")


def origin_of(task: Task) -> tuple[str, int]:
    """(name, transpose count) of the computation of a task."""
    if task.kind == "W":
        return f"stage{task.stage}_weights", 1
    return f"stage{task.stage}", 0 if task.kind == "F" else 1


def mesh_name(number: int) -> str:
    """What a mesh is called in a module."""
    return f"mesh{number}"
