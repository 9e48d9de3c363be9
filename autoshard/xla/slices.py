"""Find what is copied when a loop reads slices of a stack.

* A slice that is fused into its reader is read in place. On XLA:GPU some readers need it as an
  array of its own, which is written first: library products, in-place updates and the like. On
  XLA:TPU kernels of Pallas do.
* Where slices are gathered along an inner dimension, the whole stack is transposed once, before the
  loop (`Slice`).
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.machine.compiler import Compiler
from autoshard.program.dim_order import operand_groups
from autoshard.program.facts import Slice
from autoshard.program.flops import is_matrix_op
from autoshard.program.trace import Op, Program
from autoshard.program.vocabulary import UPDATES
from autoshard.xla.in_place import BITCASTS

SLICING = frozenset({"scan_slice", "dynamic_slice"})


def find_copied(program: Program, compiler: Compiler) -> frozenset[int]:
    """Return the ops whose result is a slice that is written for its readers.

    Such an op is the slice itself or, where the slice is reshaped, the last of the reshapes.
    """
    all_written = compiler.denies("gpu.slices-read-in-place")
    for_products = compiler.has("gpu.slices-written-for-products")
    for_products |= compiler.denies("tpu.slices-read-in-place")
    for_kernels = compiler.has("tpu.slices-written-for-kernels")
    if not (all_written or for_products or for_kernels):
        return frozenset()
    readers = program.consumers()
    sliced, copied = set[int](), set[int]()
    for op in program.ops:
        if not (op.primitive in SLICING or (op.primitive in BITCASTS and op.inputs[0] in sliced)):
            continue
        value = op.outputs[0]
        if program.values[value].free or program.values[value].host:
            continue
        if all_written or any(
            (for_kernels and reader.kernel is not None)
            or (for_products and _reads_copies(reader, position))
            for reader, position in ((program.ops[k], position) for k, position in readers[value])
        ):
            copied.add(op.index)
        else:
            sliced.add(value)
    return frozenset(copied)


def _reads_copies(reader: Op, position: int) -> bool:
    """Whether an op of a library needs its operand as an array of its own."""
    return is_matrix_op(reader.primitive) or (reader.primitive in UPDATES and position == 0)


def find_row_slices(
    program: Program, copied: frozenset[int], materialised: Sequence[bool]
) -> dict[int, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]:
    """Return the slices that are written, and that products with a single row alone read.

    XLA:GPU may make sums of these products, which read slices in place
    (`autoshard.cost.vector_products`). Of each product the dimensions of the slice that it
    contracts, and those that are the slice's own.

    Args:
      program: the step.
      copied: the ops whose results are slices that are written in any case.
      materialised: per value, whether it is written.
    """
    readers = program.consumers()
    found: dict[int, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]] = {}
    for index in sorted(copied | _written_slices(program, materialised)):
        (value,) = program.ops[index].outputs
        uses = [(program.ops[reader], position) for reader, position in readers[value]]
        if all(op.primitive == "dot_general" for op, _ in uses):
            dimensions = [_beside_a_row(op, position) for op, position in uses]
            whole = tuple(dict.fromkeys(one for one in dimensions if one is not None))
            if None not in dimensions:
                found[index] = whole
    return found


def _written_slices(program: Program, materialised: Sequence[bool]) -> frozenset[int]:
    """The ops whose results are written, and that slice, or only renumber what is sliced."""
    sliced, written = set[int](), set[int]()
    for op in program.ops:
        if op.primitive in SLICING or (op.primitive in BITCASTS and op.inputs[0] in sliced):
            sliced.add(op.outputs[0])
            if materialised[op.outputs[0]]:
                written.add(op.index)
    return frozenset(written)


def _beside_a_row(op: Op, position: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Of a product's operand, contracted and own dimensions; None if the other has several rows."""
    groups = operand_groups(op.rule)
    _, own, contracted = groups[position]
    return None if groups[1 - position][1] else (contracted, own)


def find_slices(program: Program, spans: Sequence[tuple[int, int]]) -> dict[int, Slice]:
    stack_of: dict[int, tuple[int, int]] = {}  # (stack, region)
    for op in program.ops:
        if op.primitive == "scan_slice" and op.inputs[0] >= 0:
            stack_of[op.outputs[0]] = op.inputs[0], op.region
        elif op.primitive == "convert_element_type" and op.inputs[0] in stack_of:
            stack, region = stack_of[op.inputs[0]]
            if region == op.region:
                stack_of[op.outputs[0]] = stack, region
    loops: dict[int, list[int]] = {}
    for stack, region in stack_of.values():
        loops.setdefault(stack, []).append(spans[region][0])
    result = {}
    for value, (stack, region) in stack_of.items():
        start, stop = spans[region]
        later = [one for one in loops[stack] if one >= stop]
        result[value] = Slice(stack, start, min(later, default=stop))
    return result
