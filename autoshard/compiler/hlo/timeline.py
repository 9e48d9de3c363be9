"""Seconds of one run of a scheduled module, on a compute and a communication stream.

Instructions run in the order of the text. Compute takes the one stream, collectives the other:

    an asynchronous collective starts when the communication stream is free, and its done waits
    a synchronous one waits for the communication stream, and compute waits for it
    copies and kernels that have a start and a done run beside both, one after another
    transfers to the host's memory and from it run beside all, one after another in each direction
    a loop takes its body's time as often as it turns, a conditional its dearest branch's

What an instruction takes comes from the compiler where it says so: XLA:TPU writes the cycles of its
fusions into the text, XLA:GPU a timeline of its own (`autoshard.compiler.hlo.schedule`), which then
replaces the computation's own. Where it waits for a guess its kernels keep their times, and so do
collectives that it shows to be waited for. XLA:GPU's times leave out what starting a kernel takes
(xla/service/gpu/model/gpu_performance_model_base.h has it for decisions about fusion alone): the
machine's price of it comes on top, but for what the timeline stands still before the kernel.
Kernels that people wrote take what the plan says of them. Elsewhere prices are asked for, see
`Prices`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.compiler.hlo.collectives import Found
from autoshard.compiler.hlo.events import Event, events
from autoshard.compiler.hlo.module import Instruction, Module
from autoshard.compiler.hlo.parts import part_of
from autoshard.compiler.hlo.places import Place, called_computations, trip_count
from autoshard.compiler.hlo.priced import Prices
from autoshard.compiler.hlo.rings import find_rings
from autoshard.compiler.hlo.schedule import Schedule, ScheduledComputation, is_written
from autoshard.compiler.hlo.transfers import transfer
from autoshard.compiler.hlo.work import does_nothing, work
from autoshard.lower.facts.kernel_times import seconds_of_kernel

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_AGAIN = ".remat"
"""What XLA's rematerialization writes behind the name of what it clones
(xla/hlo/transforms/simplifiers/hlo_rematerialization.cc)."""
_LOCAL_STARTS = frozenset({"copy-start", "slice-start", "dynamic-slice-start"})


@dataclass(frozen=True, slots=True)
class Timeline:
    """The compiled estimate of a step.

    Attributes:
      seconds: of the step.
      compute_seconds: the compute stream's work.
      collective_seconds: the communication stream's work.
      exposed_seconds: what compute waits for collectives, and for transfers.
      known_share: the part of `compute_seconds` for which the compiler gave the time itself.
      again_seconds: the part that XLA's rematerialization added, which computes again what there is
        no memory to keep.
      parts: `compute_seconds` by (name stack without the operation, whether a product is in it).
    """

    seconds: float
    compute_seconds: float = 0.0
    collective_seconds: float = 0.0
    exposed_seconds: float = 0.0
    known_share: float = 0.0
    again_seconds: float = 0.0
    parts: Mapping[tuple[str, bool], float] = field(default_factory=dict, compare=False)


def timeline(
    entry: Place,
    found: Sequence[Found],
    prices: Prices,
    *,
    clock_hertz: float | None = None,
    schedule: Schedule | None = None,
) -> Timeline:
    """The timeline of a scheduled module.

    Args:
      entry: its entry.
      found: its collectives, as `autoshard.compiler.hlo.collectives.find` gives them.
      prices: of what the compiler says nothing about.
      clock_hertz: of the chip, for cycles in the text.
      schedule: the compiler's own timeline, for the computations that it has.
    """
    total = _Simulation(prices, _collective_prices(found, prices), clock_hertz, schedule).run(entry)
    share = total.known / total.compute if total.compute else 0.0
    return Timeline(
        total.seconds,
        total.compute,
        total.collective,
        total.exposed,
        share,
        total.again,
        total.parts,
    )


@dataclass(slots=True)
class _Span:
    """Seconds of one run of a computation, and of the streams in it."""

    seconds: float = 0.0
    compute: float = 0.0
    collective: float = 0.0
    exposed: float = 0.0
    known: float = 0.0
    again: float = 0.0
    parts: dict[tuple[str, bool], float] = field(default_factory=dict)

    def add(self, other: _Span, times: float = 1.0) -> None:
        for part, seconds in other.parts.items():
            self.parts[part] = self.parts.get(part, 0.0) + times * seconds
        self.seconds += times * other.seconds
        self.compute += times * other.compute
        self.collective += times * other.collective
        self.exposed += times * other.exposed
        self.known += times * other.known
        self.again += times * other.again


@dataclass(frozen=True, slots=True)
class _Simulation:
    prices: Prices
    collectives: Mapping[tuple[str, str], float]
    clock_hertz: float | None
    schedule: Schedule | None

    def run(self, place: Place) -> _Span:
        span, nested = _Span(), _Span()
        happening = {event.instruction.name: event for event in events(place)}
        scheduled, beside = self._scheduled(place), _pairs(place, happening)
        moved = {
            one.name: found
            for one in place.computation.instructions
            if (found := transfer(place, one)) is not None
        }
        pauses = {} if scheduled is None else scheduled.pauses()
        guesses = scheduled is not None and (moved or scheduled.guesses(beside.items()))
        guessed = scheduled if guesses else None
        communication_free = copies_free = untimed = 0.0
        link_free: dict[str, float] = {}
        ready: dict[str, float] = {}  # when what was started is done
        for instruction in place.computation.instructions:
            inner = self._nested(place, instruction)
            event = happening.get(instruction.name)
            if inner is not None:
                span.add(inner)
                nested.add(inner)
                communication_free = max(communication_free, span.seconds)
            elif event is not None:
                seconds = self._collective_seconds(place, event, beside, guessed)
                communication_free = _let_run(event, seconds, span, communication_free, ready)
            elif instruction.name in moved:
                direction, size = moved[instruction.name]
                start = max(link_free.get(direction, 0.0), span.seconds)
                end = start + self.prices.transfer_seconds(direction, size)
                link_free[direction] = ready[instruction.name] = end
                if instruction.name not in beside:
                    span.exposed += end - span.seconds
                    span.seconds = end
            elif instruction.name in beside:
                copies_free = max(copies_free, span.seconds) + self._beside(place, instruction)
                ready[instruction.name] = copies_free
            elif instruction.opcode.endswith("-done") and instruction.operands:
                waited = max(0.0, ready.get(instruction.operands[0], 0.0) - span.seconds)
                span.seconds += waited
                if instruction.operands[0] in moved:
                    span.exposed += waited
                else:
                    span.compute += waited
            else:
                seconds = self._compute(place, instruction, span)
                pause = pauses.get(instruction.name, 0.0)
                untimed += self._untimed(place, instruction, seconds, pause)
        if scheduled is not None and guessed is None:
            # The compiler's own timeline; what is nested comes on top of it, and what it gives no
            # times: such kernels hide no collective.
            seconds, own_compute = scheduled.seconds + untimed, span.compute - nested.compute
            span.seconds = seconds + nested.seconds
            span.exposed = nested.exposed + max(0.0, seconds - own_compute)
        return span

    def _scheduled(self, place: Place) -> ScheduledComputation | None:
        if self.schedule is None:
            return None
        return self.schedule.computations.get(place.computation.name)

    def _nested(self, place: Place, instruction: Instruction) -> _Span | None:
        """The time of a loop, a call or a conditional; None for another instruction."""
        if instruction.opcode not in ("while", "call", "conditional"):
            return None
        spans = [self.run(place.enter(instruction, c)) for c in called_computations(instruction)]
        span = _Span()
        if not spans:
            return span
        dearest = max(spans, key=lambda one: one.seconds)
        times = 1
        if instruction.opcode == "while":
            times = trip_count(place, instruction) or 1
        span.add(dearest, times)
        return span

    def _collective_seconds(
        self,
        place: Place,
        event: Event,
        beside: Mapping[str, str],
        guessed: ScheduledComputation | None,
    ) -> float:
        """What a collective takes; where the compiler guesses others, as far as it tells."""
        name = event.instruction.name
        seconds = self.collectives.get((place.computation.name, name), 0.0)
        if guessed is not None and name in beside:
            least, most = guessed.latency(name, beside[name])
            return min(max(least, seconds), most)
        return seconds

    def _beside(self, place: Place, start: Instruction) -> float:
        """Seconds of a copy, or of a kernel, that runs beside the others."""
        if start.opcode in _LOCAL_STARTS:
            return self.prices.copy_seconds(_copied_bytes(place, start))
        cycles = self._by_cycles(start)
        done = work(place.module, place.computation, start)
        return self.prices.compute_seconds(done) if cycles is None else cycles

    def _untimed(
        self, place: Place, instruction: Instruction, seconds: float, pause: float
    ) -> float:
        """What of an instruction's seconds the compiler's timeline, which has it, leaves out.

        A kernel starts while the timeline pauses before it.
        """
        scheduled = self._scheduled(place)
        if (
            scheduled is None
            or instruction.name not in scheduled.starts
            or self._by_cycles(instruction)
        ):
            return 0.0
        own = scheduled.seconds_of(instruction)
        if own is None:
            return seconds
        return max(seconds - own - min(pause, self.prices.launch_seconds()), 0.0)

    def _compute(self, place: Place, instruction: Instruction, span: _Span) -> float:
        """Let an instruction run on the compute stream; its seconds."""
        if does_nothing(instruction):
            return 0.0
        known = self._known(place, instruction)
        seconds = known
        if seconds is None:
            seconds = seconds_of_written(place.module, instruction)
        if seconds is None:
            done = work(place.module, place.computation, instruction)
            seconds = self.prices.compute_seconds(done)
        span.seconds += seconds
        span.compute += seconds
        span.known += 0.0 if known is None else seconds
        span.again += seconds if _AGAIN in instruction.name else 0.0
        part = part_of(place.module, instruction)
        span.parts[part] = span.parts.get(part, 0.0) + seconds
        return seconds

    def _known(self, place: Place, instruction: Instruction) -> float | None:
        """What the compiler says that an instruction takes.

        Of cuBLAS's products XLA:GPU counts what they multiply, and not what they read: 5 us for 142
        MB on H100. They take what the memory does at least.
        """
        scheduled, cycles = self._scheduled(place), self._by_cycles(instruction)
        if cycles is not None or scheduled is None:
            return cycles
        known, size = scheduled.seconds_of(instruction), product_bytes(place, instruction)
        if not known:
            return known
        return self.prices.launch_seconds() + max(known, self.prices.least_seconds(size))

    def _by_cycles(self, instruction: Instruction) -> float | None:
        cycles = _CYCLES.search(instruction.rest) if self.clock_hertz is not None else None
        return int(cycles[1]) / self.clock_hertz if cycles and self.clock_hertz else None


def seconds_of_written(module: Module, instruction: Instruction) -> float | None:
    """What the plan says that a kernel takes which people wrote; None for other instructions."""
    if not module.kernels or not is_written(instruction):
        return None
    return seconds_of_kernel(module.kernels, instruction.op_name)


def product_bytes(place: Place, instruction: Instruction) -> int:
    """Bytes of the operands and the result of a product of cuBLAS; 0 of what is none."""
    target = (instruction.attribute("custom_call_target") or "").strip('"')
    if instruction.opcode != "custom-call" or not target.startswith("__cublas"):
        return 0
    operands = (place.computation.by_name[name].bytes for name in instruction.operands[:2])
    return instruction.arrays[0].bytes + sum(operands)


def _let_run(
    event: Event, seconds: float, span: _Span, free: float, ready: dict[str, float]
) -> float:
    """Let a collective run, start or end; when the communication stream is free again."""
    if event.phase == "done":
        waited = max(0.0, ready.get(event.partner, 0.0) - span.seconds)
        span.seconds += waited
        span.exposed += waited
        return free
    span.collective += seconds
    end = max(free, span.seconds) + seconds
    if event.phase == "start":
        ready[event.instruction.name] = end
    else:
        span.exposed += end - span.seconds
        span.seconds = end
    return end


def _pairs(place: Place, happening: Mapping[str, Event]) -> dict[str, str]:
    """For all that runs beside kernels, by the name of its start, the name of its done."""
    pairs = {event.partner: name for name, event in happening.items() if event.phase == "done"}
    starts = {
        one.name
        for one in place.computation.instructions
        if one.opcode in _LOCAL_STARTS
        or (one.opcode == "fusion-start" and one.name not in happening)
    }
    for one in place.computation.instructions:
        if one.opcode.endswith("-done") and one.operands and one.operands[0] in starts:
            pairs[one.operands[0]] = one.name
    return pairs


def _copied_bytes(place: Place, start: Instruction) -> int:
    """What a copy within the device moves; a slice's result is the second of its tuple."""
    if start.opcode == "copy-start":
        return place.find(start.operands[0]).bytes
    return start.arrays[1].bytes


