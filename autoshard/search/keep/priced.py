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
from autoshard.machine.chip import Chip
from autoshard.plan.evaluate import compute_seconds
from autoshard.plan.fits import needed_bytes
from autoshard.plan.moves import copy_moves, settlement_moves
from autoshard.plan.plan import Plan
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op, Program
from autoshard.program.keep import Residual, Residuals
from autoshard.program.keep.names import part_of
from autoshard.program.rewritten import resaved
from autoshard.program.select import scope_names
from autoshard.program.strategies import is_layout_determined
from autoshard.search.keep.proposals import Proposal
from autoshard.xla import analyse

Place = tuple[object, ...]
"""By which an op and the one that computes the same again are told from others."""
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


def rates_of(
    residuals: Residuals,
    saved: Collection[str],
    plan: Plan,
    prices: StepPrices,
    anew: Collection[Place] | None = None,
    away: Collection[str] = (),
) -> Rates:
    """What choices cost in a plan.

    An elementwise op that is run again is fused with what reads it: it costs what it reads that
    nothing else reads there, what it writes if it is written there (`anew`), and its functions. Of
    an op with several results, each has an equal part.

    Args:
      residuals: the candidates of the step.
      saved: the names of what the plan's program saves.
      plan: the plan.
      prices: of its program, on its mesh.
      anew: as `written_anew` says of the step; asked by default.
      away: the stacks that lie on the host, by name: they take nothing of a device, and what is
        moved runs beside kernels.
    """
    if anew is None:
        anew = written_anew(prices.program, residuals, prices.machine.chip)
    seconds = _seconds(plan, prices)
    made, remade = (_by_place(prices.program, again) for again in (False, True))
    there = {_place(one) for one in residuals.values if one.needed or one.name in saved}
    kernels = _Kernels(prices, seconds, there)
    save, sizes = {}, {}
    again: dict[str, float] = {}
    results: dict[object, list[str]] = defaultdict(list)
    for one in residuals.values:
        place = _place(one)
        first, second = made[place], remade[place]
        held = [_held(one, op, plan, prices) for op in (*first, *second)]
        size = one.turns * _mean(held) if held else one.bytes / prices.machine.chips
        size = 0.0 if one.name in away else size
        sizes[one.name] = size
        save[one.name] = 2.0 * size / prices.machine.chip.memory_rate
        again[one.name] = 0.0
        if one.tied and not one.pinned:
            continue  # a weight in another dtype is gathered for its readers, saved or not
        ops = second or first
        again[one.name] = _mean([kernels.again(op, written=place in anew) for op in ops])
        pair, number = residuals.homes[one.name]
        results[pair, pair.makers[number].again, pair.makers[number].place].append(one.name)
    for names in results.values():
        again.update({name: again[name] / len(names) for name in names})
    kept = sum(sizes[name] for name in residuals.on_stacks(saved))
    free = plan.memory_limit - needed_bytes(plan.estimate) + kept
    least = CHEAP * plan.estimate.step_seconds
    dear = frozenset(name for name in sizes if max(save[name], again[name]) >= least)
    return Rates(save, again, sizes, free, dear)


def written_anew(program: Program, residuals: Residuals, chip: Chip) -> frozenset[Place]:
    """The places of what is written to memory where it is computed again, as all is that can be.

    Args:
      program: the step, whatever it saves.
      residuals: its candidates.
      chip: of the machine: its compiler decides.
    """
    bare = resaved(program, [one.name for one in residuals.values if one.pinned])
    written = analyse(bare, chip).materialised
    places = _by_place(bare, True).items()
    return frozenset(k for k, ops in places if any(written[o] for op in ops for o in op.outputs))


@dataclass(frozen=True, slots=True)
class _Kernels:
    """What it takes to run ops of a plan again; `there` is what the backward pass reads anyway."""

    prices: StepPrices
    seconds: Mapping[int, float]
    there: Collection[Place]

    def again(self, op: Op, *, written: bool) -> float:
        """Seconds of an op in a step; `written` says whether its results are then."""
        facts, values = self.prices.dataflow, self.prices.program.values
        if is_matrix_op(op.primitive) or not is_layout_determined(op.rule):
            return self.seconds[op.index]
        read = facts.fetched[op.index]
        made = sum(values[o].bytes for o in op.outputs if facts.materialised[o])
        spared = 0 if written else made
        for value, size in zip(op.inputs, read, strict=True):
            spared += size if value >= 0 and self._is_there(value) else 0
        whole = sum(read) + made
        return self.seconds[op.index] * (1.0 - spared / whole) if whole else 0.0

    def _is_there(self, value: int) -> bool:
        """Whether the backward pass reads, for others, all of which a value is computed."""
        program, todo = self.prices.program, [value]
        while todo:
            number = todo.pop()
            record = program.values[number]
            maker = program.ops[record.producer] if record.producer >= 0 else None
            if maker is None or maker.boundary or _place_of(maker, record.shape) in self.there:
                continue
            if self.prices.dataflow.materialised[number]:
                return False
            todo += [one for one in maker.inputs if one >= 0]
        return True


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


def _by_place(program: Program, again: bool) -> dict[Place, list[Op]]:
    """The ops of the forward pass, or those that compute them `again`, by `_place`."""
    found: dict[Place, list[Op]] = defaultdict(list)
    for op in program.ops:
        if op.recomputed == again and (again or not op.backward):
            shapes = dict.fromkeys(program.values[value].shape for value in op.outputs)
            for shape in shapes:
                found[_place_of(op, shape)].append(op)
    return found


def _place_of(op: Op, shape: tuple[int, ...]) -> Place:
    """What a result of an op has in common with that of its twin."""
    return op.primitive, tuple(scope_names(op.scope)), part_of(op.scope), op.line, shape


def _place(one: Residual) -> Place:
    """What a value has in common with the ops that make it."""
    return one.primitive, tuple(scope_names(one.scope)), part_of(one.scope), one.line, one.shape


def _held(one: Residual, op: Op, plan: Plan, prices: StepPrices) -> float:
    """Bytes per device of a value where an op makes it."""
    values, stored = prices.program.values, plan.decisions.stored
    made = next(value for value in op.outputs if values[value].shape == one.shape)
    layout = stored[made]
    if layout is None:
        return values[made].bytes / prices.machine.chips
    return float(prices.local_bytes(made, np.array(layout)))


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
