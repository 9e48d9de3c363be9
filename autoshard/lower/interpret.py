"""Run a traced step again with its plan written into it.

The jaxpr is walked over (`autoshard.lower.walk`), into calls (`autoshard.lower.calls`) and regions
(`autoshard.lower.regions`), and every array is laid out as planned
(`autoshard.lower.planned_arrays`). An op's operands and results then always agree with its
strategy, and nothing is left to propagation but the inner values of an equation, and values whose
layout follows from those around (`autoshard.lower.implied`). Products are computed in the plan's
orders (`autoshard.program.dim_order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from autoshard import compat
from autoshard.lower.calls import Calls
from autoshard.lower.kernels.attention import opaque_attention
from autoshard.lower.kernels.run import opaque_kernel
from autoshard.lower.local import run_in_parts
from autoshard.lower.looked_up import (
    bind_looked_up,
    one_place,
    settled_gather,
    starts_within,
)
from autoshard.lower.partitioner import runs_in_parts
from autoshard.lower.parts.cut import Cut, LoweringError
from autoshard.lower.parts.in_parts import in_parts
from autoshard.lower.parts.manual import Devices
from autoshard.lower.parts.transforms import bind_equation
from autoshard.lower.planned_arrays import nothing_of
from autoshard.lower.products import product_in_order
from autoshard.lower.regions import Regions
from autoshard.lower.terms import terms_of_product
from autoshard.program.dim_order import ProductOrder, operand_groups
from autoshard.program.flatten import makes_nothing, name_of_op
from autoshard.program.layout import local_shape
from autoshard.program.trace import Op
from autoshard.program.vocabulary import (
    BARRIER,
    CALLS_PYTHON,
    FREE_PRIMITIVES,
    INLINED,
    RESHARDS,
    UNCUT,
)

_CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})
_REMAT = frozenset({"remat", "remat2", "checkpoint"})
_DECIDED = frozenset({"shard_alike", *RESHARDS})


class Interpreter(Calls, Regions):
    """One re-trace of a program under decisions; make a new one for every trace."""

    def _equation(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        name = equation.primitive.name
        if name in _REMAT:
            return self._remat(equation, operands)
        if name in _CUSTOM:
            return self._custom(equation, operands)
        if name in INLINED:
            return self._call(equation, operands)
        if name == "scan":
            return self._scan(equation, operands)
        if name == "while":
            return self._while(equation, operands)
        if name == "cond":
            return self._cond(equation, operands)
        if name == BARRIER:
            ops, arrays = self._enter([name] * len(operands), operands)
            behind = compat.bind_equation(equation, arrays)
            pairs = zip(ops, behind, strict=True)
            return [(self._write(op, [array])[0], op.outputs[0]) for op, array in pairs]
        op = self._next(name_of_op(equation))
        self._check_whole(op)
        arrays = [self._read(op, k, array) for k, (array, _) in enumerate(operands)]
        if makes_nothing(equation):
            results = [nothing_of(var) for var in equation.outvars]
        elif name in _DECIDED:  # what it asks for, the plan has decided
            results = arrays
        else:
            if name == "dynamic_slice" and self._is_cut(op.outputs[0]):
                arrays = starts_within(equation, arrays)
            results = self._bind(equation, op, arrays)
            if op.index in self.row_major:
                results = [*map(compat.by_rows, results)]
        if self.decisions.assignment[op.index] is None:
            for number, value in enumerate(op.outputs):
                self.recipes[value] = equation, operands, number
        return list(zip(self._write(op, results), op.outputs, strict=True))

    def _check_whole(self, op: Op) -> None:
        """Refuse to shard what the compiler would run whole on every device."""
        assigned = self.decisions.assignment[op.index] or ()
        factors = op.rule.factors
        cut = [f"{self.names[a]} on {factors[k].name}" for a, k in enumerate(assigned) if k >= 0]
        if op.primitive in UNCUT and cut:
            raise LoweringError(
                f"{op} is sharded by the plan ({', '.join(cut)}), but it cannot be looked into and "
                "stays whole: search for a plan again, or wrap the kernel in "
                "jax.experimental.custom_partitioning, whose rule is then used"
            )

    def _bind(self, equation: Any, op: Op, arrays: Sequence[Any]) -> list[Any]:
        """The results of an equation that holds no other ones."""
        left = self._left_partial(op) if equation.primitive.name == "dot_general" else []
        if left:
            assigned = self.decisions.assignment[op.index]
            assert assigned is not None
            sizes = tuple(self.mesh.shape[name] for name in self.names)
            return [
                terms_of_product(equation, arrays, op.rule, assigned, left, sizes, self._lay_out)
            ]
        assigned = self.decisions.assignment[op.index]
        along = frozenset(self._reads(op, 0)) - {-1} if assigned and op.inputs else frozenset()
        if along & one_place(equation) or runs_in_parts(equation):
            cut = self._cut(op)
            kernel = equation.primitive.name in (*compat.KERNELS, compat.RULED)
            if cut is not None and (kernel or cut.partial or not cut.is_whole):
                return run_in_parts(equation, arrays, cut, self.mesh)
        if op.index in self.product_orders:
            told, settle = self.product_orders[op.index], self._settling(op)
            kept = self._undone(op, told)
            return [product_in_order(equation, arrays, told, kept=kept, settle=settle)]
        if op.primitive == "gather":
            settle = self._settling(op)
            if settle is not None:
                return [settled_gather(equation, arrays, settle)]
        found = bind_looked_up(equation, arrays, along)
        return bind_equation(equation, arrays) if found is None else found

    def _left_partial(self, op: Op) -> list[int]:
        """The axes over which a product has to keep its terms: it stays unreduced over them, or is
        settled over them in a second step."""
        if self.decisions.assignment[op.index] is None:
            return []
        strategy = self.chosen(op)
        due = strategy.reduced & (strategy.in_steps[0] or strategy.pending[0])
        return np.flatnonzero((due & ~strategy.onto)[0]).tolist()

    def _is_cut(self, value: int) -> bool:
        """Whether a value, or what cheap ops make of it, is stored or copied in parts."""
        seen, pending = {value}, [value]
        while pending:
            one = pending.pop()
            layouts = self.decisions.stored[one], self.decisions.copy[one]
            if any(d >= 0 for layout in layouts for d in layout or ()):
                return True
            ops = [self.program.ops[use.op] for use in self.readers[one]]
            made = {o for op in ops if op.primitive in FREE_PRIMITIVES for o in op.outputs}
            pending += made - seen
            seen |= made
        return False

    def _cut(self, op: Op) -> Cut | None:
        """How the plan cuts an op; None for what is computed wherever it is read."""
        if self.decisions.assignment[op.index] is None:
            return None
        strategy = self.chosen(op)
        reads, written = (
            tuple(tuple(layout[0].tolist()) for layout in side)
            for side in (strategy.reads, strategy.written)
        )
        partial = tuple(axis for axis, summed in enumerate(strategy.reduced[0]) if summed)
        shapes = tuple(self.program.values[value].shape for value in op.outputs)
        devices = Devices(self.names, tuple(self.mesh.shape[name] for name in self.names))
        assigned = tuple(strategy.assignment[0].tolist())
        return Cut(op, reads, written, partial, shapes, devices, assigned)

    def _undone(self, op: Op, told: ProductOrder) -> bool:
        """Whether XLA would undo the order in which a product is told to be computed.

        Where all batches but the first are cut to one element, putting the result in order is
        exchanging two dimensions, for which XLA exchanges the operands. A large one is transposed
        then, as gradients of keys were that were gathered by sequence afterwards. Partial sums are
        settled in between, which a barrier would only hinder.
        """
        stored = self.decisions.stored[op.outputs[0]]
        if stored is None or told.result == tuple(range(len(told.result))):
            return False
        if self.chosen(op).reduced[0].any():
            return False
        sizes = tuple(self.mesh.shape[name] for name in self.names)
        local = local_shape(self.program.values[op.outputs[0]].shape, stored, sizes)
        batch = len(operand_groups(op.rule)[0][0])
        return all(size == 1 for size in local[1:batch])


class Readable(Interpreter):
    """The same with an opaque call in place of each of Python and of each kernel.

    It can be lowered for a platform that has no device here, and that has no such kernels.
    """

    def _bind(self, equation: Any, op: Op, arrays: Sequence[Any]) -> list[Any]:
        if op.primitive in (*compat.KERNELS, compat.RULED):
            cut = self._cut(op)
            assert cut is not None
            return in_parts(partial(_opaque, equation, cut), arrays, cut, self.mesh)
        if op.primitive not in CALLS_PYTHON:
            return super()._bind(equation, op, arrays)
        shapes = [compat.shape_struct(var.aval) for var in equation.outvars]
        return list(jax.ffi.ffi_call(op.primitive, shapes, has_side_effect=True)(*arrays))


def _opaque(equation: Any, cut: Cut, *parts: Any) -> Sequence[Any]:
    """A kernel on one device's parts, of which nothing but its shapes can be seen."""
    name, avals = equation.primitive.name, [var.aval for var in equation.outvars]
    if name in compat.FUSED_ATTENTION:
        return opaque_attention(equation, parts, cut)
    if name == compat.PALLAS:
        return opaque_kernel(equation, parts, cut)
    shapes = list(map(compat.shape_struct, avals, cut.local_results))
    return jax.ffi.ffi_call(name, shapes)(*parts)
