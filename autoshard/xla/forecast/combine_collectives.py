"""Which collectives of a computation are run as one.

XLA's combiners go through a computation in post-order and take collectives of one kind, over the
same axes, as long as none reads another and their results stay below a size; gathers of whatever
dtype, reductions of one. Together they begin when all that they read is there, and end at once.
All-reduces that run as one read one array, into which a kernel writes the operands of all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from autoshard.cost.combined import GPU_BYTES
from autoshard.xla.latency_hiding import Role, Task


@dataclass(frozen=True, slots=True)
class Flight:
    """A collective.

    Attributes:
      begin, end: its tasks.
      bytes: of its result.
      seconds: it takes alone.
      fixed: those of them that it takes however little it carries.
      estimated_fixed: the same of its begin's latency, which is what the compiler reckons it takes.
      kin: what it shares with those that it may run with; None: with none.
      copied: seconds in which its operand is written into an array with others; None where they
        need no such array.
      hidden: whether kernels run beside it.
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


def in_post_order(roots: Iterable[Task]) -> list[Task]:
    """The tasks that `roots` need, each after what it reads."""
    order: dict[Task, None] = {}
    for root in roots:
        stack = [(root, iter(root.before))]
        while stack:
            task, operands = stack[-1]
            operand = next((one for one in operands if one not in order), None)
            if operand is None:
                order.setdefault(task)
                stack.pop()
            else:
                stack.append((operand, iter(operand.before)))
    return list(order)


def combine(flights: Sequence[Flight], roots: Iterable[Task]) -> list[list[Flight]]:
    """Let collectives run as one: all in groups, in each of which the first one's tasks are left.

    Args:
      flights: all of a computation; their tasks are changed.
      roots: what the computation is for, in the order in which it hands it out; then the rest.
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
    """The group as one, but for those that groups before it have made dependent on each other."""
    first, *others = group
    merged, apart = [first], list[list[Flight]]()
    for one in others:
        if one.begin.needs(first.end) or first.begin.needs(one.end):
            apart.append([one])
            continue
        first.begin.latency += one.begin.latency - one.estimated_fixed
        for maker in one.begin.before:
            maker.after.remove(one.begin)
            first.begin.reads(maker)
        for reader in one.end.after:
            reader.before.remove(one.end)
            reader.reads(first.end)
        one.begin.before.clear()
        one.end.after.clear()
        merged.append(one)
    if first.copied is not None and len(merged) > 1:
        copy = Task(None, Role.KERNEL, sum(one.copied or 0.0 for one in merged))
        copy.between(first.begin)
    return [merged, *apart]
