"""Find kernels that run as one: kernels of one shape that read the same arrays.

    m' = b m + (1 - b) g          reads m, g            writes m'
    v' = c v + (1 - c) g g        reads v, g            writes v'
    w' = w - m' / sqrt(v')        reads w, m', v'       writes w'

A compiler fuses the three into one kernel with three results, which reads w, m, v and g once each
(XLA's multi-output fusion). So an elementwise kernel, or a reduction of an elementwise result, can
join an earlier kernel of its region. Both must iterate over the same indices. The earlier kernel
must read or write an array of this size that the later one reads too. The kernels stay apart if an
op outside the earlier kernel would have to run in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autoshard.program.graph import Op, Program


@dataclass(slots=True)
class _Kernel:
    """The ops of one kernel so far, and the arrays that it has read or computed."""

    first: int
    ops: set[int] = field(default_factory=set)
    holds: set[int] = field(default_factory=set)


class Joined(NamedTuple):
    """The kernel that an op joins: its first op, and the values it has read or computed so far."""

    first: int
    holds: frozenset[int]


def at_hand(
    program: Program, kernels: Mapping[int, Iterable[int]], sources: Sequence[frozenset[int]]
) -> dict[int, Joined]:
    """Return, by op, the kernel that it joins, in its state at that point.

    Args:
      program: the step, its ops in an order in which each comes after its operands.
      kernels: by op, the shape over which it iterates; for ops that write to memory and may join
        others, in the program's order.
      sources: per value, the values read from memory when it is read.
    """
    found: dict[int, Joined] = {}
    open_kernels: dict[tuple[int, tuple[int, ...], int], list[_Kernel]] = {}
    for index, shape in kernels.items():
        op, domain = program.ops[index], tuple(shape)
        read = {source for value in op.inputs if value >= 0 for source in sources[value]}
        size = math.prod(domain)
        whole = [v for v in sorted(read) if math.prod(program.values[v].shape) == size]
        candidates = (
            kernel for value in whole for kernel in open_kernels.get((op.region, domain, value), ())
        )
        kernel = next((one for one in candidates if _may_join(program, op, read, one, whole)), None)
        if kernel is None:
            kernel = _Kernel(index)
        else:
            found[index] = Joined(kernel.first, frozenset(kernel.holds))
        kernel.ops.add(index)
        for value in {*read, *op.outputs} - kernel.holds:
            open_kernels.setdefault((op.region, domain, value), []).append(kernel)
            kernel.holds.add(value)
    return found


def _may_join(
    program: Program, op: Op, read: Iterable[int], kernel: _Kernel, whole: Iterable[int]
) -> bool:
    """Whether `op` can join `kernel`: nothing that must run before `op` depends on `kernel`.

    `op` may read the kernel's own results only if they are `whole` arrays, read index by index. It
    may not read a reduced one.
    """
    makers = {program.values[value].producer for value in read}
    own = {program.values[value].producer for value in whole} & kernel.ops
    if not own.issuperset(makers & kernel.ops):
        return False
    return kernel.ops.isdisjoint(_before(program, kernel, makers))


def _before(program: Program, kernel: _Kernel, makers: Iterable[int]) -> Iterator[int]:
    """Yield the producers of what the `makers` outside `kernel` read, back to its first op."""
    seen: set[int] = set()
    waiting = [maker for maker in makers if maker not in kernel.ops]
    while waiting:
        maker = waiting.pop()
        if maker <= kernel.first or maker in seen:
            continue
        seen.add(maker)
        earlier = [program.values[v].producer for v in program.ops[maker].inputs if v >= 0]
        yield from earlier
        waiting += earlier
