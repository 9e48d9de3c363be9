"""Find row reductions that run inside the kernels that read them.

    m[i] = max over j of x[i, j]
    s[i] = sum over j of exp(x[i, j] - m[i])
    y[i, j] = exp(x[i, j] - m[i]) / s[i]

Where the elements of a row are contiguous in memory, XLA:GPU fuses the three into one Triton
kernel. The kernel loads a row, reduces it, and continues with the row on chip. So a softmax or a
norm reads its operand once. A reduction is a kernel of its own if something else reads its result
as well, or if its rows are sharded over devices. So are reductions along columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

from autoshard.machine.compiler import Compiler
from autoshard.program.dim_order import Order, large_of
from autoshard.program.graph import Op, Program
from autoshard.program.rules.record import FactorKind
from autoshard.xla.fusion import FUSING_REDUCTIONS, Fusion


@dataclass(frozen=True, slots=True)
class RowRules:
    """Which reductions run inside their readers. Each field is a habit of a compiler.

    Attributes:
      softmaxes, norms: reductions of softmaxes, and all other reductions.
      beside_others: also reductions with another reader that is not a kernel over the rows.
      columns: also reductions along a dimension other than the innermost.
    """

    softmaxes: bool
    norms: bool
    beside_others: bool
    columns: bool

    @classmethod
    def of(cls, compiler: Compiler) -> RowRules:
        return cls(
            softmaxes=compiler.has("gpu.softmax-in-one-kernel"),
            norms=compiler.has("gpu.norm-in-one-kernel"),
            beside_others=compiler.denies("gpu.rows-read-elsewhere-alone"),
            columns=compiler.denies("gpu.columns-in-several-kernels"),
        )


def row_reductions(
    program: Program, fusion: Fusion, orders: Sequence[Sequence[Order]], rules: RowRules
) -> frozenset[int]:
    """Return the reductions that run inside their readers, as long as their rows are not sharded.

    Args:
      program: the step.
      fusion: the fusion of the program.
      orders: per value, the orders in which it is available, its own first; empty if any order.
      rules: the compiler's rules.
    """
    return _Rows(program, fusion, orders, rules).run()


@dataclass(frozen=True, slots=True)
class _Rows:
    program: Program
    fusion: Fusion
    orders: Sequence[Sequence[Order]]
    rules: RowRules

    def run(self) -> frozenset[int]:
        readers = self.program.consumers()
        reducing = {op.index for op in self.program.ops if self._reduces_rows(op)}
        return frozenset(
            index
            for index in reducing
            if self._runs_inside(self.program.ops[index], readers, reducing)
        )

    def _runs_inside(
        self, op: Op, readers: Sequence[Sequence[tuple[int, int]]], reducing: Set[int]
    ) -> bool:
        sources = {v for v in self._sources(op) if not self._is_scalar(v, op)}
        kernels = self._kernels(op, readers) or ()
        over_rows = [
            self._has_rows(kernel, op, reducing) and sources <= self._sources(kernel)
            for kernel in kernels
        ]
        return any(over_rows) and (all(over_rows) or self.rules.beside_others)

    def _reduces(self, op: Op) -> bool:
        """Whether an op is a reduction over more than one element."""
        if op.primitive not in FUSING_REDUCTIONS or op.inputs[0] < 0:
            return False
        before, after = (self.program.values[v] for v in (op.inputs[0], op.outputs[0]))
        return math.prod(before.shape) > math.prod(after.shape)

    def _reduces_rows(self, op: Op) -> bool:
        """Whether an op reduces only the innermost dimension, and leaves other dimensions.

        The compiler's rules may allow any dimension, and may allow only softmaxes or only norms.
        """
        if not (self.rules.softmaxes if self._is_of_softmax(op) else self.rules.norms):
            return False
        if not self._reduces(op) or math.prod(self.program.values[op.outputs[0]].shape) == 1:
            return False
        value = self.program.values[op.inputs[0]]
        reduced = {
            d
            for d, dimension in enumerate(op.rule.operands[0])
            if any(op.rule.factors[f].kind is FactorKind.REDUCE for f in dimension)
        }
        order = next(iter(self.orders[value.index]), tuple(range(len(value.shape))))
        lying = large_of(order, value.shape)
        return self.rules.columns or reduced & {*lying} == {lying[-1]}

    def _is_of_softmax(self, op: Op) -> bool:
        """Whether an op takes a maximum, or sums exponentials."""
        value = op.inputs[0] if op.primitive == "reduce_sum" else -1
        while value >= 0 and self.program.values[value].producer >= 0:
            maker = self.program.ops[self.program.values[value].producer]
            if maker.primitive != "convert_element_type":
                return maker.primitive == "exp"
            value = maker.inputs[0]
        return op.primitive == "reduce_max"

    def _sources(self, op: Op) -> frozenset[int]:
        return frozenset[int]().union(*(self.fusion.sources[v] for v in op.inputs if v >= 0))

    def _kernels(self, op: Op, readers: Sequence[Sequence[tuple[int, int]]]) -> list[Op] | None:
        """Return the ops that write what depends on `op`; None if one of them cannot be fused.

        A result with one element per row is computed inside the kernels that read it.
        """
        found: dict[int, Op] = {}
        waiting = list(op.outputs)
        while waiting:
            for index, _ in readers[waiting.pop()]:
                reader = self.program.ops[index]
                reduces = self._reduces(reader)
                fuses = (
                    reduces
                    or self.fusion.elementwise[index]
                    or reader.primitive in FUSING_REDUCTIONS
                )
                if reader.region != op.region or not fuses:
                    if self.rules.beside_others:
                        continue
                    return None
                if index in found:
                    continue
                found[index] = reader
                if not reduces:
                    waiting += [o for o in reader.outputs if self._is_within(o, op)]
        written = (
            one
            for one in found.values()
            if self._reduces(one) or not all(self._is_within(o, op) for o in one.outputs)
        )
        return list(written)

    def _is_within(self, value: int, op: Op) -> bool:
        """Whether a value that depends on `op` is computed inside its readers."""
        return not self.fusion.materialised[value] or self._is_scalar(value, op)

    def _is_scalar(self, value: int, op: Op) -> bool:
        """Whether a value has at most one element for each row that `op` reduces."""
        one, rows = self.program.values[value], self.program.values[op.outputs[0]]
        return math.prod(one.shape) <= math.prod(rows.shape)

    def _has_rows(self, kernel: Op, op: Op, reducing: Set[int]) -> bool:
        """Whether a kernel iterates over the rows that `op` reduces, in any order of writing."""
        if self._reduces(kernel):
            values = kernel.inputs[:1] if kernel.index in reducing else ()
        else:
            values = kernel.outputs
        rows = sorted(self.program.values[op.inputs[0]].shape)
        shapes = [self.program.values[value].shape for value in values]
        return bool(shapes) and all(sorted(shape) == rows for shape in shapes)
