"""Schedule a computation so that compute hides its collectives: list scheduling from the end.

XLA's latency-hiding scheduler works backwards, from the results to the arguments. A task is ready
once all its readers are placed. Among the ready tasks it prefers, in this order of importance,

    the end of a collective, or a loop with collectives in it, unless a collective is in flight
    a task that does not have to wait for the collective in flight
    any task but the begin of a collective that depends on no other collective
    the begin of the collective in flight, if another is waiting to end, or a loop to run
    the task that depends on the longest chain of collectives
    the task whose duration is nearest to the time that is still to be hidden
    a task that reads the end of a collective
    the task that makes more other tasks ready
    the task that came later in the original order

The rules are those of
`xla/service/latency_hiding_scheduler.cc` with the settings of XLA:GPU.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

STEP_SECONDS = 1e-6
"""Latency from a task to its reader, and the cost of a collective's begin and of its end. These
are the low latency and low cost of the source, in its unit of a microsecond."""


class Role(enum.Enum):
    """The kind of a task: a kernel, a no-op, a loop, or the begin or end of a collective."""

    KERNEL = "kernel"
    NOTHING = "nothing"
    LOOP = "loop"
    BEGIN = "begin"
    END = "end"


@dataclass(slots=True, eq=False)
class Task:
    """One node of a computation's dependency graph.

    Attributes:
      content: the caller's key for the task.
      role: see `Role`; a `LOOP` has collectives of its own.
      seconds: how long it keeps the device busy.
      latency: for a `BEGIN`, the seconds until its end may run; for a kernel that is written
        beside others, until the no-op that waits for it may.
      kernels: the numbers of the kernels that it runs.
      before, after: the tasks that it reads, and the tasks that read it.
    """

    content: Hashable
    role: Role
    seconds: float = STEP_SECONDS
    latency: float = 0.0
    kernels: tuple[int, ...] = ()
    before: list[Task] = field(default_factory=list, repr=False)
    after: list[Task] = field(default_factory=list, repr=False)

    def reads(self, other: Task) -> None:
        """Make this task depend on `other`."""
        if other is not self and other not in self.before:
            self.before.append(other)
            other.after.append(self)

    def between(self, reader: Task) -> None:
        """Insert this task between `reader` and everything that `reader` reads."""
        for other in reader.before:
            other.after.remove(reader)
            self.reads(other)
        reader.before.clear()
        reader.reads(self)

    def needs(self, other: Task) -> bool:
        """Whether this task is `other` or depends on it."""
        return any_needs([self], other)

    def takes_in(self, other: Task) -> None:
        """Merge `other` into this task."""
        self.kernels += other.kernels
        self.seconds += other.seconds
        if other.role is Role.KERNEL:
            self.role = Role.KERNEL
        for maker in other.before:
            maker.after.remove(other)
            self.reads(maker)
        for reader in other.after:
            reader.before.remove(other)
            reader.reads(self)
        other.before.clear()
        other.after.clear()

    def lag(self, reader: Task) -> float:
        """Return the seconds from this task's begin until `reader` can run."""
        if reader.role is Role.END:
            return self.latency
        return max(self.latency, STEP_SECONDS) if reader.role is Role.NOTHING else STEP_SECONDS


def any_needs(tasks: Iterable[Task], other: Task) -> bool:
    """Whether a task is `other` or depends on it."""
    seen: set[Task] = set()
    stack = list(tasks)
    while stack:
        one = stack.pop()
        if one is other:
            return True
        if one not in seen:
            seen.add(one)
            stack += one.before
    return False


