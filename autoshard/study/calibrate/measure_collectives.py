"""Times of collectives between the devices that are there, and of what compute hides of them.

A chain whose compiled text does not hold all its collectives would be no measurement, and is
refused. A row of kind `step` puts matmuls and collectives that do not need each other into one
program; what it takes beyond the matmuls alone is exposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.sharding import Mesh

from autoshard.study.calibrate import chains
from autoshard.study.calibrate.timing import (
    Effort,
    compile_on,
    device_mesh,
    link_seconds,
    random_parts,
)

Row = dict[str, Any]

SMALLEST_BYTES = 2**12
GROWTH = 16
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute")


def collective_rows(devices: Sequence[Any], effort: Effort) -> Iterator[Row]:
    """Yield rows of kind collective, over all devices and over pairs of neighbours."""
    for group in sorted({2, len(devices)}, reverse=True):
        if len(devices) % group:
            continue
        mesh = device_mesh(devices, group)
        for kind in KINDS:
            size, seconds = SMALLEST_BYTES, 0.0
            while (
                size <= effort.largest_bytes and GROWTH * (seconds or 0) <= effort.longest_seconds
            ):
                seconds = _collective(mesh, effort, kind, size)
                if seconds is not None:
                    yield {
                        "kind": "collective",
                        "collective": kind,
                        "group_size": group,
                        "bytes": size,
                        "seconds": seconds,
                    }
                size *= GROWTH


def step_rows(devices: Sequence[Any], effort: Effort) -> Iterator[Row]:
    """Yield rows of kind step: matmuls beside all-gathers and all-reduces of about their length."""
    mesh = device_mesh(devices, len(devices))
    for kind in ("all_gather", "all_reduce"):
        size, collective = SMALLEST_BYTES, _collective(mesh, effort, kind, SMALLEST_BYTES)
        while GROWTH * size <= effort.largest_bytes and (
            GROWTH * (collective or 0.0) <= effort.run_seconds
        ):
            size *= GROWTH
            collective = _collective(mesh, effort, kind, size)
        width, compute = 64, _beside(mesh, effort, 64, None)
        while (compute or 0.0) < (collective or 0.0) and (
            4 * (2 * width) ** 2 <= effort.largest_bytes
        ):
            width *= 2
            compute = _beside(mesh, effort, width, None)
        both = _beside(mesh, effort, width, (kind, size))
        if collective is None or compute is None or both is None:
            continue
        yield {
            "kind": "step",
            "compute_seconds": compute,
            "collective_seconds": collective,
            "exposed_seconds": min(max(both - compute, 0.0), collective),
            "hideable_seconds": min(collective, compute),
        }


def _collective(mesh: Mesh, effort: Effort, kind: str, size: int) -> float | None:
    """Seconds of one collective of `size` bytes a device over the axis "group"."""
    starts = [(_operand(mesh, kind, size, seed),) for seed in (1, 2)]
    group, name = mesh.shape["group"], chains.hlo_name(kind)
    return link_seconds(
        lambda links: compile_on(
            mesh, chains.collective(kind, group, links), starts, wanted=(name, links)
        ),
        effort,
    )


def _beside(mesh: Mesh, effort: Effort, width: int, move: tuple[str, int] | None) -> float | None:
    """Seconds of a matmul of `width` and, if any, a collective that does not need it."""
    weights = random_parts(mesh, (width, width), "float32", 1, (3 / width) ** 0.5)
    starts = [random_parts(mesh, (width, width), "float32", seed) for seed in (2, 3)]
    kind = None if move is None else move[0]
    moved = [] if move is None else [_operand(mesh, *move, seed) for seed in (4, 5)]
    variants = [(x, weights, *moved[number : number + 1]) for number, x in enumerate(starts)]
    return link_seconds(
        lambda links: compile_on(
            mesh,
            chains.beside(kind, mesh.shape["group"], links),
            variants,
            wanted=None if kind is None else (chains.hlo_name(kind), links),
        ),
        effort,
    )


def _operand(mesh: Mesh, kind: str, size: int, seed: int) -> Any:
    """An operand for a collective of `size` bytes a device."""
    shards = mesh.shape["group"]
    elements = max(size // 4 // shards, 1)
    return random_parts(mesh, (1 if kind == "all_gather" else shards, elements), "float32", seed)
