"""Makes a problem smaller without changing its best cost.

Rules, applied until none helps; each works on all nodes or links at once:

* arc consistency: a choice that a neighbour can never accompany goes;
* separable link, T[g, h] = f[g] + k[h]: it becomes costs of both ends (so does every link of a node
  with one choice);
* determined neighbour: where each choice of u leaves v one choice, v follows u;
* parallel links become one link over pairs of groups;
* degree 0 and 1: the best choice for each choice of the neighbour, if it is also the one that
  takes the least memory;
* degree 2: a new table over the two groups, T[g, h] = min_x c[x] + A[g, x] + B[x, h], when the node
  takes no memory that could bind;
* memory rows that cannot bind or that others cover, and choices that fit beside nothing
  (`autoshard.solve.reduce.memory_rows`);
* dominated choices, and nodes that are cheaper decided as one (`autoshard.solve.reduce.dominance`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from autoshard.solve.problem import Integers, Problem
from autoshard.solve.reduce.dominance import drop_dominated
from autoshard.solve.reduce.elimination import eliminate_components
from autoshard.solve.reduce.finish import finish
from autoshard.solve.reduce.link_rules import contract, examine_links, merge_parallel
from autoshard.solve.reduce.node_rules import fold_isolated, fold_leaves, fold_middles, fold_twins
from autoshard.solve.reduce.trail import InfeasibleError, Trail
from autoshard.solve.reduce.workspace import Compared, Workspace


def presolve(
    problem: Problem,
    pins: Mapping[int, Sequence[int] | Integers] | None = None,
    *,
    dominance: bool = True,
    deadline: float = math.inf,
    compared: Compared | None = None,
) -> tuple[Problem, Trail]:
    """The reduced problem and the way back.

    `pins` restricts nodes to subsets of their choices; `dominance` compares choices with each
    other, which is most of the time on nodes of thousands. No rule is begun after the `deadline`
    (of time.monotonic): what is reached by then is the answer. `compared` remembers comparisons
    from one reduction to the next. Raises `InfeasibleError` when no plan exists.
    """
    space = Workspace.of(problem, compared)
    if pins:
        keep = [np.unique(np.asarray(allowed, dtype=np.int64)) for allowed in pins.values()]
        space.restrict(np.array(list(pins), dtype=np.int64), keep)
    reduce(space, dominance=dominance, deadline=deadline)
    return finish(space)


def reduce(space: Workspace, *, dominance: bool = True, deadline: float = math.inf) -> None:
    """Apply every rule until none helps, or until the deadline."""
    settle_links(space)
    while True:
        news = space.refresh_rows()
        if time.monotonic() > deadline:
            return
        while settle(space, deadline) or (dominance and drop_dominated(space)):
            news = True
            if time.monotonic() > deadline:
                break
        if not news:
            return


LINK_RULES = examine_links, Workspace.drop_forbidden, contract, merge_parallel
"""Rules that look at links; one is applied when those before it have no news."""
FOLDS = fold_isolated, fold_leaves, fold_middles, fold_twins, eliminate_components
"""Rules that take out nodes of few links, the cheap ones first."""


def settle_links(space: Workspace) -> bool:
    """Apply the rules on links until none helps; True on any change."""
    changed = False
    while any(rule(space) for rule in LINK_RULES):
        changed = True
    return changed


def settle(space: Workspace, deadline: float = math.inf) -> bool:
    """Apply the rules on links, and those that take out nodes, until none helps; True on change."""
    changed = False
    while True:
        changed |= settle_links(space)
        if time.monotonic() > deadline:
            return changed
        if not any(rule(space) for rule in FOLDS):
            space.unfolded[:] = False
            return changed
        changed = True


__all__ = ["InfeasibleError", "Trail", "presolve", "reduce"]
