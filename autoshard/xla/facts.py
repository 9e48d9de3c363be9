"""Collect what the cost model needs to know about the program's data flow, before any decision.

* **Fusion**: see `autoshard.xla.fusion`. The bytes of fused values count neither as memory traffic
  nor as occupancy.
* **Exposure**: some collectives can overlap with compute. Either their input is ready long before
  their result is needed (a gather of parameters), or nothing in the step waits for their result (a
  gradient's reduction). Every other collective is exposed.
* **Phases**: see `autoshard.program.readers`. A program point is a position in the order in which
  the compiler runs the ops, see `autoshard.xla.op_order`.
* **Transpositions**: operands whose dimension order in memory differs from the one their op reads,
  see `autoshard.xla.dim_order.walk` and `autoshard.xla.dim_order.unbatched`.
* **Companions**: collectives that the compiler may combine, see `autoshard.xla.combinable`.
* **Renewals**: optimizer updates that the backward error waits for, and so waits for the sum of
  their gradient, see `autoshard.xla.early_updates`.
* **Narrowed**: copies in a narrower type, see `autoshard.xla.narrow_copies`.
* **Slices**: the slices that are copied, see `autoshard.xla.slices`.
* **Liveness**: see `autoshard.xla.liveness`; of what lies in the host's memory, that there.

If a rule is a habit of one or several compilers, the chip's compiler is asked for it by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from autoshard.machine.chip import Chip
from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.dim_order import ProductOrder, Transposition
from autoshard.program.facts import Facts, Slice, Turned
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Value
from autoshard.program.readers import Phase, Reader, find_readers, region_spans, through_fusion
from autoshard.program.trace import Program
from autoshard.program.vocabulary import BARRIER, RESHARDS
from autoshard.xla.combinable import gathered_together, summed_together
from autoshard.xla.dim_order.choose_products import product_orders
from autoshard.xla.dim_order.row_major import products_by_rows
from autoshard.xla.dim_order.tpu_minor import innermost_dimensions
from autoshard.xla.dim_order.unbatched import transpositions
from autoshard.xla.dim_order.walk import OrderRules, Orders
from autoshard.xla.early_updates import renewals
from autoshard.xla.fusion import Fusion, fuse
from autoshard.xla.fusion_row_reductions import RowRules, row_reductions
from autoshard.xla.in_place import stacked_beside
from autoshard.xla.liveness import find_lives, find_temporary, find_turned
from autoshard.xla.narrow_copies import narrowed
from autoshard.xla.op_order import sequence
from autoshard.xla.pipelined import made_ahead, summed_behind
from autoshard.xla.slices import find_copied, find_row_slices, find_slices

__all__ = ["Facts", "Phase", "Reader", "Slice", "Turned", "analyse", "reordered"]

PREFETCHED = frozenset(
    {
        *RESHARDS,
        "enter",
        *("scan_slice", "dynamic_slice"),
        "slice",
        "convert_element_type",
        "reshape",
        "squeeze",
        "transpose",
        "broadcast_in_dim",
    }
)


def analyse(program: Program, chip: Chip | None = None, *, anew: bool = False) -> Facts:
    """Return the fusion, exposure, phases, orders and liveness of every value of `program`.

    They are kept with the program.

    Args:
      program: the step.
      chip: the chip it runs on; fusion depends on it. Without one, recomputation costs nothing.
      anew: whether to derive them although they are known, for who wants to hear what rules ask.
    """
    if anew or chip not in program.facts:
        program.facts[chip] = _analysed(program, chip)
    return program.facts[chip]


def _analysed(program: Program, chip: Chip | None) -> Facts:
    compiler = LAWS if chip is None else chip.compiler
    fusion = fuse(program, chip)
    beside = stacked_beside(program, compiler)
    temporary = find_temporary(program, beside, compiler)
    copied = find_copied(program, compiler)
    order = sequence(program, fusion, chip)
    told = _told(program, fusion, chip)
    points = _points(program, fusion, order, temporary, copied, compiler, told)
    awaited = _awaited(program, points.readers)
    early = _prefetchable(program)
    return Facts(
        chip=chip,
        materialised=fusion.materialised,
        prefetchable=early,
        awaited=awaited,
        made_ahead=made_ahead(program, compiler),
        summed_behind=summed_behind(program, points.readers, compiler),
        end=len(program.ops) + 1,
        temporary=temporary,
        fetched=fusion.fetched,
        joined=frozenset(fusion.joined),
        accumulated=fusion.accumulated,
        exponentials=fusion.exponentials,
        summed_together=summed_together(program, awaited, compiler),
        gathered_together=gathered_together(program, early, awaited, compiler),
        renewals=renewals(program) if compiler.has("gpu.renewal-turns-weight") else {},
        narrowed=narrowed(program, awaited, compiler),
        copied=copied,
        row_slices=find_row_slices(program, copied, fusion.materialised),
        copied_back=frozenset(program.values[value].producer for value in beside),
        product_orders=told,
        row_major=products_by_rows(program, fusion.elementwise, points.readers, chip),
        rows=_rows(program, fusion, compiler, told),
        innermost=innermost_dimensions(program, fusion.elementwise, compiler),
        **points._asdict(),
    )


def reordered(flow: Facts, program: Program, fusion: Fusion, when: tuple[int, ...]) -> Facts:
    """Return the same facts for another order of ops; `when` gives the point of every op."""
    compiler = LAWS if flow.chip is None else flow.chip.compiler
    points = _points(
        program, fusion, when, flow.temporary, flow.copied, compiler, flow.product_orders
    )
    return replace(flow, **points._asdict())


def _told(program: Program, fusion: Fusion, chip: Chip | None) -> Mapping[int, ProductOrder]:
    """Return how to compute the products whose operands JAX's own form would transpose."""
    if chip is None or not chip.transaction_bytes:
        return {}
    if not chip.compiler.has("gpu.grouped-scores-transposed"):
        return {}
    rules = OrderRules.of(chip.compiler)
    return product_orders(program, fusion.elementwise, chip.transaction_bytes, rules)


