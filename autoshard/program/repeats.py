"""Repeated blocks of an unrolled program, found once so that they are decided once.

The ops of a program, written as one token each (primitive, rule, types, pass), contain the layers
of an unrolled model as a period: op `i` and op `i + p` have equal tokens over a long run. Runs are
taken greedily, the longest first; ops at the same offset in the copies of a run form a class and
share one decision. A class only restricts the plans that are considered (all copies alike): every
cost is still the sum over all members, and every buffer has its own time in memory. Where the first
or the last copy borders on something else that reads it, its results are a class of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.program.trace import Program

SHORTEST_PERIOD = 4
FEWEST_COPIES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Classes of ops and values that share decisions.

    Attributes:
      op_class, value_class: for every op and value the number of its class.
      op_members, value_members: for every class its ops or values.
      copy_of: for every op the run and the copy of the block that it belongs to, or -1.
    """

    op_class: NDArray[np.int64]
    value_class: NDArray[np.int64]
    op_members: tuple[tuple[int, ...], ...]
    value_members: tuple[tuple[int, ...], ...]
    copy_of: NDArray[np.int64]


def find_repeats(
    program: Program, *, fold: bool = True, marks: Mapping[int, Hashable] | None = None
) -> Classes:
    """Partition ops and values into classes that share decisions (all singletons if not `fold`).

    Values with different `marks` (by default: none) are never in one class.
    """
    marks = marks or {}
    tokens = _tokens(program, marks)
    labels = np.arange(len(tokens), dtype=np.int64)
    copy_of = np.full((len(tokens), 2), -1, dtype=np.int64)
    if fold:
        for run, (start, period, count) in enumerate(_runs(tokens)):
            offsets = np.arange(period * count)
            labels[start + offsets] = start + offsets % period
            copy_of[start + offsets, 0] = run
            copy_of[start + offsets, 1] = offsets // period
    wiring = _Wiring.of(program, marks)
    blocks = [block for block in _grouped(labels.tolist()) if len(block) > 1]
    while True:
        value_labels = wiring.value_labels(program, labels, fold)
        split, whole = [], []
        for block in blocks:
            groups = _strangers(program, block, value_labels)
            (split if groups else whole).extend(groups or [block])
        if not split:
            break
        for group in split:
            labels[group] = group[0]
        blocks = whole + [group for group in split if len(group) > 1]
    made = wiring.producer >= 0
    for group in _otherwise_read(program, blocks, labels):
        labels[group] = group[0]
    value_labels[made] = wiring.value_labels(program, labels, fold)[made]
    op_class, op_members = _number(labels.tolist())
    value_class, value_members = _number(value_labels.tolist())
    return Classes(op_class, value_class, op_members, value_members, copy_of)


def _otherwise_read(
    program: Program, blocks: Sequence[Sequence[int]], labels: NDArray[np.int64]
) -> list[list[int]]:
    """The few members of classes whose results other classes read than those of most.

    They are at the first or the last copy of a block. A resharded copy that the others need may be
    in vain there; members that share a decision would pay for it all the same.
    """
    readers = program.consumers()
    found: list[list[int]] = []
    for block in blocks:
        groups: dict[object, list[int]] = {}
        for op in block:
            key = tuple(
                frozenset((int(labels[reader]), position) for reader, position in readers[output])
                for output in program.ops[op].outputs
            )
            groups.setdefault(key, []).append(op)
        most = max(groups.values(), key=len)
        if 2 * len(most) > len(block):
            found += [group for group in groups.values() if group is not most]
    return found


