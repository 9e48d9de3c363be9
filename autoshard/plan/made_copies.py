"""What of a step its compiler copies: slices of stacks, and operands put in another order.

Such copies are part of the compute seconds of a plan; nothing that the program says asks for them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from autoshard.cost.reordering import transposing
from autoshard.cost.step_prices import StepPrices
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import compute_seconds
from autoshard.program.graph import Op
from autoshard.units import format_percent

COPIES = "copies that the compiler makes"
LARGE = 0.1
"""From this share of a step on, copies are told."""


@dataclass(frozen=True, slots=True)
class MadeCopies:
    """Seconds of copies in a step, by the op that they are made for or by.

    Attributes:
      slices: of what is cut from stacks and written, for kernels that read it.
      orders: of operands that are written in another order of dimensions.
    """

    slices: dict[int, float]
    orders: dict[int, float]


def made_copies(prices: StepPrices, decisions: Decisions) -> MadeCopies:
    """The copies in a step.

    Args:
      prices: of the program.
      decisions: consistent ones.
    """
    slices: dict[int, float] = {}
    orders: dict[int, float] = {}
    rate = prices.machine.chip.memory_rate
    for op, strategy, seconds in compute_seconds(prices, decisions):
        if op.index in prices.dataflow.copied:
            slices[op.index] = seconds
        elif op.kernel is None and op.index in prices.dataflow.transposed:
            moved = float(transposing(prices, op, strategy)[0][0]) / rate
            orders[op.index] = min(moved * op.trips * op.weight, seconds)
    return MadeCopies(slices, orders)


def copies_note(prices: StepPrices, decisions: Decisions, step_seconds: float) -> str:
    """What takes more than a tenth of a step in copies, where it lies, and what to do about it.

    Args:
      prices: of the program.
      decisions: consistent ones.
      step_seconds: of the step.
    """
    found = made_copies(prices, decisions)
    total = sum(found.slices.values()) + sum(found.orders.values())
    if step_seconds <= 0 or total <= LARGE * step_seconds:
        return ""
    parts = []
    if found.slices:
        what = "slices of stacks are written for what reads them"
        repair = "lists of arrays, one a layer, in place of a stack need no slices"
        parts.append(_part(prices, found.slices, step_seconds, what, repair))
    if found.orders:
        what = "operands are put in another order of dimensions"
        repair = "arrays that lie as products read them, batch first, need no other order"
        parts.append(_part(prices, found.orders, step_seconds, what, repair))
    share = _percent(total, step_seconds)
    return f"{COPIES} take {share} of the step: {'; '.join(parts)}"


def _part(
    prices: StepPrices, seconds: dict[int, float], step_seconds: float, what: str, repair: str
) -> str:
    lines: defaultdict[str, float] = defaultdict(float)
    for op, took in seconds.items():
        lines[_place(prices.program.ops[op])] += took
    dearest = max(lines, key=lambda line: lines[line])
    share = _percent(sum(seconds.values()), step_seconds)
    return f"{what} ({share}, most at {dearest}): {repair}"


def _place(op: Op) -> str:
    return op.line or op.scope or "an unknown line"


def _percent(part: float, whole: float) -> str:
    return format_percent(part / whole, ".0f")
