"""What XLA:TPU makes of collectives in a program that runs on several slices.

Chips of a slice talk over a torus, and slices over a network of hosts (`Switch`). A collective over
several slices is one within each slice and a transfer between the hosts of slices (`send` and
`recv` of the megascale runtime), each of which reads what the other has made: they take turns
(`Switch.pipelined` of the presets is 0). Three habits besides:

* A reduce-scatter over chips of several slices is one within each slice, an all-reduce between
  slices of what a chip has then, and a gather of the whole within each, of which a chip takes its
  part: as long as an all-reduce.
* A sum that is wanted in parts within a slice, and whole over slices, is settled in two steps, and
  nothing of it is gathered (`autoshard.plan.unreduced_sums`).
* A gather over all chips of a slice that is a torus of three rings is an all-reduce: every chip
  adds its shard to zeros.

XLA:GPU hides less of two collectives in a row than of one: of Llama-3-8B on 64 H100, its weights
sharded within hosts, 131 of 504 ms of a step are waited for where gradients are settled in steps,
and 91 of 462 ms with one all-reduce and a slice of it (jaxlib 0.10.2). So steps are for slices.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from autoshard.cost.placement import Piece
from autoshard.machine.network import Switch, Torus

if TYPE_CHECKING:
    from autoshard.cost.collective import MeshTopology

NO_SCATTER = "tpu.no-scatter-across-slices"
IN_STEPS = "tpu.sums-across-slices-in-steps"
PADDED = "tpu.gathers-over-cubes-of-several-are-sums"
RING = 4
"""Chips around a dimension of a torus from which on it is a ring."""


def axes_between(topology: MeshTopology) -> tuple[int, ...]:
    """The axes over which sums are added up once they are scattered over the others."""
    if not topology.machine.chip.compiler.has(IN_STEPS):
        return ()
    pieces = enumerate(topology.pieces)
    return tuple(axis for axis, parts in pieces if any(_between(topology, one) for one in parts))


def crosses(topology: MeshTopology, axes: Iterable[int]) -> bool:
    """Whether a group over these axes has several chips of several slices."""
    pieces = [piece for axis in axes for piece in topology.pieces[axis] if piece.length > 1]
    between = [_between(topology, piece) for piece in pieces]
    return any(between) and not all(between)


def is_padded(topology: MeshTopology, axes: Iterable[int]) -> bool:
    """Whether a gather over these axes is an all-reduce of shards among zeros."""
    levels = topology.machine.network
    if not isinstance(levels[-1], Switch) or levels[-1].size == 1:
        return False
    axes = tuple(axes)
    for number, level in enumerate(levels[:-1]):
        if isinstance(level, Torus) and len(level.dimensions) == 3:
            taken = 1
            for axis in axes:
                for piece in topology.pieces[axis]:
                    taken *= piece.length if piece.level == number else 1
            rings = min(level.dimensions) >= RING
            return rings and taken == level.chips and topology.machine.chip.compiler.has(PADDED)
    return False


def _between(topology: MeshTopology, piece: Piece) -> bool:
    """Whether a piece of an axis leads from slice to slice."""
    levels = topology.machine.network
    inside = any(isinstance(level, Torus) for level in levels[: piece.level])
    return inside and piece.length > 1 and isinstance(levels[piece.level], Switch)
