"""What no schedule can beat: heads, tails, and one mesh at a time.

Heads and tails. The k-th task of a letter starts no earlier than its head, and no less than its
tail lies between its end and the value of the schedule. Both are longest paths, in a graph that has
beside the flow of data

* an edge from every task to the next of its letter, as microbatches may be taken in order
  (`autoshard.solve.schedule.optimise.flat`);
* for stage s with L of memory on its mesh, an edge from B(s, n - 1) to F(s, k), where n is the
  least number of microbatches that must have come back for the k-th forward to fit: when F(s, k)
  starts, k + 1 forwards of s have taken mem_F each, and each of n gradients has given back at most
  mem_F (its W comes after it), so  n >= k + 1 - L / mem_F;
* likewise one from W(s, n - 1): at most k gradients have run, each of which gave back mem_B, so
  n >= ((k + 1) mem_F - L - k mem_B) / mem_W.

A tail counts from what the objective counts from: the end of the mesh for the makespan; for the
span, that less the mesh's first start, which is the same in all schedules where `first_starts` says
so.

One mesh. Let all other meshes do any number of tasks at once. What is left is one machine with
heads and tails, for which Jackson's preemptive schedule is a bound: always work on the task with
the longest tail among those whose head has passed (https://doi.org/10.1016/0377-2217(82)90007-6).
It is at least  min head + sum of times + min tail  over every subset of the mesh's tasks, so it
covers the bounds by all work, and by forwards and gradients with what must follow them.

Before the first return. No memory is given back on a mesh before its first gradient can start, at
r; until then it can run forwards of a total time of at most G, the best filling of the memory by
parts of forwards (a fractional knapsack). So of all its tasks, or of forwards and gradients alone,
a time of at least  sum - min(G, r - first head)  comes after r, and then the least of their tails.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass

import numpy as np

from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.optimise.flat import Flat

FAR = -(2**60)
"""A tail that leads nowhere."""


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Heads and tails of tasks, (letters, microbatches), in ticks.

    A task starts at its head or later; `value - tail` is the latest end in a schedule of a value.
    """

    heads: np.ndarray
    tails: np.ndarray


def first_starts(instance: Instance) -> list[int] | None:
    """Stages whose first forward is what each mesh starts with, whatever the order; or None.

    A stage's is, if all other stages of its mesh need it, and what it needs itself is known to
    come as early as it can: all its sources are such stages too.
    """
    ancestors: list[set[int]] = [set() for _ in range(instance.stages)]
    for _ in range(instance.stages):
        for source, reader in instance.edges:
            ancestors[reader] |= ancestors[source] | {source}
    first: set[int] = set()
    for _ in range(instance.stages):
        for stage in range(instance.stages):
            others = set(instance.on(instance.placement[stage])) - {stage}
            if all(stage in ancestors[other] for other in others) and first.issuperset(
                instance.sources(stage)
            ):
                first.add(stage)
    by_mesh = {instance.placement[stage]: stage for stage in first}
    if any(instance.on(mesh) and mesh not in by_mesh for mesh in range(instance.meshes)):
        return None
    return [by_mesh.get(mesh, -1) for mesh in range(instance.meshes)]


def offsets(flat: Flat) -> np.ndarray | None:
    """What is subtracted from the end of each mesh in the value, where that is a constant."""
    meshes = flat.instance.meshes
    if flat.objective == "makespan":
        return np.zeros(meshes, np.int64)
    first = first_starts(flat.instance)
    if first is None:
        return None
    heads = _heads(flat, memory_edges(flat, unlimited=True), 1)
    number = {letter: at for at, letter in enumerate(flat.letters)}
    return np.array([0 if s < 0 else heads[number["F", s], 0] for s in first], np.int64)


def windows(flat: Flat, offset: np.ndarray) -> Windows:
    """Heads and tails of all tasks."""
    edges = memory_edges(flat)
    count = flat.arrays.microbatches
    return Windows(_heads(flat, edges, count), _tails(flat, edges, count, offset))


def lower_bound(flat: Flat) -> int:
    """Ticks that every schedule of the problem takes at least."""
    arrays = flat.arrays
    offset = offsets(flat)
    if offset is None:  # of the span without known first starts: a mesh works all its tasks
        work = np.bincount(arrays.home, arrays.time, flat.instance.meshes)
        return int(work.max()) * arrays.microbatches
    known = windows(flat, offset)
    best = 0
    for mesh in range(flat.instance.meshes):
        letters = arrays.letters[arrays.letters_start[mesh] : arrays.letters_start[mesh + 1]]
        if letters.size:
            heads = known.heads[letters].ravel()
            tails = known.tails[letters].ravel()
            times = np.repeat(arrays.time[letters], arrays.microbatches)
            best = max(best, one_machine(heads, times, tails))
            best = max(best, _first_return(flat, known, letters))
    return best


def _first_return(flat: Flat, known: Windows, letters: np.ndarray) -> int:
    """The bound by what can run on a mesh before its first gradient."""
    arrays, count = flat.arrays, flat.arrays.microbatches
    forward = letters[arrays.is_forward[letters] == 1]
    others = letters[arrays.is_forward[letters] == 0]
    heads = known.heads
    first, back = int(heads[letters].min()), int(heads[others].min())
    room, early = float(arrays.limit[arrays.home[letters[0]]]), 0.0
    for letter in sorted(forward, key=lambda x: -arrays.time[x] / max(arrays.take[x], 1e-9)):
        fitting = min(count, room / max(arrays.take[letter], 1e-9))
        early += fitting * arrays.time[letter]
        room -= fitting * arrays.take[letter]
    before = min(math.ceil(early), back - first)
    best = 0
    for chosen in (letters, letters[arrays.is_weight[letters] == 0]):
        work = int(arrays.time[chosen].sum()) * count
        best = max(best, back + work - before + int(known.tails[chosen].min()))
    return best


