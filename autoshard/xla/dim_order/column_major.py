"""Find the products that a backward pass reads by columns, and that should be written so.

XLA:TPU writes a product whose rows fill the lanes of tiles by columns where a chip's matrix units
are wider than its lanes (v6e, TPU7x), and then what is computed along with it lies so, too. A loop
that saves a product in its forward pass writes the stack by rows all the same, and the backward
loop, which reads it along with a product of the same shape, puts it in order anew in every turn:
Llama-3-8B on v6e-64 that saves gate and up took 0.823 s a step, and takes 0.748 s where both lie by
columns from the start (JAX 0.12, as compiled). Where rows are summed along with it, as for the
gradient of a bias, the backward loop has rows: ViT-L/16 with 256 positions would lose 3 %.

What a product makes of its rows and columns is asked for alone, not what elementwise ops make of
it: whose readers are products, as of what enters the next one, gain nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.machine.chip import Chip
from autoshard.program.dim_order import has_columns
from autoshard.program.graph import Op, Program
from autoshard.program.readers import Reader
from autoshard.program.vocabulary import RESHARDS

_PASSED = frozenset({"reduce_precision", "convert_element_type", "name", *RESHARDS})
"""Between a product and the stack of it: what JAX puts around saved values, and narrower types."""


def saved_products(
    program: Program,
    elementwise: Sequence[bool],
    readers: Sequence[Sequence[Reader]],
    chip: Chip | None,
) -> frozenset[int]:
    """Return the products, by op index, whose results should lie by columns where rows fill lanes.

    Args:
      program: the step.
      elementwise: per op, whether it is elementwise.
      readers: of every value.
      chip: that it runs on; there are none without one.
    """
    if chip is None or chip.matrix_side <= chip.lanes:
        return frozenset()
    if not chip.compiler.has("tpu.wide-units-write-columns"):
        return frozenset()
    ends_at_sums = chip.compiler.has("tpu.columns-end-at-sums-of-rows")

    def read(value: int) -> list[Op]:
        return [program.ops[use.op] for use in readers[value]]

    def is_read_so(product: Op) -> bool:
        """Whether backward loops alone read its stack, elementwise and in products."""
        there = read(product.outputs[0])
        while passed := [one for one in there if one.primitive in _PASSED]:
            there = [one for one in there if one.primitive not in _PASSED]
            there += [reader for one in passed for reader in read(one.outputs[0])]
        stacks = [one for one in there if one.primitive == "scan_stack"]
        slices = [one for stack in stacks for one in read(stack.outputs[0])]
        if not all(one.primitive == "scan_slice" and one.backward for one in slices):
            return False
        uses = [use for one in slices for use in read(one.outputs[0])]
        beside = [use for use in uses if elementwise[use.index]]
        others = [use for use in uses if not elementwise[use.index]]
        if not beside or any(use.primitive != "dot_general" for use in others):
            return False
        return not ends_at_sums or not is_summed(beside)

    def is_summed(ops: list[Op]) -> bool:
        """Whether something sums what elementwise ops make, one after another."""
        todo, seen = list(ops), {op.index for op in ops}
        while todo:
            after = [use for value in todo.pop().outputs for use in read(value)]
            if any(use.primitive.startswith("reduce_") for use in after):
                return True
            todo += [use for use in after if elementwise[use.index] and use.index not in seen]
            seen.update(use.index for use in after)
        return False

    products = (op for op in program.ops if op.primitive == "dot_general" and not op.backward)
    return frozenset(op.index for op in products if has_columns(op.rule) and is_read_so(op))
