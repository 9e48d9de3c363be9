"""How long buffers are alive, in points of the compiler's order.

A buffer is alive from its op to its last reader. What an elementwise op makes may take the place of
what dies with it, as what comes out of a barrier does, and a result that of the donated input which
it renews. Besides the values there are copies of operands that lie otherwise than they are read
(`Turned`), and those of `autoshard.xla.slices`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.facts import Turned
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Value
from autoshard.program.readers import Reader, region_spans
from autoshard.program.trace import Op, Program
from autoshard.program.vocabulary import BARRIER, UPDATES
from autoshard.xla.dim_order.walk import Transposition, Transpositions
from autoshard.xla.fusion import FUSING_REDUCTIONS, Fusion
from autoshard.xla.in_place import carry_of, updated_in_place

ALIASING = frozenset({"enter", "return", "unstack"})


def find_temporary(program: Program, compiler: Compiler = LAWS) -> tuple[bool, ...]:
    """Whether values lie in the compiler's heap, see `autoshard.program.facts.Facts`."""
    in_place = updated_in_place(program, compiler)
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
    compiler: Compiler = LAWS,
) -> dict[int, tuple[Turned, ...]]:
    """By op index, the lives of the copies of what it reads in another order."""
    spans = region_spans(program, when)
    whole = not compiler.denies("gpu.carries-put-in-order")
    carries = _turned_carries(program, found) if whole else {}
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


@dataclass(frozen=True, slots=True)
class _Rules:
    """What a compiler writes over what: each a habit of it.

    Attributes:
      over_updated, over_elementwise: what updates and elementwise ops make, over what they read.
      over_products: that of an elementwise op, over the product that it reads, too.
    """

    over_updated: bool
    over_elementwise: bool
    over_products: bool

    @classmethod
    def of(cls, compiler: Compiler) -> _Rules:
        denies = compiler.denies
        return cls(
            over_updated=not denies("gpu.updates-in-place", "tpu.updates-in-place"),
            over_elementwise=not denies("gpu.elementwise-written-over", "tpu.elementwise-in-place"),
            over_products=not compiler.has("gpu.products-not-written-over"),
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
    compiler: Compiler = LAWS,
) -> tuple[list[int], list[int]]:
    """Per value, the points between which its own buffer is alive."""
    renewed = {position for position, _ in program.ties if position in program.donated}
    kept = {
        value  # what takes its place needs it, or the caller does
        for position, value in enumerate(program.inputs)
        if position not in program.donated or position in renewed
    }
    rules = _Rules.of(compiler)
    lives = _Lives(program, readers, fusion, when, spans, moved, kept, rules)
    starts, stops = [], []
    for value in program.values:
        start, stop = lives.of_input(value) if value.producer < 0 else lives.of_result(value)
        starts.append(start)
        maker = program.ops[value.producer] if value.producer >= 0 else None
        elsewhere = maker is not None and (
            not temporary[value.index]
            or (maker.primitive in ALIASING and maker.index not in copied)
        )
        stops.append(start if elsewhere or not fusion.materialised[value.index] else stop)
    return starts, stops


@dataclass(frozen=True, slots=True)
class _Lives:
    """Lives of values, if they have buffers of their own."""

    program: Program
    readers: list[list[Reader]]
    fusion: Fusion
    when: Sequence[int]
    spans: Sequence[tuple[int, int]]
    moved: Collection[int]
    kept: Collection[int]
    rules: _Rules

    def of_input(self, value: Value) -> tuple[int, int]:
        """That of an input or a literal."""
        if value.index in self.kept:
            return 0, len(self.program.ops) + 1
        return 0, self._last(value, 0)

    def of_result(self, value: Value) -> tuple[int, int]:
        """That of what an op makes."""
        maker = self.program.ops[value.producer]
        made = self.when[maker.index]
        stop = self._last(value, made)
        first, after = self.spans[maker.region]
        if maker.primitive == "stack":
            return first, stop
        if maker.primitive == "yield":
            return after, max(stop, after)
        if self._takes_place(value, maker, made):
            return min(made + 1, stop), stop
        return made, stop

    def _last(self, value: Value, made: int) -> int:
        """The point after its last reader, or after that at which it is made."""
        return max((use.last for use in self.readers[value.index]), default=made) + 1

    def _takes_place(self, value: Value, maker: Op, made: int) -> bool:
        """Whether a result lies where something lay that dies as it is made."""
        if maker.index in self.fusion.accumulated:
            product = self.program.ops[self.fusion.accumulated[maker.index]].outputs[0]
            other = next(term for term in maker.inputs if term != product)
            return self._dies(other, made)
        updates = maker.primitive in UPDATES and self.rules.over_updated
        if (updates or maker.primitive == BARRIER) and self._dies(maker.inputs[0], made):
            return True
        writes_over = self.fusion.elementwise[maker.index] and self.rules.over_elementwise
        return (
            writes_over and value.index not in self.moved and self._overwrites(value, maker, made)
        )

    def _overwrites(self, value: Value, maker: Op, made: int) -> bool:
        """Whether an elementwise op, with what is fused with it, can write over what dies with it.

        It writes in the order in which it reads. The temporary result of a library's product comes
        in one tuple with the product's workspace, and XLA:GPU writes over no part of a tuple.
        """
        values, ops = self.program.values, self.program.ops
        operands, seen = list(maker.inputs), set[int]()
        while operands:
            operand = operands.pop()
            if operand < 0 or operand in seen or values[operand].free:
                continue
            seen.add(operand)
            producer = values[operand].producer
            if not self.fusion.materialised[operand]:
                operands += ops[producer].inputs
                continue
            of_product = producer >= 0 and is_matrix_op(ops[producer].primitive)
            if values[operand].bytes != value.bytes or (
                of_product and not self.rules.over_products
            ):
                continue
            if self._dies(operand, made):
                return True
        return False

    def _dies(self, value: int, at: int) -> bool:
        """Whether the buffer of a value is free after the point `at`, where it is read."""
        if value < 0 or not self.fusion.materialised[value]:
            return False
        inputs = self.program.inputs
        kept = value in inputs and inputs.index(value) not in self.program.donated
        return not kept and max(use.last for use in self.readers[value]) == at
