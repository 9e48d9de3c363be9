"""How the choices of a node may be split in two, best first.

Under good prices of memory what keeps the bound low is a plan in part: a part of a large tensor
whole, the rest of it sharded. So choices are split by what they occupy, weighed by the prices: the
light ones here, the heavy ones there. Where usage says nothing more, a node is split by an edge:
the choices of one group against all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.solve.flat import Flat
from autoshard.solve.problem import Booleans, Floats

NEAR = 0.02
"""Choices count less by a factor e with every such part of the gap that they exceed the bound."""
NODES, BY_USAGE, BY_GROUP = 12, 6, 6
"""So many nodes are looked at, and so many splits of a kind are returned at most."""
FEW = 1e-3
"""A split by usage is weak below this part of the gap."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """One part of the choices of a node (a mask over all of them); the other is the rest."""

    node: int
    part: Booleans
    score: float


def splits(flat: Flat, alive: Booleans, priced: Floats, extra: Floats, gap: float) -> list[Split]:
    """Splits of the choices alive, the most promising first; none where each node has one.

    Args:
      priced: what the usage of each choice costs at the prices of memory.
      extra: by how much a plan with each choice must exceed the bound.
      gap: between the bound and what plans must cost less than.
    """
    starts = flat.node_start[:-1]
    near = NEAR * max(gap, 1e-200)
    weight = np.where(alive, np.exp(-np.minimum(extra, 600.0 * near) / near), 0.0)
    owner = np.repeat(np.arange(flat.node_count), np.diff(flat.node_start))
    total = np.maximum(np.add.reduceat(weight, starts), 1e-300)
    mean = np.add.reduceat(weight * priced, starts) / total
    spread = np.add.reduceat(weight * (priced - mean[owner]) ** 2, starts) / total
    found: list[Split] = []
    for node in _largest(spread, NODES).tolist():
        found += _by_usage(flat, node, alive, weight, priced, gap)
    found.sort(key=lambda split: -split.score)
    found = found[:BY_USAGE]
    several = np.add.reduceat(alive.astype(np.int64), starts) > 1
    ties = total / np.maximum(np.maximum.reduceat(weight, starts), 1e-300)
    score = np.where(several, np.log1p(ties) * (1.0 + np.diff(flat.near_start)), 0.0)
    others: list[Split] = []
    for node in _largest(score, NODES).tolist():
        others += _by_group(flat, node, alive, weight)
    others.sort(key=lambda split: -split.score)
    return found + others[:BY_GROUP]


def _largest(values: Floats, count: int) -> np.ndarray:
    """Where the largest values are, those above zero, the largest first."""
    order = np.argsort(-values, kind="stable")[:count]
    return order[values[order] > 0]


def _by_usage(
    flat: Flat, node: int, alive: Booleans, weight: Floats, priced: Floats, gap: float
) -> list[Split]:
    """Light choices against heavy ones, at every level of usage."""
    start, stop = flat.span(node)
    here, load, near = alive[start:stop], priced[start:stop], weight[start:stop]
    levels = np.unique(load[here])
    found = []
    for low, high in zip(levels[:-1].tolist(), levels[1:].tolist(), strict=True):
        light, heavy = here & (load <= low), here & (load > low)
        score = (high - low) * min(float(near[light].max()), float(near[heavy].max()))
        if score > FEW * gap:
            found.append(Split(node, light, score))
    return found


def _by_group(flat: Flat, node: int, alive: Booleans, weight: Floats) -> list[Split]:
    """The choices of the group of the cheapest one, as an edge sees it, against the others."""
    start, stop = flat.span(node)
    here, near = alive[start:stop], weight[start:stop]
    cheapest = int(np.where(here, near, -1.0).argmax())
    edges = flat.near_edge[flat.near_start[node] : flat.near_start[node + 1]]
    parts = [np.arange(stop - start) == cheapest]
    for edge in edges.tolist():
        first = flat.left_start[edge] if flat.u[edge] == node else flat.right_start[edge]
        group = flat.groups[first : first + stop - start]
        parts.append(here & (group == group[cheapest]))
    found: dict[bytes, Split] = {}
    for part in parts:
        rest = here & ~part
        if rest.any():
            score = float(near[rest].max()) * np.log1p(float(near.sum())) * (1.0 + edges.size)
            found[part.tobytes()] = Split(node, part, score)
    return list(found.values())
