"""Computations where they are called, and values followed through the calls.

A computation may run in several places: a loop's body, a fusion, a branch. A `Place` is one such
call: its computation, the instruction that calls it, and how often it runs there in one run of the
module. From there a value can be followed outwards, through a fusion's parameters and through loop
state that the body hands on as it is, to the instruction that makes it.

A loop's trip count stands in its `known_trip_count`, where the compiler wrote one, or follows from
three constants: the counter's start, the bound in the condition and the step in the body,

    for (i = start; i < bound; i += step):    ceil((bound - start) / step)

A loop for which neither gives a number turns as often as in the program that was compiled
(`Module.loops`). One that is not found there is counted once and named in `unknown`. The loop over
windows of ragged rows (`autoshard.program.ragged`) counts as one round.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoshard.compiler.hlo.module import Computation, Instruction, Module
from autoshard.lower.facts.loop_trips import LoopsOfModule
from autoshard.program.ragged import ROUNDS

_KNOWN = re.compile(r'known_trip_count[^\d]*"?(\d+)')
DATA_MOVEMENT = frozenset(
    {"copy", "bitcast", "convert", "reshape", "copy-done", "copy-start", "transpose"}
)
"""What leaves the elements of a value as they are, but for order and precision."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A computation where it is called.

    Attributes:
      module, computation: what stands here.
      caller: the place and the instruction that call it; None for the entry.
      count: how often it runs in one run of the module.
      unknown: loops around it whose trip counts are unknown, counted once.
    """

    module: Module
    computation: Computation
    caller: tuple[Place, Instruction] | None = None
    count: int = 1
    unknown: tuple[str, ...] = ()

    def find(self, name: str) -> Instruction:
        """The instruction of that name."""
        return self.computation.by_name[name]

    def enter(self, instruction: Instruction, callee: str) -> Place:
        """The computation `callee` as `instruction` of this place calls it."""
        count, unknown = self.count, self.unknown
        if instruction.opcode == "while":
            trips = trip_count(self, instruction)
            if trips is None and ROUNDS in instruction.op_name:
                trips = 1  # where groups are even
            count *= 1 if trips is None else trips
            unknown = unknown if trips is not None else (*unknown, _loop_name(instruction))
        computation = self.module.computations[callee]
        return Place(self.module, computation, (self, instruction), count, unknown)

    def outer(self, value: Instruction) -> tuple[Place, Instruction]:
        """`value`, or what the caller passes for it: parameters, and state that a loop keeps."""
        place = self
        while place.caller is not None:
            outside, call = place.caller
            if call.opcode == "while":
                index = _state_element(place, value)
                if index is None or _kept_state(place, index) is None:
                    break
                state = outside.origin(outside.find(call.operands[0]))
                if state[1].opcode != "tuple" or index >= len(state[1].operands):
                    break
                place, value = state[0], state[0].find(state[1].operands[index])
            elif value.opcode == "parameter" and call.opcode != "conditional":
                number = int(value.argument)
                if number >= len(call.operands):
                    break
                place, value = outside, outside.find(call.operands[number])
            else:
                break
        return place, value

    def origin(self, value: Instruction) -> tuple[Place, Instruction]:
        """The instruction that makes `value`, through data movement, calls and fusions."""
        place = self
        while True:
            place, value = place.outer(value)
            if value.opcode in DATA_MOVEMENT and value.operands:
                value = place.find(value.operands[0])
            elif value.opcode == "get-tuple-element":
                inner = place.origin(place.find(value.operands[0]))
                index = int(value.attribute("index") or 0)
                if inner[1].opcode != "tuple" or index >= len(inner[1].operands):
                    return place, value
                place, value = inner[0], inner[0].find(inner[1].operands[index])
            elif value.opcode in ("fusion", "call"):
                callee = value.called("calls", "to_apply")[0]
                place = place.enter(value, callee)
                value = place.computation.root
            else:
                return place, value


def walk(module: Module) -> Iterator[Place]:
    """Every place of a module, the entry first; comparators and reducers are left out."""
    pending = deque([Place(module, module.computations[module.entry])])
    while pending:
        place = pending.popleft()
        yield place
        for instruction in place.computation.instructions:
            pending.extend(
                place.enter(instruction, callee) for callee in called_computations(instruction)
            )


def called_computations(instruction: Instruction) -> tuple[str, ...]:
    """Computations that run as part of an instruction; of a loop, its body."""
    opcode = instruction.opcode
    if opcode == "while":
        return instruction.called("body")
    if opcode == "conditional":
        keys = ("branch_computations", "true_computation", "false_computation")
        return instruction.called(*keys)
    if opcode == "call":
        return instruction.called("to_apply")
    if opcode == "fusion" or opcode.endswith("-start"):
        return instruction.called("calls")
    return ()


def trip_count(place: Place, loop: Instruction) -> int | None:
    """How often the `while` instruction `loop` of `place` turns, or None."""
    known = _KNOWN.search(loop.rest)
    if known:
        return int(known[1])
    counted = _counted(place, loop)
    if counted is not None or not loop.op_name:
        return counted
    return _program_trips(place.module).get(id(loop))


@functools.lru_cache(maxsize=4)
def _program_trips(module: Module) -> Mapping[int, int | None]:
    """The trip counts of a module's loops in the program that it was made of, by the instruction.

    Several loops of one line and scope are those of the program in the order of both.
    """
    trips: dict[int, int | None] = {}
    known, seen = LoopsOfModule(module.loops), set[str]()

    def visit(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for instruction in module.computations[name].instructions:
            if instruction.opcode == "while" and instruction.op_name:
                line = module.users_line(instruction)
                trips[id(instruction)] = known.trips(instruction.op_name, line)
            for callee in called_computations(instruction):
                visit(callee)

    visit(module.entry)
    return trips


def _counted(place: Place, loop: Instruction) -> int | None:
    """What the loop's start, bound and step say, where all three are constants."""
    conditions, bodies = loop.called("condition"), loop.called("body")
    if not conditions or not bodies:
        return None
    computations = place.module.computations
    # Within a loop its state stands for itself: nothing is looked up through the loop's caller.
    body = Place(place.module, computations[bodies[0]])
    inside = Place(place.module, computations[conditions[0]])
    where, test = inside.origin(inside.computation.root)
    if test.opcode != "compare":
        return None
    left, right = (_linear(where, where.find(name)) for name in test.operands)
    if left is None or right is None:
        return None
    facing = test.attribute("direction") or ""
    for (index, ahead), (other, bound), direction in (
        (left, right, facing),
        (right, left, _MIRRORED.get(facing, "")),
    ):
        if index is None:
            continue
        if other is not None:
            kept = _initial(place, loop, other) if _handed_on(body, other) == (other, 0) else None
            if kept is None:
                continue
            bound += kept
        start, following = _initial(place, loop, index), _handed_on(body, index)
        if start is not None and following is not None and following[0] == index:
            return _turns(start + ahead, bound, following[1], direction)
    return None


