"""The strategies that decisions give to the ops of a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from autoshard.plan.copies import VISIBLE
from autoshard.plan.decisions import Decisions
from autoshard.program.readers import Reader
from autoshard.program.strategies import Strategies, project_assignment
from autoshard.program.trace import Op


class ChosenStrategies:
    """The strategy that decisions give to each op, in arrays of one row; equal ones are shared.

    `made` are those of other decisions on the same mesh and rules, and takes in those of these.
    """

    def __init__(
        self,
        decisions: Decisions,
        mesh_shape: Sequence[int],
        made: dict[object, Any] | None = None,
    ) -> None:
        self._decisions = decisions
        self._mesh_shape = tuple(mesh_shape)
        self._made: dict[object, Any] = {} if made is None else made

    def __call__(self, op: Op) -> Strategies:
        """The strategy of `op`, which must not be free."""
        assigned = self._decisions.assignment[op.index]
        assert assigned is not None
        whole = (-1,) * len(assigned)
        stored = tuple(self._decisions.stored[o] or whole for o in op.outputs)
        key = ("strategy", id(op.rule), assigned, stored)
        if key not in self._made:
            self._made[key] = project_assignment(
                op.rule,
                np.array([assigned], dtype=np.int64),
                tuple(np.array([layout], dtype=np.int64) for layout in stored),
                self._mesh_shape,
            )
        return self._made[key]


def copy_readers(
    readers: Iterable[Reader], ops: Sequence[Op], chosen: ChosenStrategies, decisions: Decisions
) -> Iterator[Reader]:
    """Those of one value's readers that read its copy: they want its layout, and see it."""
    for use in readers:
        value = ops[use.op].inputs[use.position]
        if decisions.assignment[use.op] is None:
            continue
        wanted = tuple(chosen(ops[use.op]).reads[use.position][0].tolist())
        if wanted == decisions.copy[value] and VISIBLE[use.phase] & decisions.mode[value]:
            yield use
