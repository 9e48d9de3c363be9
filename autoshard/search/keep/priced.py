"""What is cheapest to save at the prices of a plan that was found.

`proposals` knows no layouts. A plan does: what an op and its collectives take on a device, and what
a value holds there. At these prices the choice is an integer program, with the memory that the plan
leaves free as a row:

    min   sum over v of  save(v) * saved(v) + again(v) * recomputed(v)
    s.t.  saved(v) + recomputed(v) >= 1                  for each v that is needed
          saved(u) + recomputed(u) >= recomputed(v)      for each u that the op of v reads
          saved(v) + recomputed(v) <= 1
          saved(v) + recomputed(v) <= sum over w of recomputed(w)
                                                         where v is not needed, and ops of w read it
          sum over v of  bytes(v) * saved(v) <= free

Choices that were planned already are cut off, one row each, with all that differ from them in cheap
values alone. A plan of the new choice has other layouts, and so other prices: whoever searches goes
on from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import milp
from scipy.sparse import csr_array

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.evaluate import compute_seconds
from autoshard.plan.fits import needed_bytes
from autoshard.plan.moves import copy_moves, settlement_moves
from autoshard.plan.plan import Plan
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op, Program
from autoshard.program.keep import Residual, Residuals
from autoshard.program.select import scope_names
from autoshard.search.keep.proposals import Proposal

SECONDS = 5.0
"""For one choice; the programs have some dozens of variables."""
CHEAP = 1e-3
"""Of a step: what takes less makes no other choice."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What choices cost in a plan, by the names of values.

    Attributes:
      save: seconds of writing and reading the stack of a value.
      again: seconds of computing it again in all turns, with its collectives.
      bytes: of its stack on a device.
      free_bytes: per device, for all stacks together.
      dear: the names of values that are not cheap.
    """

    save: Mapping[str, float]
    again: Mapping[str, float]
    bytes: Mapping[str, float]
    free_bytes: float
    dear: frozenset[str]


def rates_of(residuals: Residuals, saved: Collection[str], plan: Plan, prices: StepPrices) -> Rates:
    """What choices cost in a plan.

    Args:
      residuals: the candidates of the step.
      saved: the names of what the plan's program saves.
      plan: the plan.
      prices: of its program, on its mesh.
    """
    seconds = _seconds(plan, prices)
    made, remade = (_by_place(prices.program, again) for again in (False, True))
    save, again, sizes = {}, {}, {}
    for one in residuals.values:
        first, second = made[_place(one)], remade[_place(one)]
        held = [_held(one, op, plan, prices) for op in (*first, *second)]
        size = one.turns * _mean(held) if held else one.bytes / prices.machine.chips
        sizes[one.name] = size
        save[one.name] = 2.0 * size / prices.machine.chip.memory_rate
        again[one.name] = 0.0
        if one.tied and not one.pinned:
            continue  # a weight in another dtype is gathered for its readers, saved or not
        if second or is_matrix_op(one.primitive) or one.pinned:
            again[one.name] = _mean([seconds[op.index] for op in second or first])
        else:
            # What its readers compute in the forward pass they compute in the backward pass, too.
            written = [op for op in first if _is_written(op, prices)]
            again[one.name] = _mean([seconds[op.index] for op in written])
    kept = sum(sizes[name] for name in residuals.on_stacks(saved))
    free = plan.memory_limit - needed_bytes(plan.estimate) + kept
    least = CHEAP * plan.estimate.step_seconds
    dear = frozenset(name for name in sizes if max(save[name], again[name]) >= least)
    return Rates(save, again, sizes, free, dear)


def cost_of(residuals: Residuals, rates: Rates, saved: Collection[str]) -> float:
    """Seconds of saving these values and computing again what else the backward pass needs."""
    kept = sum(rates.save[name] for name in residuals.on_stacks(saved))
    return kept + sum(rates.again[name] for name in residuals.recomputed(saved))


def in_order(residuals: Residuals, rates: Rates, choices: Iterable[Proposal]) -> list[Proposal]:
    """Choices, the cheapest first; those with stacks on the host, whose price is unknown, last."""

    def key(choice: Proposal) -> tuple[bool, float]:
        away = bool(choice.offloaded)
        return away, 0.0 if away else cost_of(residuals, rates, choice.saved)

    return sorted(choices, key=key)


def cheapest(
    values: Sequence[Residual],
    rates: Rates,
    known: Iterable[Collection[str]],
    large: Iterable[Collection[str]] = (),
) -> frozenset[str] | None:
    """The cheapest choice that fits and is none of those that are known; None if there is none.

    Args:
      values: the candidates of the step.
      rates: what they cost.
      known: choices, by the names of what they have on stacks.
      large: those that did not fit; one that saves all that they do, and more, is not chosen.
    """
    count = len(values)
    place = {one.name: k for k, one in enumerate(values)}
    dear = [place[name] for name in rates.dear]
    readers = {k: {k: -1.0, count + k: -1.0} for k in range(count)}
    rows: list[tuple[dict[int, float], float]] = []
    for k, one in enumerate(values):
        if one.needed:
            rows.append(({k: 1.0, count + k: 1.0}, 1.0))
        for read in one.reads:
            readers[place[read]][count + k] = 1.0
            rows.append(({place[read]: 1.0, count + place[read]: 1.0, count + k: -1.0}, 0.0))
    rows += [({k: -1.0, count + k: -1.0}, -1.0) for k in range(count)]
    rows += [(readers[k], 0.0) for k, one in enumerate(values) if not one.needed]
    rows.append(({place[n]: -size for n, size in rates.bytes.items()}, -rates.free_bytes))
    for names in known:
        kept = {place[name] for name in names if name in rates.dear}
        rows.append(({k: -1.0 if k in kept else 1.0 for k in dear}, 1.0 - len(kept)))
    rows += [({place[name]: -1.0 for name in names}, 1.0 - len(names)) for names in large]
    matrix = csr_array(
        (
            [value for row, _ in rows for value in row.values()],
            (
                [number for number, (row, _) in enumerate(rows) for _ in row],
                [column for row, _ in rows for column in row],
            ),
        ),
        shape=(len(rows), 2 * count),
    )
    cost = [rates.save[one.name] for one in values] + [rates.again[one.name] for one in values]
    most = [1.0] * count + [0.0 if one.pinned else 1.0 for one in values]
    unit = max(cost, default=0.0) or 1.0
    # scipy's stubs know of numbers alone here, not of arrays.
    none, upper, least = (np.array(one) for one in ([0.0] * 2 * count, most, [b for _, b in rows]))
    bounds: Any = none, upper
    found = milp(
        np.array(cost) / unit,
        integrality=np.ones(2 * count),
        bounds=bounds,
        constraints=(matrix, least, np.inf),
        options={"time_limit": SECONDS},
    )
    if found.x is None:
        return None
    return frozenset(one.name for one, x in zip(values, found.x, strict=False) if x > 0.5)


def _seconds(plan: Plan, prices: StepPrices) -> dict[int, float]:
    """Seconds of every op in a step, with the collectives that settle and copy its results."""
    decisions, names = plan.decisions, plan.mesh.names
    found: dict[int, float] = defaultdict(float)
    for op, strategy, busy in compute_seconds(prices, decisions):
        moves = settlement_moves(prices, op, strategy, names)
        for value in op.outputs:
            if decisions.copy[value] is not None:
                moves += copy_moves(prices, decisions, value, names)
        found[op.index] = busy + sum(move.exposed_seconds for move in moves)
    return found


def _by_place(program: Program, again: bool) -> dict[tuple[object, ...], list[Op]]:
    """The ops of the forward pass, or those that compute them `again`, by `_place`."""
    found: dict[tuple[object, ...], list[Op]] = defaultdict(list)
    for op in program.ops:
        if op.recomputed == again and (again or not op.backward):
            shapes = dict.fromkeys(program.values[value].shape for value in op.outputs)
            for shape in shapes:
                scope = tuple(scope_names(op.scope))
                found[op.primitive, scope, op.line, shape].append(op)
    return found


def _place(one: Residual) -> tuple[object, ...]:
    """What a value has in common with the ops that make it."""
    return one.primitive, tuple(scope_names(one.scope)), one.line, one.shape


def _held(one: Residual, op: Op, plan: Plan, prices: StepPrices) -> float:
    """Bytes per device of a value where an op makes it."""
    values, stored = prices.program.values, plan.decisions.stored
    made = next(value for value in op.outputs if values[value].shape == one.shape)
    layout = stored[made]
    if layout is None:
        return values[made].bytes / prices.machine.chips
    return float(prices.local_bytes(made, np.array(layout)))


def _is_written(op: Op, prices: StepPrices) -> bool:
    return any(prices.dataflow.materialised[value] for value in op.outputs)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
