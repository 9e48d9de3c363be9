"""The mesh shapes on which choices are compared, before the best of them is planned on all."""

from __future__ import annotations

from autoshard.cost.mesh_shapes import candidate_meshes
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.program.trace import Program
from autoshard.search.mesh_axes import AXIS_NAMES
from autoshard.search.options import SearchOptions
from autoshard.search.prepare import prepare


def coarse_shapes(step: Program, machine: Machine, asked: SearchOptions) -> list[MeshShape]:
    """The mesh that was asked for, or those of two axes."""
    if asked.mesh is not None:
        return prepare(step, machine, asked)[1]
    meshes = candidate_meshes(machine, axes=2)
    return [MeshShape(AXIS_NAMES[: len(sizes)], sizes) for sizes in meshes]
