"""Exact elimination of one node after another, where no memory takes part.

Eliminating node i adds up everything that mentions it, over the choices of all nodes mentioned, and
keeps the least over x_i (bucket elimination, Dechter 1999,
https://doi.org/10.1016/S0004-3702(99)00059-4):

    F(x_neighbours)  =  min over x_i of  c_i[x_i]  +  sum of tables and earlier Fs with i

It is done where an order is found in which no such array is large: always the node next whose array
is smallest. In presolve it decides whole components.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from autoshard.solve.problem import Floats, Integers, Problem
from autoshard.solve.reduce.workspace import Workspace

# An array may hold so many entries, the node to be eliminated included.
ENTRIES = 1_000_000
# Components of more nodes are left alone: an order is rarely found.
NODES = 200


_Link = tuple[int, int, Callable[[], Floats]]
"""Two nodes and the table of their pair costs."""


@dataclass(frozen=True, slots=True, eq=False)
class _Factor:
    """A cost over the choices of `nodes`, one axis each, in ascending order."""

    nodes: tuple[int, ...]
    costs: Floats


def eliminate_components(space: Workspace) -> bool:
    """Decide small components that take no memory; True when there were any."""
    alive = space.size > 0
    if not (space.unfolded & alive).any() or space.u.size == 0:
        return False
    _, label = linked(space.count, space.u, space.v)
    count = int(label.max()) + 1
    barred = np.zeros(count, dtype=bool)
    barred[label[space.memory.has_usage(space.count)]] = True
    changed = np.zeros(count, dtype=bool)
    changed[label[space.unfolded & alive]] = True
    nodes_in = np.bincount(label[alive], minlength=count)
    changed &= (nodes_in > 1) & (nodes_in <= NODES)
    nodes, choices = [], []
    for component in np.flatnonzero(changed & ~barred).tolist():
        inside = np.flatnonzero((label == component) & alive)
        found = _eliminate(space, inside, np.flatnonzero(label[space.u] == component))
        if found is not None:
            nodes.append(inside)
            choices.append(found)
    if not nodes:
        return False
    # Links between nodes of one choice are costs: that is for the rules on links.
    space.restrict(np.concatenate(nodes), list(np.concatenate(choices)[:, None]))
    return True


def linked(count: int, u: Integers, v: Integers) -> tuple[int, Integers]:
    """How many components nodes with these links have, and the component of each node."""
    return connected_components(
        coo_array((np.ones(u.size, dtype=bool), (u, v)), shape=(count, count)), directed=False
    )


def cheapest(problem: Problem, *, entries: int = ENTRIES) -> tuple[int, ...] | None:
    """The cheapest plan of a problem, its memory left aside.

    None where an array would have more `entries`. Where all plans take forbidden pairs, so does
    this one.
    """
    single = [node.costs.size == 1 for node in problem.nodes]
    costs = {n: node.costs for n, node in enumerate(problem.nodes) if not single[n]}
    links: list[_Link] = []
    for edge in problem.edges:
        if not (single[edge.u] or single[edge.v]):
            links.append((edge.u, edge.v, edge.pair_costs))
        elif not (single[edge.u] and single[edge.v]):
            one = edge.v if single[edge.u] else edge.u
            costs[one] = costs[one] + edge.pair_costs().ravel()
    picked = _picked(costs, links, entries)
    return None if picked is None else tuple(picked.get(n, 0) for n in range(len(single)))


def _eliminate(space: Workspace, nodes: Integers, links: Integers) -> Integers | None:
    """The best choices of a component, or None when an array would be too large."""
    kinds = space.kinds

    def table(kind: int) -> Floats:
        return kinds.costs(kind)[np.ix_(kinds.left_side(kind), kinds.right_side(kind))]

    ends = zip(space.u[links].tolist(), space.v[links].tolist(), strict=True)
    numbers = space.kind[links].tolist()
    found = [(u, v, partial(table, kind)) for (u, v), kind in zip(ends, numbers, strict=True)]
    picked = _picked({node: space.costs_of(node) for node in nodes.tolist()}, found, ENTRIES)
    return None if picked is None else np.array([picked[n] for n in nodes.tolist()], np.int64)


def _picked(
    costs: Mapping[int, Floats], links: Sequence[_Link], entries: int
) -> dict[int, int] | None:
    """The best choices of nodes with these costs and links; None when an array is too large."""
    around: dict[int, set[int]] = {node: set() for node in costs}
    for u, v, _ in links:
        around[u].add(v)
        around[v].add(u)
    order = _order(around, {node: cost.size for node, cost in costs.items()}, entries)
    if order is None:
        return None
    factors: dict[int, list[_Factor]] = {node: [] for node in costs}
    place = {node: position for position, node in enumerate(order)}

    def put(factor: _Factor) -> None:
        if factor.nodes:
            factors[min(factor.nodes, key=place.__getitem__)].append(factor)

    for node in order:
        put(_Factor((node,), costs[node]))
    for u, v, table in links:
        put(_Factor((u, v), table()) if u < v else _Factor((v, u), table().T))
    best: list[tuple[int, tuple[int, ...], Integers]] = []
    for node in order:
        mentioned = sorted({other for factor in factors[node] for other in factor.nodes})
        rest = tuple(other for other in mentioned if other != node)
        axes = *rest, node
        total = _add_up(factors[node], axes, [costs[one].size for one in axes])
        best.append((node, rest, total.argmin(axis=-1)))
        put(_Factor(rest, total.min(axis=-1)))
    picked: dict[int, int] = {}
    for node, rest, choice in reversed(best):
        picked[node] = int(choice[tuple(picked[other] for other in rest)])
    return picked


def _order(around: dict[int, set[int]], size: dict[int, int], most: int) -> list[int] | None:
    """An order of elimination without large arrays, if always taking the smallest gives one."""

    def entries(node: int) -> int:
        return size[node] * math.prod(size[other] for other in around[node])

    order = []
    waiting = {node: entries(node) for node in around}
    while waiting:
        node = min(waiting, key=waiting.__getitem__)
        if waiting.pop(node) > most:
            return None
        near = around.pop(node)
        for other in near:
            around[other] |= near
            around[other] -= {node, other}
        for other in near:
            waiting[other] = entries(other)
        order.append(node)
    return order


def _add_up(factors: list[_Factor], axes: tuple[int, ...], sizes: list[int]) -> Floats:
    """The sum of factors over these nodes."""
    total = np.zeros(sizes)
    for factor in factors:
        order = sorted(range(len(factor.nodes)), key=lambda k: axes.index(factor.nodes[k]))
        shape = [
            size if node in factor.nodes else 1 for node, size in zip(axes, sizes, strict=True)
        ]
        total += factor.costs.transpose(order).reshape(shape)
    return total