# A value as (element of the loop's state or None, what is added to it).
_Linear = tuple[int | None, int]
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def _linear(place: Place, value: Instruction) -> _Linear | None:
    """`value` as an element of the state plus a constant."""
    place, value = place.origin(value)
    if value.opcode == "constant":
        text = value.argument.strip().strip("{} ")
        return (None, int(text)) if re.fullmatch(r"-?\d+", text) else None
    if value.opcode == "get-tuple-element":
        index = _state_element(place, value)
        return None if index is None else (index, 0)
    if value.opcode not in ("add", "subtract"):
        return None
    left, right = (_linear(place, place.find(name)) for name in value.operands)
    if left is None or right is None:
        return None
    if value.opcode == "subtract":
        return (left[0], left[1] - right[1]) if right[0] is None else None
    if left[0] is not None and right[0] is not None:
        return None
    return (right[0] if left[0] is None else left[0], left[1] + right[1])


def _initial(place: Place, loop: Instruction, index: int) -> int | None:
    """What an element of the state is before the first turn."""
    place, state = place.origin(place.find(loop.operands[0]))
    if state.opcode != "tuple" or index >= len(state.operands):
        return None
    found = _linear(place, place.find(state.operands[index]))
    return found[1] if found is not None and found[0] is None else None


def _handed_on(body: Place, index: int) -> _Linear | None:
    """What a loop's body makes of an element of the state."""
    state = body.computation.root
    if state.opcode != "tuple" or index >= len(state.operands):
        return None
    return _linear(body, body.find(state.operands[index]))


def _state_element(place: Place, value: Instruction) -> int | None:
    """The number of an element of a loop's state, where `value` is one."""
    if value.opcode != "get-tuple-element":
        return None
    if place.find(value.operands[0]).opcode != "parameter":
        return None
    return int(value.attribute("index") or 0)


def _kept_state(place: Place, index: int) -> Instruction | None:
    """An element of a loop's state that the body of `place` hands on as it is."""
    state = place.computation.root
    if state.opcode != "tuple" or index >= len(state.operands):
        return None
    value = place.find(state.operands[index])
    while value.opcode in ("copy", "bitcast") and value.operands:
        value = place.find(value.operands[0])
    return value if _state_element(place, value) == index else None


def _turns(start: int, bound: int, step: int, direction: str) -> int | None:
    if not step:
        return None
    if direction == "NE":
        return (bound - start) // step if (bound - start) % step == 0 else None
    if direction in ("LE", "GE"):
        bound += 1 if direction == "LE" else -1
    if direction in ("LT", "LE") and step > 0:
        return max(0, -(-(bound - start) // step))
    if direction in ("GT", "GE") and step < 0:
        return max(0, -(-(start - bound) // -step))
    return None


def _loop_name(loop: Instruction) -> str:
    return loop.op_name or loop.name
