"""What one controller did in a step, with times: programs, transfers, bytes in use.

    result, recording = lowered.record(params, opt_state, batch)
    print(recording)                               # seconds by mesh and kind
    recording.laid_out().save("step.trace")        # for ui.perfetto.dev

While it records, the controller waits for everything that it enqueues: so the seconds of each are
its own, but meshes do not work at the same time. `laid_out` puts the same seconds where they stand
when nobody waits:

    start = the latest of the ends of what it reads, and of what its mesh (its link) did before
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard import compat, trace_events
from autoshard.files import write_whole
from autoshard.lower.mpmd.instructions import Gather, Instruction, Run, Script, Send, Slot
from autoshard.lower.mpmd.instructions import reads_and_writes as slots_of
from autoshard.trace_events import MICROSECONDS, Event
from autoshard.units import counted, format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Recorded:
    """Something that was done.

    Attributes:
      name: such as "BW3@1" (microbatch 3 of stage 1).
      kind: "F", "B", "W" or "BW", two of them with a +, "around" the loop, "transfer" or "stack".
      mesh: where; of a transfer, where to.
      start, end: seconds from the start of the step.
      reads: which of those before made what it reads.
      source: of a transfer the mesh that it is from.
      bytes: of a transfer, of the whole array.
      live_bytes: of a device of the mesh, in arrays, once it is done and dead ones are freed.
      host_bytes: likewise, of the device's arrays in the memory of its host.
    """

    name: str
    kind: str
    mesh: int
    start: float
    end: float
    reads: tuple[int, ...]
    source: int | None = None
    bytes: int = 0
    live_bytes: int = 0
    host_bytes: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Recording:
    """A step as it was carried out; see the module.

    Attributes:
      name: of the step.
      meshes: how many there are.
      done: everything, in the order in which it was enqueued.
    """

    name: str
    meshes: int
    done: tuple[Recorded, ...]

    @property
    def seconds(self) -> float:
        """Until the end of the last."""
        return max((one.end for one in self.done), default=0.0)

    def laid_out(self) -> Recording:
        """The same, each as early as its mesh, or link, and what it reads allow."""
        free: dict[Any, float] = {}
        ends: list[float] = []
        moved = []
        for one in self.done:
            lane = one.mesh if one.source is None else (one.source, one.mesh)
            start = max([free.get(lane, 0.0), *(ends[number] for number in one.reads)])
            free[lane] = start + one.seconds
            ends.append(free[lane])
            moved.append(replace(one, start=start, end=free[lane]))
        return replace(self, done=tuple(moved))

    def on(self, mesh: int) -> tuple[Recorded, ...]:
        """What ran on a mesh."""
        return tuple(one for one in self.done if one.mesh == mesh and one.source is None)

    def chrome_trace(self) -> dict[str, Any]:
        """A trace, as JSON: a thread a mesh, one for what it is sent, arrows, bytes in use."""
        events: list[Event] = [trace_events.process(self.name)]
        for mesh in range(self.meshes):
            events.append(trace_events.thread(2 * mesh, f"mesh {mesh}"))
            events.append(trace_events.thread(2 * mesh + 1, f"to mesh {mesh}"))
        for number, one in enumerate(self.done):
            events += self._events(number, one)
        return trace_events.document(events)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace."""
        write_whole(os.fspath(path), json.dumps(self.chrome_trace()).encode())

    def _events(self, number: int, one: Recorded) -> list[Event]:
        thread = 2 * one.mesh + (one.source is not None)
        start, end = one.start * MICROSECONDS, one.end * MICROSECONDS
        known = {} if one.source is None else {"bytes": one.bytes, "from": f"mesh {one.source}"}
        events = [
            trace_events.block(
                one.name, one.kind, start=start, duration=end - start, thread=thread, known=known
            ),
            trace_events.counter(
                f"bytes of a device of mesh {one.mesh}", time=end, values={"live": one.live_bytes}
            ),
        ]
        if one.source is not None:
            for maker in one.reads:
                done = self.done[maker].end * MICROSECONDS
                events += trace_events.arrow(
                    "transfer", number, start=done, source=2 * one.source, end=start, target=thread
                )
        return events

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {counted(len(self.done), 'instruction')} in "
            f"{format_seconds(self.seconds)}"
        ]
        for mesh in range(self.meshes):
            here = [one for one in self.done if one.mesh == mesh]
            spent: dict[str, tuple[int, float]] = {}
            for one in here:
                count, seconds = spent.get(one.kind, (0, 0.0))
                spent[one.kind] = count + 1, seconds + one.seconds
            listed = ", ".join(f"{n} {k} {format_seconds(s)}" for k, (n, s) in spent.items())
            most = max((one.live_bytes for one in here), default=0)
            there = max((one.host_bytes for one in here), default=0)
            hosted = f", {format_bytes(there)} of its host" if there else ""
            lines.append(f"mesh {mesh}: {listed}; {format_bytes(most)} of a device at most{hosted}")
        return "\n".join(lines)


class Recorder:
    """Takes down what a controller does."""

    def __init__(self, script: Script, meshes: int) -> None:
        self.script = script
        self.done: list[Recorded] = []
        self.live, self.hosted = [0] * meshes, [0] * meshes
        self._sizes: dict[Slot, tuple[int, list[int]]] = {}
        self._makers: dict[Slot, int] = {}

    def placed(self, slot: Slot, array: Any) -> None:
        """An array is in a slot from now on."""
        shape = array.sharding.shard_shape(array.shape)
        size = array.dtype.itemsize
        for count in shape:
            size *= count
        there = array.sharding.memory_kind == compat.HOST_KIND
        taken = self.hosted if there else self.live
        self._sizes[slot] = size, taken
        taken[slot.mesh] += size

    def carried_out(
        self,
        one: Instruction,
        start: float,
        end: float,
        made: Sequence[tuple[Slot, Any]],
        dead: Sequence[Slot],
    ) -> None:
        """An instruction is done, and slots are freed."""
        for slot, array in made:
            self.placed(slot, array)
            self._makers[slot] = len(self.done)
        for slot in dead:
            size, taken = self._sizes.pop(slot, (0, self.live))
            taken[slot.mesh] -= size
        reads, writes = slots_of(one)
        mesh = writes[0].mesh
        makers = {self._makers[slot] for slot in reads if slot in self._makers}
        self.done.append(
            Recorded(
                self._name(one),
                self._kind(one),
                mesh,
                start,
                end,
                tuple(sorted(makers)),
                source=one.source.mesh if isinstance(one, Send) else None,
                bytes=made[0][1].nbytes if isinstance(one, Send) else 0,
                live_bytes=self.live[mesh],
                host_bytes=self.hosted[mesh],
            )
        )

    def _name(self, one: Instruction) -> str:
        if isinstance(one, Run):
            return " + ".join(map(str, one.tasks)) or self.script.units[one.unit].name
        if isinstance(one, Send):
            maker = self._makers.get(one.source)
            return (
                f"{'input' if maker is None else self.done[maker].name} to mesh {one.target.mesh}"
            )
        return "stack"

    def _kind(self, one: Instruction) -> str:
        if isinstance(one, Run):
            return "+".join(task.kind for task in one.tasks) or "around"
        return "stack" if isinstance(one, Gather) else "transfer"