def _strangers(
    program: Program, block: Sequence[int], value_labels: NDArray[np.int64]
) -> list[list[int]]:
    """The parts of a class whose members mostly read values of different classes, or nothing.

    Look-alikes that stand in different places (the updates of two equal-shaped weights) are split;
    the first and the last copy of a block, which border on something else, are not.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for op in block:
        key = tuple(
            -1 if i < 0 or program.values[i].free else int(value_labels[i])
            for i in program.ops[op].inputs
        )
        groups.setdefault(key, []).append(op)
    return list(groups.values()) if 2 * max(map(len, groups.values())) <= len(block) else []


@dataclass(frozen=True, slots=True, eq=False)
class _Wiring:
    """What labels of values follow from: producers; for inputs their readers and partner."""

    producer: NDArray[np.int64]
    position: NDArray[np.int64]
    readers: dict[int, tuple[tuple[int, int], ...]]
    partner: dict[int, int]
    width: int
    marks: Mapping[int, Hashable]

    @classmethod
    def of(cls, program: Program, marks: Mapping[int, Hashable]) -> _Wiring:
        producer = np.array([value.producer for value in program.values], dtype=np.int64)
        position = np.zeros(len(program.values), dtype=np.int64)
        for op in program.ops:
            position[list(op.outputs)] = np.arange(len(op.outputs))
        readers: dict[int, list[tuple[int, int]]] = {value: [] for value in program.inputs}
        for op in program.ops:
            for k, value in enumerate(op.inputs):
                if value in readers:
                    readers[value].append((op.index, k))
        makers = [program.values[value].producer for value in program.outputs]
        partner = {program.inputs[i]: makers[o] for i, o in program.ties}
        width = int(position.max(initial=0)) + 1
        return cls(
            producer,
            position,
            {v: tuple(r) for v, r in readers.items() if r},
            partner,
            width,
            marks,
        )

    def value_labels(
        self, program: Program, labels: NDArray[np.int64], fold: bool
    ) -> NDArray[np.int64]:
        """A produced value belongs to its op's class; an input to the class of all its readers."""
        made = self.producer >= 0
        result = np.zeros(len(made), dtype=np.int64)
        result[made] = labels[self.producer[made]] * self.width + self.position[made]
        first = (len(labels) + 1) * self.width
        result[~made] = first + np.flatnonzero(~made)
        seen: dict[object, int] = {}
        for value, uses in self.readers.items() if fold else ():
            record = program.values[value]
            reading = tuple(sorted((int(labels[op]), k) for op, k in uses))
            target = int(labels[self.partner[value]]) if value in self.partner else -1
            key = (record.shape, record.dtype, reading, target, self.marks.get(value))
            result[value] = seen.setdefault(key, first + value)
        return result


def _tokens(program: Program, marks: Mapping[int, Hashable]) -> NDArray[np.int64]:
    seen: dict[object, int] = {}
    result = np.empty(len(program.ops), dtype=np.int64)
    for op in program.ops:
        types = tuple(
            (program.values[i].shape, program.values[i].dtype, program.values[i].free, marks.get(i))
            if i >= 0
            else None
            for i in (*op.inputs, *op.outputs)
        )
        region = program.regions[op.region]
        key = (op.primitive, op.rule, types, op.trips, op.backward, op.recomputed)
        key += (region.kind, op.weight)
        result[op.index] = seen.setdefault(key, len(seen))
    return result


def _runs(tokens: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Disjoint runs (start, period, copies), the longest first, of `FEWEST_COPIES` or more."""
    found: list[tuple[int, int, int]] = []
    segments = [(0, len(tokens))]
    while segments:
        start, stop = segments.pop()
        best = longest_run(tokens[start:stop])
        if best is None:
            continue
        offset, period, count = best
        first, last = start + offset, start + offset + period * count
        found.append((first, period, count))
        segments += [(start, first), (last, stop)]
    return found


def longest_run(
    tokens: Sequence[int] | NDArray[np.int64],
    *,
    shortest: int = SHORTEST_PERIOD,
    fewest: int = FEWEST_COPIES,
) -> tuple[int, int, int] | None:
    """The run (start, period, copies) that covers most tokens, or None if nothing is repeated.

    Periods are at least `shortest` tokens long, and there are at least `fewest` copies.
    """
    tokens = np.asarray(tokens)
    size = len(tokens)
    best: tuple[int, int, int, int] | None = None  # coverage, offset, period, count
    for period in range(shortest, size // fewest + 1):
        if best is not None and best[0] + period > size:
            break
        equal = tokens[:-period] == tokens[period:]
        if best is not None and np.count_nonzero(equal) + period <= best[0]:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]]).astype(np.int8)))
        begins, ends = edges[::2], edges[1::2]
        if not len(begins):
            continue
        copies = (ends - begins) // period + 1
        coverage = np.where(copies >= fewest, copies * period, 0)
        pick = int(coverage.argmax())
        if coverage[pick] and (best is None or coverage[pick] > best[0] * 1.02):
            best = (int(coverage[pick]), int(begins[pick]), period, int(copies[pick]))
    return None if best is None else best[1:]


def _grouped(keys: Sequence[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _number(keys: Sequence[int]) -> tuple[NDArray[np.int64], tuple[tuple[int, ...], ...]]:
    members = _grouped(keys)
    result = np.empty(len(keys), dtype=np.int64)
    for number, group in enumerate(members):
        result[group] = number
    return result, tuple(tuple(group) for group in members)
