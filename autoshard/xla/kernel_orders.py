"""Orders in which the kernels of a computation can run, and the memory that they need.

* **Depth-first**: from the results back to the arguments, a kernel after its operands. Of several
  operands the one comes first whose ancestors are shared most, then the one whose ancestors are
  largest. So of a backward pass the chain of activation gradients comes first, the longest branch
  before the others, and what only the weights' gradients need waits.
* **Greedy**: of the kernels that could run, the one that frees most bytes, less those that it
  writes; then the one with most readers.

They are those of XLA's `hlo_memory_scheduler`, which takes the one that needs less memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autoshard.program.graph import Region


@dataclass(slots=True)
class Kernel:
    """An op that writes to memory, or a whole loop: ops `first` to `last`.

    Attributes:
      first, last: op indices.
      bytes: of what it writes.
      inner: the loop, if it is one.
      before: the kernels, by number, that make what it reads.
      users: how many kernels read what it writes.
    """

    first: int
    last: int
    bytes: float
    inner: Region | None = None
    before: list[int] = field(default_factory=list)
    users: int = 0


def depth_first(kernels: Sequence[Kernel]) -> list[int]:
    """The numbers of the kernels, depth-first."""
    shared, size = _ancestry(kernels)

    def key(kernel: int) -> tuple[int, float, int]:
        return -shared[kernel], -size[kernel], kernel

    return list(_postorder(kernels, key))


def greedy(kernels: Sequence[Kernel]) -> list[int]:
    """The numbers of the kernels, greedily."""
    readers = _readers(kernels)
    unread = [len(users) for users in readers]
    waits_for = [len(kernel.before) for kernel in kernels]
    done = [False] * len(kernels)

    def rank(kernel: int) -> tuple[float, int, int]:
        freed = sum(kernels[one].bytes for one in kernels[kernel].before if unread[one] == 1)
        return kernels[kernel].bytes - freed, -len(readers[kernel]), kernel

    # A kernel's rank only improves, so that an entry of an earlier one comes out too late.
    ready = [rank(kernel) for kernel, count in enumerate(waits_for) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        kernel = heapq.heappop(ready)[-1]
        if done[kernel]:
            continue
        done[kernel] = True
        order.append(kernel)
        for one in kernels[kernel].before:
            unread[one] -= 1
            if unread[one] == 1:
                last = next(user for user in readers[one] if not done[user])
                if not waits_for[last]:
                    heapq.heappush(ready, rank(last))
        for user in readers[kernel]:
            waits_for[user] -= 1
            if not waits_for[user]:
                heapq.heappush(ready, rank(user))
    return order


def peak_bytes(kernels: Sequence[Kernel], order: Iterable[int]) -> float:
    """The most that is alive at once of what the kernels write, in bytes."""
    unread = [len(users) for users in _readers(kernels)]
    alive = peak = 0.0
    for kernel in order:
        alive += kernels[kernel].bytes
        peak = max(peak, alive)
        for one in kernels[kernel].before:
            unread[one] -= 1
            if not unread[one]:
                alive -= kernels[one].bytes
    return peak


def _readers(kernels: Sequence[Kernel]) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in kernels]
    for number, kernel in enumerate(kernels):
        for one in kernel.before:
            readers[one].append(number)
    return readers


def _ancestry(kernels: Sequence[Kernel]) -> tuple[list[int], list[float]]:
    """How often ancestors are shared, and their bytes, with multiplicity but bounded."""
    shared: list[int] = []
    size: list[float] = []
    total = 0.0
    for kernel in kernels:
        total += kernel.bytes
        more = max(kernel.users - 1, 0) + sum(shared[one] for one in kernel.before)
        shared.append(min(more, len(kernels)))
        size.append(min(kernel.bytes + sum(size[one] for one in kernel.before), total))
    return shared, size


def _postorder(kernels: Sequence[Kernel], key) -> Iterable[int]:
    seen = [False] * len(kernels)
    roots = sorted((k for k, kernel in enumerate(kernels) if not kernel.users), key=key)
    for root in roots:
        if seen[root]:
            continue
        seen[root] = True
        stack = [(root, iter(sorted(kernels[root].before, key=key)))]
        while stack:
            kernel, rest = stack[-1]
            for other in rest:
                if not seen[other]:
                    seen[other] = True
                    stack.append((other, iter(sorted(kernels[other].before, key=key))))
                    break
            else:
                stack.pop()
                yield kernel
