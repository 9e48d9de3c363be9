"""Finds where an axis of a value's layout comes from.

An operation connects two values over a mesh axis if it shards a factor over the axis, reads one
value sharded over the axis and writes the other sharded over it. The axis then propagates without a
collective. Partial sums that are reduced onto the axis also connect values. Among all values
connected with the given one, the axis comes from the nearest that a requirement pins to the axis.
If there is none, the axis is there for the work that it divides: the operations that are connected
without collectives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.plan import Plan
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.problem.requirements.bind import Bound, shown_value
from autoshard.program.strategies import project_assignment
from autoshard.units import counted, format_seconds


@dataclass(frozen=True, slots=True)
class Origin:
    """Why a dimension of a value is sharded over a mesh axis.

    Attributes:
      axis, dimension: the mesh axis and the dimension of the value.
      requirement: the requirement that pins a connected value to the axis, or an empty string.
      chain: the values along which the axis propagates from there.
      ops: how many connected operations the axis shards; `op` is the one that gains most.
      saved_seconds: compute seconds per step that the axis saves in all of these operations.
    """

    axis: str
    dimension: int
    requirement: str
    chain: tuple[str, ...]
    ops: int = 0
    op: str = ""
    saved_seconds: float = 0.0

    def __str__(self) -> str:
        start = f"axis {self.axis} on dimension {self.dimension}: "
        way = "" if len(self.chain) < 2 else "; it comes by " + " <- ".join(reversed(self.chain))
        if self.requirement:
            return f"{start}required by {self.requirement}{way}"
        if not self.op:
            return f"{start}it saves memory"
        gain = format_seconds(self.saved_seconds)
        return (
            f"{start}it cuts {counted(self.ops, 'operation')}, which saves {gain}, "
            f"most of it in {self.op}"
        )


def origins(
    prices: StepPrices, plan: Plan, value: int, bounds: Sequence[Bound]
) -> tuple[Origin, ...]:
    """Return where every axis of the stored layout of a value comes from.

    Args:
      prices: the prices of the program on the plan's mesh.
      plan: the plan to explain.
      value: the value's number.
      bounds: the requirements that the plan satisfies.
    """
    layout = plan.decisions.stored[value]
    assert layout is not None
    return tuple(
        _origin(prices, plan, value, axis, bounds)
        for axis, dimension in enumerate(layout)
        if dimension >= 0
    )


def _origin(
    prices: StepPrices, plan: Plan, value: int, axis: int, bounds: Sequence[Bound]
) -> Origin:
    program = prices.program
    name = plan.mesh.names[axis]
    layout = plan.decisions.stored[value]
    assert layout is not None
    pinned = {
        pinned: bound
        for bound in bounds
        for pinned, pattern in bound.pins
        if any(name in dimension.axes for dimension in pattern.dimensions)
    }
    if pinned:
        search = _Connected(prices, plan, axis)
        found = next((v for v in search.values(value, settled=True) if v in pinned), None)
        if found is not None:
            chain = _chain(prices, search.before, found, value)
            return Origin(name, layout[axis], str(pinned[found]), chain)
    search = _Connected(prices, plan, axis)
    for _ in search.values(value, settled=False):
        pass
    saved = {number: _saved(prices, plan, search.chosen, number, axis) for number in search.cut}
    saved = {number: seconds for number, seconds in saved.items() if seconds > 0}
    if not saved:
        return Origin(name, layout[axis], "", ())
    best = max(saved, key=lambda number: saved[number])
    op = str(program.ops[best])
    return Origin(name, layout[axis], "", (), len(saved), op, sum(saved.values()))


class _Connected:
    """A breadth-first walk over the values that an axis propagates to, the nearest first.

    `before` maps every visited value to its predecessor. `cut` holds the operations that the axis
    shards.
    """

    def __init__(self, prices: StepPrices, plan: Plan, axis: int) -> None:
        self.prices, self.plan, self.axis = prices, plan, axis
        self.chosen = ChosenStrategies(plan.decisions, prices.mesh_shape, prices.evaluated)
        self.before: dict[int, int] = {}
        self.cut: dict[int, None] = {}

    def values(self, start: int, *, settled: bool) -> Iterator[int]:
        """Yield the values from `start` on; `settled` includes sums reduced onto the axis."""
        program, axis = self.prices.program, self.axis
        queue, seen = deque([start]), {start}
        while queue:
            here = queue.popleft()
            yield here
            ops = [use.op for use in self.prices.dataflow.readers[here]]
            if program.values[here].producer >= 0:
                ops.append(program.values[here].producer)
            for number in ops:
                assigned = self.plan.decisions.assignment[number]
                if assigned is None or assigned[axis] < 0:
                    continue
                ends = self._ends(number, settled)
                if here not in ends:
                    continue
                self.cut[number] = None
                for other in ends:
                    if other not in seen:
                        seen.add(other)
                        self.before[other] = here
                        queue.append(other)

    def _ends(self, number: int, settled: bool) -> list[int]:
        """Return the operands and results, as stored, that an op reads or writes sharded."""
        op = self.prices.program.ops[number]
        strategy = self.chosen(op)
        written = strategy.stored if settled else strategy.written
        sides = [
            *zip(op.inputs, strategy.reads, strict=True),
            *zip(op.outputs, written, strict=True),
        ]
        ends = []
        for value, layouts in sides:
            stored = self.plan.decisions.stored[value] if value >= 0 else None
            dimension = int(layouts[0, self.axis])
            if stored is not None and dimension >= 0 and stored[self.axis] == dimension:
                ends.append(value)
        return ends


def _saved(
    prices: StepPrices, plan: Plan, chosen: ChosenStrategies, number: int, axis: int
) -> float:
    """Return how many more compute seconds per step an op would take without the axis."""
    op = prices.program.ops[number]
    strategy, known = chosen(op), prices.evaluated
    key = "saved", number, id(strategy), axis
    if key not in known:
        assignment = strategy.assignment.copy()
        assignment[:, axis] = -1
        whole = project_assignment(op.rule, assignment, strategy.written, prices.mesh_shape)
        less = replace(whole, stored=whole.written)
        seconds = prices.compute_seconds(op, less) - prices.compute_seconds(op, strategy)
        known[key] = float(np.asarray(seconds)[0]) * op.trips * op.weight
    return known[key]


def _chain(prices: StepPrices, before: dict[int, int], start: int, end: int) -> tuple[str, ...]:
    program = prices.program
    texts = [shown_value(program, start)]
    while start != end:
        start = before[start]
        texts.append(shown_value(program, start))
    if len(texts) > 6:
        texts = [*texts[:2], f"{len(texts) - 4} more", *texts[-2:]]
    return tuple(texts)
