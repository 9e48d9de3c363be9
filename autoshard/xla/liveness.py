"""Compute the live ranges of buffers, in points of the compiler's order.

A buffer is live from its op to its last reader. An elementwise op may write its result over an
operand whose live range ends there; so may a barrier. A result that updates a donated input takes
that input's buffer. What comes from the host's memory is there as soon as it can be, and what goes
there stays until its region ends, as transfers run beside kernels. Besides the values themselves,
there are transposed copies of operands that are read in another dimension order (`Turned`), and the
copies of `autoshard.xla.slices`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from autoshard.xla.in_place import carry_of, stack_of, updated_in_place

STACKS = "gpu.stacks-turned-for-products"
ALIASING = frozenset({"enter", "return", "scan_slice"})


def find_temporary(
    program: Program, beside: Collection[int], compiler: Compiler = LAWS
) -> tuple[bool, ...]:
    """Return, per value, whether it is in the compiler's heap (`autoshard.program.facts.Facts`).

    `beside` are the stacks that lie beside what they renew, see `autoshard.xla.in_place`.
    """
    in_place = updated_in_place(program, compiler)
    result = [value.producer >= 0 and value.index not in in_place for value in program.values]
    for _, position in program.ties:
        value = program.outputs[position]
        while value >= 0 and program.values[value].producer >= 0:
            result[value] = value in beside
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
    """Return, by op index, the live ranges of the transposed copies of its operands."""
    spans = region_spans(program, when)
    whole = not compiler.denies("gpu.carries-put-in-order")
    carries = _turned_carries(program, found) if whole else {}
    stacks = _turned_stacks(program, found) if compiler.has(STACKS) else {}

    def life(index: int, one: Transposition, base: int) -> Turned:
        key = index, one.position
        if key in carries:
            return _with_carry(program, spans, index, one, *carries[key])
        if key in stacks:
            return _with_stack(program, spans, stacks, key)
        return _life(program, readers, fusion, when, program.ops[index], one, base)

    return {
        index: tuple(
            life(index, one, base) for one, base in zip(found.of_op[index], bases, strict=True)
        )
        for index, bases in found.bases.items()
    }


def _turned_carries(
    program: Program, found: Transpositions
) -> dict[tuple[int, int], tuple[int, bool]]:
    """Return, by op index and operand, the loop carries that products read transposed.

    Each comes with whether its copy needs memory. Of all carries of one loop with the same size
    only one does. A carry is preferred for this if it is transposed however the batches of its
    products are cut.
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


def _turned_stacks(
    program: Program, found: Transpositions
) -> dict[tuple[int, int], tuple[Op, bool]]:
    """Return, by op index and operand, what slices the stacks that products read transposed.

    Each comes with whether its copy needs memory: one copy serves all that read it in one order.
    """
    stacks: dict[tuple[int, int], tuple[Op, bool]] = {}
    first: dict[object, tuple[int, int]] = {}
    for index, here in found.of_op.items():
        op = program.ops[index]
        for one in here if op.primitive == "dot_general" else ():
            slicing = stack_of(program, op.inputs[one.position])
            if slicing is not None:
                key = index, one.position
                copy = slicing.inputs[0], slicing.region, one.alone, one.wanted[0]
                stacks[key] = slicing, first.setdefault(copy, key) == key
    return stacks


def _with_stack(
    program: Program,
    spans: Sequence[tuple[int, int]],
    stacks: Mapping[tuple[int, int], tuple[Op, bool]],
    key: tuple[int, int],
) -> Turned:
    """Return the live range of the transposed copy of a stack of which an op reads slices."""
    slicing, held = stacks[key]
    start, stop = spans[slicing.region]
    turns = program.values[slicing.inputs[0]].bytes / program.values[slicing.outputs[0]].bytes
    return Turned(start, stop, stop, parts=turns * held, moves=float(held))


