"""Find the products that should lie by rows, as loops save what is read along with them.

XLA:TPU writes a product whose rows fill the lanes of tiles by columns where a chip's matrix units
are wider than its lanes (v6e, TPU7x), and then what is computed along with it lies so, too. A loop
that saves a product in its forward pass writes the stack by rows all the same, and the backward
loop, which reads it along with a product of the same shape, puts it in order anew in every turn:
Llama-3-8B on v6e-64 that saves gate and up took 0.823 s a step, and takes 0.736 s where both
products lie by rows (JAX 0.12, as compiled; 0.748 s where both lie by columns).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoshard.machine.chip import Chip
from autoshard.program.dim_order import sides
from autoshard.program.graph import Op, Program
from autoshard.program.readers import Reader
from autoshard.program.vocabulary import RESHARDS
from autoshard.xla.in_place import maker_of

_PASSED = frozenset({"reduce_precision", "convert_element_type", "name", *RESHARDS})
"""Around a product that is saved: what JAX puts there, and other types."""


def products_by_rows(
    program: Program,
    elementwise: Sequence[bool],
    readers: Sequence[Sequence[Reader]],
    chip: Chip | None,
) -> frozenset[int]:
    """Return the products, by op index, that should lie by rows: those saved, and those beside.

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
    found = set[int]()
    made = _made_of_saved(program, elementwise)
    for op in program.ops:
        if op.backward and _is_matrix(op):
            result = op.outputs[0]
            beside = (v for use in _uses(program, readers, result) for v in use.inputs)
            saved = {one for v in beside if v != result for one in made.get(v, ())}
            makers = {_maker(program, value) for value in saved}
            products = {one.index for one in makers if one is not None and _is_matrix(one)}
            if products:
                found |= {op.index, *products}
    return frozenset(found)


def _is_matrix(op: Op) -> bool:
    """Whether an op is a product of rows and columns: its last dimension is the right operand's."""
    if op.primitive != "dot_general":
        return False
    batch, left, right = sides(op.rule)
    return not batch and bool(left) and len(right) == 1


def _made_of_saved(program: Program, elementwise: Sequence[bool]) -> dict[int, frozenset[int]]:
    """By what elementwise ops make in backward loops, of which values on stacks they do."""
    found: dict[int, frozenset[int]] = {}
    for op in program.ops:
        if not op.backward:
            continue
        if op.primitive == "scan_slice":
            stack = maker_of(program, op.inputs[0])
            if stack is not None and stack.primitive == "scan_stack" and not stack.backward:
                found[op.outputs[0]] = frozenset(stack.inputs)
        elif elementwise[op.index]:
            made = frozenset().union(*(found.get(value, ()) for value in op.inputs))
            found.update(dict.fromkeys(op.outputs, made))
    return found


def _uses(program: Program, readers: Sequence[Sequence[Reader]], value: int) -> Iterator[Op]:
    """What reads a value, in other types, too."""
    for use in readers[value]:
        op = program.ops[use.op]
        yield op
        if op.primitive in _PASSED:
            yield from _uses(program, readers, op.outputs[0])


def _maker(program: Program, value: int) -> Op | None:
    """The op that makes a value, in other types, too."""
    op = maker_of(program, value)
    while op is not None and op.primitive in _PASSED:
        op = maker_of(program, op.inputs[0])
    return op
