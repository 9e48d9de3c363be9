"""Repeated blocks of an unrolled program, found once so that they are decided once.

The ops of a program, written as one token each (primitive, rule, types, pass), contain the layers
of an unrolled model as a period: op `i` and op `i + p` have equal tokens over a long run. Runs are
taken greedily, the longest first; ops at the same offset in the copies of a run form a class and
share one decision. A class only restricts the plans that are considered (all copies alike): every
cost is still the sum over all members, and every buffer has its own time in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.program import Program

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


def find_repeats(program: Program, *, fold: bool = True) -> Classes:
    """Partition ops and values into classes that share decisions (all singletons if not `fold`)."""
    tokens = _tokens(program)
    labels = np.arange(len(tokens), dtype=np.int64)
    copy_of = np.full((len(tokens), 2), -1, dtype=np.int64)
    if fold:
        for run, (start, period, count) in enumerate(_runs(tokens)):
            offsets = np.arange(period * count)
            labels[start + offsets] = start + offsets % period
            copy_of[start + offsets, 0] = run
            copy_of[start + offsets, 1] = offsets // period
    while True:
        op_class, op_members = _number(labels.tolist())
        value_class, value_members = _number(_value_keys(program, op_class, fold))
        if not _split_strangers(program, op_members, value_class, labels):
            return Classes(op_class, value_class, op_members, value_members, copy_of)


def _split_strangers(
    program: Program,
    op_members: Sequence[Sequence[int]],
    value_class: NDArray[np.int64],
    labels: NDArray[np.int64],
) -> bool:
    """Split, in `labels`, classes most of whose members read values of different classes.

    Look-alikes that stand in different places (the updates of two equal-shaped weights) are split;
    the first and the last copy of a block, which border on something else, are not.
    """
    changed = False
    for members in op_members:
        if len(members) < 2:
            continue
        groups: dict[tuple[int, ...], list[int]] = {}
        for op in members:
            key = tuple(
                -1 if i < 0 or program.values[i].free else int(value_class[i])
                for i in program.ops[op].inputs
            )
            groups.setdefault(key, []).append(op)
        if 2 * max(map(len, groups.values())) <= len(members):
            for group in groups.values():
                labels[group] = group[0]
            changed = True
    return changed


def _tokens(program: Program) -> NDArray[np.int64]:
    seen: dict[object, int] = {}
    result = np.empty(len(program.ops), dtype=np.int64)
    for op in program.ops:
        types = tuple(
            (program.values[i].shape, program.values[i].dtype, program.values[i].free)
            if i >= 0
            else None
            for i in (*op.inputs, *op.outputs)
        )
        region = program.regions[op.region]
        key = (op.primitive, op.rule, types, op.trips, op.backward, region.kind, op.weight)
        result[op.index] = seen.setdefault(key, len(seen))
    return result


def _runs(tokens: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Disjoint runs (start, period, copies), the longest first, of at least `FEWEST_COPIES` copies."""
    found: list[tuple[int, int, int]] = []
    segments = [(0, len(tokens))]
    while segments:
        start, stop = segments.pop()
        best = _longest_run(tokens[start:stop])
        if best is None:
            continue
        offset, period, count = best
        first, last = start + offset, start + offset + period * count
        found.append((first, period, count))
        segments += [(start, first), (last, stop)]
    return found


def _longest_run(tokens: NDArray[np.int64]) -> tuple[int, int, int] | None:
    size = len(tokens)
    best: tuple[int, int, int, int] | None = None  # coverage, offset, period, count
    for period in range(SHORTEST_PERIOD, size // FEWEST_COPIES + 1):
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
        coverage = np.where(copies >= FEWEST_COPIES, copies * period, 0)
        pick = int(coverage.argmax())
        if coverage[pick] and (best is None or coverage[pick] > best[0] * 1.02):
            best = (int(coverage[pick]), int(begins[pick]), period, int(copies[pick]))
    return None if best is None else best[1:]


def _value_keys(program: Program, op_class: NDArray[np.int64], fold: bool) -> list[object]:
    """A produced value belongs to its op's class; an input to the class of all its readers."""
    readers = program.consumers()
    keys: list[object] = []
    partner = dict(program.ties)
    position_of = {value: k for k, value in enumerate(program.inputs)}
    for value in program.values:
        if value.producer >= 0:
            position = program.ops[value.producer].outputs.index(value.index)
            keys.append((int(op_class[value.producer]), position))
        elif not fold or value.index not in position_of or not readers[value.index]:
            keys.append(("input", value.index))
        else:
            uses = tuple(sorted((int(op_class[op]), k) for op, k in readers[value.index]))
            tied = partner.get(position_of[value.index], -1)
            output = program.ops[program.values[program.outputs[tied]].producer] if tied >= 0 else None
            target = int(op_class[output.index]) if output is not None else -1
            keys.append(("input", value.shape, value.dtype, uses, target))
    return keys


def _number(keys: Sequence[object]) -> tuple[NDArray[np.int64], tuple[tuple[int, ...], ...]]:
    seen: dict[object, int] = {}
    members: list[list[int]] = []
    result = np.empty(len(keys), dtype=np.int64)
    for index, key in enumerate(keys):
        number = seen.setdefault(key, len(seen))
        if number == len(members):
            members.append([])
        members[number].append(index)
        result[index] = number
    return result, tuple(tuple(m) for m in members)
