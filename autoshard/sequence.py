"""In which order a compiler runs the ops of a program.

A jaxpr is one order of many, and how much memory a step needs depends on the order. XLA walks the
graph of kernels (`autoshard.fusion`) from the results of a computation back to its arguments, and
emits a kernel after its operands. Of several operands it follows the one first whose ancestors are
shared most, then the one whose ancestors are largest (the depth-first scheduler of XLA's
`hlo_memory_scheduler`). So of a layer's backward pass the chain of activation gradients comes
first, the longest branch before the others, and what only the weights' gradients need waits.

A loop is one kernel of the computation around it, with an order of its own inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from autoshard.fusion import Fusion
from autoshard.graph import Program, Region


def sequence(program: Program, fusion: Fusion) -> tuple[int, ...]:
    """The position of every op in the order in which the compiler runs them."""
    order = _Walk(program, fusion).run()
    position = [0] * len(order)
    for number, op in enumerate(order):
        position[op] = number
    return tuple(position)


@dataclass(slots=True)
class _Kernel:
    """An op that writes to memory, or a whole loop: ops `first` to `last`."""

    first: int
    last: int
    bytes: int
    inner: Region | None = None
    before: list[int] = field(default_factory=list)
    users: int = 0


class _Walk:
    def __init__(self, program: Program, fusion: Fusion) -> None:
        self.program = program
        self.fusion = fusion
        self.order: list[int] = []
        self.emitted = [False] * len(program.ops)

    def run(self) -> list[int]:
        self._region(self.program.regions[0])
        return self.order

    def _region(self, region: Region) -> None:
        if region.parent < 0:
            self._as_written(region)
            return
        kernels = self._kernels(region)
        shared, size = _ancestry(kernels)

        def key(kernel: int) -> tuple[int, int, int]:
            return -shared[kernel], -size[kernel], kernel

        for kernel in _postorder(kernels, key):
            one = kernels[kernel]
            if one.inner is None:
                self._emit(one.first, region)
            else:
                for op in range(one.first, one.last):
                    for value in self.program.ops[op].inputs:
                        self._emit_maker(value, region)
                self._region(one.inner)
        for op in range(region.start, region.stop):  # what nobody reads
            self._emit(op, region)

    def _as_written(self, region: Region) -> None:
        for first, _, loop in self._parts(region):
            if loop is not None:
                self._region(loop)
            else:
                self.emitted[first] = True
                self.order.append(first)

    def _parts(self, region: Region) -> Iterator[tuple[int, int, Region | None]]:
        """The ops `first` to `last` of every part: a single op, or a whole loop."""
        inner = {one.start: one for one in self.program.regions if one.parent == region.index}
        first = region.start
        while first < region.stop:
            loop = inner.get(first)
            if loop is not None and loop.stop > loop.start:
                yield first, loop.stop, loop
                first = loop.stop
            else:
                yield first, first + 1, None
                first += 1

    def _emit(self, op: int, region: Region) -> None:
        if self.emitted[op]:
            return
        self.emitted[op] = True
        for value in self.program.ops[op].inputs:
            self._emit_maker(value, region)
        self.order.append(op)

    def _emit_maker(self, value: int, region: Region) -> None:
        """A fused or free op stands before the first kernel that reads it."""
        maker = self.program.values[value].producer if value >= 0 else -1
        if maker >= 0 and self.program.ops[maker].region == region.index:
            self._emit(maker, region)

    def _kernels(self, region: Region) -> list[_Kernel]:
        kernels: list[_Kernel] = []
        maker: dict[int, int] = {}
        for first, last, loop in self._parts(region):
            read = [value for op in self.program.ops[first:last] for value in op.inputs]
            written = [value for op in self.program.ops[first:last] for value in op.outputs]
            reaches_memory = any(self.fusion.materialised[value] for value in written)
            if loop is None and written and not reaches_memory:
                continue
            kernel = _Kernel(first, last, 0, loop)
            before = {
                maker[source]
                for value in read
                if value >= 0
                for source in self.fusion.sources[value]
                if source in maker
            }
            kernel.before = sorted(before)
            for one in before:
                kernels[one].users += 1
            kernel.bytes = self._bytes(kernel, written)
            maker.update(dict.fromkeys(written, len(kernels)))
            kernels.append(kernel)
        return kernels

    def _bytes(self, kernel: _Kernel, written: Iterable[int]) -> int:
        return sum(
            self.program.values[value].bytes
            for value in written
            if self.fusion.materialised[value]
            and (kernel.inner is None or self._leaves(value, kernel.inner))
        )

    def _leaves(self, value: int, loop: Region) -> bool:
        producer = self.program.ops[self.program.values[value].producer]
        return producer.region == loop.index and producer.primitive in ("stack", "yield", "join")


def _ancestry(kernels: Sequence[_Kernel]) -> tuple[list[int], list[int]]:
    """How often ancestors are shared, and their bytes, with multiplicity but bounded."""
    shared: list[int] = []
    size: list[int] = []
    total = 0
    for kernel in kernels:
        total += kernel.bytes
        more = max(kernel.users - 1, 0) + sum(shared[one] for one in kernel.before)
        shared.append(min(more, len(kernels)))
        size.append(min(kernel.bytes + sum(size[one] for one in kernel.before), total))
    return shared, size


def _postorder(kernels: Sequence[_Kernel], key) -> Iterable[int]:
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
