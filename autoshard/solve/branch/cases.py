"""A node decided: all its choices, one part each, and what that gains.

What keeps a bound low where memory does not is two ways to lay out a whole program, half of each at
every node alike. Decided at one node, the others follow: best at a *hub*, which many nodes see. The
bound of the parts is the least bound of a choice, often far above that of the mixture.

How much a node gains is not seen from its own costs; it takes passes. They go to the choice that
has the least bound so far, ten at a time, and end once that gains little: a node of no use shows at
once. Prices of memory stay meanwhile, for they would take many passes to settle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat
from autoshard.solve.problem import Booleans, Floats, Integers

AT_ONCE = 10
"""Passes at a time for one choice."""
PASSES = 40
"""Passes for all choices of a node, beside the first ones of each."""
LITTLE = 3e-4
"""A choice gains little if it is less than this part of the gap."""
MOST_CHOICES = 12
"""Nodes of more choices are not decided so."""
NEAR = 0.02
"""Choices count less by a factor e with every such part of the gap that they exceed the bound."""


@dataclass(slots=True, eq=False)
class _Case:
    """One choice: what no plan with it costs less than, and its ascent once it has one."""

    choice: int
    bound: float
    ascent: DualAscent | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Cases:
    """The parts of a node decided, as ascents, and the least of their bounds.

    There are no ascents where they were given up, because the bound is not worth them.
    """

    bound: float
    parts: list[DualAscent] | None


def decide(
    flat: Flat,
    node: int,
    floor: Floats,
    least: float,
    cutoff: float,
    begin: Callable[[Booleans], DualAscent | None],
    worth: float,
) -> Cases:
    """Decide a node, where that raises the bound from `least` to `worth` or more.

    Args:
      floor: what no plan with each choice costs less than.
      cutoff: plans must cost less than this.
      begin: an ascent with still prices on a part, where `node` takes the choices that are marked;
        None where no plan of it keeps the limits.
    """
    start, stop = flat.span(node)
    cases = [_Case(c, value) for c, value in enumerate(floor[start:stop]) if value < cutoff]
    size, left = stop - start, PASSES
    while cases:
        case = min(cases, key=lambda one: one.bound)
        before, first = case.bound, case.ascent is None
        if not _raise(case, size, begin, cutoff):
            cases.remove(case)
            continue
        left -= 0 if first else AT_ONCE
        if case.bound - before < LITTLE * (cutoff - least) or left <= 0:
            break
    bound = min((case.bound for case in cases), default=cutoff)
    if bound < worth:
        return Cases(bound, None)
    for case in list(cases):
        if case.ascent is None and not _raise(case, size, begin, cutoff):
            cases.remove(case)
    return Cases(bound, [case.ascent for case in cases if case.ascent is not None])


def _raise(
    case: _Case, size: int, begin: Callable[[Booleans], DualAscent | None], cutoff: float
) -> bool:
    """Some passes for a choice; False once it is shown that no plan with it is cheap enough."""
    if case.ascent is None:
        case.ascent = begin(np.arange(size) == case.choice)
        if case.ascent is None:
            return False
    case.ascent.run(cutoff, np.inf, AT_ONCE, cutoff)
    case.bound = max(case.bound, case.ascent.bound)
    return case.bound < cutoff


def hubs(flat: Flat, alive: Booleans, extra: Floats, gap: float) -> Integers:
    """Nodes to decide, those first that many nodes see and whose choices are nearly as good.

    `extra` is by how much a plan with each choice must exceed the bound.
    """
    starts, near = flat.node_start[:-1], NEAR * max(gap, 1e-200)
    weight = np.where(alive, np.exp(-np.minimum(extra, 600.0 * near) / near), 0.0)
    most = np.maximum(np.maximum.reduceat(weight, starts), 1e-300)
    ties = np.add.reduceat(weight, starts) / most
    count = np.add.reduceat(alive.astype(np.int64), starts)
    able = (count > 1) & (count <= MOST_CHOICES)
    score = np.where(able, np.log1p(ties) * (1.0 + np.diff(flat.near_start)), 0.0)
    order = np.argsort(-score, kind="stable")
    return order[score[order] > 0]
