"""Odd sizes, and what the step would cost if they were padded.

A dimension is cut in equal parts, or not at all: a batch of 31 is cut over none of 8 devices, and
each of them computes all of it. With one row more, of which nothing is made, each computes an
eighth. So dimensions of sizes that divide badly are looked for, and the step with longer ones is
planned too. Nobody traces it: its values, rules and arithmetic are those of the program, with other
sizes wherever the dimension goes,

    x: [31, 64] · w: [64, 256] -> [31, 256], 2·31·64·256 FLOP
    x: [32, 64] · w: [64, 256] -> [32, 256], 2·32·64·256 FLOP

and a dimension goes from an op's operands to its results by the factors of its rule.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoshard.program.graph import Op, Program, Value
from autoshard.program.rules.record import FactorKind
from autoshard.program.select import shown_path
from autoshard.units import counted, format_seconds

LONGEST = 1.25
"""A dimension is made longer by at most this factor."""
LEAST_SHARE = 0.1
"""Arrays with the dimension hold at least this share of the bytes of all."""
_CUT = frozenset({FactorKind.PASS, FactorKind.REDUCE})
"""A dimension along which windows move, or a slice is taken, cannot have rows of no meaning."""
MOST = 2
"""So many sizes are tried at most."""

Dimension = tuple[int, int]
"""A value, and the number of a dimension of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Padding:
    """A size of dimensions that belong together, and a longer one that divides better.

    Attributes:
      size, padded: elements.
      parts, possible: over so many devices each of them can be cut.
      dimensions: that are `size`, or a multiple of it, and become longer.
      factors: of ops, by op and number, that become longer.
      share: of the bytes of all arrays, in those with such a dimension.
    """

    size: int
    padded: int
    parts: int
    possible: int
    dimensions: frozenset[Dimension]
    factors: frozenset[tuple[int, int]]
    share: float

    def of(self, size: int) -> int:
        """The size of a dimension or factor that becomes longer."""
        return size // self.size * self.padded


def paddings(program: Program, devices: int) -> list[Padding]:
    """The paddings that may be worth it, those of most bytes first.

    Args:
      program: whose sizes are looked at.
      devices: of the machine.
    """
    readers = _mentions(program)
    total = sum(_weight(value) for value in program.values) or 1.0
    candidates: Counter[int] = Counter()
    for value in program.values:
        for size in set(value.shape):
            if _longer(size, devices) is not None:
                candidates[size] += _weight(value)
    found = []
    for size, weight in candidates.most_common():
        if weight < LEAST_SHARE * total or len(found) == MOST:
            break
        longer = _longer(size, devices)
        assert longer is not None
        dimensions, factors, hindrance = _connected(program, readers, size)
        if hindrance is not None or not factors:
            continue
        share = sum(_weight(program.values[v]) for v in {v for v, _ in dimensions}) / total
        if share >= LEAST_SHARE:
            parts, possible = math.gcd(size, devices), math.gcd(longer, devices)
            found.append(Padding(size, longer, parts, possible, dimensions, factors, share))
    return found


def hindered(program: Program, devices: int) -> list[str]:
    """What a reader of a plan is told of sizes of arguments of which no padding can be priced.

    Args:
      program, devices: as of `paddings`.
    """
    readers = _mentions(program)
    total = sum(_weight(value) for value in program.values) or 1.0
    found = []
    for size in sorted({n for v in program.inputs for n in program.values[v].shape}, reverse=True):
        longer = _longer(size, devices)
        weight = sum(_weight(value) for value in program.values if size in value.shape)
        if longer is None or weight < LEAST_SHARE * total or len(found) == MOST:
            continue
        _, _, hindrance = _connected(program, readers, size)
        if hindrance is not None:
            parts, possible = math.gcd(size, devices), math.gcd(longer, devices)
            found.append(
                f"dimensions of {size:,} are cut over at most {parts} of the devices, and "
                f"{longer:,} over {possible}: what padding them would save is not known, because "
                f"{hindrance} does not treat their rows alike"
            )
    return found


def unpriced(program: Program, devices: int, why: str) -> list[str]:
    """What a reader of a plan is told of paddings that a search does not price.

    Args:
      program, devices: as of `paddings`.
      why: the option of the search, as ``--remat search``.
    """
    return [
        f"dimensions of {one.size:,} ({_place(program, one)}) are cut over at most {one.parts} of "
        f"the devices, and {one.padded:,} over {one.possible}: a search without {why} tells what "
        "padding them saves"
        for one in paddings(program, devices)
    ]


