"""What a reader of a plan should know of its program, a sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.program.flops import is_known
from autoshard.program.graph import Op, Program
from autoshard.program.rules.record import FactorKind
from autoshard.program.select import shown_path
from autoshard.units import counted, format_bytes


def unknown_arithmetic(ops: Sequence[Op]) -> tuple[str, ...]:
    """Ops of which nobody can tell the arithmetic, a sentence for each primitive.

    They are priced by the bytes that they read and write, and one FLOP an element.
    """
    found: dict[str, list[Op]] = {}
    for op in ops:
        if not op.boundary and not is_known(op.primitive):
            found.setdefault(op.primitive, []).append(op)
    return tuple(
        f"what {len(here)} {name} {'ops compute' if len(here) > 1 else 'op computes'} is not known "
        f"(the first at {here[0].line or here[0].scope or 'an unknown line'}): counted as one FLOP "
        "an element, so the step may take longer"
        for name, here in found.items()
    )


def whole_kernels(ops: Sequence[Op]) -> tuple[str, ...]:
    """Kernels that every device runs whole, and why; a sentence for each name and reason."""
    found: dict[tuple[str, str], list[Op]] = {}
    for op in ops:
        if op.kernel is None or any(one.kind is FactorKind.PASS for one in op.rule.factors):
            continue
        reasons = [f"axis {axis} of its grid: {reason}" for axis, reason in op.kernel.whole]
        found.setdefault((op.kernel.name, "; ".join(reasons)), []).append(op)
    return tuple(
        f"every device runs all of the kernel {name} ({len(here)} "
        f"{'ops' if len(here) > 1 else 'op'}, the first at {here[0].line or 'an unknown line'}): "
        f"{reasons or 'its grid has one place'}"
        for (name, reasons), here in found.items()
    )


def kernels_around(program: Program, value: int) -> tuple[str, ...]:
    """What kernels that make or read a value keep whole, and why; a sentence for each of them."""
    found = []
    for op in program.ops:
        if op.kernel is not None and op.kernel.whole and value in (*op.inputs, *op.outputs):
            reasons = "; ".join(f"axis {axis}, since {reason}" for axis, reason in op.kernel.whole)
            found.append(
                f"the kernel {op.kernel.name} at {op.line or 'an unknown line'} keeps of its grid "
                f"{_shown(op.kernel.grid)} whole: {reasons}"
            )
    return tuple(dict.fromkeys(found))


def _shown(grid: Sequence[int | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in grid)


def dead_code(program: Program) -> str:
    """What is wrong with a step of which most is dead, or an empty string.

    Most is dead where no result depends on more than half of the ops that it computes, or on more
    than half of the bytes that it is given: as a rule, a step that changes its arguments in place
    and does not return them.
    """
    read = {value for op in program.ops for value in op.inputs}
    given = sum(program.values[value].bytes for value in program.inputs)
    unread = [value for value in program.inputs if value not in read]
    lost = sum(program.values[value].bytes for value in unread)
    ops = sum(not op.boundary for op in program.ops)
    if program.dead_ops <= ops and 2 * lost <= given:
        return ""
    parts = []
    if program.dead_ops:
        parts.append(f"{program.dead_ops:,} of its {program.dead_ops + ops:,} ops")
    if unread:
        first = shown_path(program, unread[0])
        parts.append(
            f"{len(unread):,} of its {counted(len(program.inputs), 'input', ',')} "
            f"({format_bytes(lost)} of "
            f"{format_bytes(given)}; the first is {first})"
        )
    return (
        f"no result of {program.name} depends on {' and '.join(parts)}, so that they are no part "
        "of the plan: return what the step changes (the new parameters and optimizer state), as in "
        "`return loss, nnx.state((model, optimizer))`, or leave out what it does not need"
    )


def notes_of(program: Program) -> tuple[str, ...]:
    """All that there is to say of a program."""
    dead = dead_code(program)
    return (
        *([dead] if dead else []),
        *unknown_arithmetic(program.ops),
        *whole_kernels(program.ops),
    )