def _collective_prices(found: Sequence[Found], prices: Prices) -> dict[tuple[str, str], float]:
    """Seconds of every collective instruction by (computation, name).

    Combined values are one collective of all their bytes. A ring's permutes share the price of the
    collective that it implements.
    """
    table: dict[tuple[str, str], float] = {}
    values: dict[tuple[str, str], dict[int, Found]] = {}
    for one in found:
        key = (one.place.computation.name, one.event.instruction.name)
        values.setdefault(key, {}).setdefault(one.operand, one)
    for key, combined in values.items():
        sizes: dict[str, float] = {}
        for one in combined.values():
            kind, size = _as_compiled(one)
            sizes[kind] = sizes.get(kind, 0.0) + size
        first = next(iter(combined.values()))
        table[key] = sum(
            prices.collective_seconds(kind, first, size) for kind, size in sizes.items()
        )
    for ring in find_rings(found):
        members = [found[number] for number in ring.members]
        first = members[0]
        size = first.record.bytes * ring.length
        whole = prices.collective_seconds(ring.kind, first, size) * ring.count
        permutes = sum(one.record.count for one in members)
        for one in members:
            key = (one.place.computation.name, one.event.instruction.name)
            table[key] = whole / permutes
    return table


def _as_compiled(one: Found) -> tuple[str, float]:
    """(kind, bytes) of what runs: a reduction is a reduce-scatter only where the two are fused."""
    record = one.record
    fused = one.event.home is not one.place
    if record.opcode == "all-reduce" and not (fused and record.kind == "reduce_scatter"):
        return "all_reduce", record.bytes
    return record.kind, record.bytes
