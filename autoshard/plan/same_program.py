"""A plan on the program that it was made for, whichever version of JAX traced that.

Versions of JAX differ in which constants and scalars a trace holds. A plan decides nothing of
these, so its decisions are counted over the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from autoshard.plan.decisions import Decisions
from autoshard.plan.plan import Plan, PlanError
from autoshard.program.fingerprint import deciding_ops, first_difference, is_of
from autoshard.program.rewritten import on_platforms
from autoshard.program.trace import Program
from autoshard.units import counted

_Entry = TypeVar("_Entry")


def as_planned_for(plan: Plan, program: Program) -> tuple[Plan, Program]:
    """`program` with what it runs on the platforms of `plan`, and the plan numbered as that is.

    Raises:
      PlanError: it is another program.
    """
    program = on_platforms(program, plan.options.get("platforms", ()))
    return for_program(plan, program), program


def for_program(plan: Plan, program: Program, name: str | None = None) -> Plan:
    """The plan with its decisions numbered as the values and ops of `program` are.

    Args:
      plan: made for the same program, as its fingerprint says.
      program: traced here.
      name: what to call the program in messages; its own name by default.

    Raises:
      PlanError: it is another program; the first difference is named.
    """
    if not is_of(plan.fingerprint, program):
        where = first_difference(plan.marks, program)
        raise PlanError(
            f"the plan was made for program {plan.program!r} ({plan.fingerprint}), but "
            f"{name or program.name!r} traces to {program.fingerprint}: "
            + (f"{where}; " if where else "")
            + "other shapes, other code or another version of JAX; search again"
        )
    decisions = renumbered(plan.decisions, program)
    if decisions is plan.decisions:
        return plan
    numbers = dict(zip(_placed(plan.decisions), _placed(decisions), strict=True))
    orders = {numbers[op]: order for op, order in plan.product_orders.items()}
    by_rows = tuple(numbers[op] for op in plan.row_major)
    return replace(plan, decisions=decisions, product_orders=orders, row_major=by_rows)


def renumbered(decisions: Decisions, program: Program) -> Decisions:
    """Decisions on a program, numbered as its values and ops are here.

    Args:
      decisions: on a program of the same fingerprint.
      program: traced here.

    Raises:
      PlanError: they are on a program of another size.
    """
    values = [value.index for value in program.values if not value.free]
    ops = [op.index for op in deciding_ops(program.values, program.ops)]
    stored = [k for k, layout in enumerate(decisions.stored) if layout is not None]
    placed = _placed(decisions)
    if (len(stored), len(placed)) != (len(values), len(ops)):
        raise PlanError(
            f"the plan is damaged: it decides {counted(len(stored), 'value')} and "
            f"{counted(len(placed), 'op')} of "
            f"{program.name!r}, which has {len(values)} and {len(ops)}"
        )
    sizes = len(program.values), len(program.ops)
    same = (len(decisions.stored), len(decisions.assignment)) == sizes
    if same and (stored, placed) == (values, ops):
        return decisions
    return Decisions(
        _moved(decisions.stored, stored, values, sizes[0], None),
        _moved(decisions.copy, stored, values, sizes[0], None),
        _moved(decisions.mode, stored, values, sizes[0], 0),
        _moved(decisions.assignment, placed, ops, sizes[1], None),
    )


def _placed(decisions: Decisions) -> list[int]:
    return [k for k, assignment in enumerate(decisions.assignment) if assignment is not None]


def _moved(
    entries: Sequence[_Entry],
    before: Sequence[int],
    after: Sequence[int],
    count: int,
    nothing: _Entry,
) -> tuple[_Entry, ...]:
    """The entries at the places `before`, at the places `after` among `count`."""
    found = [nothing] * count
    for source, target in zip(before, after, strict=True):
        found[target] = entries[source]
    return tuple(found)
