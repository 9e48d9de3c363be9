"""Combine the collectives of a computation as XLA's combiner passes do.

The passes walk a computation in post-order. They group collectives of one kind over the same axes,
as long as none depends on another and the total size of the results stays below a limit. Those of
different dtypes stay apart. (XLA:GPU joins gathers of several dtypes, which changes predicted steps
and peaks by less than 0.5 %.) A combined collective begins when all its operands are ready, and all
its results are ready at its end. Combined all-reduces read one array, into which a kernel first
copies all operands.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from autoshard.cost.combined import GPU_BYTES
from autoshard.program.graph import Region
from autoshard.xla.latency_hiding import Role, Task, in_post_order

COMBINED = {
    "all_gather": ("gpu.gathers-combined", "gpu.gathers-combined-to-30-mib"),
    "all_reduce": ("gpu.sums-combined", "gpu.sums-combined-to-30-mib", "tpu.sums-are-combined"),
    "reduce_scatter": ("gpu.scatters-combined", "gpu.sums-combined-to-30-mib"),
}
"""Kinds of collectives that the compiler combines with others of their kind, with the habits."""
COMBINED_IN_LOOPS = {
    "all_gather": ("gpu.gathers-combined-in-loops",),
    "all_reduce": ("gpu.sums-combined-in-loops", "tpu.gradients-are-combined-in-loops"),
    "reduce_scatter": ("gpu.sums-combined-in-loops", "tpu.gradients-are-combined-in-loops"),
}
"""Likewise in loops."""


def combining(kind: str, region: Region) -> tuple[str, ...]:
    """Return the habits by which collectives of a kind are combined in a region."""
    return COMBINED[kind] + (COMBINED_IN_LOOPS[kind] if region.parent >= 0 else ())


@dataclass(frozen=True, slots=True)
class Flight:
    """A collective in the task graph.

    Attributes:
      begin, end: its tasks.
      bytes: size of its result.
      seconds: how long it takes alone.
      fixed: the part of `seconds` that does not depend on its size.
      estimated_fixed: likewise the size-independent part of the latency of `begin`, which is the
        time that the compiler estimates for it.
      kin: a key shared by the collectives it may be combined with; None if it stays alone.
      copied: seconds to copy its operand into the array of a combined collective; None where no
        such array is needed.
      hidden: whether kernels run concurrently with it.
    """

    begin: Task
    end: Task
    bytes: float
    seconds: float
    fixed: float
    estimated_fixed: float
    kin: Hashable
    copied: float | None = None
    hidden: bool = True


def combine(flights: Sequence[Flight], roots: Iterable[Task]) -> list[list[Flight]]:
    """Combine collectives and return all of them in groups.

    Only the tasks of the first collective of each group stay in the graph.

    Args:
      flights: all collectives of a computation; their tasks are changed.
      roots: the results of the computation, in the order in which it returns them; then the rest.
    """
    order = in_post_order(roots)
    place = {task: number for number, task in enumerate(order)}
    ancestors: dict[Task, int] = {}
    for number, task in enumerate(order):
        ancestors[task] = 1 << number
        for one in task.before:
            ancestors[task] |= ancestors[one]
    small = [one.kin is not None and one.bytes <= GPU_BYTES for one in flights]
    groups = [[one] for one, joins in zip(flights, small, strict=True) if not joins]
    left = [one for one, joins in zip(flights, small, strict=True) if joins]
    left.sort(key=lambda one: place[one.begin])
    while left:
        group: list[Flight] = []
        for one in left:
            if one.kin != left[0].kin:
                continue
            full = sum(other.bytes for other in group) + one.bytes > GPU_BYTES
            reads = any(ancestors[one.begin] >> place[other.end] & 1 for other in group)
            if full or reads:
                break
            group.append(one)
        left = [one for one in left if one not in group]
        groups += _merged(group)
    return groups


def _merged(group: Sequence[Flight]) -> list[list[Flight]]:
    """Merge a group, except members that depend on each other through groups merged before."""
    first, *others = group
    merged, apart = [first], list[list[Flight]]()
    for one in others:
        if one.begin.needs(first.end) or first.begin.needs(one.end):
            apart.append([one])
            continue
        for maker in one.begin.before:
            maker.after.remove(one.begin)
            first.begin.reads(maker)
        for reader in one.end.after:
            reader.before.remove(one.end)
            reader.reads(first.end)
        one.begin.before.clear()
        one.end.after.clear()
        merged.append(one)
    fixed = max(one.estimated_fixed for one in merged)
    first.begin.latency = fixed + sum(one.begin.latency - one.estimated_fixed for one in merged)
    if first.copied is not None and len(merged) > 1:
        copy = Task(None, Role.KERNEL, sum(one.copied or 0.0 for one in merged))
        copy.between(first.begin)
    return [merged, *apart]
