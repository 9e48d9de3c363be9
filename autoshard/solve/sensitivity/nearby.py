"""Problems near a problem, and what a solve of one says of the next.

Two problems are near each other when they have the same nodes, edges and usages, and differ in
costs, pins or the limit. Then three things carry over from the outcome of the first:

    the plan      feasible as long as no pin, no pair and no limit speaks against it
    the duals     a bound holds for any messages and prices; so the old ones give one at once
    the bound     with v the optimum, c and c' the costs, and every factor f >= 0,

        v(c')  >=  f v(c)  +  sum_i min_x (c'_i - f c_i)[x]  +  sum_e min (T'_e - f T_e)

where nothing that was not allowed before is allowed now (pins added, the limit lowered, pairs
forbidden): a minimum of sums is at least the sum of the minima, and a restriction costs no less.
f = 1 is sharp where few costs rise, f = s where all are scaled by s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoshard.solve.evaluate import evaluate
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import (
    Duals,
    Edge,
    Floats,
    Node,
    Outcome,
    Problem,
    ProblemError,
    Progress,
)
from autoshard.units import counted

Pins = Mapping[int, Sequence[int] | np.ndarray]
MARGIN = 1e-15
"""A difference of two costs is rounded by less than this part of the larger of them."""


def solve_again(
    before: Problem,
    outcome: Outcome,
    after: Problem,
    *,
    pins_before: Pins | None = None,
    pins: Pins | None = None,
    time_limit: float = 60.0,
    gap: float = 0.0,
    warm_start: Sequence[Sequence[int]] = (),
    progress: Callable[[Progress], bool | None] | None = None,
    seed: int = 0,
) -> Outcome:
    """Solve a problem near one that was solved, beginning with all that is known of that.

    `tightened` makes the outcome of the first solve worth more here.

    Args:
      before, outcome, pins_before: the problem solved before, its outcome, and its pins.
      after, pins: the problem to solve, and its pins.
      warm_start: more plans to begin with.
      time_limit, gap, progress, seed: as in `solve`.

    Raises:
      ProblemError: the problems differ in nodes or edges, with all that differ; a pin names a
        choice that does not exist.
    """
    started = time.monotonic()
    _check_near(before, after)
    plans = [tuple(plan) for plan in warm_start]
    if outcome.solution is not None:
        plans.insert(0, outcome.solution.choices)
    factor, known = carried_bound(
        before, outcome, after, pins_before=pins_before or {}, pins=pins or {}
    )
    return solve(
        after,
        time_limit=max(time_limit - (time.monotonic() - started), 0.0),
        gap=gap,
        warm_start=plans,
        warm_duals=scaled_duals(outcome.duals, factor),
        pins=pins,
        known_bound=known,
        progress=progress,
        seed=seed,
    )


def scaled_duals(duals: Duals, factor: float) -> Duals:
    """The duals of the same problem with all costs multiplied by `factor` >= 0."""
    prices = tuple((when, factor * price) for when, price in duals.prices) if factor > 0 else ()
    return Duals(prices, None if duals.messages is None else factor * duals.messages)


def carried_bound(
    before: Problem,
    outcome: Outcome,
    after: Problem,
    *,
    pins_before: Pins,
    pins: Pins,
) -> tuple[float, float]:
    """What a bound of one problem proves of another near it; and the factor that gives the most.

    The bound is -inf where the other problem allows what the first does not. See the module for
    the formula; the factors tried are 1, the ratio of the costs of the plan, and the least ratio of
    any two costs.
    """
    bound = outcome.report.bound
    allows_more = not (
        _usages_are_kept(before, after) and _pins_are_kept(before, pins_before, pins)
    )
    if allows_more or not np.isfinite(bound):
        return 1.0, -np.inf
    changed = [
        (old.costs, new.costs, 1.0)
        for old, new in zip(before.nodes, after.nodes, strict=True)
        if old.costs is not new.costs
    ]
    shared: dict[tuple[object, ...], list[float]] = {}
    tables: dict[tuple[object, ...], tuple[Edge, Edge]] = {}
    for old, new in zip(before.edges, after.edges, strict=True):
        key = id(old.table), id(new.table), old.weight, new.weight
        tables[key] = old, new
        shared.setdefault(key, [0.0])[0] += 1.0
    for key, (old, new) in tables.items():
        if old.table is new.table and old.weight == new.weight:
            continue
        if (np.isinf(old.table) & np.isfinite(new.table)).any():
            return 1.0, -np.inf
        allowed = np.isfinite(new.table)
        if allowed.any():
            pair = old.weight * old.table[allowed], new.weight * new.table[allowed]
            changed.append((*pair, shared[key][0]))
    best = 1.0, after.offset - before.offset + bound + _least(changed, 1.0)
    for factor in _ratios(before, outcome, after, changed):
        rest = [(node.costs, node.costs, 1.0) for node in _same_nodes(before, after)]
        rest += [
            (old.weight * finite, old.weight * finite, shared[key][0])
            for key, (old, new) in tables.items()
            if old.table is new.table and old.weight == new.weight
            if (finite := old.table[np.isfinite(old.table)]).size
        ]
        lifted = after.offset + factor * (bound - before.offset) + _least(changed + rest, factor)
        best = max(best, (factor, lifted), key=lambda pair: pair[1])
    return best


def _same_nodes(before: Problem, after: Problem) -> list[Node]:
    pairs = zip(before.nodes, after.nodes, strict=True)
    return [old for old, new in pairs if old.costs is new.costs]


def _least(pairs: Sequence[tuple[Floats, Floats, float]], factor: float) -> float:
    """The sum of min (new - factor * old), each counted so many times; less what rounding adds."""
    least = [count * float((new - factor * old).min()) for old, new, count in pairs]
    size = [
        count * float(np.abs(new).max() + factor * np.abs(old).max()) for old, new, count in pairs
    ]
    return float(np.sum(least)) - MARGIN * float(np.sum(size))


def _ratios(
    before: Problem,
    outcome: Outcome,
    after: Problem,
    changed: Sequence[tuple[Floats, Floats, float]],
) -> list[float]:
    """Factors that may give more than 1 does."""
    if not changed:
        return []
    found = set()
    if outcome.solution is not None:
        free = replace(after, limit=None)
        old = outcome.report.objective - before.offset
        new = evaluate(free, outcome.solution.choices).objective - after.offset
        if old > 0 and np.isfinite(new):
            found.add(new / old)
    lowest = np.inf
    for old, new, _ in changed:
        positive = old > 0
        if positive.any():
            lowest = min(lowest, float((new[positive] / old[positive]).min()))
    found.add(min(lowest, 1.0))
    return [factor for factor in sorted(found) if 0.0 <= factor < np.inf and factor != 1.0]


def _usages_are_kept(before: Problem, after: Problem) -> bool:
    """Whether the second problem has the usages of the first, under a limit that is no higher."""
    high = np.inf if before.limit is None else before.limit
    if (np.inf if after.limit is None else after.limit) > high:
        return False
    if before.limit is None or before.usages is after.usages:
        return True
    return len(before.usages) == len(after.usages) and all(
        old is new
        or (
            (old.node, old.start, old.stop) == (new.node, new.start, new.stop)
            and np.array_equal(old.amounts, new.amounts)
        )
        for old, new in zip(before.usages, after.usages, strict=True)
    )


def _pins_are_kept(problem: Problem, old: Pins, new: Pins) -> bool:
    """Whether the second pins allow nothing that the first do not."""
    return all(
        node in new and np.isin(np.asarray(new[node]), np.asarray(allowed)).all()
        for node, allowed in old.items()
        if len(np.unique(np.asarray(allowed))) < problem.nodes[node].costs.size
    )


def _check_near(before: Problem, after: Problem) -> None:
    bad = []
    if len(before.nodes) != len(after.nodes):
        bad.append(f"{counted(len(before.nodes), 'node')} before, {len(after.nodes)} after")
    if len(before.edges) != len(after.edges):
        bad.append(f"{counted(len(before.edges), 'edge')} before, {len(after.edges)} after")
    for old, new in zip(before.nodes, after.nodes, strict=False):
        if old.costs.size != new.costs.size:
            bad.append(
                f"{new.name}: {counted(old.costs.size, 'choice')} before, {new.costs.size} after"
            )
    for number, (old, new) in enumerate(zip(before.edges, after.edges, strict=False)):
        if old is not new and not _is_same_edge(old, new):
            bad.append(
                f"edge {number} ({old.u}-{old.v}, table {old.table.shape}): its ends, projections "
                f"or table's shape differ ({new.u}-{new.v}, table {new.table.shape})"
            )
    if bad:
        more = f"\n  and {len(bad) - 20} more" if len(bad) > 20 else ""
        raise ProblemError(
            "the problems are not near each other; solve the second one by itself:\n  - "
            + "\n  - ".join(bad[:20])
            + more
        )


def _is_same_edge(old: Edge, new: Edge) -> bool:
    return (
        (old.u, old.v, old.table.shape) == (new.u, new.v, new.table.shape)
        and (old.left is new.left or np.array_equal(old.left, new.left))
        and (old.right is new.right or np.array_equal(old.right, new.right))
    )
