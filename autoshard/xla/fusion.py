"""What is fused: which results reach memory, and what a kernel reads.

An elementwise result that only fusing ops of the same region read does not reach memory where
making it anew for each of them moves fewer bytes than writing and reading it: with `k` readers, a
result of `b` bytes that is made of values of `s` bytes is fused where

    k s  +  (k - 1) e  <=  s + b + k b

where `e` is what memory could move while the transcendental functions in it are computed once more.
So what the backward pass wants of an activation function is computed from its argument, which waits
in memory, and a residual stream that many read is written. XLA's fusion is led by such costs too.
A function that is decomposed into dozens of instructions (`LONG`) is computed once on XLA:GPU, and
what several kernels read of it is written.

Nothing is fused across an `optimization_barrier`, which does nothing itself. XLA:TPU fuses nothing
into what pads another dimension than the last, as the gradient of a slice does.

Kernels that read the same arrays are run as one, see `autoshard.xla.fusion_siblings`; what a
product adds to is read by the product, see `autoshard.xla.fusion_accumulate`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoshard.machine.chip import Chip
from autoshard.program.flops import TRANSCENDENTAL, is_matrix_op
from autoshard.program.graph import Op, Program
from autoshard.program.strategies import is_layout_determined
from autoshard.program.vocabulary import ALGORITHMS, BARRIER, SCATTERS, UPDATES
from autoshard.xla.fusion_accumulate import find_accumulated
from autoshard.xla.fusion_siblings import at_hand

FUSING_REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"}
)
WRITTEN = frozenset({*UPDATES, *ALGORITHMS, "fft"})
"""Ops whose results no later kernel can make anew element by element, whatever their rule says."""

LONG = frozenset({"erfc"})
"""Functions of which XLA:GPU writes what several read: seen of exact GELU, in float32 and bfloat16
on H100 and A100. XLA:TPU makes it anew."""


def is_elementwise(op: Op) -> bool:
    """Whether the op is fused with its neighbours: layout in, same layout out, nothing summed."""
    apart = op.boundary or is_matrix_op(op.primitive) or op.primitive in {BARRIER, *WRITTEN}
    return not apart and is_layout_determined(op.rule)


def _fuses(op: Op, position: int, elementwise: bool, scatters: bool) -> bool:
    """Whether the op computes its operand at `position` anew, where that is elementwise.

    `scatters`: XLA:GPU does so with what it scatters, too.
    """
    looks_up = op.primitive == "gather" and position == 0
    scattered = scatters and op.primitive in SCATTERS and position == len(op.inputs) - 1
    return elementwise or looks_up or scattered or op.primitive in FUSING_REDUCTIONS


def _pads(program: Program, op: Op) -> bool:
    """Whether an op pads another dimension than the last: what it pads so, XLA:TPU writes first."""
    if op.primitive != "pad" or op.inputs[0] < 0:
        return False
    before, after = (program.values[v].shape[:-1] for v in (op.inputs[0], op.outputs[0]))
    return before != after


@dataclass(frozen=True, slots=True)
class Fusion:
    """What is fused in a program.

    Attributes:
      elementwise: per op, whether it is fused with its neighbours.
      materialised: per value, whether it is written to memory.
      fetched: per op and operand, the bytes of whole values that are read from memory for it:
        those of the operand, or where it is fused of what its maker reads; what two operands have
        in common counts for the first, and what ops of one kernel have for the first op.
      exponentials: per op, what it computes of transcendental functions, with what is fused into
        it, see `autoshard.program.flops`; 0 where it is itself fused.
      sources: per value, what is read from memory for a reader of it: itself, where it is written.
      joined: by op whose results are written by the kernel of an earlier op, the first op of it.
      accumulated: by addition, the product that makes it, see `autoshard.xla.fusion_accumulate`.
    """

    elementwise: tuple[bool, ...]
    materialised: tuple[bool, ...]
    fetched: tuple[tuple[int, ...], ...]
    exponentials: tuple[float, ...]
    sources: tuple[frozenset[int], ...]
    joined: Mapping[int, int]
    accumulated: Mapping[int, int]


def fuse(
    program: Program,
    chip: Chip | None = None,
    into_products: Collection[int] = (),
    *,
    written: Collection[int] = (),
    unwritten: Collection[int] = (),
) -> Fusion:
    """Decide what is fused, where `chip` is given by what it costs to compute again.

    Args:
      program, chip: the step, and what it runs on.
      into_products: values that products compute anew, too, as elementwise ops do; what is laid out
        otherwise before a product reads it cannot be one.
      written, unwritten: values that are written in any case, and products that are not: what reads
        them computes them.
    """
    again_bytes = 0.0 if chip is None else chip.exponential_bytes
    libraries = chip is not None and chip.compiler.name == "xla:gpu"
    tiles = chip is not None and chip.sublanes > 1
    readers = program.consumers()
    elementwise = tuple(is_elementwise(op) for op in program.ops)
    values = program.values
    accumulated = find_accumulated(program, readers)
    products = {*accumulated.values(), *(values[value].producer for value in unwritten)}
    written = {
        *written,
        *(v for op in accumulated for v in (*program.ops[op].inputs, *program.ops[op].outputs)),
    }
    materialised: list[bool] = []
    sources: list[frozenset[int]] = []
    inside: list[frozenset[int]] = []  # the transcendental ops that are fused into the value
    for value in values:
        materialised.append(not value.free)
        sources.append(frozenset() if value.free else frozenset((value.index,)))
        inside.append(frozenset())
        if value.producer in products:
            made_of = (sources[i] for i in program.ops[value.producer].inputs if i >= 0)
            materialised[-1], sources[-1] = False, frozenset().union(*made_of)
        if value.free or value.producer < 0 or not elementwise[value.producer]:
            continue
        maker = program.ops[value.producer]
        uses = readers[value.index]
        if (
            not uses
            or value.index in written
            or (libraries and len(uses) > 1 and maker.primitive in LONG)
            or (tiles and any(_pads(program, program.ops[reader]) for reader, _ in uses))
            or not all(
                (
                    _fuses(program.ops[reader], position, elementwise[reader], libraries)
                    or (
                        value.index in into_products
                        and program.ops[reader].primitive == "dot_general"
                    )
                )
                and program.ops[reader].region == maker.region
                for reader, position in uses
            )
        ):
            continue
        made_of = frozenset().union(*(sources[i] for i in maker.inputs if i >= 0))
        again = sum(values[source].bytes for source in made_of)
        computed = _inside(program, maker, inside)
        anew = again_bytes * _exponentials(program, computed)
        if len(uses) * again + (len(uses) - 1) * anew <= again + (1 + len(uses)) * value.bytes:
            materialised[-1], sources[-1], inside[-1] = False, made_of, computed
    kernels = {
        op.index: values[(op.inputs if op.primitive in FUSING_REDUCTIONS else op.outputs)[0]].shape
        for op in program.ops
        if any(materialised[o] for o in op.outputs)
        if elementwise[op.index] or op.primitive in FUSING_REDUCTIONS
        if op.index not in accumulated
    }
    there = at_hand(program, kernels, sources)
    fetched, computed_by = [], []
    for op in program.ops:
        launched = any(materialised[o] for o in op.outputs)
        computed_by.append(_exponentials(program, _inside(program, op, inside)) * launched)
        seen = set(there[op.index].holds if op.index in there else ())
        sizes = []
        for value in op.inputs:
            fresh = sources[value] - seen if value >= 0 else frozenset[int]()
            seen |= fresh
            sizes.append(sum(values[one].bytes for one in fresh))
        fetched.append(tuple(sizes))
    return Fusion(
        elementwise,
        tuple(materialised),
        tuple(fetched),
        tuple(computed_by),
        tuple(sources),
        {index: kernel.first for index, kernel in there.items()},
        accumulated,
    )


def _inside(program: Program, op: Op, inside: Sequence[frozenset[int]]) -> frozenset[int]:
    """The transcendental ops that a kernel of `op` computes: itself, and those fused into it."""
    own = frozenset((op.index,)) if op.primitive in TRANSCENDENTAL else frozenset[int]()
    return own.union(*(inside[i] for i in op.inputs if i >= 0))


def _exponentials(program: Program, computed: Iterable[int]) -> float:
    ops = (program.ops[index] for index in computed)
    return sum(
        TRANSCENDENTAL[op.primitive] * math.prod(program.values[op.outputs[0]].shape) for op in ops
    )
