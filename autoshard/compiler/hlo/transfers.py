"""Transfers between the memories of a chip and of its host in a module: space 5 is the host's.

    copy-start                   (f32[8]{0:S(5)}, f32[8]{0}, u32[])      to the host
    dynamic-update-slice-start   ((stack S(5), part, 0), stack S(5), …)  a part, to the host
    dynamic-slice-start          ((stack S(5), 0), part, …)              a part, from the host

XLA:GPU writes the last two as a `fusion-start` of them. Copies that nothing runs beside have no
start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.compiler.hlo.module import Instruction, Module, split_top
from autoshard.compiler.hlo.places import Place, called_computations
from autoshard.compiler.hlo.shapes import leaves, parse_shape
from autoshard.machine.host import Direction

_HOST = re.compile(r"[:)]S\(5\)")
_STARTS = frozenset(
    {
        *("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"),
        *("fusion-start", "async-start"),
    }
)
_ALONE = frozenset({"copy", "dynamic-slice", "dynamic-update-slice"})


@dataclass(frozen=True, slots=True)
class HostTransfer:
    """One transfer of a compiled module.

    Attributes:
      kind: to_host or from_host.
      bytes: per device and execution.
      count: how often it runs.
      name: of its instruction.
    """

    kind: Direction
    bytes: int
    count: int
    name: str


def transfer(place: Place, instruction: Instruction) -> tuple[Direction, int] | None:
    """The direction of what an instruction transfers, and its bytes; None where it is nothing."""
    if instruction.opcode in _STARTS:
        parts = _parts(instruction.shape_text)
        if instruction.opcode == "copy-start":
            made, given = parts[0], [parts[1]]
        else:
            given = _parts(parts[0])
            made = parts[1]
    elif instruction.opcode in _ALONE:
        made = instruction.shape_text
        given = [place.find(name).shape_text for name in instruction.operands]
    else:
        return None
    into, out_of = _in_host(made), _in_host(given[0])
    if into and out_of and len(given) > 1:  # a part of what lies there is written anew
        return "to_host", _bytes(given[1])
    if into == out_of:
        return None
    return ("to_host", _bytes(given[0])) if into else ("from_host", _bytes(made))


def transfers(module: Module) -> tuple[HostTransfer, ...]:
    """All transfers of a module."""
    return tuple(_of_place(Place(module, module.computations[module.entry])))


def _of_place(place: Place) -> Iterator[HostTransfer]:
    for instruction in place.computation.instructions:
        if instruction.opcode in ("while", "call", "conditional"):
            for callee in called_computations(instruction):
                yield from _of_place(place.enter(instruction, callee))
        found = transfer(place, instruction)
        if found is not None:
            yield HostTransfer(*found, place.count, instruction.name)


def _in_host(shape: str) -> bool:
    return _HOST.search(shape) is not None


def _parts(shape: str) -> list[str]:
    """The elements of a tuple's type."""
    text = shape.strip()
    return split_top(text[1:-1]) if text.startswith("(") else [text]


def _bytes(shape: str) -> int:
    return sum(leaf.bytes for leaf in leaves(parse_shape(re.sub(r"/\*.*?\*/", "", shape))))
