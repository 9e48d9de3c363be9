"""Rules on links, each applied to all links at once: see `autoshard.solve.reduce.presolve`."""

from __future__ import annotations

import numpy as np

from autoshard.solve.reduce.workspace import Workspace


def examine_links(space: Workspace) -> bool:
    """Shrink tables, drop choices without partners, spend separable links; True on any change."""
    fresh = np.flatnonzero(space.fresh)
    space.fresh[:] = False
    if fresh.size == 0:
        return False
    numbers, place = np.unique(space.kind[fresh], return_inverse=True)
    facts = [space.kinds.examine(number) for number in numbers.tolist()]
    space.kind[fresh] = np.array([fact.kind for fact in facts])[place]
    leads = np.array([fact.v_of_u >= 0 or fact.u_of_v >= 0 for fact in facts])
    space.determined[fresh] = leads[place]
    changed = False
    for ends, sides in (
        (space.u, [fact.to_u for fact in facts]),
        (space.v, [fact.to_v for fact in facts]),
    ):
        told = np.array([side is not None for side in sides])[place]
        if told.any():
            changed = True
            extra = [side for number in place[told].tolist() if (side := sides[number]) is not None]
            space.add_costs(ends[fresh[told]], extra)
    spent = np.array([fact.spent for fact in facts])[place]
    if spent.any():
        gone = np.zeros(space.u.size, dtype=bool)
        gone[fresh[spent]] = True
        space.drop_links(gone)
    return changed


def contract(space: Workspace) -> bool:
    """Let nodes whose choice a neighbour determines follow it; True when there were any.

    The leader has more choices, or as many and a greater number: so nobody follows in a circle.
    """
    links = np.flatnonzero(space.determined)
    if links.size == 0:
        return False
    facts = [space.kinds.examine(kind) for kind in space.kind[links].tolist()]
    maps = np.array([(fact.v_of_u, fact.u_of_v) for fact in facts], dtype=np.int64)
    nodes = np.concatenate([space.v[links], space.u[links]])
    leaders = np.concatenate([space.u[links], space.v[links]])
    numbers = maps.T.ravel()
    rank = space.size * space.count + np.arange(space.count)
    upward = np.flatnonzero((numbers >= 0) & (rank[leaders] > rank[nodes]))
    if upward.size == 0:
        return False
    order = upward[np.lexsort((-rank[leaders[upward]], nodes[upward]))]
    chosen = order[np.flatnonzero(np.diff(nodes[order], prepend=-1))]
    space.follow(nodes[chosen], leaders[chosen], numbers[chosen])
    return True


def merge_parallel(space: Workspace) -> bool:
    """Sum the links between the same two nodes while the tables stay small; True on any change."""
    if not space.tangled:
        return False
    space.tangled = changed = False
    refused = np.zeros(space.u.size, dtype=bool)
    while True:
        low, high = np.minimum(space.u, space.v), np.maximum(space.u, space.v)
        code = low * space.count + high
        order = np.lexsort((space.kind, code))
        order = order[~refused[order]]
        same = np.flatnonzero(code[order[1:]] == code[order[:-1]])
        if same.size == 0:
            return changed
        # Of every run of parallel links, the first with the second, the third with the fourth, ...
        starts = np.flatnonzero(np.diff(code[order], prepend=-1))
        rank = np.arange(order.size) - np.repeat(starts, np.diff(starts, append=order.size))
        same = same[rank[same] % 2 == 0]
        first, second = order[same], order[same + 1]
        turned = np.flatnonzero(space.u[first] != space.u[second])
        kinds = space.kind[second]
        kinds[turned] = space.kinds.flipped(kinds[turned])
        summed = space.kinds.summed(space.kind[first], kinds)
        done = summed >= 0
        refused[second[~done]] = True
        if not done.any():
            continue
        changed = True
        space.kind[first[done]] = summed[done]
        space.fresh[first[done]] = True
        space.determined[first[done]] = False
        gone = np.zeros(space.u.size, dtype=bool)
        gone[second[done]] = True
        space.drop_links(gone)
        refused = refused[~gone]