def one_machine(heads: np.ndarray, times: np.ndarray, tails: np.ndarray) -> int:
    """The value of Jackson's preemptive schedule."""
    tasks = sorted(zip(heads.tolist(), times.tolist(), tails.tolist(), strict=True))
    waiting: list[tuple[int, int]] = []  # (-tail, time left)
    now = value = 0
    at = 0
    while at < len(tasks) or waiting:
        if not waiting:
            now = max(now, tasks[at][0])
        while at < len(tasks) and tasks[at][0] <= now:
            heapq.heappush(waiting, (-tasks[at][2], tasks[at][1]))
            at += 1
        minus_tail, left = heapq.heappop(waiting)
        worked = left if at == len(tasks) else min(left, tasks[at][0] - now)
        now += worked
        if worked == left:
            value = max(value, now - minus_tail)
        else:
            heapq.heappush(waiting, (minus_tail, left - worked))
    return value


def memory_edges(flat: Flat, *, unlimited: bool = False) -> list[tuple[int, int, np.ndarray]]:
    """(forward, letter that gives back, how many of those must come before its k-th) triples."""
    arrays = flat.arrays
    number = {letter: at for at, letter in enumerate(flat.letters)}
    k = np.arange(arrays.microbatches)
    edges = []
    for at, (kind, stage) in enumerate(flat.letters):
        take, limit = int(arrays.take[at]), int(arrays.limit[arrays.home[at]])
        if unlimited or kind != "F" or take == 0 or take * arrays.microbatches <= limit:
            continue
        gradient = number.get(("B", stage))
        if gradient is None:
            gradient = number["BW", stage]
        edges.append((at, gradient, _ceil((k + 1) * take - limit, take)))
        weight = number.get(("W", stage))
        if weight is not None and arrays.give[weight] > 0:
            missing = (k + 1) * take - limit - k * arrays.give[gradient]
            edges.append((at, weight, _ceil(missing, int(arrays.give[weight]))))
    return edges


def _ceil(numbers: np.ndarray, divisor: int) -> np.ndarray:
    return np.maximum(-(-numbers // divisor), 0)


def _heads(flat: Flat, edges: list[tuple[int, int, np.ndarray]], count: int) -> np.ndarray:
    """Longest ways to every task, of the first `count` microbatches."""
    arrays = flat.arrays
    heads = [[0] * count for _ in flat.letters]
    times = arrays.time.tolist()
    needs = _neighbours(arrays.before_start, arrays.before, arrays.lag)
    backs: dict[int, list[tuple[int, list[int]]]] = {}
    for forward, giver, least in edges:
        backs.setdefault(forward, []).append((giver, least.tolist()))
    for k in range(count):
        for letter in in_order(flat):
            head = heads[letter][k - 1] + times[letter] if k else 0
            for need, lag in needs[letter]:
                head = max(head, heads[need][k] + times[need] + lag)
            for giver, least in backs.get(letter, ()):
                if least[k] > 0:
                    head = max(head, heads[giver][least[k] - 1] + times[giver])
            heads[letter][k] = head
    return np.array(heads, np.int64)


def _tails(
    flat: Flat, edges: list[tuple[int, int, np.ndarray]], count: int, offset: np.ndarray
) -> np.ndarray:
    """Longest ways from the end of every task to the value."""
    arrays = flat.arrays
    ends = (-offset[arrays.home]).tolist()
    tails = [[end] * count for end in ends]
    times = arrays.time.tolist()
    readers = _neighbours(arrays.after_start, arrays.after, arrays.after_lag)
    for k in reversed(range(count)):
        for letter in reversed(in_order(flat)):
            tail = tails[letter][k]  # what memory edges have put there already
            if k + 1 < count:
                tail = max(tail, tails[letter][k + 1] + times[letter])
            for reader, lag in readers[letter]:
                tail = max(tail, tails[reader][k] + times[reader] + lag)
            tails[letter][k] = tail
        for forward, giver, least in edges:
            if least[k] > 0:
                row, at = tails[giver], int(least[k]) - 1
                row[at] = max(row[at], tails[forward][k] + times[forward])
    return np.array(tails, np.int64)


def in_order(flat: Flat) -> list[int]:
    """The letters, each after those that it needs."""
    arrays = flat.arrays
    left = np.diff(arrays.before_start)
    ready = [letter for letter in range(left.size) if left[letter] == 0]
    order = []
    while ready:
        letter = ready.pop()
        order.append(letter)
        for reader in arrays.after[arrays.after_start[letter] : arrays.after_start[letter + 1]]:
            left[reader] -= 1
            if left[reader] == 0:
                ready.append(int(reader))
    return order


def _neighbours(
    start: np.ndarray, others: np.ndarray, lags: np.ndarray
) -> list[list[tuple[int, int]]]:
    bounds = start.tolist()
    pairs = list(zip(others.tolist(), lags.tolist(), strict=True))
    return [pairs[a:b] for a, b in itertools.pairwise(bounds)]
