"""Texts of real compiles on fake CPU devices: right after partitioning, and final."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from autoshard.plan.plan import MeshShape


def mesh_of(sizes: Mapping[str, int]) -> Mesh:
    """A mesh of fake CPU devices with Auto axes."""
    count = int(np.prod(list(sizes.values())))
    grid = np.array(jax.devices("cpu")[:count]).reshape(tuple(sizes.values()))
    return Mesh(grid, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def shape_of(mesh: Mesh) -> MeshShape:
    return MeshShape(tuple(mesh.axis_names), tuple(mesh.devices.shape))


def on(mesh: Mesh, *spec: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*spec))


def texts(lowered: Any) -> tuple[str, str]:
    """(text after partitioning, final text) of a `jax.stages.Lowered`.

    The first is empty for a program of one device, which is not partitioned.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
            "xla_dump_large_constants": True,
        }
        compiled = lowered.compile(compiler_options=options)
        found = [path.read_text() for path in Path(folder).glob("*after_spmd-partitioning*")]
        return found[0] if found else "", compiled.as_text()


def compiled(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, str]:
    """Both texts of a jitted function of abstract arguments."""
    return texts(jax.jit(function, **options).lower(*arguments))
