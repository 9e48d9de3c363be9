"""The text of an HLO module as records.

    HloModule jit_step, is_scheduled=true, num_partitions=8
    FileNames
    1 "step.py"
    ...
    %body (param: (s32[], f32[8])) -> (s32[], f32[8]) {
      %param = (s32[], f32[8]) parameter(0)
      ROOT %all-gather = f32[64]{0} all-gather(%x), replica_groups=[1,8]<=[8], dimensions={0},
          metadata={op_name="jit(step)/dot_general" stack_frame_id=7}
    }

One pass over the lines cuts every instruction into its name, shape, opcode, operands and the text
of its attributes. In a scheduled module (`is_scheduled=true`) the order of instructions is the
order in which they run.

The printer's grammar: https://openxla.org/xla/hlo_dumps and `xla/hlo/ir/hlo_instruction.cc`. No
published package parses it; jaxlib's own parser (`hlo_module_from_text`) gives opcodes and operands
but no attributes, and is what the tests compare this with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autoshard.compiler.hlo.module import (
    Computation,
    Frame,
    Instruction,
    Module,
    split_attributes,
    split_top,
    without_comments,
)
from autoshard.compiler.hlo.newer_forms import as_known

_HEAD = re.compile(r"\s+(ROOT )?%?([^\s=(),]+) = ")
_ARRAY = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^{}]*\})? ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) (?:\(.*)?\{\s*$")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{}]')
_FRAME_FIELD = re.compile(r"(\w+)=(\d+)")


class HloTextError(ValueError):
    """A text that is not an HLO module; says where."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where}; give a module as the XLA of JAX 0.10 to 0.12 writes it")


def read_module(text: str) -> Module:
    """Read the text of a module.

    Raises:
      HloTextError: it does not begin with `HloModule`, a line is not an instruction, or there is no
        entry computation.
    """
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith("HloModule")), None)
    if start is None:
        raise HloTextError(
            f"no HLO module: it begins with {text[:60]!r}, and no line with HloModule; give the "
            "whole text of a module"
        )
    header = lines[start].removeprefix("HloModule").strip()
    name, _, attributes = header.partition(",")
    tables: dict[str, dict[int, str]] = {}
    computations: dict[str, Computation] = {}
    entry = ""
    table: dict[int, str] | None = None
    opened: tuple[str, bool] | None = None
    body: list[Instruction] = []
    pending = ""
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if opened is None:
            if line[:1].isdigit() and table is not None:
                key, _, value = line.partition(" ")
                table[int(key)] = value
                continue
            found = _COMPUTATION.match(line)
            if found:
                opened, body, pending = (found[2], bool(found[1])), [], ""
            elif line.strip().isalpha():
                table = tables.setdefault(line.strip(), {})
            continue
        ended = line.startswith("}") and not _is_open(pending)
        if _HEAD.match(line) or ended:
            if pending:
                body.append(_read_instruction(pending, number))
            pending = line
        else:  # a literal of several lines, or the metadata of a kernel
            pending = f"{pending} {line.strip()}"
        if ended:
            if not body:
                raise HloTextError(f"line {number + 1}: computation {opened[0]!r} is empty")
            computations[opened[0]] = Computation(opened[0], as_known(body), opened[1])
            if opened[1]:
                entry = opened[0]
            opened, pending = None, ""
    if opened is not None or not entry:
        raise HloTextError(
            f"the text of module {name.strip()!r} is cut off: "
            + (f"computation {opened[0]!r} does not end" if opened else "no ENTRY computation")
        )
    return Module(name.strip(), split_attributes(attributes), computations, entry, _frames(tables))


def _read_instruction(text: str, number: int) -> Instruction:
    head = _HEAD.match(text)
    if head is None:
        raise HloTextError(f"line {number}: {text.strip()[:80]!r} is not an instruction")
    array = _ARRAY.match(text, head.end())
    end = array.end() if array else _closing(text, head.end())
    opcode = _OPCODE.match(text, end) if end else None
    close = _closing(text, opcode.end() - 1) if opcode else None
    if opcode is None or close is None:
        raise HloTextError(f"line {number}: {text.strip()[:80]!r} is not an instruction")
    argument = text[opcode.end() : close - 1]
    operands: tuple[str, ...] = ()
    if opcode[1] not in ("constant", "parameter", "iota"):
        operands = tuple(_operand(part) for part in split_top(argument) if part.strip())
    return Instruction(
        name=head[2],
        opcode=opcode[1],
        shape_text=text[head.end() : end].strip(),
        operands=operands,
        argument=argument,
        rest=text[close:],
        is_root=bool(head[1]),
    )


def _is_open(text: str) -> bool:
    """Whether a bracket of a text is closed behind it."""
    found = [bracket for bracket in _BRACKETS.findall(text) if len(bracket) == 1]
    return sum(1 if bracket in "([{" else -1 for bracket in found) > 0


def _operand(text: str) -> str:
    """The name in an operand, which may stand behind its shape: `f32[8]{0} %x`."""
    return without_comments(text).split()[-1].removeprefix("%")


def _closing(text: str, start: int) -> int | None:
    """The position behind the bracket that closes the one at or behind `start`."""
    depth = 0
    for token in _BRACKETS.finditer(text, start):
        character = text[token.start()]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def _frames(tables: Mapping[str, Mapping[int, str]]) -> dict[int, tuple[Frame, ...]]:
    """The chains of source lines from the module's tables.

    The text writes a frame's parent one higher than its number, so that 1 means that it has none.
    """
    files = {key: value.strip('"') for key, value in tables.get("FileNames", {}).items()}
    places: dict[int, Frame] = {}
    for key, value in tables.get("FileLocations", {}).items():
        fields = dict(_FRAME_FIELD.findall(value))
        file = files.get(int(fields.get("file_name_id", 0)), "")
        places[key] = Frame(file, int(fields.get("line", 0)))
    links: dict[int, tuple[int, int]] = {}
    for key, value in tables.get("StackFrames", {}).items():
        fields = dict(_FRAME_FIELD.findall(value))
        location = int(fields.get("file_location_id", 0))
        links[key] = (location, int(fields.get("parent_frame_id", 1)) - 1)
    chains: dict[int, tuple[Frame, ...]] = {}
    for key in links:
        chain: list[Frame] = []
        here = key
        while here in links and len(chain) <= len(links):
            location, parent = links[here]
            if location in places:
                chain.append(places[location])
            here = parent
        chains[key] = tuple(chain)
    return chains
