"""Whether XLA:GPU should make one product of several that read one array.

    x @ gate, x @ up      becomes      x @ [gate, up]

It does so where operands and result of one of them have at most 64 MiB
(xla/hlo/transforms/simplifiers/dot_merger.cc, xla_gpu_dot_merger_threshold_mb). The operands that
differ are written side by side. That costs nothing where they are computed element by element;
but weights, slices of stacks and what collectives bring are copied for it, in every run. In a step
of decoding, whose products take as long as their weights are read, that is most of what they take:
Llama-3-70B with 64 sequences on eight H100s compiles to 41.5 ms a token, and unmerged to 35.5 ms.

    lost     2 bytes of what is copied
    saved    bytes of the shared array once more for each product, and the start of a kernel
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autoshard.plan.decisions import Decisions
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.dim_order import operand_groups
from autoshard.program.flops import is_matrix_op
from autoshard.program.layout import Layout, local_shape
from autoshard.program.strategies import is_layout_determined
from autoshard.program.trace import Op, Program

MOST = 64 << 20
"""Bytes of operands and result of a product that others are merged with."""
START = 6 << 20
"""Bytes that memory moves while a kernel starts: 2 us at 3 TB/s."""
_BITCASTS = frozenset({"reshape", "squeeze", "expand_dims"})
_SLICES = frozenset({"scan_slice", "dynamic_slice", "slice"})


class _Product(NamedTuple):
    """A product of two arrays on one device: its op, bytes of its operands and of all three."""

    op: Op
    operands: tuple[int, int]
    bytes: int
    layouts: tuple[Layout, Layout]


def merging_loses(program: Program, decisions: Decisions, mesh_shape: Sequence[int]) -> bool:
    """Whether merging a plan's products moves more bytes than it saves.

    Args:
      program: the step.
      decisions: of the plan.
      mesh_shape: sizes of the axes of its mesh.
    """
    lost = saved = 0.0
    for shared, group in _groups(program, decisions, mesh_shape):
        if min(one.bytes for one in group) > MOST:
            continue
        times = group[0].op.trips * group[0].op.weight
        other = 1 - shared
        copied = [one for one in group if _is_copied(program, decisions, one, other)]
        lost += times * sum(2 * one.operands[other] for one in copied)
        saved += times * (len(group) - 1) * (group[0].operands[shared] + START)
    return lost > saved


def _groups(
    program: Program, decisions: Decisions, mesh_shape: Sequence[int]
) -> Iterator[tuple[int, list[_Product]]]:
    """Products that share an operand and contract the same of it, with its position."""
    chosen = ChosenStrategies(decisions, mesh_shape)
    alike: dict[tuple[int, object], list[_Product]] = {}
    for op in program.ops:
        if op.primitive != "dot_general" or min(op.inputs) < 0:
            continue
        if decisions.assignment[op.index] is None or op.inputs[0] == op.inputs[1]:
            continue
        product = _product(program, op, chosen, mesh_shape)
        for shared in (0, 1):
            batch, _, contracted = map(frozenset, operand_groups(op.rule)[shared])
            read = op.inputs[shared], product.layouts[shared], contracted, batch
            other = program.values[op.inputs[1 - shared]].dtype
            alike.setdefault((shared, (op.region, read, other)), []).append(product)
    taken = set[int]()
    for (shared, _), group in alike.items():
        free = [one for one in group if one.op.index not in taken]
        apart = _independent(program, free)
        if len(apart) > 1:
            taken.update(one.op.index for one in apart)
            yield shared, apart


def _product(
    program: Program, op: Op, chosen: ChosenStrategies, mesh_shape: Sequence[int]
) -> _Product:
    strategy = chosen(op)

    def size(value: int, layout: Layout) -> int:
        record = program.values[value]
        return math.prod(local_shape(record.shape, layout, mesh_shape)) * record.itemsize

    first, second = (tuple(reads[0].tolist()) for reads in strategy.reads[:2])
    operands = size(op.inputs[0], first), size(op.inputs[1], second)
    made = size(op.outputs[0], tuple(strategy.written[0][0].tolist()))
    return _Product(op, operands, sum(operands) + made, (first, second))


def _independent(program: Program, group: Sequence[_Product]) -> list[_Product]:
    """Of products in the program's order, the first and those that wait for none before."""
    found: list[_Product] = []
    reached = set[int]()
    for number, one in enumerate(group):
        if found and reached.intersection(one.op.inputs):
            continue
        found.append(one)
        reached.update(one.op.outputs)
        stop = group[number + 1].op.index if number + 1 < len(group) else one.op.index
        for op in program.ops[one.op.index + 1 : stop + 1]:
            if reached.intersection(op.inputs):
                reached.update(op.outputs)
    return found


def _is_copied(program: Program, decisions: Decisions, product: _Product, position: int) -> bool:
    """Whether an operand is copied to stand beside another's: it is not computed element by element
    as the product reads it."""
    value, layout = product.op.inputs[position], product.layouts[position]
    while not program.values[value].free:
        stored, producer = decisions.stored[value], program.values[value].producer
        if stored != layout or producer < 0:
            return True  # a collective brings it, or it is an input
        maker = program.ops[producer]
        if maker.primitive not in _BITCASTS or maker.inputs[0] < 0:
            return not _is_elementwise(maker)
        value = maker.inputs[0]
        layout = decisions.stored[value] or layout
    return False


def _is_elementwise(op: Op) -> bool:
    apart = op.boundary or is_matrix_op(op.primitive) or op.primitive in _SLICES
    return not apart and is_layout_determined(op.rule)
