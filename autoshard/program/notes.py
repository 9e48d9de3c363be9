"""What a reader of a plan should know of its program, a sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.program.flops import is_known
from autoshard.program.graph import Op, Program
from autoshard.program.rules.record import FactorKind
from autoshard.program.select import shown_path
from autoshard.program.state.trained import few_trained
from autoshard.units import counted, format_bytes, format_percent


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


def unknown_kernels(ops: Sequence[Op]) -> tuple[str, ...]:
    """Kernels of which data alone decides how much they compute; a sentence for each name."""
    found: dict[tuple[str, tuple[str, ...]], list[Op]] = {}
    for op in ops:
        if op.kernel is not None and op.kernel.unknown:
            found.setdefault((op.kernel.name, op.kernel.unknown), []).append(op)
    return tuple(
        f"data decides how much the kernel {name} computes ({counted(len(here), 'op')}, the first "
        f"at {here[0].line or here[0].scope or 'an unknown line'}): {'; '.join(unknown)}, so the "
        "step may take longer: say what it takes by cost_estimate=pl.CostEstimate(...) of the "
        "pl.pallas_call, or by autoshard.kernel(..., flops=, bytes=)"
        for (name, unknown), here in found.items()
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
        f"no result of {program.name} depends on {' and '.join(parts)}, so that they are not part "
        "of the plan: return what the step changes (the new parameters and optimizer state), as in "
        "`return loss, nnx.state((model, optimizer))`, or leave out what it does not need"
    )


FEW = 0.5
"""Of a step's parameters, at most so many are trained where it is said."""


def few_parameters_trained(program: Program) -> str:
    """How many of its parameters a step trains, where these are few, or an empty string."""
    found = few_trained(program, FEW)
    if found is None:
        return ""
    first = shown_path(program, found.frozen[0])
    if not found.trained:
        numbers = counted(found.count, "number", ",")
        return (
            f"{program.name} trains nothing: no example has a part in the {numbers} of its new "
            f"state, the first of them {first}, so there is no backward pass, and its seconds and "
            "bytes are not those of training"
        )
    share = format_percent(found.trained_count / found.count, ".2g")
    return (
        f"{program.name} trains {found.trained_count:,} of its "
        f"{counted(found.count, 'parameter', ',')} ({share}); the others, the first of them "
        f"{first}, stay as they are: its seconds and bytes are not those of training them all"
    )


def notes_of(program: Program) -> tuple[str, ...]:
    """All that there is to say of a program."""
    return (
        *filter(None, (dead_code(program), few_parameters_trained(program))),
        *unknown_arithmetic(program.ops),
        *unknown_kernels(program.ops),
        *whole_kernels(program.ops),
    )
