"""A part of the costs of a problem, to be multiplied by a scale while the rest stays.

All seconds on one link, all costs of some nodes: with F the fixed rest and V the part, a plan x
costs F(x) + s V(x) at scale s. Which plans are allowed does not depend on s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoshard.solve.problem import Floats, Problem, ProblemError, check_choices
from autoshard.units import counted


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of the costs: node number -> cost per choice, edge number -> costs like its table.

    An edge's part is in the units of its table, so the edge's weight multiplies it as well. Entries
    where the table forbids the pair say nothing.
    """

    nodes: Mapping[int, Floats] = field(default_factory=dict)
    edges: Mapping[int, Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, *, nodes: Iterable[int], edges: Iterable[int] = ()) -> Part:
        """All costs of some nodes and of some edges.

        Raises ProblemError naming those that do not exist.
        """
        nodes, edges = tuple(nodes), tuple(edges)
        bad = [f"node {number}" for number in nodes if not 0 <= number < len(problem.nodes)]
        bad += [f"edge {number}" for number in edges if not 0 <= number < len(problem.edges)]
        if bad:
            raise ProblemError("a part of the costs names what does not exist: " + ", ".join(bad))
        return cls(
            {number: problem.nodes[number].costs for number in nodes},
            {number: problem.edges[number].table for number in edges},
        )

    @classmethod
    def all(cls, problem: Problem) -> Part:
        """All costs but the offset."""
        return cls.of(problem, nodes=range(len(problem.nodes)), edges=range(len(problem.edges)))

    def __str__(self) -> str:
        return f"Part({counted(len(self.nodes), 'node')}, {counted(len(self.edges), 'edge')})"


def scaled(problem: Problem, part: Part, scale: float) -> Problem:
    """The problem with a part of its costs multiplied by `scale` >= 0, and the rest as it is.

    With scale infinity, the problem of the part alone: no other costs, the same plans allowed.
    Tables that were one object stay one.

    Raises ProblemError naming every node and edge whose part does not fit.
    """
    _check_part(problem, part, scale)
    if scale == 1.0:
        return problem
    alone = scale == np.inf
    nodes, edges = list(problem.nodes), list(problem.edges)
    for number, node in enumerate(nodes):
        if number in part.nodes:
            nodes[number] = replace(
                node, costs=_with_part(node.costs, np.asarray(part.nodes[number]), scale)
            )
        elif alone:
            nodes[number] = replace(node, costs=np.zeros(node.costs.size))
    memo: dict[tuple[int, int | None], Floats] = {}
    for number, edge in enumerate(edges):
        own = part.edges.get(number)
        if own is None and not alone:
            continue
        key = id(edge.table), None if own is None else id(own)
        if key not in memo:
            other = np.zeros(edge.table.shape) if own is None else np.asarray(own)
            memo[key] = _with_part(edge.table, other, scale)
        edges[number] = replace(edge, costs=memo[key])
    offset = 0.0 if alone else problem.offset
    return replace(problem, nodes=tuple(nodes), edges=tuple(edges), offset=offset)


def _with_part(costs: Floats, part: Floats, scale: float) -> Floats:
    """costs - part + scale * part; +inf stays."""
    allowed = np.isfinite(costs)
    one = np.where(allowed, part, 0.0)
    changed = one if scale == np.inf else (np.where(allowed, costs, 0.0) - one) + scale * one
    return np.where(allowed, changed, np.inf)


def _check_part(problem: Problem, part: Part, scale: float) -> None:
    bad = []
    if not scale >= 0.0:
        bad.append(f"scale is {scale}; give a number >= 0")
    for kind, given, owners in (
        ("node", part.nodes, [node.costs for node in problem.nodes]),
        ("edge", part.edges, [edge.table for edge in problem.edges]),
    ):
        for number, costs in given.items():
            if not 0 <= number < len(owners):
                bad.append(f"{kind} {number}: there is no such {kind}")
                continue
            own, values = owners[number], np.asarray(costs)
            if values.shape != own.shape:
                bad.append(f"{kind} {number}: shape {values.shape}; its costs are {own.shape}")
            elif not np.isfinite(values[np.isfinite(own)]).all():
                bad.append(f"{kind} {number}: not finite where its costs are")
    if bad:
        more = f"\n  and {len(bad) - 20} more" if len(bad) > 20 else ""
        raise ProblemError(
            "a part of the costs does not fit:\n  - " + "\n  - ".join(bad[:20]) + more
        )


def part_cost(problem: Problem, part: Part, choices: Sequence[int]) -> float:
    """What a plan pays of a part of the costs, at scale 1."""
    picked = check_choices(problem, choices).tolist()
    terms = [float(np.asarray(costs)[picked[node]]) for node, costs in part.nodes.items()]
    for number, table in part.edges.items():
        edge = problem.edges[number]
        row, column = edge.left[picked[edge.u]], edge.right[picked[edge.v]]
        terms.append(edge.weight * float(np.asarray(table)[row, column]))
    return float(np.sum(terms))
