"""The arrays of a step that is run again, each in the layout that its plan says.

Every result is constrained to the layout in which the plan stores it, unless that follows from its
neighbours and would only be in the way (`autoshard.lower.implied`); a partial sum first to the
layout in which the op writes it, so that the step between the two is the planned all-reduce or
reduce-scatter; every resharded copy is made through the states of its planned sequence of
collectives.

Free values (of constants and iotas alone) are left to Shardy, which splits them as their readers
need them, but not where they cross the edge of a region: inside they are computed again, and only
what cannot be (a slice of a scanned constant) crosses whole.

A copy starts from a constraint of its own: XLA's partitioner remembers how it has resharded each
instruction, and what it tried for a product (the operand gathered whole) it would cut in place of
the planned exchange. A copy that is made anew for the backward pass starts from an
`optimization_barrier`, too, because equal reshards of one value would be merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from autoshard import compat
from autoshard.lower.equal_ops import constraints_apart
from autoshard.lower.implied import implied_values
from autoshard.lower.terms import add_up
from autoshard.plan.copies import ANEW, VISIBLE
from autoshard.plan.decisions import Decisions
from autoshard.plan.plan import Plan
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.flatten import makes_nothing
from autoshard.program.layout import UNREDUCED, Layout, to_partition_spec
from autoshard.program.readers import Phase, Reader, readers_in_program_order
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op, Program
from autoshard.program.vocabulary import SCATTERS

_INDEXED = frozenset({"gather", *SCATTERS})

Recipe = tuple[Any, list[tuple[Any, int]], int]
"""How a free value is computed: an equation, its operands as (array, value), and which result."""


class PlannedArrays:
    """What a re-trace of a program under decisions has computed so far."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        mesh: Any,
        readers: Sequence[Sequence[Reader]] | None = None,
    ) -> None:
        self.program = program
        self.decisions: Decisions = plan.decisions
        self.product_orders = plan.product_orders
        self.row_major = frozenset(plan.row_major)
        self.reshards = {(r.shape, r.itemsize, r.before, r.after): r.states for r in plan.reshards}
        self.mesh = mesh
        self.chosen = ChosenStrategies(plan.decisions, plan.mesh.sizes)
        self.names = plan.mesh.names
        self.arrays: dict[int, Any] = {}
        self.copies: dict[tuple[int, bool], Any] = {}
        self.fixed: set[int] = set()
        self.recipes: dict[int, Recipe] = {}
        self.settled: set[int] = set()
        self.cursor = 0
        known = readers_in_program_order(program) if readers is None else readers
        self.readers = known
        self.implied = implied_values(program, self.decisions, self.chosen, self.readers)
        self.apart = constraints_apart(program, self.decisions, self.chosen)
        self._phases = {(use.op, use.position): use.phase for uses in self.readers for use in uses}
        self._specs: dict[tuple[Layout, int], NamedSharding] = {}

    def _next(self, primitive: str) -> Op:
        op = self.program.ops[self.cursor]
        if op.primitive != primitive:
            raise AssertionError(f"op {self.cursor} is {op.primitive}, the walk met {primitive}")
        self.cursor += 1
        return op

    def _sharding(self, layout: Layout, rank: int) -> NamedSharding:
        key = (layout, rank)
        if key not in self._specs:
            terms = [self.names[axis] for axis, d in enumerate(layout) if d == UNREDUCED]
            spec = to_partition_spec(layout, self.names, rank - len(terms))
            self._specs[key] = NamedSharding(self.mesh, PartitionSpec(*terms, *spec))
        return self._specs[key]

    def _constrain(self, array: Any, layout: Layout) -> Any:
        if array.ndim == 0:
            return array
        return jax.lax.with_sharding_constraint(array, self._sharding(layout, array.ndim))

    def _lay_out(self, array: Any, state: Sequence[Sequence[int]]) -> Any:
        """`array` with every dimension sharded by its axes, major first."""
        entries = [tuple(self.names[axis] for axis in axes) or None for axes in state]
        return jax.lax.with_sharding_constraint(
            array, NamedSharding(self.mesh, PartitionSpec(*entries))
        )

    def _read(self, op: Op, position: int, literal: Any) -> Any:
        """Operand `position` of `op` in the layout that the op's strategy reads."""
        value = op.inputs[position]
        if value < 0:
            return literal
        array = self.arrays.get(value, literal)
        if self.decisions.assignment[op.index] is None:
            return array
        if self.decisions.stored[value] is None:
            if value not in self.fixed and not self._is_summed(op, position):
                return array
            return self._constrain(array, self._reads(op, position))
        if self._reads_copy(op, position):
            phase = self._phases[op.index, position]
            array = self._copy(value, array, anew=self._is_anew(value, phase))
        for _ in range(self.apart.get((op.index, position), 0)):
            array = self._constrain(array, self._reads(op, position))
        return array

    def _is_summed(self, op: Op, position: int) -> bool:
        """Whether an operand is cut along what `op` sums over, as its partial results need it."""
        if op.boundary:
            return False
        summed = self.chosen(op).reduced[0]
        return any(cut >= 0 and summed[k] for k, cut in enumerate(self._reads(op, position)))

    def _reads_copy(self, op: Op, position: int) -> bool:
        value = op.inputs[position]
        copy, phase = self.decisions.copy[value], self._phases[op.index, position]
        if copy is None or not self.decisions.mode[value] & VISIBLE[phase]:
            return False
        return self.decisions.assignment[op.index] is not None and self._reads(op, position) == copy

    def _reads(self, op: Op, position: int) -> Layout:
        strategy = self.chosen(op)
        return tuple(strategy.reads[position][0].tolist())

    def _is_anew(self, value: int, phase: Phase) -> bool:
        return phase is Phase.SECOND and self.decisions.mode[value] == ANEW

    def _copy(self, value: int, array: Any, *, anew: bool) -> Any:
        key = (value, anew)
        if key not in self.copies:
            stored, copy = self.decisions.stored[value], self.decisions.copy[value]
            assert stored is not None
            assert copy is not None
            source = jax.lax.optimization_barrier(array) if anew else array
            source = self._constrain(source, stored)
            record = self.program.values[value]
            for state in self.reshards[record.shape, record.itemsize, stored, copy]:
                source = self._lay_out(source, state)
            self.copies[key] = source
        return self.copies[key]

    def _write(self, op: Op, results: Sequence[Any]) -> list[Any]:
        """Constrain an op's results as planned, and remember them."""
        if self.decisions.assignment[op.index] is None:
            if self._are_indices(op) or not self.fixed.isdisjoint(op.inputs):
                pairs = zip(op.outputs, results, strict=True)
                results = [self._fix(value, array) for value, array in pairs]
            elif op.primitive == "concatenate":
                results = [self._joined(self.recipes[op.outputs[0]][0], results[0])]
            self.arrays.update(zip(op.outputs, results, strict=True))
            return list(results)
        strategy = self.chosen(op)
        constrained = []
        for number, (value, array) in enumerate(zip(op.outputs, results, strict=True)):
            stored = self.decisions.stored[value]
            if stored is not None and hasattr(array, "ndim") and value not in self.implied:
                written = tuple(strategy.written[number][0].tolist())
                terms = array.ndim - len(self.program.values[value].shape)
                if UNREDUCED in stored:
                    written = stored
                elif terms and strategy.in_steps[0]:
                    array, written = self._settled_in_steps(strategy, array), stored
                elif terms:
                    array = add_up(array, terms)
                if value not in self.settled:
                    array = self._constrain(array, written)
                if stored != written:
                    array = self._constrain(array, stored)
            self.arrays[value] = array
            constrained.append(array)
        return constrained

    def _settled_in_steps(self, strategy: Strategies, terms: Any) -> Any:
        """The terms of a product, scattered over some axes and then added up over the others."""
        onto, reduced = strategy.onto[0].tolist(), strategy.reduced[0].tolist()
        left = [axis for axis, partial in enumerate(reduced) if partial and not onto[axis]]
        for side in (strategy.written, strategy.stored):
            layout = side[0][0].tolist()
            there = tuple(UNREDUCED if axis in left else d for axis, d in enumerate(layout))
            terms = self._constrain(terms, there)
        return add_up(terms, len(left))

    def _settling(self, op: Op) -> Callable[..., Any] | None:
        """How partial sums of an op are scattered, where that is done by its first constraints.

        What follows the sum inside of the op itself (a transposition, a fill) would stand between
        the all-reduce and the slice that are one reduce-scatter.
        """
        value = op.outputs[0]
        stored = self.decisions.stored[value]
        if self.decisions.assignment[op.index] is None or stored is None or UNREDUCED in stored:
            return None
        strategy = self.chosen(op)
        written = tuple(strategy.written[0][0].tolist())
        if stored == written or not strategy.reduced[0].any() or value in self.implied:
            return None
        self.settled.add(value)

        def settle(array: Any, places: Sequence[int] | None = None) -> Any:
            for layout in (written, stored):
                there = layout if places is None else [places[d] if d >= 0 else d for d in layout]
                array = self._constrain(array, tuple(there))
            return array

        return settle

    def _are_indices(self, op: Op) -> bool:
        """Whether `op` joins free values to indices of several dimensions.

        These Shardy does not compute anew for every use; one that is split, or crosses the edge of
        a region so, would split the gather too.
        """
        return op.primitive == "concatenate" and any(
            self.program.ops[use.op].primitive in _INDEXED and use.position == 1
            for use in self.readers[op.outputs[0]]
        )

    def _joined(self, equation: Any, array: Any) -> Any:
        """A free value, whole along what pieces that the mesh does not divide are joined along.

        Its other dimensions, and what is computed from it, are left to Shardy, which would gather
        such pieces.
        """
        if equation.primitive.name != "concatenate":
            return array
        along = equation.params["dimension"]
        pieces = [atom.aval.shape[along] for atom in equation.invars]
        if not any(size % n for size in pieces for n in self.mesh.shape.values()):
            return array
        spec: list[Any] = [PartitionSpec.UNCONSTRAINED] * array.ndim
        spec[along] = None
        return jax.lax.with_sharding_constraint(
            array, NamedSharding(self.mesh, PartitionSpec(*spec))
        )

    def _fix(self, value: int, array: Any) -> Any:
        """A free value that Shardy cannot compute anew for every use: whole, and sliced for each.

        Shardy splits constants and what is computed from them, but not where they cross the edge of
        a region.
        """
        self.fixed.add(value)
        return self._constrain(array, (-1,) * len(self.names))

    def _again(self, value: int, made: dict[int, Any]) -> Any | None:
        """A free value computed once more, inside of another trace; None where it cannot be.

        `made` holds what was computed there already.
        """
        if value not in made:
            made[value] = None
            if value in self.recipes:
                equation, operands, number = self.recipes[value]
                if makes_nothing(equation):
                    made[value] = nothing_of(equation.outvars[number])
                    return made[value]
                arrays = [
                    self._again(v, made) if v >= 0 else None if compat.is_tracer(a) else a
                    for a, v in operands
                ]
                if all(array is not None for array in arrays):
                    result = compat.bind_equation(equation, arrays)[number]
                    made[value] = self._joined(equation, result)
        return made[value]


def nothing_of(var: Any) -> Any:
    """The array of no elements that a variable stands for."""
    return jnp.zeros(var.aval.shape, var.aval.dtype)