def in_post_order(roots: Iterable[Task]) -> list[Task]:
    """Return the tasks that `roots` depend on, each after the tasks that it reads.

    Raises:
      ValueError: a task depends on itself.
    """
    order: list[Task] = []
    done: dict[Task, bool] = {}  # False while a task is on the path to the current one
    for root in roots:
        stack = [] if root in done else [(root, iter(root.before))]
        while stack:
            task, operands = stack[-1]
            done[task] = False
            for operand in operands:
                if operand not in done:
                    stack.append((operand, iter(operand.before)))
                    break
                if not done[operand]:
                    raise ValueError(
                        f"tasks {task.content!r} and {operand.content!r} wait for each other; "
                        "leave one of the two waits out"
                    )
            else:
                done[task] = True
                order.append(task)
                stack.pop()
    return order


def hide(
    tasks: Sequence[Task], *, one_at_a_time: bool = True, longest_chain_first: bool = True
) -> list[Task]:
    """Return the tasks in the order that hides collectives.

    Args:
      tasks: in the original order, each after the tasks that it reads.
      one_at_a_time: whether a collective begins only after the previous one has ended.
      longest_chain_first: whether the module's preferences apply; otherwise only the original
        order counts.
    """
    return _FromTheEnd(tasks, one_at_a_time, longest_chain_first).run()


class _FromTheEnd:
    def __init__(
        self, tasks: Sequence[Task], one_at_a_time: bool, longest_chain_first: bool
    ) -> None:
        self.one_at_a_time, self.longest_chain_first = one_at_a_time, longest_chain_first
        self.place = {task: number for number, task in enumerate(tasks)}
        self.chain: dict[Task, float] = {}  # seconds of the collectives before the task
        for task in tasks:
            own = task.role is Role.END
            self.chain[task] = max(
                (self.chain[one] + own * one.latency for one in task.before), default=0.0
            )
        self.unplaced = {task: len(task.after) for task in tasks}
        self.ready: dict[Task, float] = {}
        self.waiting: list[Task] = []
        self.nothings: list[Task] = []
        self.now = 0.0
        self.under_way = 0
        for task in tasks:
            if not task.after:
                self._release(task, 0.0)

    def run(self) -> list[Task]:
        order: list[Task] = []
        while self.waiting or self.nothings:
            task = self.nothings.pop() if self.nothings else self._best()
            self._place(task)
            order.append(task)
        return order[::-1]

    def _best(self) -> Task:
        waits = self.under_way and self.one_at_a_time
        blocked = (Role.END, Role.LOOP) if waits else ()
        ends_wait = any(task.role in (Role.END, Role.LOOP) for task in self.waiting)
        later = [self.ready[task] for task in self.waiting if self.ready[task] > self.now]

        def key(task: Task) -> tuple[float, ...]:
            if not self.longest_chain_first:
                return (-self.place[task],)
            begins = task.role is Role.BEGIN
            held_up = begins and self.under_way > 0 and ends_wait
            waste = 0.0
            if later:
                waste = math.inf if begins else abs(min(later) - self.now - task.seconds)
            return (
                task.role not in (Role.END, Role.LOOP),
                max(self.ready[task] - self.now, 0.0),
                begins and not self.chain[task] and not held_up,
                not held_up,
                -self.chain[task],
                waste,
                not any(one.role is Role.END for one in task.before),
                -sum(self.unplaced[one] == 1 for one in task.before),
                -self.place[task],
            )

        best = min((task for task in self.waiting if task.role not in blocked), key=key)
        self.waiting.remove(best)
        return best

    def _place(self, task: Task) -> None:
        self.ready[task] = self._earliest(task)
        self.now = self.ready[task] + task.seconds
        self.under_way += (task.role is Role.END) - (task.role is Role.BEGIN)
        for one in task.before:
            self.unplaced[one] -= 1
            if not self.unplaced[one]:
                self._release(one, self._earliest(one))

    def _earliest(self, task: Task) -> float:
        return max([self.now, *(self.ready[reader] + task.lag(reader) for reader in task.after)])

    def _release(self, task: Task, ready: float) -> None:
        self.ready[task] = ready
        (self.nothings if task.role is Role.NOTHING else self.waiting).append(task)
