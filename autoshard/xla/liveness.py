"""How long buffers are alive, in points of the compiler's order.

A buffer is alive from its op to its last reader. What an elementwise op makes may take the place of
what dies with it, as what comes out of a barrier does, and a result that of the donated input which
it renews. Besides the values there are copies of operands that lie otherwise than they are read
(`Turned`), and those of `autoshard.xla.slices`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autoshard.program.facts import Turned
from autoshard.program.flops import is_matrix_op
from autoshard.program.readers import Reader, region_spans
from autoshard.program.trace import Op, Program
from autoshard.program.vocabulary import BARRIER, UPDATES
from autoshard.xla.dim_order.walk import Transposition, Transpositions
from autoshard.xla.fusion import FUSING_REDUCTIONS, Fusion
from autoshard.xla.in_place import carry_of, updated_in_place

ALIASING = frozenset({"enter", "return", "unstack"})


def find_temporary(program: Program) -> tuple[bool, ...]:
    in_place = updated_in_place(program)
    result = [value.producer >= 0 and value.index not in in_place for value in program.values]
    for _, position in program.ties:
        value = program.outputs[position]
        while value >= 0 and program.values[value].producer >= 0:
            result[value] = False
            maker = program.ops[program.values[value].producer]
            value = maker.inputs[0] if maker.primitive == "return" else -1
    return tuple(result)


def find_turned(
    program: Program,
    readers: list[list[Reader]],
    fusion: Fusion,
    when: Sequence[int],
    found: Transpositions,
) -> dict[int, tuple[Turned, ...]]:
    """By op index, the lives of the copies of what it reads in another order."""
    spans = region_spans(program, when)
    carries = _turned_carries(program, found)
    return {
        index: tuple(
            _with_carry(program, spans, index, one, *carries[index, one.position])
            if (index, one.position) in carries
            else _life(program, readers, fusion, when, program.ops[index], one, base)
            for one, base in zip(found.of_op[index], bases, strict=True)
        )
        for index, bases in found.bases.items()
    }


def _turned_carries(
    program: Program, found: Transpositions
) -> dict[tuple[int, int], tuple[int, bool]]:
    """By op index and operand, the carries that products read in another order.

    With whether memory is needed for it: for one of all that are equally large in a loop, and
    rather for one that is transposed however its products' batches are cut.
    """
    carries: dict[tuple[int, int], int] = {}
    rank: dict[tuple[int, int], bool] = {}
    for index, here in found.of_op.items():
        op = program.ops[index]
        for one in here if op.primitive == "dot_general" else ():
            carry = carry_of(program, op.inputs[one.position])
            if carry >= 0:
                carries[index, one.position] = carry
                unbatched = [
                    tuple(d for d in order if d not in one.batch)
                    for order in (one.lies, *one.wanted)
                ]
                may_lie = rank.get((index, one.position), True)
                rank[index, one.position] = may_lie and unbatched[0] in unbatched[1:]
    first: dict[object, tuple[int, int]] = {}
    for key in sorted(carries, key=lambda key: (rank[key], key)):
        value = program.values[carries[key]]
        first.setdefault((program.ops[value.producer].region, value.bytes), key)
    return {key: (carry, key in first.values()) for key, carry in carries.items()}


def _with_carry(
    program: Program,
    spans: Sequence[tuple[int, int]],
    index: int,
    one: Transposition,
    carried: int,
    held: bool,
) -> Turned:
    """The life of a loop's carry in the order in which the op reads a part of it."""
    op = program.ops[index]
    value, carry = program.values[op.inputs[one.position]], program.values[carried]
    entry = program.ops[carry.producer]
    start, stop = spans[max(program.regions[entry.region].parent, 0)]
    parts = carry.bytes / max(value.bytes, 1)
    moves = 2 * parts * entry.trips / op.trips
    return Turned(start, stop, stop, parts=parts * held, moves=moves)


