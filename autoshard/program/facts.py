"""What a compiler model says of a program's data flow, before any decision: a record, no logic.

`autoshard.xla.analyse` fills it in; the cost laws, the evaluator and the solver's problem read it.
Points are places in the order in which the compiler runs the ops.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from autoshard.machine.chip import Chip
from autoshard.program.dim_order import ProductOrder, Transposition
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op
from autoshard.program.readers import Reader
from autoshard.program.trace import Program
from autoshard.program.vocabulary import RESHARDS


@dataclass(frozen=True, slots=True)
class Turned:
    """How long a transposed copy of an operand is alive.

    A transposition that is coalesced is fused into the kernels that read it, but for a reduction,
    which must have it in order. Of any other one copy is written, which serves all its readers and
    takes the place of what it is made from. What a product reads of a loop's carry is not copied,
    but the whole carry, once (`autoshard.xla.in_place`).

    Attributes:
      start: the program point at which it is made.
      reduced: the point until which reductions read it.
      stop: the point until which anything does.
      replaces: bytes an element of what dies once the copy is there.
      parts: how many times what the op reads the copy is.
      moves: how many times what the op reads is copied, each time that it runs.
    """

    start: int
    reduced: int
    stop: int
    replaces: int = 0
    parts: float = 1.0
    moves: float = 1.0

    @property
    def amounts(self) -> tuple[float, float, float]:
        """What decides its bytes, beside the transposition itself."""
        return self.replaces, self.parts, self.moves


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Bytes per element of copies of a value, and whether it is a table that is looked up."""

    width: int
    is_table: bool


