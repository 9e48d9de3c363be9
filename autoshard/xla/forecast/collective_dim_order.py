"""Which arrays lie in memory in an order of their own, since collectives move whole blocks.

XLA:GPU gathers and scatters along the dimension that lies first in memory, and no other; other
compilers are taken to do so, too, unless it is denied. An array that is gathered (or scattered)
along another dimension lies with that dimension first, and what is made of it element by element
lies so, too, or reads it out of order. All-to-alls cut along the first dimension, and join along a
new one before it.

    g: f32[m, n@x] --all-gather(x)--> g: f32[m, n], n first in memory

What crosses the edge of a loop lies in the order of its dimensions: what is gathered along another
than the first one is written once more before the loop.

An update in place, `w' = w - g`, cannot read `g` out of order and write over `w` what it reads
there: its result lies beside `w`, and is copied into its place afterwards. But what a loop stacks
is read out of order by a kernel that updates in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.decisions import Decisions
from autoshard.plan.strategies_of import ChosenStrategies, copy_readers
from autoshard.program.dim_order import sides
from autoshard.program.layout import local_shape
from autoshard.program.trace import Op
from autoshard.xla.fusion import Fusion

ENTERING = frozenset({"enter", "carry", "unstack"})
"""Ops of a loop that read what stands before it."""
JOINING = {
    "all_gather": ("gpu.gathers-along-first-dimension", "gpu.gathers-as-it-lies"),
    "all_to_all": ("gpu.all-to-alls-join-apart",),
}
"""Collectives whose result lies with the dimension first that they join, by these habits."""


def results_beside(
    prices: StepPrices, decisions: Decisions, fusion: Fusion, chosen: ChosenStrategies
) -> Iterator[int]:
    """The results of a step that do not lie where the inputs lie that they renew.

    Args:
      prices: of the program on a machine.
      decisions: with the strategies that they give to its ops, `chosen`.
      fusion: of the program, for that machine's chip.
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
    """The dimensions that lie first in memory under some decisions."""

    def __init__(
        self, prices: StepPrices, decisions: Decisions, fusion: Fusion, chosen: ChosenStrategies
    ) -> None:
        self.prices, self.decisions = prices, decisions
        self.fusion, self.chosen = fusion, chosen
        self.own = own = prices.machine.chip.compiler
        self._follows = not own.denies("gpu.made-of-gathered-lies-so")
        self._cuts_first = not own.denies("gpu.all-to-alls-cut-first-dimension")
        self._scatters_first = not own.denies("gpu.scatters-along-first-dimension")
        self._joining = {kind for kind, habits in JOINING.items() if not own.denies(*habits)}
        self._of_value: dict[int, int | None] = {}
        self._served: dict[int, frozenset[tuple[int, int]]] = {}

    def is_turned(self, op: Op) -> bool:
        """Whether an op reads or writes one array in another order than it writes its first."""
        if self.decisions.assignment[op.index] is None or not self.fusion.elementwise[op.index]:
            return False
        layout = self.chosen(op).written[0][0].tolist()
        read = [self._of_operand(op, position) for position in range(len(op.inputs))]
        return any(self.is_sent(output) for output in op.outputs) or any(
            one is not None and not self._lies_first(op.outputs[0], one, layout) for one in read
        )

    def is_put_in_order(self, op: Op) -> bool:
        """Whether a loop reads by `op` the copy of a value that lies in another order."""
        if op.primitive not in ENTERING or not self.own.has("gpu.loop-edges-as-numbered"):
            return False
        if not self._reads_copy(op, 0):
            return False
        value = op.inputs[0]
        found, layout = self._of_copy(value), self.decisions.copy[value]
        assert layout is not None
        return found is not None and not self._lies_first(value, found, layout)

    def is_scattered_otherwise(self, op: Op) -> bool:
        """Whether partial sums of a product are scattered along a dimension that cannot lie first.

        The dimensions of either operand may, in their order, if there is no batch before them. With
        a batch this is an upper bound: XLA:GPU was seen to write no batched product once more.
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
        """Whether a slice of a stack is read in another order than a loop has written the stack in.

        It is read in the order of what it is put together with element by element.
        """
        if not self.own.has("gpu.stacked-out-of-order"):
            return False
        program = self.prices.program
        stack = program.values[self.prices.dataflow.slices[value].stack]
        if stack.producer < 0 or program.ops[stack.producer].primitive != "stack":
            return False
        written = self._of_read(program.ops[stack.producer], 0)
        return any(
            found != written
            for use in self.prices.dataflow.readers[value]
            if self.fusion.elementwise[use.op]
            for found in self._of_others(program.ops[use.op], use.position)
        )

    def _of_others(self, op: Op, position: int) -> Iterator[int]:
        """The dimensions that come first in the other operands of an elementwise op."""
        if self.decisions.assignment[op.index] is None:
            return
        layout = self.chosen(op).written[0][0].tolist()
        for other in range(len(op.inputs)):
            found = self._of_operand(op, other) if other != position else None
            if found is not None and not self._lies_first(op.outputs[0], found, layout):
                yield found

    def _of_read(self, op: Op, position: int) -> int | None:
        """The dimension that lies first in what an op reads; of a carry that of what it becomes."""
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
        """The dimension of the result of `op` that lies first in an operand."""
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
        if value not in self._of_value:
            self._of_value[value] = None  # of what a loop carries to itself nothing is known
            self._of_value[value] = self._found(value)
        return self._of_value[value]

    def _found(self, value: int) -> int | None:
        program = self.prices.program
        producer = program.values[value].producer
        if producer < 0 or self.decisions.assignment[producer] is None:
            return None
        op = program.ops[producer]
        if self.chosen(op).scattered[0]:
            return self._scattered(op, value)
        if self.fusion.elementwise[producer] and self._follows:
            for position in range(len(op.inputs)):
                if (found := self._of_operand(op, position)) is not None:
                    return found
        return None

    def _scattered(self, op: Op, value: int) -> int | None:
        """The dimension of a result of `op` onto which its partial sums are scattered."""
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
            if step.kind in self._joining:
                states = zip(step.from_state, step.to_state, strict=True)
                joined = [d for d, (before, after) in enumerate(states) if len(before) > len(after)]
                return joined[0] if len(joined) == 1 else None
        return None

    def is_sent(self, value: int) -> bool:
        """Whether blocks of a value are sent that do not lie one after another in memory."""
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
        """Whether no larger dimension of the value stands before one of its dimensions."""
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