def _life(
    program: Program,
    readers: list[list[Reader]],
    fusion: Fusion,
    when: Sequence[int],
    op: Op,
    one: Transposition,
    base: int,
) -> Turned:
    """The life of the copy that `op` is the first to read, made from `base` in another order."""
    at = when[op.index]
    value = program.values[op.inputs[one.position]]
    if op.primitive == "dot_general":
        if value.producer < 0 or not fusion.elementwise[value.producer]:
            return Turned(at, at + 1, at + 1)
        # Both orders are written at once, and each waits for its own readers.
        others = max((use.last for use in readers[value.index] if use.op != op.index), default=at)
        stop = 1 + min(at, others)
        return Turned(when[value.producer], stop, stop)
    here = [use for use in readers[base] if program.ops[use.op].region == op.region]
    stop = 1 + max([at, *(use.last for use in here)])
    reductions = [
        when[other.index]
        for other in program.ops[op.index : program.regions[op.region].stop]
        if other.primitive in FUSING_REDUCTIONS
        and other.region == op.region
        and any(base in fusion.sources[v] for v in other.inputs if v >= 0)
    ]
    last = max(use.last for use in readers[base])
    dies = program.values[base].producer >= 0 and last < stop
    return Turned(
        at, 1 + max([at, *reductions]), stop, program.values[base].itemsize if dies else 0
    )


def find_lives(
    program: Program,
    readers: list[list[Reader]],
    fusion: Fusion,
    when: Sequence[int],
    spans: Sequence[tuple[int, int]],
    moved: Collection[int],
    temporary: Sequence[bool],
    copied: Collection[int],
    *,
    libraries: bool,
) -> tuple[list[int], list[int]]:
    end = len(program.ops) + 1
    starts, stops = [], []
    position_of = {value: k for k, value in enumerate(program.inputs)}
    renewed = {position for position, _ in program.ties if position in program.donated}
    for value in program.values:
        uses = readers[value.index]
        made = when[value.producer] if value.producer >= 0 else 0
        start, stop = made, max((use.last for use in uses), default=made) + 1
        if value.producer < 0:
            start = 0
            position = position_of.get(value.index)
            if position is not None and (position not in program.donated or position in renewed):
                stop = end  # what takes its place needs it, or the caller does
        else:
            maker = program.ops[value.producer]
            first, after = spans[maker.region]
            if maker.primitive == "stack":
                start = first
            elif maker.primitive == "yield":
                start = after
                stop = max(stop, start)
            elif maker.index in fusion.accumulated:
                product = program.ops[fusion.accumulated[maker.index]].outputs[0]
                other = next(term for term in maker.inputs if term != product)
                if _dies(program, readers, fusion.materialised, other, made):
                    start = min(made + 1, stop)
            elif (
                maker.primitive in (*UPDATES, BARRIER)
                and _dies(program, readers, fusion.materialised, maker.inputs[0], made)
            ) or (
                fusion.elementwise[maker.index]
                and value.index not in moved
                and _overwrites(
                    program, made, maker, readers, fusion.materialised, value.bytes, libraries
                )
            ):
                start = min(made + 1, stop)
        if not fusion.materialised[value.index] or (
            value.producer >= 0
            and (
                not temporary[value.index]
                or (
                    program.ops[value.producer].primitive in ALIASING
                    and value.producer not in copied
                )
            )
        ):
            stop = start
        starts.append(start)
        stops.append(stop)
    return starts, stops


def _overwrites(
    program: Program,
    made: int,
    maker: Op,
    readers: list[list[Reader]],
    materialised: Sequence[bool],
    size: int,
    libraries: bool,
) -> bool:
    """Whether an elementwise op, with what is fused with it, can write over what dies with it.

    It writes `size` bytes, in the order in which it reads. The result of a library's product comes
    in one tuple with the product's workspace, and XLA:GPU writes over no part of a tuple.
    """
    operands, seen = list(maker.inputs), set[int]()
    while operands:
        operand = operands.pop()
        if operand < 0 or operand in seen or program.values[operand].free:
            continue
        seen.add(operand)
        if not materialised[operand]:
            operands += program.ops[program.values[operand].producer].inputs
            continue
        if program.values[operand].bytes != size:
            continue
        producer = program.values[operand].producer
        if libraries and producer >= 0 and is_matrix_op(program.ops[producer].primitive):
            continue
        if _dies(program, readers, materialised, operand, made):
            return True
    return False


def _dies(
    program: Program,
    readers: list[list[Reader]],
    materialised: Sequence[bool],
    value: int,
    at: int,
) -> bool:
    """Whether the buffer of a value is free after the point `at`, where it is read."""
    if value < 0 or not materialised[value]:
        return False
    kept = value in program.inputs and program.inputs.index(value) not in program.donated
    return not kept and max(use.last for use in readers[value]) == at
