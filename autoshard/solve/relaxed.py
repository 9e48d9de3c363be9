"""The exact stage: the linear model on what is left, with memory rows added only when broken.

First the relaxation, with the rows that its solution breaks, until it breaks none; its row duals
are prices of bytes. Then the integer model with those rows, again until no row is broken. Every
model is a relaxation of the problem, so each one's bound is valid, and the first solution that
breaks nothing is optimal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from autoshard.solve.backends.exact import ExactResult, Verdict, solve_linear
from autoshard.solve.backends.linear import LinearModel, linear_model, start_values, with_memory
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat, worst_rows
from autoshard.solve.primal import ForestSearch
from autoshard.solve.reduce.trail import InfeasibleError

if TYPE_CHECKING:
    from autoshard.solve.state import Search

ROWS_AT_ONCE = 12
BROKEN = 1e-7


def expected_loads(flat: Flat, values: np.ndarray) -> np.ndarray:
    """Bytes at every row when choice c is taken with weight values[c]."""
    jumps = np.zeros(flat.capacity.size + 1)
    sizes = np.diff(flat.node_start)
    owner = np.repeat(np.arange(flat.node_count), np.diff(flat.use_start))
    for use, node in enumerate(owner.tolist()):
        start, size = flat.node_start[node], sizes[node]
        at = flat.use_amounts[use]
        mean = float((flat.amounts[at : at + size] * values[start : start + size]).sum())
        jumps[flat.use_from[use]] += mean
        jumps[flat.use_to[use]] -= mean
    return np.cumsum(jumps[:-1])


def broken_rows(flat: Flat, values: np.ndarray) -> np.ndarray:
    """The worst broken rows, spread over time; empty when all limits hold."""
    over = expected_loads(flat, values) - flat.capacity
    floor = BROKEN * np.maximum(np.abs(flat.capacity), 1.0)
    if np.array_equal(values, np.round(values)):
        floor = np.zeros(over.size)
    over = np.where(over > floor, over, 0.0)
    rows = worst_rows(over, ROWS_AT_ONCE, max(1, over.size // 40))
    return np.array(sorted(rows), dtype=np.int64)


def solve_exactly(
    search: Search, dual: DualAscent, plans: ForestSearch, beside: Callable[[], bool]
) -> None:
    """Close the gap of the current level with the linear model, as time allows.

    `beside` is called again and again meanwhile, and ends it by returning False.
    """
    flat, offset = search.level.flat, search.level.problem.offset
    model = linear_model(flat)
    rows = np.flatnonzero(dual.best_prices > 0)
    if rows.size > 4 * ROWS_AT_ONCE:
        rows = np.sort(np.argsort(-dual.best_prices)[: 4 * ROWS_AT_ONCE])

    def meanwhile() -> bool:
        plans.stopped = False
        plans.run(np.inf, time.monotonic() + 0.05)
        if plans.best is not None:
            search.offer(plans.best)
        return beside() and time.monotonic() < search.deadline

    for relax in (True, False):
        while True:
            full = with_memory(model, flat, rows)
            result = solve_linear(
                full,
                relax=relax,
                time_limit=search.deadline - time.monotonic(),
                start=None if relax else _start(flat, full, plans),
                meanwhile=meanwhile,
            )
            if result.verdict is Verdict.INFEASIBLE:
                raise InfeasibleError("the linear model has no solution")
            if np.isfinite(result.bound):
                margin = 1e-9 * abs(result.bound) if relax else 0.0
                search.raise_bound(result.bound - margin + offset)
            if result.verdict is not Verdict.OPTIMAL or result.values is None:
                search.check_done()
                return
            if relax:
                _take_duals(search, dual, model, rows, result, flat)
            picked = _picked(flat, result.values)
            new = broken_rows(flat, result.values if relax else _unit(flat, picked))
            if new.size == 0:
                if not relax:
                    search.offer(picked)
                    search.check_done()
                break
            rows = np.union1d(rows, new)
            search.tell()
            search.check_done()
    search.check_done()


def _start(flat: Flat, model: LinearModel, plans: ForestSearch) -> np.ndarray | None:
    return None if plans.best is None else start_values(flat, model, plans.best)


def _picked(flat: Flat, values: np.ndarray) -> np.ndarray:
    starts = flat.node_start
    return np.array(
        [int(values[starts[i] : starts[i + 1]].argmax()) for i in range(flat.node_count)],
        dtype=np.int64,
    )


def _unit(flat: Flat, picked: np.ndarray) -> np.ndarray:
    values = np.zeros(flat.costs.size)
    values[flat.node_start[:-1] + picked] = 1.0
    return values


def _take_duals(
    search: Search,
    dual: DualAscent,
    model: LinearModel,
    rows: np.ndarray,
    result: ExactResult,
    flat: Flat,
) -> None:
    """Give the row duals of the relaxation to the dual ascent, per byte."""
    if result.row_duals is None:
        return
    prices = np.zeros(flat.capacity.size)
    scale = 1.0 / np.maximum(np.abs(flat.capacity[rows]), 1.0)
    prices[rows] = np.maximum(0.0, -result.row_duals[model.lower.size :]) * scale
    dual.prices[:] = prices
    dual.best_prices[:] = prices
    search.read_prices(dual.best_prices)
