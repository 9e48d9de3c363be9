"""What later versions of XLA write, as those write it that the readers of this package know.

%negate = negate(%param#0)              a `get-tuple-element` of its own, `param#0`  (0.12)
%all-gather.3 = all-gather(%x)          `all-gather-start` and `all-gather-done` at once, by the
    scheduling_name="all-gather-start"  names in the compiler's own timeline          (0.11)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoshard.compiler.hlo.events import OPCODES
from autoshard.compiler.hlo.module import Instruction, split_top, without_comments

_SCHEDULED_AS = re.compile(r'scheduling_name="([^"]*)-start([^"]*)"')


def as_known(body: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions of a computation in the forms that are known."""
    return _with_pairs(_with_elements(body))


def _with_elements(body: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions, with one for every element of a tuple that another reads by its number."""
    shapes = {one.name: one.shape_text for one in body}
    wanted: dict[str, dict[str, Instruction]] = {}

    def element(name: str) -> None:
        maker, _, index = name.rpartition("#")
        if not maker or name in shapes:
            return
        element(maker)  # an element of an element
        shape = split_top(shapes[maker].strip()[1:-1])[int(index)]
        shapes[name] = without_comments(shape).strip()
        wanted.setdefault(maker, {})[name] = Instruction(
            name=name,
            opcode="get-tuple-element",
            shape_text=shapes[name],
            operands=(maker,),
            argument=f"%{maker}",
            rest=f", index={index}",
            is_root=False,
        )

    for one in body:
        for operand in one.operands:
            element(operand)
    if not wanted:
        return tuple(body)
    result: list[Instruction] = []

    def put(one: Instruction) -> None:
        result.append(one)
        for made in wanted.get(one.name, {}).values():
            put(made)

    for one in body:
        put(one)
    return tuple(result)


def _with_pairs(body: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions, with a start and a done for every collective that was scheduled as such.

    XLA joins the two again where nothing runs in between.
    """
    names: dict[str, str] = {}
    pairs: dict[str, tuple[Instruction, Instruction]] = {}
    shapes: Mapping[str, str] = {one.name: one.shape_text for one in body}
    for one in body:
        scheduled = _SCHEDULED_AS.search(one.rest) if one.opcode in OPCODES else None
        if scheduled is None:
            continue
        start, done = (f"{scheduled[1]}{part}{scheduled[2]}" for part in ("-start", "-done"))
        read = ", ".join(shapes[name] for name in one.operands)
        shape = one.shape_text if one.opcode == "all-reduce" else f"(({read}), {one.shape_text})"
        pairs[one.name] = (
            replace(one, name=start, opcode=f"{one.opcode}-start", shape_text=shape, is_root=False),
            Instruction(
                name=done,
                opcode=f"{one.opcode}-done",
                shape_text=one.shape_text,
                operands=(start,),
                argument=f"%{start}",
                rest="",
                is_root=one.is_root,
            ),
        )
        names[one.name] = done
    if not pairs:
        return tuple(body)
    result: list[Instruction] = []
    for one in body:
        known = tuple(names.get(name, name) for name in one.operands)
        for part in pairs.get(one.name, (one,)):
            operands = part.operands if part.opcode.endswith("-done") else known
            result.append(replace(part, operands=operands))
    return tuple(result)