@dataclass(frozen=True, slots=True)
class Renewal:
    """What runs as one with the renewal of a weight.

    Attributes:
      error: the convolution of the error, by the index of its op; it waits for the renewal.
      turned: the weight, and what is made of it for that convolution.
      results: the renewed values that are made of the gradient: weight, moments. They lie beside
        those that they renew, until the end.
    """

    error: int
    turned: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """What a loop reads of a stack, one part in each iteration.

    Where it is gathered along an inner dimension, the compiler puts the whole stack in the order of
    the gather once, before the loop, and keeps it for the loops to come that read the same.

    Attributes:
      stack: the value that is read in parts.
      start, stop: program points between which a copy in another order would be alive.
    """

    stack: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one program, per value and op.

    Attributes:
      chip: what the step runs on; None where nothing of it was known.
      when: per op, the program point at which it runs.
      readers: the uses of every value.
      materialised: whether the value reaches memory.
      prefetchable: whether a reshard of the value can be started early.
      awaited: whether a matrix op of the step waits for the value.
      made_ahead: by value whose copies a loop may make a turn ahead, what it is made of around the
        loop.
      summed_behind: the ops whose partial sums a loop may settle a turn behind.
      start, stop: program points between which the value's own buffer is alive (start == stop for
        a value without a buffer of its own).
      end: number of program points.
      hosted: by value in the host's memory, the program points between which its buffer there is
        alive; it has none in the device's.
      temporary: whether the value lies in the compiler's heap: all but inputs, and results that
        take the place of a donated one.
      fetched: per op and operand, the bytes that are read from memory for it, see
        `autoshard.xla.fusion.Fusion`.
      joined: the ops that run in the kernel of an earlier op, see there.
      accumulated: by addition, the product that makes it, see there.
      exponentials: per op, the transcendental work of the kernel that it is, see there.
      transposed: by op index, the operands that lie otherwise than the op reads them.
      turned: the same copies' lives.
      slices: the values that are slices of a stack, converted perhaps.
      summed_together: per op, how many ops' partial sums may be settled by one collective, with its
        own.
      gathered_together: per value, how many may be gathered by one collective, with it.
      renewals: by convolution that makes a weight's gradient, what the error waits for.
      narrowed: by value, what copies of it are like that are narrower than it is.
      copied: the ops whose results are slices that are written for what reads them.
      row_slices: by op whose result is a written slice that products with one row alone read, for
        each of them the dimensions that it contracts, and those that are the slice's own.
      copied_back: the ops that stack what is copied over a donated input after the loop.
      product_orders: by op index, how products should be computed that are not as JAX writes them.
      row_major: the products that should lie by rows, see `autoshard.xla.dim_order.row_major`.
      rows: the reductions that run inside of what reads them, see
      `autoshard.xla.fusion_row_reductions`.
      innermost: by value, the dimensions of which two are innermost in memory where the compiler
        does not take any, or the last one alone for those of kernels, see
        `autoshard.xla.dim_order.tpu_minor`.
      parted: values that may be resharded although a kernel computes them along with others; it is
        cut in two then. They are found from requirements.
    """

    chip: Chip | None
    when: tuple[int, ...]
    readers: tuple[tuple[Reader, ...], ...]
    materialised: tuple[bool, ...]
    prefetchable: tuple[bool, ...]
    awaited: tuple[bool, ...]
    made_ahead: Mapping[int, frozenset[int]]
    summed_behind: frozenset[int]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    end: int
    hosted: Mapping[int, tuple[int, int]]
    temporary: tuple[bool, ...]
    fetched: tuple[tuple[int, ...], ...]
    joined: frozenset[int]
    accumulated: Mapping[int, int]
    exponentials: tuple[float, ...]
    transposed: Mapping[int, tuple[Transposition, ...]]
    turned: Mapping[int, tuple[Turned, ...]]
    slices: Mapping[int, Slice]
    summed_together: tuple[int, ...]
    gathered_together: tuple[int, ...]
    renewals: Mapping[int, Renewal]
    narrowed: Mapping[int, Narrowed]
    copied: frozenset[int]
    row_slices: Mapping[int, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]
    copied_back: frozenset[int]
    product_orders: Mapping[int, ProductOrder]
    row_major: frozenset[int]
    rows: frozenset[int]
    innermost: Mapping[int, tuple[int, ...]]
    parted: frozenset[int] = frozenset()

    def is_of(self, chip: Chip) -> bool:
        """Whether the step was analysed for a chip of this kind, if not of its rates."""
        return _habits(self.chip) == _habits(chip)

    def can_be_copied(self, program: Program, value: int) -> bool:
        """Whether a resharded copy of a value can be made: it is in memory, or would be then.

        It would be, too, where the program itself says how the value lies: a kernel ends there if
        what reads it lies otherwise.
        """
        record = program.values[value]
        if record.host:
            return False  # collectives are between devices
        maker = program.ops[record.producer].primitive if record.producer >= 0 else ""
        asked = value in self.parted or maker in RESHARDS
        return asked or not self.is_inside(program, value)

    def is_inside(self, program: Program, value: int) -> bool:
        """Whether a copy of a value would cut the kernel in two that computes it."""
        maker = program.values[value].producer
        made_by_product = maker >= 0 and is_matrix_op(program.ops[maker].primitive)
        return not self.materialised[value] and not made_by_product

    def sending(self, value: int) -> tuple[int, Narrowed | None]:
        """What is besides its shape, and changes the price of copies of a value."""
        return self.gathered_together[value], self.narrowed.get(value)

    def surroundings(self, op: Op) -> Hashable:
        """What stands around `op` and changes its price: copies of a block may differ in it."""
        written = tuple(self.materialised[o] for o in op.outputs)
        return (
            self.fetched[op.index],
            op.index in self.joined,
            op.index in self.accumulated,
            self.exponentials[op.index],
            written,
            self.transposed.get(op.index),
            tuple(life.amounts for life in self.turned.get(op.index, ())),
            op.index in self.copied,
            self.row_slices.get(op.index),
            op.index in self.copied_back,
            op.index in self.rows,
            self.summed_together[op.index],
            op.index in self.renewals,
            self.innermost.get(op.outputs[0]) if op.primitive == "pad" else None,
        )


def _habits(chip: Chip | None) -> tuple[object, ...]:
    if chip is None:
        return False, False, "", False, frozenset(), False
    exponentials, transactions = chip.exponential_flops > 0, chip.transaction_bytes > 0
    own = chip.compiler
    same = own.name, own.hides_collectives, own.without, own.pipelines
    return exponentials, transactions, *same
