"""Rows of kind collective from the machine's own compiler, which needs no devices.

XLA:GPU keeps measured times of collectives within a host of the chips that it knows, and schedules
by them. Programs in which each collective needs the one before are compiled for one host, and the
times read from the compiler's timeline.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.compiler.collective_times import collective_times
from autoshard.compiler.compiled import compile_lowered
from autoshard.compiler.target import kind_of, target_of
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.study.calibrate import chains
from autoshard.study.calibrate.device import UnmeasuredError
from autoshard.study.calibrate.measure_collectives import KINDS

Row = dict[str, Any]

LEAST_BYTES = 2**16
"""Below it the compiler's table is of starts alone, which scatter by a factor of three."""
MOST_BYTES = 2**29


def compiled_rows(
    machine: Machine,
    *,
    least_bytes: int = LEAST_BYTES,
    most_bytes: int = MOST_BYTES,
    kinds: Sequence[str] = KINDS,
    cache: Path | None = None,
) -> Iterator[Row]:
    """Yield a row for every kind, group size and power of two of bytes.

    Args:
      machine: of which the innermost level is asked about.
      least_bytes, most_bytes: per device, in the meaning of a row's column `bytes`.
      kinds: of collectives.
      cache: folder of earlier compiles; by default the user's.

    Raises:
      UnmeasuredError: the compiler has no times of collectives of these chips.
      CompileError: the compiler is not installed, or does not know the machine.
    """
    host = replace(machine, name=f"one host of {machine.name}", network=machine.network[:1])
    groups = [size for size in range(2, host.chips + 1) if host.chips % size == 0]
    powers = range(least_bytes.bit_length() - 1, most_bytes.bit_length())
    found = 0
    for group, kind in itertools.product(groups, kinds):
        mesh = MeshShape(("rest", "group"), (host.chips // group, group))
        stage = _chain(kind, mesh, [2**power for power in powers], host)
        key = compile_lowered(stage, mesh, host, cache=cache).key
        for record, seconds in collective_times(key, mesh, cache=cache):
            if record.kind == kind:
                found += 1
                yield {
                    "kind": "collective",
                    "collective": kind,
                    "group_size": group,
                    "bytes": record.bytes,
                    "seconds": seconds,
                }
    if not found:
        raise UnmeasuredError(
            f"the compiler has no times of collectives among {machine.chip.name} chips; measure "
            "them where such chips are, with --device"
        )


def _chain(kind: str, mesh: MeshShape, sizes: Sequence[int], host: Machine) -> Any:
    """A program with one collective of each size, each of which needs the one before, lowered."""
    group = mesh.sizes[-1]
    link = chains.collective(kind, group, 1)
    abstract = AbstractMesh(mesh.sizes, mesh.names, axis_types=(AxisType.Auto,) * 2)
    spec = P(mesh.names)

    def program(*arrays: Any) -> list[Any]:
        before, moved = jnp.float32(0), []
        for array in arrays:
            moved.append(link(array + before))
            before = moved[-1][0, 0]
        return moved

    shards = 1 if kind == "all_gather" else group
    arrays = [
        jax.ShapeDtypeStruct((host.chips * shards, size // 4 // group), jnp.float32)
        for size in sizes
    ]
    each = jax.shard_map(
        program, mesh=abstract, in_specs=(spec,) * len(sizes), out_specs=spec, check_vma=False
    )
    shardings = (NamedSharding(abstract, spec),) * len(sizes)
    jitted = jax.jit(each, in_shardings=shardings, out_shardings=list(shardings))
    platform = target_of(host, mesh, kind_of(host)).platform
    return jitted.trace(*arrays).lower(lowering_platforms=(platform,))
