"""What a reader of a plan should know of its program, a sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.program.flops import is_known
from autoshard.program.graph import Op, Program


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


def notes_of(program: Program) -> tuple[str, ...]:
    """All that there is to say of a program."""
    return unknown_arithmetic(program.ops)
