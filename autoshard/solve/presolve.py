"""Makes a problem smaller without changing its best cost.

Rules, applied until none helps; the cheap ones first:

* arc consistency: a choice that a neighbour can never accompany goes;
* one choice left: the node becomes costs of its neighbours and fixed load;
* separable link, T[g, h] = f[g] + k[h]: it becomes costs of both ends;
* parallel links become one link over pairs of groups;
* determined neighbour: where each choice of u leaves v one choice, v follows u;
* degree 0 and 1: the best choice for each choice of the neighbour, if it is also the one that
  takes the least memory (or memory cannot bind where it lives);
* degree 2: a new table over the two groups, T[g, h] = min_x c[x] + A[g, x] + B[x, h], when the node
  takes no memory that could bind;
* dominance (dead-end elimination): choice x goes when some y takes no more memory and

      c[y] - c[x] + sum_e max_j ( T_e[y, j] - T_e[x, j] )  <=  0,

  so that y replaces x in any plan at no loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoshard.solve.problem import Floats, Integers, Problem
from autoshard.solve.workspace import InfeasibleError, Link, Trail, Workspace

# A merged or new table may hold this many entries, or `GROWTH` times what it replaces.
TABLE_ENTRIES = 4096
GROWTH = 2
# Dominance compares all pairs of choices up to this many; beyond, all against the cheapest.
ALL_PAIRS = 700
CHEAPEST = 200
COMPARISONS = 20_000_000


def presolve(
    problem: Problem,
    pins: Mapping[int, Sequence[int]] | None = None,
    *,
    dominance: bool = True,
) -> tuple[Problem, Trail]:
    """The reduced problem and the way back.

    `pins` restricts nodes to subsets of their choices; `dominance` compares choices with each
    other, which is most of the time on nodes of thousands. Raises `InfeasibleError` when no plan
    exists.
    """
    space = Workspace.of(problem)
    for node, allowed in (pins or {}).items():
        space.restrict(node, np.unique(np.asarray(allowed, dtype=np.int64)))
    reduce(space, dominance=dominance)
    return space.finish()


def reduce(space: Workspace, *, dominance: bool = True) -> None:
    """Apply every rule until none helps."""
    while True:
        space.refresh_rows()
        _settle(space)
        looked, space.changed = sorted(space.changed), set()
        for node in looked if dominance else ():
            if space.costs[node] is not None:
                _drop_dominated(space, node)
        if not space.queue:
            return


def _settle(space: Workspace) -> None:
    """Run the cheap rules until the queue is empty."""
    while space.queue:
        node = space.queue.popleft()
        if node not in space.queued:
            continue
        space.queued.discard(node)
        if space.costs[node] is not None:
            _look(space, node)


def _look(space: Workspace, node: int) -> None:
    """The cheap rules at one node; returns as soon as the node changed (it is queued again)."""
    if space.size(node) == 1:
        space.fix(node, 0)
        return
    for other in list(space.near[node]):
        numbers = space.near[node].get(other)
        if numbers is None:
            continue
        if len(numbers) > 1:
            _merge_parallel(space, node, other)
        for number in list(space.near[node].get(other, ())):
            if number in space.stale_links and _clean_link(space, number):
                return
    degree = len(space.near[node])
    if degree == 0:
        _drop_isolated(space, node)
    elif degree == 1:
        _drop_leaf(space, node)
    elif degree == 2:
        _drop_middle(space, node)


def _merge_parallel(space: Workspace, u: int, v: int) -> None:
    """Join the links between two nodes while the joint table stays small."""
    numbers = list(space.near[u][v])
    for number in numbers:
        _shrink(space, space.links[number])
    while len(numbers) > 1:
        first, second = space.links[numbers[-2]], space.links[numbers[-1]]
        one, two = first.toward(u), second.toward(u)
        key = first.side(u) * two.shape[0] + second.side(u)
        groups_u, left = np.unique(key, return_inverse=True)
        key = first.side(v) * two.shape[1] + second.side(v)
        groups_v, right = np.unique(key, return_inverse=True)
        entries = groups_u.size * groups_v.size
        if entries > max(TABLE_ENTRIES, GROWTH * (one.size + two.size)):
            return
        rows_one, rows_two = np.divmod(groups_u, two.shape[0])
        columns_one, columns_two = np.divmod(groups_v, two.shape[1])
        table = one[np.ix_(rows_one, columns_one)] + two[np.ix_(rows_two, columns_two)]
        space.drop_link(numbers.pop())
        space.drop_link(numbers.pop())
        space.add_link(Link(u, v, table, left, right))
        numbers = list(space.near[u][v])


def _shrink(space: Workspace, link: Link) -> None:
    """Drop unused and merge equal rows and columns of the table of a link."""
    rows, columns = link.table.shape
    used_rows = np.zeros(rows, dtype=bool)
    used_rows[link.left] = True
    used_columns = np.zeros(columns, dtype=bool)
    used_columns[link.right] = True
    table, row_map, column_map = space.memo.compress(link.table, used_rows, used_columns)
    if table is not link.table:
        link.table = table
        link.left = row_map[link.left]
        link.right = column_map[link.right]


def _clean_link(space: Workspace, number: int) -> bool:
    """Arc consistency, separation and contraction of one link; True when something changed."""
    link = space.links[number]
    _shrink(space, link)
    support = space.memo.support(link.table)
    if support is None:
        space.stale_links.discard(number)
        parts = space.memo.separate(link.table)
        if parts is None:
            return False
        space.drop_link(number)
        space.add_costs(link.u, parts[0][link.left])
        space.add_costs(link.v, parts[1][link.right])
        return True
    row_alive = np.asarray(support.any(axis=1))
    column_alive = np.asarray(support.any(axis=0))
    if not (row_alive.all() and column_alive.all()):
        space.restrict(link.u, np.flatnonzero(row_alive[link.left]))
        space.restrict(link.v, np.flatnonzero(column_alive[link.right]))
        return True
    space.stale_links.discard(number)
    ends = [(link.u, link.v, support), (link.v, link.u, support.T)]
    if len(space.near[link.u]) < len(space.near[link.v]):
        ends.reverse()
    for leader, node, matrix in ends:
        members = np.bincount(link.side(node), minlength=matrix.shape[1])
        if (matrix @ members == 1).all():
            choice_of_group = np.empty(matrix.shape[1], dtype=np.int64)
            choice_of_group[link.side(node)] = np.arange(space.size(node))
            choices = choice_of_group[matrix.argmax(axis=1)][link.side(leader)]
            space.follow(node, leader, choices)
            return True
    return False


def _best_and_lightest(space: Workspace, node: int, totals: Floats) -> Integers | None:
    """Per row of `totals`, the cheapest choice, if no allowed choice takes less memory.

    None when memory and cost pull in different directions in some row.
    """
    best = totals.argmin(axis=1)
    amounts = list({id(a): a for a in space.usages[node].values()}.values())
    if not amounts:
        return best
    cheapest = totals.min(axis=1)
    weight = np.sum(amounts, axis=0)
    tied = totals == cheapest[:, None]
    best = np.where(tied, weight, np.inf).argmin(axis=1)
    allowed = totals < np.inf
    for vector in amounts:
        least = np.where(allowed, vector, np.inf).min(axis=1)
        if (vector[best] > least).any():
            return None
    return best


def _drop_isolated(space: Workspace, node: int) -> None:
    best = _best_and_lightest(space, node, space.cost_of(node)[None, :])
    if best is not None:
        space.fix(node, int(best[0]))


def _drop_leaf(space: Workspace, node: int) -> None:
    ((other, numbers),) = space.near[node].items()
    if len(numbers) > 1:
        return
    link = space.links[numbers[0]]
    totals = link.toward(other)[:, link.side(node)] + space.cost_of(node)
    best = _best_and_lightest(space, node, totals)
    if best is not None:
        space.follow(node, other, best[link.side(other)])


def _drop_middle(space: Workspace, node: int) -> None:
    if space.usages[node]:
        return
    (u, first), (v, second) = space.near[node].items()
    if len(first) > 1 or len(second) > 1:
        return
    one, two = space.links[first[0]], space.links[second[0]]
    rows, columns = one.toward(u), two.toward(v)
    entries = rows.shape[0] * columns.shape[0]
    small = entries <= max(TABLE_ENTRIES, GROWTH * (rows.size + columns.size))
    if not small or entries * space.size(node) > COMPARISONS:
        return
    left = rows[:, one.side(node)] + space.cost_of(node)
    right = columns[:, two.side(node)]
    table = np.empty((rows.shape[0], columns.shape[0]))
    choices = np.empty(table.shape, dtype=np.int64)
    for group in range(rows.shape[0]):
        totals = right + left[group]
        choices[group] = totals.argmin(axis=1)
        table[group] = totals[np.arange(columns.shape[0]), choices[group]]
    space.follow_pair(node, u, v, table, choices)


def _drop_dominated(space: Workspace, node: int) -> None:
    """Drop every choice that another one can replace at no loss."""
    costs = space.cost_of(node)
    if costs.size == 1:
        return
    links = [space.links[n] for numbers in space.near[node].values() for n in numbers]
    for number in [n for numbers in space.near[node].values() for n in numbers]:
        if number in space.stale_links:
            _shrink(space, space.links[number])
    largest = max((link.table.size for link in links), default=1)
    if costs.size <= ALL_PAIRS:
        judges = np.arange(costs.size)
    else:
        count = max(8, min(CHEAPEST, COMPARISONS // largest))
        judges = np.sort(np.argsort(costs, kind="stable")[:count])
    beats = _beats(space, node, judges, links)
    # Of two that beat each other the first stays.
    mutual = beats[:, judges] & beats[:, judges].T
    beats[:, judges] &= ~(mutual & (judges[:, None] > judges[None, :]))
    space.restrict(node, np.flatnonzero(~beats.any(axis=0)))


def _beats(space: Workspace, node: int, judges: Integers, links: list[Link]) -> np.ndarray:
    """beats[k, x]: choice judges[k] can replace choice x at no loss."""
    costs = space.cost_of(node)
    loss = costs[judges, None] - costs[None, :]
    for link in links:
        groups, by_columns = link.side(node), node != link.u
        if link.table.shape[by_columns] <= ALL_PAIRS:
            regrets = space.memo.regrets(link.table, by_columns)
            loss += regrets[np.ix_(groups[judges], groups)]
        else:
            seen, back = np.unique(groups[judges], return_inverse=True)
            regrets = space.memo.regrets(link.table, by_columns, seen)
            loss += regrets[np.ix_(back, groups)]
    beats = loss <= 0.0
    for vector in {id(a): a for a in space.usages[node].values()}.values():
        beats &= vector[judges, None] <= vector[None, :]
    beats[np.arange(judges.size), judges] = False
    return beats


__all__ = ["InfeasibleError", "presolve", "reduce"]
