"""What the cost model must know of the program's data flow, before any decision.

* **Fusion**: see `autoshard.fusion`; bytes of what is fused count neither as traffic nor as
  occupancy.
* **Exposure**: a collective whose inputs are there long before its result is needed (a gather of
  parameters), or whose result nothing in the step waits for (a gradient's reduction), can run
  beside compute; every other collective stands in the way.
* **Phases**: see `autoshard.readers`; program points are places in the order in which the compiler
  runs the ops, see `autoshard.sequence`.
* **Transpositions**: operands that lie in memory otherwise than their op reads them, see
  `autoshard.orders` and `autoshard.unbatched`.
* **Companions**: what may run as one collective, see `autoshard.companions`.
* **Renewals**: gradients whose sums the error waits for, see `autoshard.renewals`.
* **Narrowed**: copies in a narrower type, see `autoshard.narrowed`.
* **Slices**: those that are copied, see `autoshard.slices`.
* **Liveness**: see `autoshard.liveness`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from autoshard.companions import gathered_together, summed_together
from autoshard.cost.flops import is_matrix_op
from autoshard.fusion import Fusion, fuse
from autoshard.innermost import innermost_dimensions
from autoshard.liveness import Turned, find_lives, find_temporary, find_turned
from autoshard.machine import Chip
from autoshard.narrowed import Narrowed, narrowed
from autoshard.orders import Orders
from autoshard.product_order import ProductOrder
from autoshard.product_orders import product_orders
from autoshard.program import Op, Program
from autoshard.readers import Phase, Reader, find_readers, region_spans, through_fusion
from autoshard.renewals import Renewal, renewals
from autoshard.rows import row_reductions
from autoshard.sequence import sequence
from autoshard.slices import Slice, find_copied, find_slices
from autoshard.transposition import Transposition
from autoshard.unbatched import transpositions

__all__ = ["Dataflow", "Phase", "Reader", "Slice", "Turned", "analyse", "reordered"]

PREFETCHED = frozenset(
    {
        "enter",
        "sharding_constraint",
        "unstack",
        "slice",
        "convert_element_type",
        "reshape",
        "squeeze",
        "transpose",
        "broadcast_in_dim",
    }
)


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Facts per value (see the module docstring).

    Attributes:
      chip: what the step runs on; None where nothing of it was known.
      when: per op, the program point at which it runs.
      readers: the uses of every value.
      materialised: whether the value reaches memory.
      prefetchable: whether a reshard of the value can be started early.
      awaited: whether a matrix op of the step waits for the value.
      start, stop: program points between which the value's own buffer is alive (start == stop for
        a value without a buffer of its own).
      end: number of program points.
      temporary: whether the value lies in the compiler's heap: all but inputs, and results that
        take the place of a donated one.
      fetched: per op and operand, the bytes that are read from memory for it, see
        `autoshard.fusion.Fusion`.
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
      product_orders: by op index, how products should be computed that are not as JAX writes them.
      rows: the reductions that run inside of what reads them, see `autoshard.rows`.
      innermost: by value, the dimensions of which two are innermost in memory where the compiler
        does not take any, see `autoshard.innermost`.
    """

    chip: Chip | None
    when: tuple[int, ...]
    readers: tuple[tuple[Reader, ...], ...]
    materialised: tuple[bool, ...]
    prefetchable: tuple[bool, ...]
    awaited: tuple[bool, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    end: int
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
    product_orders: Mapping[int, ProductOrder]
    rows: frozenset[int]
    innermost: Mapping[int, tuple[int, ...]]

    def is_of(self, chip: Chip) -> bool:
        """Whether the step was analysed for a chip of this kind, if not of its rates."""
        return _habits(self.chip) == _habits(chip)

    def can_be_copied(self, program: Program, value: int) -> bool:
        """Whether a resharded copy of a value can be made: it is in memory, or would be then."""
        maker = program.values[value].producer
        return self.materialised[value] or (
            maker >= 0 and is_matrix_op(program.ops[maker].primitive)
        )

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
            op.index in self.rows,
            self.summed_together[op.index],
            op.index in self.renewals,
        )


def _habits(chip: Chip | None) -> tuple[bool, ...]:
    if chip is None:
        return False, False, False, False
    exponentials, transactions = chip.exponential_flops > 0, chip.transaction_bytes > 0
    hides = chip.library_products and chip.hides_collectives
    return exponentials, chip.library_products, hides, transactions


def _calls_libraries(chip: Chip | None) -> bool:
    return chip is not None and chip.library_products