def _with_carry(
    program: Program,
    spans: Sequence[tuple[int, int]],
    index: int,
    one: Transposition,
    carried: int,
    held: bool,
) -> Turned:
    """Return the live range of the transposed copy of a loop carry of which the op reads a part."""
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
    """Return the live range of the transposed copy of `base` that `op` is the first to read."""
    at = when[op.index]
    value = program.values[op.inputs[one.position]]
    if op.primitive == "dot_general":
        if value.producer < 0 or not fusion.elementwise[value.producer]:
            return Turned(at, at + 1, at + 1)
        # One kernel writes both orders, and each stays live for its own readers.
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
    """Which results a compiler writes over an operand. Each field is one of its habits.

    Attributes:
      over_updated: updates are done in place.
      over_elementwise: elementwise ops write over an operand.
      over_products: elementwise ops also write over an operand that is a product.
      beside: transfers to and from the host run beside kernels.
    """

    over_updated: bool
    over_elementwise: bool
    over_products: bool
    beside: bool

    @classmethod
    def of(cls, compiler: Compiler) -> _Rules:
        denies = compiler.denies
        return cls(
            over_updated=not denies("gpu.updates-in-place", "tpu.updates-in-place"),
            over_elementwise=not denies("gpu.elementwise-written-over"),
            over_products=not compiler.has("gpu.products-not-written-over"),
            beside=not denies("gpu.host-copies-beside-kernels", "tpu.host-copies-beside-kernels"),
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
    """Return, as two lists, the points at which the live range of each value starts and stops."""
    renewed = {position for position, _ in program.ties if position in program.donated}
    kept = {
        value  # the caller needs its buffer, or the result that is written in place does
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
    """Computes the live ranges of values, as if each had a buffer of its own."""

    program: Program
    readers: list[list[Reader]]
    fusion: Fusion
    when: Sequence[int]
    spans: Sequence[tuple[int, int]]
    moved: Collection[int]
    kept: Collection[int]
    rules: _Rules

    def of_input(self, value: Value) -> tuple[int, int]:
        """Return the live range of an input or a literal."""
        if value.index in self.kept:
            return 0, len(self.program.ops) + 1
        return 0, self._last(value, 0)

    def of_result(self, value: Value) -> tuple[int, int]:
        """Return the live range of an op's result."""
        maker = self.program.ops[value.producer]
        made = self.when[maker.index]
        stop = self._last(value, made)
        first, after = self.spans[maker.region]
        if maker.primitive == "scan_stack":
            return first, stop
        if maker.primitive == "from_host" and self.rules.beside:
            return self._there(maker.inputs[0], maker), stop
        if maker.primitive == "yield":
            return after, max(stop, after)
        if self._takes_place(value, maker, made):
            return min(made + 1, stop), stop
        return made, stop

    def _last(self, value: Value, made: int) -> int:
        """Return the point after its last reader, or after `made` if nothing reads it."""
        return max(map(self._until, self.readers[value.index]), default=made) + 1

    def _until(self, use: Reader) -> int:
        """Return the last point at which a reader needs its operand.

        A transfer that begins there runs until the end of its region at the latest.
        """
        op = self.program.ops[use.op]
        if op.primitive == "to_host" and self.rules.beside:
            return max(use.last, self.spans[op.region][1] - 1)
        return use.last

    def _there(self, value: int, reader: Op) -> int:
        """Return the first point, in the region of a reader, from which a value is there."""
        producer = self.program.values[value].producer if value >= 0 else -1
        first = self.spans[reader.region][0]
        if producer < 0 or self.program.ops[producer].boundary:
            return first
        if self.program.ops[producer].primitive == BARRIER:  # it waits for all of its arrays
            return max(self.when[one] for one in self._barrier(producer))
        return max(first, self.when[producer] + 1)

    def _takes_place(self, value: Value, maker: Op, made: int) -> bool:
        """Whether a result reuses the buffer of an operand whose live range ends at its op."""
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
        """Whether an elementwise op, with what is fused into it, can write over a dying operand.

        It writes in the order in which it reads. The temporary result of a library's product is
        part of a tuple that also holds the product's workspace, and XLA:GPU never writes over part
        of a tuple.
        """
        values, ops = self.program.values, self.program.ops
        operands = (self.fusion.sources[value] for value in maker.inputs if value >= 0)
        for operand in set[int]().union(*operands):
            producer = values[operand].producer
            of_product = producer >= 0 and is_matrix_op(ops[producer].primitive)
            if values[operand].bytes != value.bytes or (
                of_product and not self.rules.over_products
            ):
                continue
            if self._dies(operand, made):
                return True
        return False

    def _barrier(self, at: int) -> range:
        """Return the ops that a barrier is, one for each of its arrays, from one of them."""
        ops, start, stop = self.program.ops, at, at + 1
        while start and ops[start - 1].primitive == BARRIER:
            start -= 1
        while stop < len(ops) and ops[stop].primitive == BARRIER:
            stop += 1
        return range(start, stop)

    def _dies(self, value: int, at: int) -> bool:
        """Whether the live range of a value ends at the point `at`, where it is read."""
        if value < 0 or not self.fusion.materialised[value]:
            return False
        inputs = self.program.inputs
        kept = value in inputs and inputs.index(value) not in self.program.donated
        return not kept and max(map(self._until, self.readers[value])) == at
