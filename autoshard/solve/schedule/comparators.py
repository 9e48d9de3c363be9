"""Schedules as comparator functions, as Shardy:MPMD takes them.

A comparator is a predicate over two fragments: whether the first must run before the second. It
relates fragments of one mesh only; with the flow of data these dependencies are the schedule. Named
schedules with a closed form have one from their key, any order from the places of its tasks:

    before = comparator(instance, zb_h1_key(instance))
    before = comparator_of(order)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.keyed import Key
from autoshard.solve.schedule.task import Order, Task


@dataclass(frozen=True, slots=True)
class Fragment:
    """A task as the compiler knows it.

    Attributes:
      transpose: 0 for forward, 1 for backward.
      split: "input" or "weight" where the backward is cut in two, else "".
    """

    mesh: int
    stage: int
    transpose: int
    microbatch: int
    split: str = ""

    @classmethod
    def of(cls, task: Task, mesh: int) -> Fragment:
        """The fragment of a task on a mesh."""
        split = {"B": "input", "W": "weight"}.get(task.kind, "")
        return cls(mesh, task.stage, int(task.kind != "F"), task.microbatch, split)

    @property
    def task(self) -> Task:
        """The task of this fragment."""
        if self.transpose == 0:
            return Task("F", self.stage, self.microbatch)
        kinds = {"input": "B", "weight": "W", "": "BW"}
        return Task(kinds[self.split], self.stage, self.microbatch)  # pyright: ignore[reportArgumentType]


Comparator = Callable[[Fragment, Fragment], bool]


def comparator(instance: Instance, key: Key) -> Comparator:
    """Whether a fragment comes before another of its mesh by the key of a schedule."""

    def before(left: Fragment, right: Fragment) -> bool:
        home = instance.placement[left.stage]
        return left.mesh == right.mesh == home and key(left.task) < key(right.task)

    return before


def comparator_of(order: Order) -> Comparator:
    """Whether a fragment comes before another of its mesh in an order."""
    places = {task: (mesh, at) for mesh, row in enumerate(order) for at, task in enumerate(row)}

    def before(left: Fragment, right: Fragment) -> bool:
        mine, its = places.get(left.task), places.get(right.task)
        return mine is not None and its is not None and mine[0] == its[0] and mine[1] < its[1]

    return before
