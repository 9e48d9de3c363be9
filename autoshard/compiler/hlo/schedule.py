"""The timeline that XLA:GPU writes of its own schedule.

With `xla_dump_latency_hiding_schedule` the compiler writes, for every computation with a
collective, when each instruction starts and ends by its own estimates, overlap included
(`ScheduleProto` in text form; `cycles_per_microsecond` is 1). A computation that was scheduled more
than once counts as the last time. The statistics that stand there too are not read: they are of the
order before anything was hidden.

Where the compiler knows no measured table for the chip it falls back to rough classes: a collective
takes 5,000, a kernel 1 or 1,000. Such figures are no times; `is_measured` tells the two apart. On a
chip that it knows it still does so for collectives of few devices on some of the hosts, and for
copies that run beside kernels (since 0.12: `dynamic_slice_copy_fusion_async_wrapper.cc`), however
much they carry; `guesses` tells the computations whose length comes of such. What is known of the
collectives there, `latency` says. Copies and kernels of Triton (most softmaxes) take 0.01, whatever
they move, and kernels that people wrote take 10, whatever they compute: `seconds_of` says nothing
of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoshard.compiler.hlo.module import Instruction
from autoshard.units import counted

COLLECTIVE_CLASS = 5e-3
"""Seconds from the start of what runs beside kernels to its done, where the compiler knows nothing
of it."""

STEP = 1e-6
"""Seconds from any instruction to the next that reads it."""

KERNEL_CLASS = 1e-8
"""Seconds of a copy or a kernel of Triton, where the compiler knows the others' times."""

WRITTEN = (
    "tpu_custom_call",
    "__gpu$xla.gpu.triton",
    "triton_kernel_call",
    "mosaic_gpu",
    "__cudnn$fmha",
)
"""With what the targets of calls begin that are kernels which people wrote."""

_NUMBER = r"(-?[\d.]+(?:e[+-]?\d+)?)"
_FIELD = re.compile(r"^\s*(\w+): " + _NUMBER + r"$")
_NAME = re.compile(r'^(    |      )name: "([^"]*)"$')
_ID = re.compile(r"^(    |      )id: (\d+)$")


def is_written(instruction: Instruction) -> bool:
    """Whether an instruction calls a kernel that people wrote."""
    target = (instruction.attribute("custom_call_target") or "").strip('"')
    return instruction.opcode == "custom-call" and target.startswith(WRITTEN)


@dataclass(frozen=True, slots=True)
class ScheduledComputation:
    """The compiler's timeline of one run of a computation.

    Attributes:
      seconds: from the first instruction's start to the last one's end; a loop in it counts as one
        short instruction.
      starts, ends: of every instruction by name, seconds.
    """

    seconds: float
    starts: Mapping[str, float]
    ends: Mapping[str, float]

    def duration(self, name: str) -> float:
        """Seconds between an instruction's start and its end; 0 where it is not scheduled."""
        return self.ends.get(name, 0.0) - self.starts.get(name, 0.0)

    def pauses(self) -> dict[str, float]:
        """Seconds from the last end of what came earlier to an instruction's start, by name.

        The compiler lets `STEP` pass between an instruction and the next that reads it.
        """
        found: dict[str, float] = {}
        last = 0.0
        for name in sorted(self.starts, key=lambda one: (self.starts[one], self.ends[one])):
            found[name] = max(self.starts[name] - last, 0.0)
            last = max(last, self.ends[name])
        return found

    def seconds_of(self, instruction: Instruction) -> float | None:
        """What the compiler says that an instruction takes; None where it says nothing."""
        if instruction.name not in self.starts or is_written(instruction):
            return None
        seconds = self.duration(instruction.name)
        foreign = instruction.opcode == "copy" or (
            instruction.opcode == "fusion" and instruction.attribute("kind") == "kCustom"
        )
        return None if foreign and abs(seconds - KERNEL_CLASS) < KERNEL_CLASS / 100 else seconds

    def guesses(self, pairs: Iterable[tuple[str, str]]) -> bool:
        """Whether kernels wait for a rough class: of collectives or copies, by start and done."""
        return any(
            abs(self.starts[done] - self.starts[start] - COLLECTIVE_CLASS) < 1e-9
            for start, done in pairs
            if start in self.starts and done in self.starts
        )

    def latency(self, start: str, done: str) -> tuple[float, float]:
        """The least and the most that the compiler can have taken for the time of a collective.

        Both are the seconds from its start to its done where nothing runs after the start: then the
        done waits for it alone. Else it takes no more than these. Nothing is known of a guess.
        """
        if not {start, done} <= self.starts.keys() or self.guesses([(start, done)]):
            return 0.0, math.inf
        begun, seconds = self.ends[start], self.starts[done] - self.starts[start]
        later = (at for name, at in self.starts.items() if name != start and at > begun - STEP / 2)
        return seconds if min(later) - begun > 1.5 * STEP else 0.0, seconds