def _rows(
    program: Program, fusion: Fusion, compiler: Compiler, told: Mapping[int, ProductOrder]
) -> frozenset[int]:
    """Return the reductions that run inside the kernels that read them."""
    rules = RowRules.of(compiler)
    if not (rules.softmaxes or rules.norms):
        return frozenset()
    walk = Orders(program, fusion.elementwise, told, OrderRules.of(compiler))
    walk.run()
    return row_reductions(program, fusion, walk.made, rules)


class _Points(NamedTuple):
    """The attributes of `Facts` that depend on the order of ops, under the same names."""

    when: tuple[int, ...]
    readers: tuple[tuple[Reader, ...], ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    hosted: Mapping[int, tuple[int, int]]
    transposed: Mapping[int, tuple[Transposition, ...]]
    turned: Mapping[int, tuple[Turned, ...]]
    slices: Mapping[int, Slice]


def _points(
    program: Program,
    fusion: Fusion,
    when: tuple[int, ...],
    temporary: Sequence[bool],
    copied: Collection[int],
    compiler: Compiler,
    told: Mapping[int, ProductOrder],
) -> _Points:
    spans = region_spans(program, when)
    readers = find_readers(program, when, spans)
    readers = through_fusion(program, readers, fusion.materialised)
    turned = transpositions(program, fusion.elementwise, told, OrderRules.of(compiler))
    moved = {
        program.ops[index].inputs[one.position]
        for index, here in turned.of_op.items()
        for one in here
        if not one.alone
    }
    start, stop = find_lives(
        program, readers, fusion, when, spans, moved, temporary, copied, compiler
    )
    return _Points(
        when,
        tuple(tuple(uses) for uses in readers),
        tuple(start),
        tuple(
            first if value.host else last
            for value, first, last in zip(program.values, start, stop, strict=True)
        ),
        {
            value.index: (first, last)
            for value, first, last in zip(program.values, start, stop, strict=True)
            if value.host and last > first and not _is_elsewhere(program, value, readers)
        },
        turned.of_op,
        find_turned(program, readers, fusion, when, turned, compiler),
        find_slices(program, spans),
    )


def _is_elsewhere(program: Program, value: Value, readers: Sequence[Sequence[Reader]]) -> bool:
    """Whether a value on the host lies in the stack of a loop, or behind a barrier."""
    maker, uses = value.producer, readers[value.index]
    if maker >= 0 and program.ops[maker].primitive == BARRIER:
        return True
    return bool(uses) and all(program.ops[use.op].primitive == "scan_stack" for use in uses)


def _prefetchable(program: Program) -> tuple[bool, ...]:
    result = [value.producer < 0 or value.free for value in program.values]
    for op in program.ops:
        if op.primitive in PREFETCHED and all(i < 0 or result[i] for i in op.inputs):
            for output in op.outputs:
                result[output] = True
    return tuple(result)


def _awaited(program: Program, readers: Sequence[Sequence[Reader]]) -> tuple[bool, ...]:
    """Return, per value, whether a matrix op in its region or in a later one depends on it."""
    result = [False] * len(program.values)
    carried = {output: argument for argument, output in program.carries}
    for _ in range(2):  # twice, to follow a carry into the next iteration
        for op in reversed(program.ops):
            if op.primitive == "scan_stack":
                continue
            waits = is_matrix_op(op.primitive) or any(result[o] for o in op.outputs)
            if op.primitive == "yield":
                waits = waits or result[carried[op.outputs[0]]]
            if waits:
                for value in op.inputs:
                    if value >= 0:
                        result[value] = True
    return tuple(result)
