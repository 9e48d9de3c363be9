"""Collectives of data parallelism: gathers of weights and sums of their gradients.

Where a framework runs them beside compute, on streams of its own, they add to a step what does not
fit beside its compute alone. PyTorch's FSDP does so (docs.pytorch.org, FullyShardedDataParallel:
forward and backward prefetching), and Megatron-LM (docs.nvidia.com/megatron-core, distributed
optimizer: overlap_grad_reduce and overlap_param_gather). XLA does as its schedule says.

A plan may bring tokens to where rows of the embedding lie, and their gradients likewise, where they
are fewer bytes than the embedding. These frameworks gather and sum the embedding as any weight: as
the output layer, which is as large.
"""

from __future__ import annotations

import re

import jax

from autoshard.models.decoder import weights
from autoshard.models.decoder_sizes import Decoder
from autoshard.plan.records import Move
from autoshard.study.measured.held import KINDS, place

Shapes = frozenset[tuple[int, ...]]
DATA = frozenset({"replica", "fsdp", "expert", "context"})
"""Axes over which dense weights are sharded or the same."""


def weight_shapes(config: Decoder) -> Shapes:
    """Sizes of all weights in ascending order, of one layer and of all."""
    shapes = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(weights(config)):
        stacked = getattr(path[-2], "key", "") in KINDS if len(path) > 1 else False
        shapes.add(sides(leaf.shape))
        shapes.add(sides(leaf.shape[1:] if stacked else leaf.shape))
    return frozenset(shapes)


def sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes in ascending order; a batch of one tells an array from a weight of its other sizes."""
    return tuple(sorted(shape))


def of_weights(move: Move, shapes: Shapes) -> bool:
    """Whether a collective moves a weight or its gradient over data-parallel ranks."""
    inside = move.value.partition("[")[2].partition("]")[0]
    shape = tuple(int(size) for size in re.findall(r"(?:^|,)\s*(\d+)", inside))
    return sides(shape) in shapes and DATA.issuperset(move.axes)


def of_rows(move: Move, shapes: Shapes) -> bool:
    """Whether a collective brings tokens over data-parallel ranks to rows of the embedding."""
    inside = place(move.scope)[0] == "embed" and DATA.issuperset(move.axes)
    return inside and not of_weights(move, shapes)
