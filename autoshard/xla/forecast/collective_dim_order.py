"""Find the dimension orders that collectives impose on arrays, since they move contiguous blocks.

XLA:GPU gathers and scatters only along the dimension that is major-most (first) in memory. Other
compilers are assumed to do the same unless a habit denies it. So an array that is gathered or
reduce-scattered along another dimension has that dimension first in memory. Elementwise results
inherit its order, or their kernels read the array out of order. An all-to-all splits along the
first dimension.

    g: f32[m, n@x] --all-gather(x)--> g: f32[m, n], n first in memory

A product with a batch reads its operands in the order of their dimensions. One that is gathered
along another dimension than the first is there twice: as gathered, and in order.

Values that cross a loop boundary have the default order of their dimensions. An array gathered
along any dimension but the first is therefore rewritten before the loop.

An in-place update, `w' = w - g`, cannot read `g` out of order while it overwrites `w`. Its result
gets its own buffer and is copied over `w` afterwards. The exception is an array that a loop stacks:
a kernel that updates in place may read it out of order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.decisions import Decisions
from autoshard.plan.strategies_of import ChosenStrategies, copy_readers
from autoshard.program.dim_order import operand_groups, sides
from autoshard.program.layout import local_shape
from autoshard.program.trace import Op
from autoshard.xla.fusion import Fusion

ENTERING = frozenset({"enter", "carry", "scan_slice"})
"""Ops through which a loop reads values from outside."""
JOINING = "gpu.gathers-along-first-dimension", "gpu.gathers-as-it-lies"
"""Habits by which what is gathered has the dimension along which it is gathered first in memory."""


def results_beside(
    prices: StepPrices, decisions: Decisions, fusion: Fusion, chosen: ChosenStrategies
) -> Iterator[int]:
    """Yield the results of a step that do not share a buffer with the inputs that they update.

    Args:
      prices: the prices of the program on a machine.
      decisions: the plan's decisions.
      fusion: the fusion of the program for that machine's chip.
      chosen: the strategies that the decisions give to its ops.
    """
    program, flow = prices.program, prices.dataflow
    first = FirstDimensions(prices, decisions, fusion, chosen)
    kernels: dict[int, list[Op]] = {}
    for op in program.ops:
        if any(flow.materialised[output] for output in op.outputs):
            kernels.setdefault(fusion.joined.get(op.index, op.index), []).append(op)
    for ops in kernels.values():
        results = [v for op in ops for v in op.outputs if not flow.temporary[v]]
        if results and any(first.is_turned(op) for op in ops):
            yield from (v for v in results if flow.materialised[v])


class FirstDimensions:
    """Answers which dimension of a value is first in memory under given decisions."""

    def __init__(
        self, prices: StepPrices, decisions: Decisions, fusion: Fusion, chosen: ChosenStrategies
    ) -> None:
        self.prices, self.decisions = prices, decisions
        self.fusion, self.chosen = fusion, chosen
        self.own = own = prices.machine.chip.compiler
        self._follows_scattered = not own.denies("gpu.made-of-scattered-lies-so")
        self._cuts_first = not own.denies("gpu.all-to-alls-cut-first-dimension")
        self._scatters_first = not own.denies("gpu.scatters-along-first-dimension")
        self._joins_first = not own.denies(*JOINING)
        self._of_value: list[int | None] = []
        self._made_of_gathered: set[int] = set()
        self._served: dict[int, frozenset[tuple[int, int]]] = {}

    def is_turned(self, op: Op) -> bool:
        """Whether an op reads or writes some array in another order than its first result's."""
        if self.decisions.assignment[op.index] is None or not self.fusion.elementwise[op.index]:
            return False
        layout = self.chosen(op).written[0][0].tolist()
        read = [self._of_operand(op, position) for position in range(len(op.inputs))]
        return any(self.is_sent(output) for output in op.outputs) or any(
            one is not None and not self._lies_first(op.outputs[0], one, layout) for one in read
        )

    def is_put_in_order(self, op: Op) -> bool:
        """Whether a loop reads, by `op`, a copy whose dimension order is not the default one."""
        if op.primitive not in ENTERING or not self.own.has("gpu.loop-edges-as-numbered"):
            return False
        if not self._reads_copy(op, 0):
            return False
        value = op.inputs[0]
        found, layout = self._of_copy(value), self.decisions.copy[value]
        assert layout is not None
        return found is not None and not self._lies_first(value, found, layout)

    def read_in_order(self, op: Op) -> Iterator[int]:
        """Yield the positions of gathered operands that a batched product has put in order first.

        With one element of the batch on a device it is a plain product, which reads either order.
        """
        if op.primitive != "dot_general" or not self.own.has("gpu.batches-read-in-order"):
            return
        if self.decisions.assignment[op.index] is None:
            return
        for position, (batch, *_) in enumerate(operand_groups(op.rule)):
            value = op.inputs[position]
            if value < 0 or not self._reads_copy(op, position):
                continue
            found, layout = self._of_copy(value), self.decisions.copy[value]
            assert layout is not None
            shape = self.prices.program.values[value].shape
            sizes = local_shape(shape, layout, self.prices.mesh_shape)
            several = any(sizes[dimension] > 1 for dimension in batch)
            if several and found is not None and not self._lies_first(value, found, layout):
                yield position

    def is_scattered_otherwise(self, op: Op) -> bool:
        """Whether a product is reduce-scattered along a dimension that it cannot write first.

        Without batch dimensions, the product can write the dimensions of either operand first, in
        their own order. With a batch this is an upper bound: XLA:GPU was not seen to rewrite a
        batched product.
        """
        if not self.own.has("gpu.inner-rows-copied-for-scatters"):
            return False
        if self.decisions.assignment[op.index] is None:
            return False
        value, found = op.outputs[0], self._scattered(op, op.outputs[0])
        if found is None:
            return False
        batch, left, right = sides(op.rule)
        before = *batch, *(d for d in (left if found in left else right) if d < found)
        layout = tuple(self.chosen(op).written[0][0].tolist())
        sizes = local_shape(self.prices.program.values[value].shape, layout, self.prices.mesh_shape)
        return any(sizes[dimension] > 1 for dimension in before)

    def is_stacked_otherwise(self, value: int) -> bool:
        """Whether a slice of a stack is read in another order than a loop wrote the stack in.

        The slice is read in the order of the other operands of its elementwise reader. A compiler
        whose loops do not keep their edges as numbered has the first loop write in that order.
        """
        if not all(map(self.own.has, ("gpu.stacked-out-of-order", "gpu.loop-edges-as-numbered"))):
            return False
        program = self.prices.program
        stack = program.values[self.prices.dataflow.slices[value].stack]
        if stack.producer < 0 or program.ops[stack.producer].primitive != "scan_stack":
            return False
        written = self._of_read(program.ops[stack.producer], 0)
        return any(
            found != written
            for use in self.prices.dataflow.readers[value]
            if self.fusion.elementwise[use.op]
            for found in self._of_others(program.ops[use.op], use.position)
        )

    def _of_others(self, op: Op, position: int) -> Iterator[int]:
        """Yield the dimensions that are first in memory in an elementwise op's other operands."""
        if self.decisions.assignment[op.index] is None:
            return
        layout = self.chosen(op).written[0][0].tolist()
        for other in range(len(op.inputs)):
            found = self._of_operand(op, other) if other != position else None
            if found is not None and not self._lies_first(op.outputs[0], found, layout):
                yield found

    def _of_read(self, op: Op, position: int) -> int | None:
        """Return the first dimension of an op's operand; for a carry, that of its next value."""
        value = op.inputs[position]
        if self._reads_copy(op, position):
            return self._of_copy(value)
        ops = self.prices.program.ops
        maker = ops[self.prices.program.values[value].producer]
        if maker.primitive != "carry":
            return self._of(value)
        region = [other for other in ops if other.region == maker.region]
        carries = [other.index for other in region if other.primitive == "carry"]
        yields = [other for other in region if other.primitive == "yield"]
        last = yields[carries.index(maker.index)]
        value = last.inputs[0]
        return self._of_copy(value) if self._reads_copy(last, 0) else self._of(value)

    def _of_operand(self, op: Op, position: int) -> int | None:
        """Return the dimension of the result of `op` that is first in memory in an operand."""
        value = op.inputs[position]
        if value < 0:
            return None
        found = self._of_copy(value) if self._reads_copy(op, position) else self._of(value)
        if found is None:
            return None
        factors = op.rule.operands[position][found]
        for dimension, holds in enumerate(op.rule.results[0]):
            if not set(holds).isdisjoint(factors):
                return dimension
        return None

    def _of(self, value: int) -> int | None:
        """Return the first dimension of a value, found for all before it too: they come first."""
        for one in range(len(self._of_value), value + 1):
            self._of_value.append(self._found(one))
        return self._of_value[value]

    def _found(self, value: int) -> int | None:
        program = self.prices.program
        producer = program.values[value].producer
        if producer < 0 or self.decisions.assignment[producer] is None:
            return None
        op = program.ops[producer]
        if self.chosen(op).scattered[0]:
            return self._scattered(op, value)
        if self.fusion.elementwise[producer]:
            for position in range(len(op.inputs)):
                found = self._of_operand(op, position)
                if found is not None and self._follows(op, position):
                    return found
        return None

    def _follows(self, op: Op, position: int) -> bool:
        """Whether the result of an elementwise op lies as this operand, whose order is not its own.

        What a kernel makes of a gathered array and reads itself lies nowhere: it is read as that
        lies. What it writes has the default order. What is made of something else that lies
        otherwise was judged with that.
        """
        value = op.inputs[position]
        if self._reads_copy(op, position) or value in self._made_of_gathered:
            if any(self.prices.dataflow.materialised[output] for output in op.outputs):
                return False
            self._made_of_gathered.update(op.outputs)
            return True
        maker = self.prices.program.ops[self.prices.program.values[value].producer]
        return self._follows_scattered or not self.chosen(maker).scattered[0]

    def _scattered(self, op: Op, value: int) -> int | None:
        """Return the dimension along which the partial sums of `op` are reduce-scattered."""
        strategy = self.chosen(op)
        if not strategy.scattered[0] or not self._scatters_first:
            return None
        number = op.outputs.index(value)
        written, stored = (s[number][0] for s in (strategy.written, strategy.stored))
        onto = {int(d) for d in stored[written != stored] if d >= 0}
        return onto.pop() if len(onto) == 1 else None

    def _of_copy(self, value: int) -> int | None:
        stored, copy = self.decisions.stored[value], self.decisions.copy[value]
        assert stored is not None
        assert copy is not None
        for step in reversed(self.prices.reshard(value).steps(stored, copy)):
            if step.kind == "all_gather" and self._joins_first:
                states = zip(step.from_state, step.to_state, strict=True)
                joined = [d for d, (before, after) in enumerate(states) if len(before) > len(after)]
                return joined[0] if len(joined) == 1 else None
        return None

    def is_sent(self, value: int) -> bool:
        """Whether a collective sends blocks of a value that are not contiguous in memory."""
        stored, copy = self.decisions.stored[value], self.decisions.copy[value]
        if stored is None or copy is None or not self._cuts_first:
            return False
        for step in self.prices.reshard(value).steps(stored, copy):
            if step.kind == "all_to_all":
                states = zip(step.from_state, step.to_state, strict=True)
                cut = [d for d, (before, after) in enumerate(states) if len(before) < len(after)]
                return not all(self._lies_first(value, d, stored) for d in cut)
        return False

    def _lies_first(self, value: int, dimension: int, layout: Sequence[int]) -> bool:
        """Whether only dimensions of size 1 precede a dimension of the value."""
        shape = self.prices.program.values[value].shape
        sizes = local_shape(shape, tuple(layout), self.prices.mesh_shape)
        return all(size == 1 for size in sizes[:dimension])

    def _reads_copy(self, op: Op, position: int) -> bool:
        value = op.inputs[position]
        if self.decisions.copy[value] is None:
            return False
        if value not in self._served:
            readers = self.prices.dataflow.readers[value]
            ops = self.prices.program.ops
            found = copy_readers(readers, ops, self.chosen, self.decisions)
            self._served[value] = frozenset((use.op, use.position) for use in found)
        return (op.index, position) in self._served[value]
