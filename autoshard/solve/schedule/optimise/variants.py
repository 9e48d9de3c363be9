"""Which of several ways each stage runs, together with the order of all tasks.

Stage s runs in one of the ways `variants[s]`: what it saves for its backward pass costs memory for
each microbatch on its way, and saves time. A choice of one way for each stage is a schedule
problem (`Instance`), whose memory limit is what the chosen ways leave of each mesh:

    limit(d) - sum over s on d of resident(s) - max over s on d of workspace(s)

A way may take memory elsewhere, too, of which each mesh has so much room
(`autoshard.solve.schedule.elsewhere`).

Choices are made stage by stage, those with the least bound first. The bound of a choice of some
stages is that of the problem in which every other stage has the shortest tasks and the least memory
of all its ways, each by itself (`autoshard.solve.schedule.optimise.bounds`): a schedule of any of
them is one of that problem, and ends no later there. Of what it takes elsewhere the bound asks only
that one microbatch has room. A choice of all stages gets the best of the
named schedules, and where that is not at its bound, what `solve` finds. What is left when the bound
reaches the best value cannot be better.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.schedule.elsewhere import within
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, Number
from autoshard.solve.schedule.named import named_orders
from autoshard.solve.schedule.optimise.bounds import lower_bound
from autoshard.solve.schedule.optimise.flat import flatten
from autoshard.solve.schedule.optimise.solve import InfeasibleLimitError, smallest_limit, solve
from autoshard.solve.schedule.task import Order
from autoshard.solve.schedule.timeline import simulate

SHARE = 0.2
"""Of the time that is left, what the order of one choice may take."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a stage; times and memory in the units of the instance.

    Attributes:
      forward, backward, weight: time of F, B and W.
      after_forward, after_backward: memory that a microbatch takes after F, and after B.
      resident: memory that the stage takes always.
      workspace: memory that it takes while a task of it runs.
      once: time of its work after the loop.
      elsewhere: what a microbatch takes of a second memory, from F to the end of its last task.
    """

    forward: Number
    backward: Number
    weight: Number
    after_forward: Number
    after_backward: Number
    resident: Number = 0
    workspace: Number = 0
    once: Number = 0
    elsewhere: Number = 0

    def least(self, other: Variant) -> Variant:
        """The smaller of each number of two ways."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return Variant(*(min(pair) for pair in pairs))

    def beats(self, other: Variant) -> bool:
        """Whether no number of this way is larger than that of the other."""
        return self.least(other) == self


@dataclass(frozen=True, slots=True, eq=False)
class VariantOutcome:
    """The best choice that was found.

    Attributes:
      chosen: for each stage the number of its variant; None if no choice fits, or none was found.
      instance, order: its schedule problem, and the best order of its tasks.
      value: the makespan and the longest work after the loop; infinite where there is no choice.
      bound: no choice and order of it has a smaller value.
      limit_hit: what ended the search before the proof, or None.
    """

    chosen: tuple[int, ...] | None
    instance: Instance | None
    order: Order | None
    value: Number
    bound: Number
    limit_hit: LimitHit | None


def choose(
    instance: Instance,
    variants: Sequence[Sequence[Variant]],
    limits: Sequence[Number],
    *,
    once: Sequence[Number] | None = None,
    rooms: Sequence[Number] | None = None,
    gap: float = 0.0,
    time_limit: float = 10.0,
) -> VariantOutcome:
    """Find the choice of one variant for each stage whose best schedule ends first.

    Args:
      instance: the schedule problem; its times of tasks and its memory are those of no variant.
      variants: the ways to run each stage.
      limits: memory of each mesh, for all of its stages and microbatches.
      once: by mesh, time after the loop beside that of its stages.
      rooms: what each mesh has elsewhere; by default no way takes anything there.
      gap: stop once proven to be this close to the best, as a share.
      time_limit: seconds.
    """
    once = (0,) * instance.meshes if once is None else once
    rooms = (0,) * instance.meshes if rooms is None else rooms
    stop = time.monotonic() + time_limit
    return _Search(instance, variants, limits, once, rooms, gap, stop).run()


def applied(
    instance: Instance, chosen: Sequence[Variant], limits: Sequence[Number]
) -> tuple[Instance, list[Number]]:
    """The schedule problem of stages that run in these ways, and what its meshes lack of memory.

    Where a mesh lacks memory for one microbatch, the problem has no memory limit that holds.
    """
    room: list[Number] = []
    for mesh, limit in enumerate(limits):
        here = [chosen[s] for s in instance.on(mesh)]
        fixed = sum(one.resident for one in here)
        room.append(limit - fixed - max((one.workspace for one in here), default=0))
    left = [min(one.after_forward, one.after_backward) for one in chosen]
    made = replace(
        instance,
        forward=tuple(one.forward for one in chosen),
        backward=tuple(one.backward for one in chosen),
        weight=tuple(one.weight for one in chosen),
        memory_forward=tuple(one.after_forward for one in chosen),
        memory_backward=tuple(b - one.after_forward for b, one in zip(left, chosen, strict=True)),
        memory_weight=tuple(-b for b in left),
        memory_limit=tuple(max(one, 0) for one in room),
    )
    needed = smallest_limit(made)
    return made, [max(n - r, 0) for n, r in zip(needed, room, strict=True)]


