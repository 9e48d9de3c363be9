"""How many collectives, or bytes of them, every choice of a built problem causes.

The numbers are those of the plan's moves (`autoshard.plan.evaluate`): executions in a step on one
device, and bytes of each times executions. Slices are not collectives.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.within_ops import sent_within
from autoshard.plan.copies import ANEW
from autoshard.plan.moves import copy_place
from autoshard.problem.build import Built
from autoshard.problem.requirements.records import CollectiveLimit
from autoshard.program.select import is_inside
from autoshard.program.trace import Op

Floats = NDArray[np.float64]


def collective_amounts(
    built: Built, limit: CollectiveLimit, axis_names: tuple[str, ...]
) -> dict[int, Floats]:
    """For every node that has any, what each of its choices adds to what is limited.

    Args:
      built: the problem.
      limit: which collectives count, and whether by number or by bytes.
      axis_names: of the mesh.
    """
    counter = _Counter(built, limit, axis_names)
    found: dict[int, Floats] = {}
    for number, node in built.value_node.items():
        amounts = counter.copies(number)
        if amounts.any():
            found[node] = amounts
    for number, node in built.op_node.items():
        amounts = counter.of_op(number)
        if amounts.any():
            found[node] = amounts
    return found


class _Counter:
    """Counts for one limit; reshards between two layouts of one shape are looked at once."""

    def __init__(self, built: Built, limit: CollectiveLimit, names: tuple[str, ...]) -> None:
        self.built = built
        self.limit = limit
        self.over = {names.index(axis) for axis in limit.over}
        self._reshards: dict[object, float] = {}
        self._scopes: dict[str, bool] = {}

    def copies(self, number: int) -> Floats:
        prices = self.built.prices
        program = prices.program
        choices = self.built.value_choices[number]
        members = self.built.classes.value_members[number]
        record = program.values[members[0]]
        pairs, rows = np.unique(
            np.stack([choices.stored, choices.copy], axis=1), axis=0, return_inverse=True
        )
        each = np.zeros(len(pairs))
        for k, (before, after) in enumerate(pairs.tolist()):
            if before == after:
                continue
            key = (record.shape, record.itemsize, before, after)
            if key not in self._reshards:
                layouts = choices.table.layouts
                steps = prices.reshard(members[0]).steps(layouts[before], layouts[after])
                self._reshards[key] = sum(
                    self._counted(step.kind, step.axes, int(step.bytes)) for step in steps
                )
            each[k] = self._reshards[key]
        executions = np.zeros(len(choices.mode))
        for mode in np.unique(choices.mode).tolist():
            here = [value for value in members if self._is_counted(copy_place(prices, value, mode))]
            executions[choices.mode == mode] = sum(program.values[value].trips for value in here)
        return each[rows.reshape(-1)] * np.where(choices.mode == ANEW, 2, 1) * executions

    def of_op(self, number: int) -> Floats:
        prices = self.built.prices
        program = prices.program
        strategies = self.built.op_strategies[number]
        members = self.built.classes.op_members[number]
        op = program.ops[members[0]]
        amounts = np.zeros(len(strategies))
        for kind, axes, rows, before in prices.settlements(strategies):
            for k, output in enumerate(op.outputs):
                sizes = prices.local_bytes(output, strategies.written[k][rows])
                sizes = sizes / prices.topology.group_size(before)
                amounts[rows] += [self._counted(kind, axes, int(size)) for size in sizes.tolist()]
        for sent in sent_within(prices, op, strategies):
            each = [self._counted(sent.kind, sent.axes, size) for size in sent.bytes]
            amounts[sent.rows] += sent.times * np.array(each)
        ops = [program.ops[member] for member in members]
        return amounts * sum(op.trips for op in ops if self._is_counted(op))

    def _is_counted(self, place: Op | None) -> bool:
        """Whether collectives for an op count."""
        if not self.limit.inside:
            return True
        scope = "" if place is None else place.scope
        if scope not in self._scopes:
            self._scopes[scope] = is_inside(self.limit.inside, scope)
        return self._scopes[scope]

    def _counted(self, kind: str, axes: tuple[int, ...], size: int) -> float:
        limit = self.limit
        wanted = kind != "all_slice" if limit.kind is None else kind == limit.kind
        if not wanted or (self.over and self.over.isdisjoint(axes)):
            return 0.0
        return 1.0 if limit.bytes is None else float(size)
