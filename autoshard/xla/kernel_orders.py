"""Order the kernels of a computation, and compute the peak memory of an order.

* **Depth-first**: a post-order walk from the results, each kernel after its operands. Among several
  operands, the one whose ancestors have the most shared uses comes first, then the one with the
  largest ancestors. In a backward pass the chain of activation gradients therefore comes first, the
  longest branch before the others. Kernels that only the weight gradients need come later.
* **Greedy**: list scheduling. Among the ready kernels, take the one that frees most bytes, less the
  bytes that it writes; then the one with most readers.

These are the orders of XLA's `hlo_memory_scheduler`, which takes the one that needs less memory.
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
      bytes: size of what it writes.
      inner: the loop's region, if it is a loop.
      before: the numbers of the kernels whose results it reads.
      users: how many kernels read its results.
    """

    first: int
    last: int
    bytes: float
    inner: Region | None = None
    before: list[int] = field(default_factory=list)
    users: int = 0


def depth_first(kernels: Sequence[Kernel]) -> list[int]:
    """Return the numbers of the kernels in depth-first order."""
    shared, size = _ancestry(kernels)

    def key(kernel: int) -> tuple[int, float, int]:
        return -shared[kernel], -size[kernel], kernel

    return list(_postorder(kernels, key))


def greedy(kernels: Sequence[Kernel]) -> list[int]:
    """Return the numbers of the kernels in greedy order."""
    readers = _readers(kernels)
    unread = [len(users) for users in readers]
    waits_for = [len(kernel.before) for kernel in kernels]
    done = [False] * len(kernels)

    def rank(kernel: int) -> tuple[float, int, int]:
        freed = sum(kernels[one].bytes for one in kernels[kernel].before if unread[one] == 1)
        return kernels[kernel].bytes - freed, -len(readers[kernel]), kernel

    # A kernel's rank only improves, so a stale heap entry comes out later and is skipped.
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
    """Return the peak of live bytes among the results of the kernels."""
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
    """Return, per kernel, the shared uses among its ancestors and their bytes.

    An ancestor counts once per path to it; both numbers are bounded.
    """
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