def analyse(program: Program, chip: Chip | None = None) -> Dataflow:
    """Derive fusion, exposure, phases, orders and liveness of every value of `program`.

    Args:
      program: the step.
      chip: what it runs on; fusion depends on it. Without one, computing again costs nothing.
    """
    fusion = fuse(program, chip)
    libraries = _calls_libraries(chip)
    temporary = find_temporary(program)
    copied = find_copied(program) if libraries else frozenset[int]()
    order = sequence(program, fusion, chip)
    transaction = 0.0 if chip is None else chip.transaction_bytes
    told = product_orders(program, fusion.elementwise, transaction) if transaction else {}
    rows = frozenset[int]()
    if libraries:
        walk = Orders(program, fusion.elementwise, told)
        walk.run()
        rows = row_reductions(program, fusion, walk.made)
    points = _points(program, fusion, order, temporary, copied, libraries, told)
    awaited = _awaited(program, points.readers)
    early = _prefetchable(program)
    return Dataflow(
        chip=chip,
        materialised=fusion.materialised,
        prefetchable=early,
        awaited=awaited,
        end=len(program.ops) + 1,
        temporary=temporary,
        fetched=fusion.fetched,
        joined=frozenset(fusion.joined),
        accumulated=fusion.accumulated,
        exponentials=fusion.exponentials,
        summed_together=summed_together(program, awaited),
        gathered_together=gathered_together(program, early, awaited)
        if libraries
        else (1,) * len(program.values),
        renewals=renewals(program) if libraries else {},
        narrowed=narrowed(program, awaited) if chip is not None and not libraries else {},
        copied=copied,
        product_orders=told,
        rows=rows,
        innermost=innermost_dimensions(program, fusion.elementwise),
        **points._asdict(),
    )


def reordered(flow: Dataflow, program: Program, fusion: Fusion, when: tuple[int, ...]) -> Dataflow:
    """The same facts where ops run in another order; `when` is the point of every op."""
    libraries = _calls_libraries(flow.chip)
    points = _points(
        program, fusion, when, flow.temporary, flow.copied, libraries, flow.product_orders
    )
    return replace(flow, **points._asdict())


class _Points(NamedTuple):
    """What depends on the order of ops: attributes of `Dataflow`, under the same names."""

    when: tuple[int, ...]
    readers: tuple[tuple[Reader, ...], ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    transposed: Mapping[int, tuple[Transposition, ...]]
    turned: Mapping[int, tuple[Turned, ...]]
    slices: Mapping[int, Slice]


def _points(
    program: Program,
    fusion: Fusion,
    when: tuple[int, ...],
    temporary: Sequence[bool],
    copied: Collection[int],
    libraries: bool,
    told: Mapping[int, ProductOrder],
) -> _Points:
    spans = region_spans(program, when)
    readers = find_readers(program, when, spans)
    readers = through_fusion(program, readers, fusion.materialised)
    turned = transpositions(program, fusion.elementwise, told)
    moved = {
        program.ops[index].inputs[one.position]
        for index, here in turned.of_op.items()
        for one in here
        if not one.alone
    }
    start, stop = find_lives(
        program, readers, fusion, when, spans, moved, temporary, copied, libraries=libraries
    )
    return _Points(
        when,
        tuple(tuple(uses) for uses in readers),
        tuple(start),
        tuple(stop),
        turned.of_op,
        find_turned(program, readers, fusion, when, turned),
        find_slices(program, spans),
    )


def _prefetchable(program: Program) -> tuple[bool, ...]:
    result = [value.producer < 0 for value in program.values]
    for op in program.ops:
        if op.primitive in PREFETCHED and all(i < 0 or result[i] for i in op.inputs):
            for output in op.outputs:
                result[output] = True
    return tuple(result)


def _awaited(program: Program, readers: Sequence[Sequence[Reader]]) -> tuple[bool, ...]:
    """Values on which, within their region or in a later one, some matrix op depends."""
    result = [False] * len(program.values)
    carried = {output: argument for argument, output in program.carries}
    for _ in range(2):  # twice, so that what a carry brings to the next iteration is seen
        for op in reversed(program.ops):
            if op.primitive == "stack":
                continue
            waits = is_matrix_op(op.primitive) or any(result[o] for o in op.outputs)
            if op.primitive == "yield":
                waits = waits or result[carried[op.outputs[0]]]
            if waits:
                for value in op.inputs:
                    if value >= 0:
                        result[value] = True
    return tuple(result)
