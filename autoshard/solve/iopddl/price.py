"""What a solution costs by the numbers of a contest file, as the contest counts.

Nothing is left out, folded or renumbered here: one cost per node, one entry of the matrix per edge
(of its diagonal where both ends are one node), and the usages of every interval summed over time.
So it judges the reader as well as the solver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.solve.evaluate import LOAD_TOLERANCE, Evaluation
from autoshard.solve.iopddl.tables import FORBIDDEN, SHOWN, Tables
from autoshard.solve.problem import Floats, Integers, ProblemError
from autoshard.units import counted

ROUNDING = 1e-12


def price(tables: Tables, choices: Sequence[int]) -> Evaluation:
    """The objective, the peak usage, and what the choices violate.

    Args:
      choices: one per node, by the numbers of the file.

    Raises:
      ProblemError: a choice is not there.
    """
    picked = _checked(tables, choices)
    violations = []
    node_costs, edge_costs = _terms(tables, picked)
    for i in np.flatnonzero(node_costs >= FORBIDDEN).tolist():
        violations.append(f"node {i}: choice {picked[i]} is forbidden")
    for e in np.flatnonzero(edge_costs >= FORBIDDEN).tolist():
        u, v = tables.ends[e]
        violations.append(
            f"node {u} choice {picked[u]} and node {v} choice {picked[v]} exclude each other"
        )
    objective = math.inf if violations else math.fsum([*node_costs, *edge_costs])
    peak, when = _peak(tables, picked)
    if tables.limit is not None and peak > tables.limit * (1 + LOAD_TOLERANCE):
        violations.append(f"usage is {peak:.17g} at time {when}, the limit {tables.limit:.17g}")
    return Evaluation(objective, peak, when, tuple(violations))


def refute(tables: Tables, choices: Sequence[int], objective: float) -> str:
    """What is wrong with a solution that is said to cost `objective`; empty where nothing is.

    Costs are sums of doubles, so they agree up to a part in 1e12 of all that was added.
    """
    found = price(tables, choices)
    if found.violations:
        more = len(found.violations) - SHOWN
        return "; ".join(found.violations[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    size = math.fsum(np.abs(np.concatenate(_terms(tables, _checked(tables, choices)))))
    if abs(found.objective - objective) <= ROUNDING * size:
        return ""
    return f"the choices cost {found.objective:.17g}, not {objective:.17g}"


def _terms(tables: Tables, picked: Integers) -> tuple[Floats, Floats]:
    """The cost of every node, and of every edge."""
    left, right = picked[tables.ends].T
    widths = tables.costs.sizes()[tables.ends[:, 1]]
    return tables.costs.pick(picked), tables.pairs.pick(left * widths + right)


def _checked(tables: Tables, choices: Sequence[int]) -> Integers:
    sizes = tables.costs.sizes()
    picked = np.asarray(choices, dtype=np.int64)
    if picked.shape != sizes.shape:
        raise ProblemError(
            f"{counted(picked.size, 'choice')} for {counted(sizes.size, 'node')}; give one each"
        )
    bad = np.flatnonzero((picked < 0) | (picked >= sizes))
    if bad.size:
        lines = [f"node {i}: choice {picked[i]} of {sizes[i]}" for i in bad[:SHOWN]]
        more = f"\n  and {bad.size - SHOWN} more" if bad.size > SHOWN else ""
        raise ProblemError("no such choice:\n  - " + "\n  - ".join(lines) + more)
    return picked


def _peak(tables: Tables, picked: Integers) -> tuple[float, int | None]:
    """The largest usage, and the first time of it; None where nothing is ever used."""
    amounts = tables.usages.pick(picked)
    start, stop = tables.intervals.T
    live = start < stop
    if not live.any():
        return 0.0, None
    times = np.unique(start[live])  # a sum over intervals can only grow where one starts
    opened = np.bincount(np.searchsorted(times, start[live]), amounts[live], times.size)
    # An interval that stops at t is gone at the first of these times that is t or later.
    closed = np.bincount(np.searchsorted(times, stop[live]), amounts[live], times.size + 1)
    loads = np.cumsum(opened - closed[:-1])
    return float(loads.max()), int(times[loads.argmax()])
