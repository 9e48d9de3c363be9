"""Keep tasks in an order in which each comes after those that it reads, while tasks are merged.

Two tasks may become one unless one of them depends on the other through a third: the merged task
would wait for itself. Whether it does is a question about the graph as it is now, with all merges
so far. The order answers it locally: every path from one task to another runs through tasks whose
positions lie between theirs. After a merge only these positions are dealt out anew (D. J. Pearce
and P. H. J. Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", JEA 2007).
"""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.xla.latency_hiding import Task, in_post_order


class TaskOrder:
    """The positions of tasks and of all that reads them.

    They hold as long as tasks are merged through `merge` alone.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        known, waiting = dict[Task, None](), list(tasks)
        while waiting:
            one = waiting.pop()
            if one not in known:
                known[one] = None
                waiting += one.after
        self.position = {task: number for number, task in enumerate(in_post_order(known))}

    def merge(self, leader: Task, task: Task) -> bool:
        """Merge `task` into `leader`, unless one depends on the other through a third task.

        Returns whether they are one now.
        """
        place = self.position
        first, last = sorted((leader, task), key=place.__getitem__)
        low, high = place[first], place[last]
        before = self._between([one for one in last.before if one is not first], low, high, True)
        if first in before:
            return False
        after = self._between([one for one in first.after if one is not last], low, high, False)
        moved = [*sorted(before, key=place.__getitem__), leader]
        moved += sorted(after, key=place.__getitem__)
        slots = sorted((low, high, *(place[one] for one in (*before, *after))))
        leader.takes_in(task)
        del place[task]
        place.update(zip(moved, slots, strict=False))
        return True

    def _between(self, tasks: list[Task], low: int, high: int, back: bool) -> set[Task]:
        """Return what these tasks lead to, backwards or forwards, from `low` to `high`."""
        found = set[Task]()
        while tasks:
            one = tasks.pop()
            if one not in found and low <= self.position[one] <= high:
                found.add(one)
                tasks += one.before if back else one.after
        return found
