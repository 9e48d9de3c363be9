"""What becomes of a value: its readers, through data movement and into fusions and calls."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.compiler.hlo.module import Instruction
from autoshard.compiler.hlo.places import DATA_MOVEMENT, Place

Reader = tuple[Place, Instruction, int]
"""A place, an instruction there, and which of its operands the value is."""


def readers(place: Place, value: Instruction) -> Iterator[Reader]:
    """The instructions that do something with `value`: not copies, bitcasts, tuples of a fusion.

    Where the value leaves a computation (as state of a loop, result of the module), the instruction
    that takes it out is the reader.
    """
    pending = [(place, value)]
    seen: set[tuple[int, str]] = set()
    places: list[Place] = []  # kept alive, since `seen` goes by identity
    while pending:
        place, value = pending.pop()
        if (id(place), value.name) in seen:
            continue
        seen.add((id(place), value.name))
        places.append(place)
        if value.is_root and place.caller is not None and place.caller[1].opcode != "while":
            outside, call = place.caller
            pending.append((outside, call))
        for user in place.computation.users.get(value.name, ()):
            for position, name in enumerate(user.operands):
                if name != value.name:
                    continue
                if user.opcode in DATA_MOVEMENT:
                    pending.append((place, user))
                elif user.opcode == "tuple" and _leaves_fusion(place, user):
                    pending.extend(_taken_out(place, position))
                elif user.opcode in ("fusion", "call"):
                    inner = place.enter(user, user.called("calls", "to_apply")[0])
                    parameter = inner.computation.parameter(position)
                    if parameter is not None:
                        pending.append((inner, parameter))
                else:
                    yield place, user, position


def parts(place: Place, value: Instruction) -> list[tuple[int, Instruction]]:
    """(number, instruction) of the elements that are taken from a tuple."""
    return [
        (int(user.attribute("index") or 0), user)
        for user in place.computation.users.get(value.name, ())
        if user.opcode == "get-tuple-element"
    ]


def _leaves_fusion(place: Place, user: Instruction) -> bool:
    return (
        user.is_root and place.caller is not None and place.caller[1].opcode in ("fusion", "call")
    )


def _taken_out(place: Place, position: int) -> list[tuple[Place, Instruction]]:
    assert place.caller is not None
    outside, call = place.caller
    return [(outside, taken) for index, taken in parts(outside, call) if index == position]