@dataclass(frozen=True, slots=True)
class Schedule:
    """Scheduled computations by name."""

    computations: Mapping[str, ScheduledComputation]

    @property
    def is_measured(self) -> bool:
        """Whether the times are estimates, and not the compiler's rough classes."""
        return any(
            abs(1e6 * computation.duration(name) % 1.0) > 1e-3
            and abs(1e6 * computation.duration(name) % 1.0 - 1.0) > 1e-3
            for computation in self.computations.values()
            for name in computation.starts
        )


def read_schedule(text: str) -> Schedule:
    """Read a `*.schedule.txt`.

    Raises:
      ValueError: it holds no computation's schedule.
    """
    lines = text.splitlines()
    names: dict[int, str] = {}
    computation_names: dict[int, str] = {}
    at = 0
    # The module: an `id` of the same depth follows each `name`.
    last = {"    ": "", "      ": ""}
    while at < len(lines) and not lines[at].startswith("computation_schedules {"):
        line = lines[at]
        named = _NAME.match(line)
        if named:
            last[named[1]] = named[2]
        else:
            numbered = _ID.match(line)
            if numbered:
                table = names if len(numbered[1]) == 6 else computation_names
                table[int(numbered[2])] = last[numbered[1]]
        at += 1
    found: dict[str, ScheduledComputation] = {}
    for block in _blocks(lines[at:]):
        name, computation = _computation(block, names, computation_names)
        found[name] = computation
    if not found:
        raise ValueError(
            f"no schedule of a computation in a text of {counted(len(lines), 'line')}; give "
            "what XLA dumps as "
            "a schedule"
        )
    return Schedule(found)


def _blocks(lines: list[str]) -> list[list[str]]:
    blocks: list[list[str]] = []
    for line in lines:
        if line.startswith("computation_schedules {"):
            blocks.append([])
        elif blocks:
            blocks[-1].append(line)
    return blocks


def _computation(
    block: list[str], names: Mapping[int, str], computation_names: Mapping[int, str]
) -> tuple[str, ScheduledComputation]:
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    name, cycles = "", 1.0
    here: dict[str, float] = {}
    for line in block:
        if line.startswith("  instructions {"):
            here = {}
        elif line == "  }":
            if "id" in here:
                instruction = names.get(int(here["id"]), "")
                starts[instruction] = here.get("start_timestamp_cycles", 0.0)
                ends[instruction] = here.get("end_timestamp_cycles", 0.0)
                here = {}
        else:
            field = _FIELD.match(line)
            if field is None:
                continue
            if line.startswith("    "):
                here[field[1]] = float(field[2])
            elif field[1] == "computation_id":
                name = computation_names.get(int(field[2]), field[2])
            elif field[1] == "cycles_per_microsecond":
                cycles = float(field[2])
    scale = 1e-6 / cycles
    first = min(starts.values(), default=0.0)
    return name, ScheduledComputation(
        seconds=scale * (max(ends.values(), default=0.0) - first),
        starts={key: scale * (value - first) for key, value in starts.items()},
        ends={key: scale * (value - first) for key, value in ends.items()},
    )