@dataclass(slots=True)
class _Search:
    instance: Instance
    variants: Sequence[Sequence[Variant]]
    limits: Sequence[Number]
    once: Sequence[Number]
    rooms: Sequence[Number]
    gap: float
    deadline: float
    best: tuple[tuple[int, ...], Instance, Order] | None = None
    value: Number = float("inf")
    proven: Number = float("inf")
    late: bool = False
    least: list[Variant] = field(default_factory=list)

    def run(self) -> VariantOutcome:
        for ways in self.variants:
            least = ways[0]
            for way in ways[1:]:
                least = least.least(way)
            self.least.append(least)
        count = itertools.count()
        root = self._bound(())
        heap: list[tuple[Number, int, int, tuple[int, ...]]] = []
        if root is not None:
            heap.append((root, 0, next(count), ()))
        while heap:
            bound, _, _, some = heapq.heappop(heap)
            if self._enough(bound):
                self.proven = min(self.proven, bound)
                break
            if self.best is not None and time.monotonic() >= self.deadline:
                self.late, self.proven = True, min(self.proven, bound)
                break
            if len(some) == len(self.variants):
                self._finish(some, bound)
                continue
            for way in range(len(self.variants[len(some)])):
                more = (*some, way)
                found = self._bound(more)
                if found is not None and not self._enough(found):
                    heapq.heappush(heap, (found, -len(more), next(count), more))
                elif found is not None:
                    self.proven = min(self.proven, found)
        chosen, instance, order = self.best or (None, None, None)
        bound = min(self.proven, self.value)
        hit = LimitHit.TIME if self.late else None
        if hit is None and bound < self.value:
            hit = LimitHit.GAP
        return VariantOutcome(chosen, instance, order, self.value, bound, hit)

    def _enough(self, bound: Number) -> bool:
        """Whether what has this bound is no better than the best so far, or not by the gap."""
        return bound >= self.value * (1 - self.gap)

    def _ways(self, some: Sequence[int]) -> list[Variant]:
        """The ways of the stages that are decided, and the least of all ways of the others."""
        decided = [ways[way] for ways, way in zip(self.variants, some, strict=False)]
        return decided + self.least[len(some) :]

    def _bound(self, some: Sequence[int]) -> Number | None:
        """What no choice undercuts that begins with these ways; None if none of them fits."""
        ways = self._ways(some)
        instance, lacking = applied(self.instance, ways, self.limits)
        if any(lacking) or any(self._lacking_elsewhere(ways)):
            return None
        flat = flatten(instance, "makespan")
        return flat.time(lower_bound(flat)) + self._once(ways)

    def _lacking_elsewhere(self, ways: Sequence[Variant]) -> Iterator[bool]:
        """Whether each mesh lacks room elsewhere for one microbatch."""
        for mesh, room in enumerate(self.rooms):
            yield sum(ways[s].elsewhere for s in self.instance.on(mesh)) > room

    def _once(self, ways: Sequence[Variant]) -> Number:
        meshes = range(self.instance.meshes)
        on = [sum(ways[s].once for s in self.instance.on(mesh)) for mesh in meshes]
        return max(a + b for a, b in zip(on, self.once, strict=True))

    def _finish(self, chosen: tuple[int, ...], bound: Number) -> None:
        """Look for the best order of a choice."""
        ways = self._ways(chosen)
        instance, _ = applied(self.instance, ways, self.limits)
        instance = within(instance, [one.elsewhere for one in ways], self.rooms)
        once = self._once(ways)
        named = min(self._named(instance), key=lambda one: one[0], default=None)
        if named is not None:
            self._take(chosen, instance, named[1], named[0] + once)
        if named is not None and bound >= (named[0] + once) * (1 - self.gap):
            self.proven = min(self.proven, bound)
            return
        left = max(self.deadline - time.monotonic(), 0.1)
        try:
            outcome = solve(
                instance,
                time_limit=max(left * SHARE, 0.1),
                gap=self.gap,
                warm_starts=[] if named is None else [named[1]],
            )
        except InfeasibleLimitError:  # the bound knows what one microbatch needs
            return
        self.proven = min(self.proven, max(bound, outcome.bound + once))
        if outcome.order is not None and outcome.value is not None:
            self._take(chosen, instance, outcome.order, outcome.value + once)
        self.late = self.late or outcome.limit_hit is LimitHit.TIME
        if outcome.limit_hit is LimitHit.INTERRUPTED:
            raise KeyboardInterrupt

    def _take(
        self, chosen: tuple[int, ...], instance: Instance, order: Order, value: Number
    ) -> None:
        if value < self.value:
            self.best, self.value = (chosen, instance, order), value

    def _named(self, instance: Instance) -> Iterator[tuple[Number, Order]]:
        """The named orders that the memory allows, with their makespans."""
        for order in named_orders(instance).values():
            try:
                yield simulate(instance, order).makespan, order
            except ScheduleError:
                continue
