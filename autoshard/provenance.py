"""Where an axis of a value's layout comes from.

Two values are connected over a mesh axis where an operation shards a factor over it, and reads the
one and writes the other cut by the axis; so it passes on where a partial sum is settled onto it,
too. Of all values that are connected with the one in question, the nearest that a requirement pins
to the axis is where it comes from; where none is, it is there for the work that it divides, and the
operation is named whose seconds it saves most of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.binding import Bound, shown_value
from autoshard.cost.step import StepPrices
from autoshard.evaluate import ChosenStrategies
from autoshard.plan import Plan
from autoshard.strategy import project_assignment
from autoshard.units import format_seconds


@dataclass(frozen=True, slots=True)
class Origin:
    """Why a dimension of a value lies on a mesh axis.

    Attributes:
      axis, dimension: of the value.
      requirement: that pins a connected value to the axis, or an empty string.
      chain: from where the axis comes to the value, as values and the operations between them.
      saved_seconds: what the axis saves of the operation that gains most from it, without a
        requirement; `op` is that operation.
    """

    axis: str
    dimension: int
    requirement: str
    chain: tuple[str, ...]
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
        return f"{start}it cuts {self.op}, which saves {gain} of compute there{way}"


def origins(
    prices: StepPrices, plan: Plan, value: int, bounds: Sequence[Bound]
) -> tuple[Origin, ...]:
    """Where every axis of the stored layout of a value comes from.

    Args:
      prices: of the program on the plan's mesh.
      plan: that is explained.
      value: its number.
      bounds: the requirements that the plan obeys.
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
    stored = plan.decisions.stored
    name = plan.mesh.names[axis]
    layout = stored[value]
    assert layout is not None
    pinned = {
        pinned: bound
        for bound in bounds
        for pinned, pattern in bound.pins
        if any(name in dimension.axes for dimension in pattern.dimensions)
    }
    chosen = ChosenStrategies(plan.decisions, prices.mesh_shape)
    before: dict[int, tuple[int, int]] = {}  # value -> (op, value nearer to the one in question)
    queue, seen = deque([value]), {value}
    cut: dict[int, None] = {}
    readers = prices.dataflow.readers
    while queue:
        here = queue.popleft()
        if here in pinned:
            bound = pinned[here]
            return Origin(name, layout[axis], str(bound), _chain(prices, before, here, value))
        ops = [use.op for use in readers[here]]
        if program.values[here].producer >= 0:
            ops.append(program.values[here].producer)
        for number in ops:
            op = program.ops[number]
            assigned = plan.decisions.assignment[number]
            if assigned is None or assigned[axis] < 0:
                continue
            strategy = chosen(op)
            ends = [
                (v, int(read[0, axis])) for v, read in zip(op.inputs, strategy.reads, strict=True)
            ]
            ends += [
                (v, int(one[0, axis])) for v, one in zip(op.outputs, strategy.stored, strict=True)
            ]
            if not any(v == here and d >= 0 for v, d in ends):
                continue
            cut[number] = None
            for other, dimension in ends:
                there = stored[other] if other >= 0 else None
                if other in seen or there is None or dimension < 0 or there[axis] != dimension:
                    continue
                seen.add(other)
                before[other] = (number, here)
                queue.append(other)
    saved = {number: _saved(prices, plan, chosen, number, axis) for number in cut}
    best = max(saved, key=lambda number: saved[number], default=None)
    if best is None or saved[best] <= 0:
        return Origin(name, layout[axis], "", ())
    op = program.ops[best]
    nearest = next((v for v in (*op.inputs, *op.outputs) if v in seen), value)
    chain = _chain(prices, before, nearest, value)
    return Origin(name, layout[axis], "", chain, str(op), saved[best])


def _saved(
    prices: StepPrices, plan: Plan, chosen: ChosenStrategies, number: int, axis: int
) -> float:
    """Compute seconds in a step that an op would take more without the axis."""
    op = prices.program.ops[number]
    strategy = chosen(op)
    assignment = strategy.assignment.copy()
    assignment[:, axis] = -1
    whole = project_assignment(op.rule, assignment, strategy.written, prices.mesh_shape)
    less = replace(whole, stored=whole.written)
    seconds = prices.compute_seconds(op, less) - prices.compute_seconds(op, strategy)
    return float(np.asarray(seconds)[0]) * op.trips * op.weight


def _chain(
    prices: StepPrices, before: dict[int, tuple[int, int]], start: int, end: int
) -> tuple[str, ...]:
    program = prices.program
    texts = [shown_value(program, start)]
    while start != end:
        _, start = before[start]
        texts.append(shown_value(program, start))
    if len(texts) > 6:
        texts = [*texts[:2], f"{len(texts) - 4} more", *texts[-2:]]
    return tuple(texts)
