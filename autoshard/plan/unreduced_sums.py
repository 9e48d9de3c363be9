"""Sums of partial sums: which values may stay unreduced, for one collective to settle them all.

The input gradient of projections that share an input is a sum of matrix products,

    dx = dq Wq^T + dk Wk^T + dv Wv^T

and under tensor parallelism each product is partial over the model axis. Addition is linear, so the
terms may be added as they are, and one all-reduce or reduce-scatter settles the total (all-reduce
reassociation). A value is **pending** where it may stay unreduced: it is made by a matrix product,
or by an addition of pending values, and read by such an addition alone. An addition of two pending
values is a **join**; it may read both unreduced, and settle what it writes or leave it pending.

A product that is partial over several axes may be settled **in steps**: it is scattered over some
of them, and its parts are added up over the others. The gradient of a weight that is sharded within
hosts and replicated over them (hybrid sharding) is settled so by reduce-scatters within hosts and
all-reduces between them. Constraints make one all-reduce over all, and a slice of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.plan.decisions import Decisions
from autoshard.program.layout import UNREDUCED
from autoshard.program.readers import Reader
from autoshard.program.repeats import Classes
from autoshard.program.trace import Program
from autoshard.program.vocabulary import ADDITIONS


@dataclass(frozen=True, slots=True)
class Sums:
    """Indices of the values that may stay unreduced, of the ops that may read them so, and of the
    ops whose partial results may be settled in steps."""

    pending: frozenset[int]
    joins: frozenset[int]
    in_steps: frozenset[int]


NO_SUMS = Sums(frozenset(), frozenset(), frozenset())


def find_sums(
    program: Program, readers: Sequence[Sequence[Reader]], classes: Classes | None = None
) -> Sums:
    """The pending values and joins of a program.

    Args:
      program: the step.
      readers: the uses of every value.
      classes: where they are given, ops and values that share decisions are alike in this, too.
    """
    values, ops = program.values, program.ops
    alike_values = classes.value_members if classes else [[v.index] for v in values]
    alike_ops = classes.op_members if classes else [[op.index] for op in ops]
    joins = {op.index for op in ops if op.primitive in ADDITIONS and len(op.inputs) == 2}
    while True:
        pending = {
            value.index
            for value in values
            if _is_term(program, readers[value.index], value.index, joins) and value.shape
        }
        pending = _whole_classes(pending, alike_values)
        kept = {number for number in joins if all(v in pending for v in ops[number].inputs)}
        kept = _whole_classes(kept, alike_ops)
        if kept == joins:
            # A term is pending only where its one reader is a join.
            products = frozenset(op.index for op in ops if op.primitive == "dot_general")
            return Sums(frozenset(pending), frozenset(joins), products)
        joins = kept


def _is_term(program: Program, readers: Sequence[Reader], value: int, joins: set[int]) -> bool:
    record = program.values[value]
    if record.free or record.producer < 0 or len(readers) != 1 or readers[0].op not in joins:
        return False
    maker, reader = program.ops[record.producer], program.ops[readers[0].op]
    if maker.region != reader.region or value in program.outputs:
        return False
    other = [program.values[v] for v in reader.inputs if v >= 0]
    if any(one.shape != record.shape or one.dtype != record.dtype for one in other):
        return False
    return maker.primitive == "dot_general" or maker.index in joins


def _whole_classes(members: set[int], classes: Sequence[Sequence[int]]) -> set[int]:
    """The members of those classes that lie in `members` whole."""
    return {one for group in classes if all(n in members for n in group) for one in group}


def settled(program: Program, decisions: Decisions) -> Decisions:
    """The decisions with every term of a sum settled by itself, into the layout of the sum.

    It is what a compiler makes of constraints, which cannot say that a value stays unreduced.
    """
    stored, assignment = list(decisions.stored), list(decisions.assignment)
    for op in reversed(program.ops):
        assigned = assignment[op.index]
        if assigned is None or UNREDUCED not in assigned:
            continue
        total = stored[op.outputs[0]]
        assert total is not None
        factors = [dimension[0] if dimension else -1 for dimension in op.rule.results[0]]
        assignment[op.index] = tuple(
            factor if factor != UNREDUCED else (factors[d] if d >= 0 else -1)
            for factor, d in zip(assigned, total, strict=True)
        )
        for value in op.inputs:
            term = stored[value]
            if term is not None:
                stored[value] = tuple(
                    d if d != UNREDUCED else there for d, there in zip(term, total, strict=True)
                )
    return replace(decisions, stored=tuple(stored), assignment=tuple(assignment))