def padded(program: Program, padding: Padding) -> Program:
    """The program with longer dimensions, to be priced; its jaxpr is still that of the shorter."""
    long = defaultdict(set)
    for op, factor in padding.factors:
        long[op].add(factor)

    def shape(value: Value) -> tuple[int, ...]:
        return tuple(
            padding.of(size) if (value.index, d) in padding.dimensions else size
            for d, size in enumerate(value.shape)
        )

    def op_of(op: Op) -> Op:
        if not (factors := long[op.index]):
            return op
        longer = [
            replace(factor, size=padding.of(factor.size)) if k in factors else factor
            for k, factor in enumerate(op.rule.factors)
        ]
        literals = tuple(
            tuple(
                padding.of(size) if factors & {*mapped} and size % padding.size == 0 else size
                for size, mapped in zip(sizes, tensor, strict=False)
            )
            if len(sizes) == len(tensor)
            else sizes
            for sizes, tensor in zip(op.literal_shapes, op.rule.operands, strict=False)
        )
        more = (padding.padded / padding.size) ** len(factors)
        return replace(
            op,
            rule=replace(op.rule, factors=tuple(longer)).without_joint(),
            flops=op.flops * more,
            literal_shapes=literals if len(literals) == len(op.literal_shapes) else (),
        )

    values = tuple(replace(value, shape=shape(value)) for value in program.values)
    return replace(program, values=values, ops=tuple(map(op_of, program.ops)))


def sentence(
    program: Program,
    padding: Padding,
    seconds: float,
    padded_seconds: float,
    *,
    proven: bool = True,
) -> str:
    """What a reader of a plan is told of a padding that saves time.

    Args:
      seconds, padded_seconds: a step as it is planned, and with the longer dimensions.
      proven: whether there is a plan of that; else it is a bound.
    """
    least = "" if proven else "at least "
    more = "" if proven else ", which a search for that step tells"
    here, there = format_seconds(seconds), format_seconds(padded_seconds)
    return (
        f"dimensions of {padding.size:,} ({_place(program, padding)}) are cut over at most "
        f"{padding.parts} of the devices: padded to {padding.padded:,}, over {padding.possible} as "
        f"a rule, the step takes {least}{there} in place of {here}{more}; pad them with what has "
        "no weight in the result, such as rows that the loss leaves out"
    )


def _place(program: Program, padding: Padding) -> str:
    """Which arrays become longer."""
    given = [v for v in program.inputs if any(one == v for one, _ in padding.dimensions)]
    arrays = len({value for value, _ in padding.dimensions})
    if given:
        return f"of {shown_path(program, given[0])} and {counted(arrays - 1, 'other array')}"
    return f"of {counted(arrays, 'array')}, the first {_made_at(program, padding)}"


def about(notes: Sequence[str], value: Value) -> list[str]:
    """The sentences among a plan's notes that are about a dimension of this value."""
    begins = tuple(f"dimensions of {size:,} {go}" for size in value.shape for go in ("(", "are"))
    return [note for note in notes if begins and note.startswith(begins)]


def _made_at(program: Program, padding: Padding) -> str:
    first = program.values[min(value for value, _ in padding.dimensions)]
    op = program.ops[first.producer] if first.producer >= 0 else None
    return f"a constant {first}" if op is None else f"made by {op}"


def _weight(value: Value) -> int:
    return 0 if value.free else value.bytes * value.trips


def _longer(size: int, devices: int) -> int | None:
    """The next size that may be cut over more devices; None where that is too long."""
    if size < 2:
        return None
    now = math.gcd(size, devices)
    for parts in sorted({math.gcd(devices, k) for k in range(1, devices + 1)}, reverse=True):
        longer = -(-size // parts) * parts
        if parts > now and longer <= LONGEST * size:
            return longer
    return None


def _mentions(program: Program) -> dict[int, list[tuple[Op, Sequence[Sequence[int]]]]]:
    """For every value the ops that read or make it, with its dimensions in their rules."""
    found = defaultdict(list)
    for op in program.ops:
        tensors = [*zip(op.inputs, op.rule.operands, strict=False)]
        for value, tensor in (*tensors, *zip(op.outputs, op.rule.results, strict=False)):
            if value >= 0:
                found[value].append((op, tensor))
    return found


def _connected(
    program: Program,
    mentions: dict[int, list[tuple[Op, Sequence[Sequence[int]]]]],
    size: int,
) -> tuple[frozenset[Dimension], frozenset[tuple[int, int]], Op | None]:
    """The dimensions that become longer with the one of most bytes, and the factors of ops.

    The third is an op that does more along them than computing each part by itself or summing.
    """
    first = max(
        (value for value in program.values if size in value.shape and not value.free),
        key=_weight,
        default=None,
    )
    dimensions: set[Dimension] = set()
    factors: set[tuple[int, int]] = set()
    left = [] if first is None else [(first.index, first.shape.index(size))]
    while left:
        one = left.pop()
        if one in dimensions:
            continue
        dimensions.add(one)
        for op, tensor in mentions[one[0]]:
            if one[1] >= len(tensor):
                continue
            own = [k for k in tensor[one[1]] if op.rule.factors[k].size % size == 0]
            if not own or op.rule.factors[own[0]].kind not in _CUT:
                return frozenset(), frozenset(), op
            if (op.index, own[0]) not in factors:
                factors.add((op.index, own[0]))
                left += _along(program, op, own[0], size)
    return frozenset(dimensions), frozenset(factors), None


def _along(program: Program, op: Op, factor: int, size: int) -> Iterator[Dimension]:
    """The dimensions of an op's operands and results that hold a factor."""
    sides = (op.inputs, op.rule.operands), (op.outputs, op.rule.results)
    for values, tensors in sides:
        for value, tensor in zip(values, tensors, strict=False):
            for d, mapped in enumerate(tensor):
                if value >= 0 and factor in mapped and program.values[value].shape[d] % size == 0:
                    yield value, d
