"""Where collectives start and end among the instructions of a computation.

A collective is one instruction, or a pair that lets others run in between:

    %g = all-gather(%x)                                             whole
    %s = all-gather-start(%x) ... %d = all-gather-done(%s)          start, done
    %s = async-start(%x), calls=%wrapped ... %d = async-done(%s)    start, done
    %s = fusion-start(%x), calls=%kernel ... %d = fusion-done(%s)   start, done

XLA:TPU also hides them inside of fusions:

    fusion calls=%f, where %f is an all-reduce and a dynamic-slice           whole
    async-collective-start = fusion, whose root is a custom call             start
        to AsyncCollectiveStart of an all-gather
    fusion, a matmul and a copy of that all-gather, with its channel,        the gather goes on
        beside the start or in a loop after it
    async-collective-done = fusion, ... AsyncCollectiveDone                  done

Between slices, XLA:TPU writes a collective as a send and a recv to the host, with its kind in an
attribute (`_xla_megascale_transfer_type`); the recv and its done stand for it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autoshard.compiler.hlo.module import Instruction, Module
from autoshard.compiler.hlo.places import Place

OPCODES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)

WRAPPING = ("async-start", "fusion-start")
"""What starts a collective that stands in a computation of its own."""

_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')

Phase = Literal["whole", "start", "done"]


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A collective runs, starts or ends.

    Attributes:
      instruction: of the computation, as scheduled.
      phase: what happens there.
      home, collective: the place and the instruction of the collective itself, which stands inside
        of `instruction` where that is a fusion or wraps it.
      partner: of a done, the name of the instruction that started it.
    """

    instruction: Instruction
    phase: Phase
    home: Place
    collective: Instruction
    partner: str = ""


def opcode_of(instruction: Instruction) -> str:
    """The collective that an instruction is or starts, or an empty string."""
    opcode = instruction.opcode.removesuffix("-start")
    if opcode in OPCODES:
        return opcode
    return kind_between_slices(instruction).replace("_", "-")


def kind_between_slices(instruction: Instruction) -> str:
    """The kind of collective between slices that a recv stands for, as in `Move`, or nothing."""
    if instruction.opcode != "recv":
        return ""
    found = _BETWEEN_SLICES.search(instruction.rest)
    return found[1].lower() if found else ""


def events(place: Place) -> Iterator[Event]:
    """The events of the instructions of `place`, in order; not those of loops and calls."""
    started: dict[str, Event] = {}
    by_channel: dict[str, Event] = {}
    for instruction in place.computation.instructions:
        opcode = instruction.opcode
        if opcode_of(instruction) or opcode in WRAPPING:
            found = _wrapped(place, instruction)
            if found is None:
                continue
            apart = opcode.endswith("-start") or opcode == "recv"
            phase: Phase = "start" if apart else "whole"
            event = Event(instruction, phase, *found)
            started[instruction.name] = event
            yield event
        elif opcode.endswith("-done") and instruction.operands:
            event = started.get(_started_by(place, instruction))
            if event is not None and event.phase == "start":
                name = event.instruction.name
                yield Event(instruction, "done", event.home, event.collective, name)
        elif opcode == "fusion":
            yield from _in_fusion(place, instruction, by_channel)


def _wrapped(place: Place, instruction: Instruction) -> tuple[Place, Instruction] | None:
    """The collective that `instruction` is, or wraps."""
    if opcode_of(instruction):
        return place, instruction
    for callee in instruction.called("calls"):
        inner = place.enter(instruction, callee)
        for wrapped in inner.computation.instructions:
            if opcode_of(wrapped):
                return inner, wrapped
    return None


def _started_by(place: Place, done: Instruction) -> str:
    start = place.find(done.operands[0])
    while start.opcode in ("async-update", "get-tuple-element", "bitcast") and start.operands:
        start = place.find(start.operands[0])
    return start.name


def _in_fusion(place: Place, fusion: Instruction, by_channel: dict[str, Event]) -> Iterator[Event]:
    inner = place.enter(fusion, fusion.called("calls")[0])
    found = list(_collectives_within(inner))
    if not found:
        return
    target = _custom_call(inner)
    for home, collective in found:
        channel = collective.attribute("channel_id") or collective.name
        if target == "AsyncCollectiveDone":
            start = by_channel.pop(channel, None)
            if start is not None:
                name = start.instruction.name
                yield Event(fusion, "done", start.home, start.collective, name)
                continue
        elif target == "AsyncCollectiveStart":
            by_channel[channel] = Event(fusion, "start", home, collective)
            yield by_channel[channel]
            continue
        if channel not in by_channel and (target or channel not in _started(place.module)):
            yield Event(fusion, "whole", home, collective)


@functools.lru_cache(maxsize=8)
def _started(module: Module) -> frozenset[str]:
    """Channels of the collectives that a fusion starts, wherever in a module."""
    found = set[str]()
    for computation in module.computations.values():
        place = Place(module, computation)
        if _custom_call(place) == "AsyncCollectiveStart":
            for _, collective in _collectives_within(place):
                found.add(collective.attribute("channel_id") or collective.name)
    return frozenset(found)


def _collectives_within(place: Place) -> Iterator[tuple[Place, Instruction]]:
    for instruction in place.computation.instructions:
        if opcode_of(instruction):
            yield place, instruction
        elif instruction.opcode == "fusion":
            yield from _collectives_within(place.enter(instruction, instruction.called("calls")[0]))


def _custom_call(place: Place) -> str:
    """The target of the custom call to an asynchronous collective in a computation."""
    for instruction in place.computation.instructions:
        if instruction.opcode == "custom-call":
            target = (instruction.attribute("custom_call_target") or "").strip('"')
            if target.startswith("AsyncCollective"):
                return target
    return ""
