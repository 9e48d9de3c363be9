"""A module of HLO as records: computations, instructions, and the lines of source behind them.

Shapes and attributes stay text until somebody asks for them, since most never are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoshard import compat
from autoshard.compiler.hlo.shapes import ArrayShape, Shape, leaves, parse_shape, total_bytes
from autoshard.lower.facts.kernel_times import KernelTime
from autoshard.lower.facts.loop_trips import LoopTrips

_SPLIT = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]')
_COMMENT = re.compile(r"/\*.*?\*/")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_STACK_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One instruction.

    Attributes:
      name, opcode: as in the text, without `%`.
      shape_text: of its result.
      operands: names of other instructions of the computation.
      argument: what stands between the parentheses: a literal, a parameter's number, operands.
      rest: its attributes, as text; see `attribute`.
      is_root: whether it is the computation's result.
    """

    name: str
    opcode: str
    shape_text: str
    operands: tuple[str, ...]
    argument: str
    rest: str
    is_root: bool = False

    @property
    def shape(self) -> Shape:
        return parse_shape(self.shape_text)

    @property
    def arrays(self) -> tuple[ArrayShape, ...]:
        """The arrays of its result."""
        return leaves(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of its result."""
        return total_bytes(self.shape)

    def attribute(self, key: str) -> str | None:
        """The text of one attribute, or None where it has none of that name."""
        if f"{key}=" not in self.rest:
            return None
        return split_attributes(self.rest).get(key)

    def attributes(self) -> dict[str, str]:
        """All attributes."""
        return split_attributes(self.rest)

    def called(self, *keys: str) -> tuple[str, ...]:
        """Names of the computations that the attributes `keys` name (`calls`, `body`, ...)."""
        names: list[str] = []
        for key in keys:
            value = self.attribute(key)
            if value is not None:
                parts = value.strip("{} ").split(",")
                names.extend(part.strip().removeprefix("%") for part in parts if part.strip())
        return tuple(names)

    @property
    def op_name(self) -> str:
        """JAX's name stack, as `jit(step)/layer/dot_general`, or an empty string."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    def __str__(self) -> str:
        return f"{self.name} = {self.opcode}"


@dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """Instructions in the order of the text; in a scheduled module, of execution."""

    name: str
    instructions: tuple[Instruction, ...]
    is_entry: bool = False
    by_name: Mapping[str, Instruction] = field(init=False, repr=False)
    users: Mapping[str, tuple[Instruction, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        users: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                users.setdefault(operand, []).append(instruction)
        object.__setattr__(self, "by_name", {i.name: i for i in self.instructions})
        object.__setattr__(self, "users", {name: tuple(found) for name, found in users.items()})

    @property
    def root(self) -> Instruction:
        for instruction in reversed(self.instructions):
            if instruction.is_root:
                return instruction
        return self.instructions[-1]

    def operands(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """The instructions that `instruction` reads."""
        return tuple(self.by_name[name] for name in instruction.operands)

    def parameter(self, number: int) -> Instruction | None:
        """The parameter of that number."""
        for instruction in self.instructions:
            if instruction.opcode == "parameter" and instruction.argument.strip() == str(number):
                return instruction
        return None


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of source from which an operation comes."""

    file: str
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A module.

    Attributes:
      name, attributes: of its first line.
      computations: by name.
      entry: name of the computation at which it starts.
      frames: chains of source lines by `stack_frame_id`, innermost first.
      loops: of the program that it was made of, for trip counts that it does not tell.
      kernels: of that program, for what it gives no time for.
    """

    name: str
    attributes: Mapping[str, str]
    computations: Mapping[str, Computation]
    entry: str
    frames: Mapping[int, tuple[Frame, ...]] = field(default_factory=dict)
    loops: tuple[LoopTrips, ...] = ()
    kernels: tuple[KernelTime, ...] = ()

    @property
    def devices(self) -> int:
        """How many devices run it."""
        counts = (self.attributes.get(key, "1") for key in ("num_partitions", "replica_count"))
        devices = 1
        for count in counts:
            devices *= int(count)
        return devices

    @property
    def is_scheduled(self) -> bool:
        return self.attributes.get("is_scheduled") == "true"

    def source(self, instruction: Instruction) -> tuple[Frame, ...]:
        """The source lines of an instruction, innermost first; none where it has no metadata."""
        found = _STACK_FRAME.search(instruction.rest)
        if found:
            return self.frames.get(int(found[1]), ())
        found = _SOURCE.search(instruction.rest)
        return (Frame(found[1], int(found[2])),) if found else ()

    def users_line(self, instruction: Instruction) -> str:
        """`file.py:12` of the user's code that an instruction comes from, or an empty string."""
        return compat.users_line((frame.file, frame.line) for frame in self.source(instruction))


def split_attributes(text: str) -> dict[str, str]:
    """`key=value` pairs of a list, split at the commas that stand in no bracket."""
    found: dict[str, str] = {}
    last = ""
    for part in split_top(text):
        key, equals, value = part.strip().partition("=")
        if not equals:
            continue
        if key == "device_ids" and found.get(last, "").startswith("mesh["):
            found[last] += f", {part.strip()}"  # belongs to the mesh before it
            continue
        found[key] = value
        last = key
    return found


def without_comments(text: str) -> str:
    """HLO text without what stands between `/*` and `*/`, as the numbers of elements do."""
    return _COMMENT.sub("", text)


def split_top(text: str) -> list[str]:
    """`text` split at the commas that stand in no bracket and no quotes."""
    parts: list[str] = []
    depth, start = 0, 0
    for token in _SPLIT.finditer(text):
        character = text[token.start()]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start : token.start()])
            start = token.end()
    parts.append(text[start:])
    return parts
