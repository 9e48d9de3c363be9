"""Nodes of a problem that stand for requirements; see `autoshard.problem.requirements.restrict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.solve.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class Hub:
    """A node that says whether a requirement is kept, or on which axes a logical name lies.

    Attributes:
      bound: the requirement (`autoshard.problem.requirements.bind.Bound`).
      node: number of the node.
      kept: the choices under which it is kept.
      dropped: the choice under which it is not; None where it must be kept.
      name: the logical name that it stands for, or an empty string.
      axes: of each kept choice, where it stands for a name.
    """

    bound: Any
    node: int
    kept: tuple[int, ...]
    dropped: int | None
    name: str = ""
    axes: tuple[tuple[str, ...], ...] = ()


def completed(problem: Problem, hubs: Sequence[Hub], choices: Sequence[int]) -> list[int] | None:
    """The choices with those of all further nodes (-1 in `choices`), or None where none is allowed.

    Further nodes come last. From the last one on, each takes the cheapest choice that the others
    allow, the first of several: requirements are kept wherever the plan keeps them.
    """
    result = list(choices)
    first = min((node for node, choice in enumerate(result) if choice < 0), default=len(result))
    if first == len(result):
        return result
    allowed = {node: np.isfinite(problem.nodes[node].costs) for node in range(first, len(result))}
    touching: dict[int, list[tuple[int, Any]]] = {node: [] for node in allowed}
    for edge in problem.edges:
        low, high = min(edge.u, edge.v), max(edge.u, edge.v)
        if low >= first:
            touching[low].append((high, edge))
        elif high >= first:
            touching[high].append((low, edge))
    used, beside = _rows(problem, first, result)
    for node, mask in reversed(allowed.items()):
        for other, edge in touching[node]:
            if node == edge.u:
                mask &= np.isfinite(edge.table[edge.left, edge.right[result[other]]])
            else:
                mask &= np.isfinite(edge.table[edge.left[result[other]], edge.right])
        for usage, peak in beside.get(node, ()):
            assert problem.limit is not None
            mask &= used[peak] + usage.amounts <= problem.limit * (1 + 1e-12)
        options = np.flatnonzero(mask)
        if not len(options):
            return None
        result[node] = int(options[problem.nodes[node].costs[options].argmin()])
    return result


def _rows(problem: Problem, first: int, choices: Sequence[int]) -> tuple[dict, dict]:
    """The highest load beside every usage of a further node, and those usages by node."""
    usages = [usage for usage in problem.usages if usage.node >= first]
    used: dict[tuple[int, int], float] = {}
    beside: dict[int, list[tuple[Any, tuple[int, int]]]] = {}
    for usage in usages:
        span = usage.start, usage.stop
        beside.setdefault(usage.node, []).append((usage, span))
        if span in used:
            continue
        events: dict[int, float] = {}
        for other in problem.usages:
            start, stop = max(other.start, span[0]), min(other.stop, span[1])
            if other.node < first and start < stop:
                amount = float(other.amounts[choices[other.node]])
                events[start] = events.get(start, 0.0) + amount
                events[stop] = events.get(stop, 0.0) - amount
        loads = np.cumsum([events[time] for time in sorted(events)])
        used[span] = float(loads.max(initial=0.0))
    return used, beside
