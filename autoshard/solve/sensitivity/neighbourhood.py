"""Some nodes of a problem and what is around them: everything else stays as in a plan.

What a link to a node that stays costs becomes a cost of the node that may change; choices that the
nodes around forbid are left out. There are no memory rows: those are for the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoshard.solve.problem import Integers, Node, Problem


class Cut(NamedTuple):
    """The problem of the nodes that may change, and the choices of the whole that theirs are."""

    problem: Problem
    kept: dict[int, Integers]

    def expand(self, choices: Sequence[int], plan: Sequence[int]) -> tuple[int, ...]:
        """A plan of the whole: these choices, and the rest as in `plan`."""
        found = list(plan)
        for choice, (node, left) in zip(choices, self.kept.items(), strict=False):
            found[node] = int(left[choice])
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhoods:
    """A problem, and the numbers of the edges at each of its nodes."""

    problem: Problem
    edges: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, problem: Problem) -> Neighbourhoods:
        edges: list[list[int]] = [[] for _ in problem.nodes]
        for number, edge in enumerate(problem.edges):
            edges[edge.u].append(number)
            edges[edge.v].append(number)
        return cls(problem, tuple(map(tuple, edges)))

    def cut(self, kept: Mapping[int, Integers], plan: Sequence[int]) -> Cut | None:
        """The problem of the nodes of `kept` with those choices; None where one has none left."""
        whole, left = self.problem, dict(kept)
        costs = {node: whole.nodes[node].costs[choices] for node, choices in left.items()}
        touching = sorted({number for node in left for number in self.edges[node]})
        inner = []
        for number in touching:
            edge = whole.edges[number]
            if edge.v not in left:
                row = edge.table[edge.left[left[edge.u]], edge.right[plan[edge.v]]]
                costs[edge.u] = costs[edge.u] + edge.weight * row
            elif edge.u not in left:
                row = edge.table[edge.left[plan[edge.u]], edge.right[left[edge.v]]]
                costs[edge.v] = costs[edge.v] + edge.weight * row
            else:
                inner.append(edge)
        for node, cost in costs.items():
            allowed = cost < np.inf
            if not allowed.all():
                left[node], costs[node] = left[node][allowed], cost[allowed]
                if not allowed.any():
                    return None
        numbers = {node: number for number, node in enumerate(left)}
        nodes = tuple(Node(whole.nodes[node].name, cost) for node, cost in costs.items())
        edges = tuple(edge.among(left, numbers) for edge in inner)
        return Cut(Problem(nodes, edges, (), None), left)
