"""Find the order in which the compiler runs the ops of a program.

A jaxpr is one of many valid orders, and the peak memory of a step depends on the order. XLA tries
several orders on the graph of kernels (`autoshard.xla.fusion`, `autoshard.xla.kernel_orders`) and
takes the one that needs least memory. A loop is one kernel of the enclosing computation, with an
order of its own inside. Where the latency-hiding scheduler runs, the body of a loop is ordered
depth-first, and the scheduler starts from that order if the loop has collectives. Where it does not
run, as on v5p and v6e, loops too keep the order that needs least memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from autoshard.machine.chip import Chip
from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.graph import Program, Region
from autoshard.program.vocabulary import LEAVING
from autoshard.xla.fusion import Fusion
from autoshard.xla.kernel_orders import Kernel, depth_first, greedy, peak_bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker between two kernels of an order, whose position is reported."""

    of: Hashable


Arrange = Callable[[Region, Sequence[Kernel]], Iterable[int | Mark]]
"""The order of a region's kernels by their numbers, with marks in between."""


def sequence(program: Program, fusion: Fusion, chip: Chip | None = None) -> tuple[int, ...]:
    """Return the position of every op in the order in which the chip's compiler runs them."""
    compiler = LAWS if chip is None else chip.compiler
    as_found = chip is not None and compiler.runs_in_least_memory
    in_loops = as_found and not compiler.denies("gpu.least-memory-in-loops")
    arrange = least_memory if in_loops else depth_first_in_loops
    return arranged(program, fusion, partial(arrange, compiler=compiler))[0]


def _sizes(program: Program) -> list[float]:
    """The bytes of every value in the memory of chips."""
    return [0.0 if value.host else float(value.bytes) for value in program.values]


def arranged(
    program: Program, fusion: Fusion, arrange: Arrange, sizes: Sequence[float] | None = None
) -> tuple[tuple[int, ...], dict[Hashable, int]]:
    """Return the position of every op, and by mark the position of the next op.

    `arrange` orders the kernels of each region. `sizes` are the bytes of every value; by default
    those of whole, unsharded arrays.
    """
    walk = _Walk(program, fusion, arrange, sizes or _sizes(program))
    walk.region(program.regions[0])
    position = [0] * len(walk.order)
    for number, op in enumerate(walk.order):
        position[op] = number
    return tuple(position), walk.marks


def least_memory(region: Region, kernels: Sequence[Kernel], compiler: Compiler = LAWS) -> list[int]:
    """Return the order that needs least memory among those that the compiler tries.

    If it tries none, return the program's own order. Loops are treated like the whole step.
    """
    ways = [
        *(() if compiler.denies("gpu.greedy-where-least") else (greedy,)),
        *(() if compiler.denies("gpu.depth-first-where-least") else (depth_first,)),
    ]
    if not ways:
        return list(range(len(kernels)))
    return min((way(kernels) for way in ways), key=lambda order: peak_bytes(kernels, order))


def depth_first_in_loops(
    region: Region, kernels: Sequence[Kernel], compiler: Compiler = LAWS
) -> list[int]:
    """Return the depth-first order for a loop; otherwise the order that needs least memory."""
    in_loop = region.parent >= 0 and not compiler.denies("tpu.loops-run-depth-first")
    return depth_first(kernels) if in_loop else least_memory(region, kernels, compiler)


class _Walk:
    def __init__(
        self, program: Program, fusion: Fusion, arrange: Arrange, sizes: Sequence[float]
    ) -> None:
        self.program = program
        self.sizes = sizes
        self.fusion = fusion
        self.arrange = arrange
        self.order: list[int] = []
        self.marks: dict[Hashable, int] = {}
        self.emitted = [False] * len(program.ops)

    def region(self, region: Region) -> None:
        kernels = self._kernels(region)
        for kernel in self.arrange(region, kernels):
            if isinstance(kernel, Mark):
                self.marks[kernel.of] = len(self.order)
                continue
            one = kernels[kernel]
            if one.inner is None:
                self._emit(one.first, region)
            else:
                for op in range(one.first, one.last):
                    for value in self.program.ops[op].inputs:
                        if (maker := self._unemitted_maker(value, region)) >= 0:
                            self._emit(maker, region)
                self.region(one.inner)
        for op in range(region.start, region.stop):  # ops that nothing reads
            self._emit(op, region)

    def _parts(self, region: Region) -> Iterator[tuple[int, int, Region | None]]:
        """Yield the parts of a region, as ops `first` to `last`: a single op, or a whole loop."""
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
        """Emit an op after the ops that make what it reads; fused and free ops go before it."""
        stack: list[tuple[int, Iterator[int]]] = []
        if not self.emitted[op]:
            self.emitted[op] = True
            stack.append((op, iter(self.program.ops[op].inputs)))
        while stack:
            op, unread = stack[-1]
            maker = next((m for v in unread if (m := self._unemitted_maker(v, region)) >= 0), -1)
            if maker < 0:
                self.order.append(op)
                stack.pop()
            else:
                self.emitted[maker] = True
                stack.append((maker, iter(self.program.ops[maker].inputs)))

    def _unemitted_maker(self, value: int, region: Region) -> int:
        """Return the op of the region that makes a value, if it is not emitted yet; else -1."""
        maker = self.program.values[value].producer if value >= 0 else -1
        here = maker >= 0 and self.program.ops[maker].region == region.index
        return maker if here and not self.emitted[maker] else -1

    def _kernels(self, region: Region) -> list[Kernel]:
        kernels: list[Kernel] = []
        maker: dict[int, int] = {}
        for first, last, loop in self._parts(region):
            read = [value for op in self.program.ops[first:last] for value in op.inputs]
            written = [value for op in self.program.ops[first:last] for value in op.outputs]
            reaches_memory = any(self.fusion.materialised[value] for value in written)
            if loop is None and written and not reaches_memory:
                continue
            kernel = Kernel(first, last, 0, loop)
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

    def _bytes(self, kernel: Kernel, written: Iterable[int]) -> float:
        return sum(
            self.sizes[value]
            for value in written
            if self.fusion.materialised[value]
            and (kernel.inner is None or self._leaves(value, kernel.inner))
        )

    def _leaves(self, value: int, loop: Region) -> bool:
        producer = self.program.ops[self.program.values[value].producer]
        return producer.region == loop.index and producer.primitive in LEAVING
