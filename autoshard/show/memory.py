"""Bytes in use on a device by class and program point, and what is in memory at the peak.

The classes are told apart by who makes a value: nobody (state, inputs), the forward pass, the
backward pass, or what comes after it (the update). Resharded copies are a class of their own. What
the evaluator counts besides (transposed operands, sums before they are settled, constants) is the
rest: the classes sum to the bytes in use that give the plan its peak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.plan.memory_events import buffer_events
from autoshard.program.layout import format_type
from autoshard.program.select import named_path
from autoshard.program.trace import Value
from autoshard.show.profile import Profile

CLASSES = (
    "state",
    "inputs",
    "forward values",
    "backward values",
    "update",
    "resharded copies",
    "transposed operands, unsettled sums, constants",
)
COPIES, REST = 5, 6


@dataclass(frozen=True, slots=True)
class Holding:
    """Equal things in memory at the peak: their class, type and place, how many, bytes together."""

    kind: str
    name: str
    type: str
    count: int
    bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes in use on one device.

    Attributes:
      curves: `[classes, program points]`, bytes.
      peak: the program point of the peak.
      holdings: what is in memory there, the largest first.
    """

    curves: NDArray[np.float64]
    peak: int
    holdings: tuple[Holding, ...]


def memory(found: Profile) -> Memory:
    """The memory of a plan by class, over the program points of the evaluator."""
    total = found.evaluation.occupied
    peak = int(total.argmax())
    curves = np.zeros((len(CLASSES), len(total)))
    holdings: dict[tuple[str, str, str], list[float]] = {}
    for kind, value, copied, events in _buffers(found):
        for point, change in events.items():
            if point < len(total):
                curves[kind, point] += change
        held = sum(change for point, change in events.items() if point <= peak)
        if held > 0.5:
            key = (CLASSES[kind], *_described(found, value, copied=copied))
            holdings.setdefault(key, []).append(held)
    curves = curves.cumsum(axis=1)
    curves[REST] = np.maximum(total - curves.sum(axis=0), 0.0)
    rows = [Holding(*key, len(sizes), sum(sizes)) for key, sizes in holdings.items()]
    if curves[REST, peak] > 0.5:
        rows.append(Holding(CLASSES[REST], "", "", 1, float(curves[REST, peak])))
    return Memory(curves, peak, tuple(sorted(rows, key=lambda row: -row.bytes)))


def _buffers(found: Profile) -> Iterator[tuple[int, Value, bool, dict[int, float]]]:
    """(class, value, whether it is the copy, changes by program point) of all that is stored."""
    program, prices, decisions = found.program, found.prices, found.plan.decisions
    bare = replace(decisions, copy=(None,) * len(decisions.copy))
    state = {program.inputs[position] for position, _ in program.ties}
    last = max((op.index for op in program.ops if op.backward), default=len(program.ops))
    for value in program.values:
        own = buffer_events(prices, bare, value.index)
        if own:
            yield _class(found, value, state, last), value, False, own
        if decisions.copy[value.index] is not None:
            both = buffer_events(prices, decisions, value.index)
            points = own.keys() | both.keys()
            yield COPIES, value, True, {p: both.get(p, 0.0) - own.get(p, 0.0) for p in points}


def _class(found: Profile, value: Value, state: set[int], last_backward: int) -> int:
    if value.producer < 0:
        return 0 if value.index in state else 1
    if found.program.ops[value.producer].backward:
        return 3
    return 4 if value.producer > last_backward else 2


def _described(found: Profile, value: Value, *, copied: bool) -> tuple[str, str]:
    """Where a value comes from, numbers as stars, and its type in its layout."""
    plan = found.plan
    layout = (plan.decisions.copy if copied else plan.decisions.stored)[value.index]
    assert layout is not None
    if value.producer < 0:
        name = named_path(value.path, plan.argument_names) or "constant"
    else:
        op = found.program.ops[value.producer]
        name = f"{op.primitive} at {op.scope or '(top)'}"
    kind = format_type(value.dtype, value.shape, layout, plan.mesh.names)
    return re.sub(r"\d+", "*", name), kind
