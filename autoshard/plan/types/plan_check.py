"""Type a plan: every value, every op and every collective, on the whole program.

A plan says where values are stored, how ops are cut and what is resharded. Here all of it is typed
anew, from the sharding rules alone, and held together:

1. an op reads operands in the types that its cut needs (`autoshard.plan.types.op_types`): each is
   there, as stored or as its copy;
2. what it leaves partial is settled by one all_reduce or one reduce_scatter, or of a matrix product
   by a reduce_scatter over some axes and an all_reduce over the others, and nothing else comes
   between what it writes and what is stored;
3. a copy is made by a chain of single collectives (`autoshard.plan.types.hops`), each of even
parts; 4. state goes out as it came in, and so do carries; 5. the collectives of all this, and of
rings within operations, are the plan's `moves`, and the layouts of inputs and outputs its
   `specs`.

Replicated inputs and outputs are invariant, between steps they have one value: reading one makes it
replicate, at no cost. `check_plan` refuses a plan with all that is wrong in it; each fault names
the op and its source line, the types, and the call that is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autoshard.plan.copies import ANEW, FIRST, KEPT, SECOND, VISIBLE
from autoshard.plan.decisions import State
from autoshard.plan.plan import Plan
from autoshard.plan.types.axis_type import ValueType
from autoshard.plan.types.op_types import OpTypes, op_types
from autoshard.plan.types.plan_layouts import chain_moves, layout_faults, missing_call
from autoshard.plan.types.plan_products import product_faults
from autoshard.plan.types.plan_sides import move_faults, side_faults
from autoshard.plan.types.plan_types import (
    PlanTypeError,
    TypedMove,
    TypedPlan,
    local_bytes,
    value_name,
)
from autoshard.plan.unreduced_sums import Sums, find_sums
from autoshard.program.graph import is_free
from autoshard.program.kernels.ring import Ring, sendings
from autoshard.program.kernels.rule import ring_factors
from autoshard.program.layout import UNREDUCED, Layout, dimension_axes, format_state
from autoshard.program.ragged import window_rows
from autoshard.program.readers import Reader, readers_in_program_order
from autoshard.program.rules.ragged import group_factor, sent_tensors
from autoshard.program.select import shown_path
from autoshard.program.trace import Op, Program
from autoshard.units import counted

__all__ = ["PlanTypeError", "TypedMove", "TypedPlan", "check_plan"]

MOST_SHOWN = 100


def check_plan(program: Program, plan: Plan) -> TypedPlan:
    """Type `plan` on `program`.

    Raises:
      PlanTypeError: with every fault.
    """
    check = _Check(program, plan)
    check.run()
    if check.faults:
        count = len(check.faults)
        more = [f"and {count - MOST_SHOWN} more"] if count > MOST_SHOWN else []
        heading = (
            f"the plan does not type-check on the mesh {plan.mesh} ({counted(count, 'fault')}):"
        )
        raise PlanTypeError("\n  - ".join([heading, *check.faults[:MOST_SHOWN], *more]))
    return TypedPlan(tuple(check.stored), tuple(check.copies), tuple(check.moves))


@dataclass
class _Check:
    program: Program
    plan: Plan
    faults: list[str] = field(default_factory=list)
    moves: list[TypedMove] = field(default_factory=list)
    stored: list[ValueType | None] = field(default_factory=list)
    copies: list[ValueType | None] = field(default_factory=list)
    readers: list[list[Reader]] = field(init=False)
    sums: Sums = field(init=False)
    _known: dict[object, OpTypes] = field(default_factory=dict)
    _reads: dict[int, set[Layout]] = field(default_factory=dict)
    _reshards: dict[object, tuple[State, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readers = readers_in_program_order(self.program)
        self.sums = find_sums(self.program, self.readers)

    def run(self) -> None:
        decisions, program = self.plan.decisions, self.program
        sizes = {
            "stored": (len(decisions.stored), len(program.values)),
            "copy": (len(decisions.copy), len(program.values)),
            "mode": (len(decisions.mode), len(program.values)),
            "assignment": (len(decisions.assignment), len(program.ops)),
        }
        self.faults += [
            f"decisions: {name} has {found} entries, the program {expected}"
            for name, (found, expected) in sizes.items()
            if found != expected
        ]
        self.faults += product_faults(self.program, self.plan)
        if self.faults:
            return
        self._values()
        if self.faults:  # nothing that reads or writes them could be typed
            return
        self._ops()
        self._reshards = {
            (r.shape, r.itemsize, r.before, r.after): r.states for r in self.plan.reshards
        }
        for value in program.values:
            self._copy(value.index)
        self._ties()
        self.faults += [*side_faults(self.program, self.plan), *move_faults(self.plan, self.moves)]

    # -- values --------------------------------------------------------------------------

    def _values(self) -> None:
        decisions = self.plan.decisions
        ends = {*self.program.inputs, *self.program.outputs}
        for value in self.program.values:
            stored, copy = decisions.stored[value.index], decisions.copy[value.index]
            if (stored is None) != value.free:
                need = "is free and has no layout" if value.free else "needs a layout"
                self.faults.append(f"{self._name(value.index)} {need}, but is given {stored}")
            for what, layout, may in (
                ("is stored", stored, value.index in self.sums.pending),
                ("has a copy", copy, False),
            ):
                if layout is not None:
                    self.faults += [
                        f"{self._name(value.index)} {what} {fault}"
                        for fault in layout_faults(value, layout, self.plan.mesh, pending=may)
                    ]
            self.stored.append(self._typed(value.index, stored, end=value.index in ends))
            self.copies.append(self._typed(value.index, copy))

    def _typed(self, value: int, layout: Layout | None, *, end: bool = False) -> ValueType | None:
        record = self.program.values[value]
        if layout is None or any(not UNREDUCED <= d < len(record.shape) for d in layout):
            return None
        partial = tuple((axis, "sum") for axis, d in enumerate(layout) if d == UNREDUCED)
        whole = frozenset(axis for axis, d in enumerate(layout) if d < 0) if end else frozenset()
        state = dimension_axes(len(record.shape), layout)
        return ValueType(record.dtype, record.shape, state, partial, whole)

    # -- ops -----------------------------------------------------------------------------

    def _ops(self) -> None:
        decisions = self.plan.decisions
        phases = {(use.op, use.position): use.phase for uses in self.readers for use in uses}
        for op in self.program.ops:
            assigned = decisions.assignment[op.index]
            if assigned is None:
                if not is_free(op, self.program.values):
                    self.faults.append(f"{op}: nothing is assigned to its factors")
                continue
            types = self._op_types(op, assigned)
            if UNREDUCED in assigned and op.index not in self.sums.joins:
                self.faults.append(f"{op}: it adds up no terms, but is to read them unreduced")
                continue
            if types.faults:
                self.faults += [f"{op}: {fault}" for fault in types.faults]
                continue
            for position, value in enumerate(op.inputs):
                if value < 0 or self.program.values[value].free:
                    continue
                wanted = types.reads[position]
                visible = decisions.mode[value] & VISIBLE[phases[op.index, position]]
                copy = decisions.copy[value] if visible else None
                if wanted == copy:
                    self._reads.setdefault(value, set()).add(wanted)
                elif wanted != decisions.stored[value]:
                    self._missing(op, position, value, wanted)
            self._ring(op, assigned, types)
            self._exchange(op, assigned, types)
            for number in range(len(op.outputs)):
                self._result(op, types, number)

    def _ring(self, op: Op, assigned: tuple[int, ...], types: OpTypes) -> None:
        """What an op sends along its sequence, where that is cut."""
        rings = ring_factors(op.rule, op.kernel.rings if op.kernel is not None else ())
        for factor, ring in rings.items():
            self._sent(op, ring, [k for k, one in enumerate(assigned) if one == factor], types)

    def _sent(self, op: Op, ring: Ring, axes: Sequence[int], types: OpTypes) -> None:
        """What a ring over some axes sends."""
        mesh = self.plan.mesh
        axes = [axis for axis in axes if mesh.sizes[axis] > 1]
        devices = math.prod(mesh.sizes[axis] for axis in axes)
        if devices == 1:
            return
        arrays, layouts = (*op.inputs, *op.outputs), (*types.reads, *types.written)
        names = tuple(self._axes(axes))
        for one in sendings(ring, devices):
            record, layout = self.program.values[arrays[one.number]], layouts[one.number]
            state = dimension_axes(len(record.shape), layout)
            size = local_bytes(record.bytes, state, mesh.sizes) // one.share
            text = format_state(record.dtype, record.shape, state, mesh.names)
            count = op.trips * one.times
            self.moves.append(
                TypedMove("collective_permute", names, size, count, f"{text} -> {text}")
            )

    def _exchange(self, op: Op, assigned: tuple[int, ...], types: OpTypes) -> None:
        """What an op sends from its rows to their groups, and back."""
        mesh, sent = self.plan.mesh, sent_tensors(op.primitive, op.groups, op.rule)
        if sent is None:
            return

        def parts(factor: int | None) -> int:
            pairs = zip(assigned, mesh.sizes, strict=True)
            return math.prod(size for number, size in pairs if number == factor)

        if parts(sent[0]) == 1:
            return
        axes = [k for k, one in enumerate(assigned) if one == sent[0] and mesh.sizes[k] > 1]
        arrays, layouts = (*op.inputs, *op.outputs), (*types.reads, *types.written)
        for tensor in sent[1]:
            record = self.program.values[arrays[tensor]]
            state = dimension_axes(len(record.shape), layouts[tensor])
            size = local_bytes(record.bytes, state, mesh.sizes)
            if tensor >= len(op.inputs):
                d = dict(op.rule.joint[0].places)[tensor]
                rows = record.shape[d] // math.prod(mesh.sizes[axis] for axis in state[d])
                size = size // rows * window_rows(rows, parts(group_factor(op.rule)))
            text = format_state(record.dtype, record.shape, state, mesh.names)
            names = tuple(self._axes(axes))
            self.moves.append(TypedMove("all_to_all", names, size, op.trips, f"{text} -> {text}"))

    def _op_types(self, op: Op, assigned: tuple[int, ...]) -> OpTypes:
        key = (id(op.rule), assigned)
        if key not in self._known:
            mesh = self.plan.mesh
            self._known[key] = op_types(op.rule, assigned, mesh.sizes, mesh.names)
        return self._known[key]

    def _missing(self, op: Op, position: int, value: int, wanted: Layout) -> None:
        there, need = self.stored[value], self._typed(value, wanted)
        assert there is not None
        assert need is not None
        self.faults.append(
            f"{op}: operand {position}, {self._name(value)}, is {self._text(there)} where "
            f"{self._text(need)} is read; missing {self._proposals(value, there, need)}"
        )

    def _result(self, op: Op, types: OpTypes, number: int) -> None:
        value, mesh = op.outputs[number], self.plan.mesh
        stored = self.plan.decisions.stored[value]
        if stored is None:
            return
        record, written = self.program.values[value], types.written[number]
        partial = dict(types.partial)
        before = ValueType(
            record.dtype, record.shape, dimension_axes(len(record.shape), written), types.partial
        )
        after = self._typed(value, stored)
        assert after is not None
        result = f"{op}: result {number}, {self._name(value)}"
        change = f"is written as {self._text(before)}, but stored as {self._text(after)}"
        if UNREDUCED in stored:
            if {axis for axis, d in enumerate(stored) if d == UNREDUCED} != {*partial} or any(
                d not in (UNREDUCED, written[axis]) for axis, d in enumerate(stored)
            ):
                self.faults.append(f"{result}, {change}: all of its axes are settled, or none")
            return
        changed = [axis for axis in range(len(stored)) if stored[axis] != written[axis]]
        if any(axis not in partial for axis in changed):
            self.faults.append(
                f"{result}, {change}; missing {self._proposals(value, before, after)}"
            )
            return
        if changed and len(changed) < len(partial) and op.index not in self.sums.in_steps:
            self.faults.append(
                f"{result}, {change}: one collective must settle it over all of "
                f"{', '.join(self._axes(partial))}, an all_reduce or a reduce_scatter"
            )
            return
        if changed and set(partial.values()) != {"sum"}:
            self.faults.append(
                f"{result}, {change}: what is joined by {'/'.join(sorted({*partial.values()}))} is "
                "settled by an all_reduce alone; missing "
                + self._proposals(value, before, self._typed(value, written) or after)
            )
            return
        for axis in changed:
            behind = [a for a, d in enumerate(written) if d == stored[axis] and a > axis]
            if behind:
                self.faults.append(
                    f"{result}, {change}: reduce_scatter puts {mesh.names[axis]} behind "
                    f"{', '.join(self._axes(behind))}, which is not the order of the mesh"
                )
                return
        rest, here = [axis for axis in partial if axis not in changed], before.state
        for kind, axes, left in (("reduce_scatter", changed, rest), ("all_reduce", rest, [])):
            if not axes:
                continue
            size, sides = local_bytes(record.bytes, here, mesh.sizes), []
            for state, terms in ((here, sorted((*axes, *left))), (after.state, left)):
                text = format_state(record.dtype, record.shape, state, mesh.names)
                sides.append(
                    text + (f"{{unreduced={','.join(self._axes(terms))}}}" if terms else "")
                )
            named = tuple(self._axes(axes))
            self.moves.append(TypedMove(kind, named, size, op.trips, " -> ".join(sides)))
            here = after.state

    # -- copies --------------------------------------------------------------------------

    def _copy(self, value: int) -> None:
        decisions = self.plan.decisions
        before, after = self.stored[value], self.copies[value]
        mode, record = decisions.mode[value], self.program.values[value]
        if before is None or after is None:
            if after is not None or mode:
                self.faults.append(
                    f"{self._name(value)} has a copy or mode {mode} without a layout to copy from"
                    if after is not None
                    else f"{self._name(value)} has mode {mode}, but no copy"
                )
            return
        if mode not in (FIRST, SECOND, KEPT, ANEW):
            self.faults.append(
                f"{self._name(value)}: its copy has mode {mode}; it must be {FIRST} (for the "
                f"first readers), {SECOND} (for the second), {KEPT} (kept for both) or {ANEW} "
                "(made anew)"
            )
            return
        if value not in self._reads:
            self.faults.append(
                f"{self._name(value)}: no op reads its copy {self._text(after)}; "
                "drop it, or let an op read it"
            )
        chain = f"{self._name(value)}, {self._text(before)} -> {self._text(after)}"
        stored, copy = decisions.stored[value], decisions.copy[value]
        states = self._reshards.get((record.shape, record.itemsize, stored, copy))
        if states is None:
            self.faults.append(
                f"{chain}: the plan has no reshard for it; missing "
                + self._proposals(value, before, after)
            )
            return
        moves, fault = chain_moves(record, before.state, after.state, states, self.plan.mesh)
        if fault:
            self.faults.append(f"{chain}: {fault}")
        self.moves += moves * (2 if mode == ANEW else 1)

    # -- the whole -------------------------------------------------------------------------

    def _ties(self) -> None:
        program = self.program
        same = [(program.inputs[i], program.outputs[o], "state") for i, o in program.ties]
        same += [(first, second, "carry") for first, second in program.carries]
        for first, second, kind in same:
            a, b = self.stored[first], self.stored[second]
            if a is not None and b is not None and a.state != b.state:
                self.faults.append(
                    f"{kind} {self._name(first)} comes in as {self._text(a)} and goes out as "
                    f"{self._text(b)}; missing {self._proposals(second, b, a)}"
                )

    # -- words -----------------------------------------------------------------------------

    def _axes(self, axes: object) -> Iterator[str]:
        assert isinstance(axes, tuple | list | dict)
        return (self.plan.mesh.names[axis] for axis in axes)

    def _name(self, value: int) -> str:
        return value_name(self.program, value)

    def _text(self, value: ValueType) -> str:
        return value.text(self.plan.mesh.names)

    def _proposals(self, value: int, there: ValueType, need: ValueType) -> str:
        name = shown_path(self.program, value) or f"%{value}"
        return missing_call(there, need, name, self.plan.mesh)
