"""List the collectives that a plan's decisions imply, and the readers of every copy.

The evaluator only needs the price of each collective. The scheduler of a plan's kernels also needs
to know which collectives there are, how long each takes, and which may be combined.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from autoshard.cost.collective import Kind
from autoshard.cost.step_prices import StepPrices
from autoshard.cost.within_ops import waited_within
from autoshard.plan.copies import ANEW
from autoshard.plan.decisions import Decisions
from autoshard.plan.moves import settlements
from autoshard.plan.strategies_of import ChosenStrategies, copy_readers
from autoshard.program.facts import Renewal
from autoshard.program.graph import Op, Program, Region
from autoshard.program.readers import Phase, Reader
from autoshard.program.vocabulary import LEAVING

Runs = tuple[Kind, tuple[int, ...]]
"""The kind of a collective, and the mesh axes it runs over."""


class Collectives(NamedTuple):
    """Collectives in sequence: seconds of one execution, bytes of the result, kinds and axes.

    Each pays its full latency, even if it may be combined with others.
    """

    seconds: float
    bytes: float
    kinds: tuple[Runs, ...]


class Decided:
    """A program under decisions, with prices; ops run in the order of the prices' data flow."""

    def __init__(self, prices: StepPrices, decisions: Decisions) -> None:
        self.prices, self.decisions = prices, decisions
        self.chosen = ChosenStrategies(decisions, prices.mesh_shape, prices.evaluated)

    def of_sum(self, op: Op) -> Collectives | None:
        """Return the collectives that reduce an op's partial sums; None if there are none."""
        if self.decisions.assignment[op.index] is None:
            return None
        strategy = self.chosen(op)
        found = list(settlements(self.prices, op, strategy, alone=True))
        seconds = sum(one.seconds for one in found)
        if not seconds:
            return None
        size = sum(
            float(self.prices.local_bytes(output, strategy.stored[number])[0])
            for number, output in enumerate(op.outputs)
        )
        kinds: dict[Runs, None] = dict.fromkeys((one.kind, one.axes) for one in found)
        return Collectives(seconds, size, tuple(kinds))

    def waited_within_ops(self) -> float:
        """Return the seconds of a step that rings and exchanges wait for what they send."""
        return sum(
            float(waited_within(self.prices, op, self.chosen(op))[0]) * op.trips * op.weight
            for op in self.prices.program.ops
            if (op.kernel is not None or op.groups > 1)
            and self.decisions.assignment[op.index] is not None
        )

    def renewal(self, op: Op) -> Renewal | None:
        """Return the optimizer update (renewal) that uses the gradient that `op` computes.

        The backward error waits for this update, see `autoshard.xla.early_updates`. Returns None
        where the update and the error's convolution read the weight in different layouts.
        """
        renewal = self.prices.dataflow.renewals.get(op.index)
        if renewal is None or self.decisions.assignment[op.index] is None:
            return None
        scattered = bool(self.chosen(op).scattered[0])
        moved = any(self.decisions.copy[v] is not None for v in (*renewal.turned, *op.outputs))
        return None if scattered or moved else renewal

    def of_copy(self, value: int) -> Collectives | None:
        """Return the collectives that make the copy of a value; None if there are none."""
        stored, copy = self.decisions.stored[value], self.decisions.copy[value]
        if stored is None or copy is None:
            return None
        steps = self.prices.reshard(value, alone=True).steps(stored, copy)
        size = float(self.prices.local_bytes(value, np.array(copy))) * self.prices.narrowing(value)
        kinds: tuple[Runs, ...] = tuple((step.kind, step.axes) for step in steps)
        seconds = sum(step.seconds for step in steps)
        return Collectives(seconds, size, kinds) if seconds else None

    def steps_of_copy(self, value: int) -> list[Collectives]:
        """Return the collectives that make the copy of a value, one by one."""
        stored, copy = self.decisions.stored[value], self.decisions.copy[value]
        if stored is None or copy is None:
            return []
        found = []
        for step in self.prices.reshard(value, alone=True).steps(stored, copy):
            if step.seconds:
                cut = math.prod(
                    self.prices.mesh_shape[axis] for axes in step.to_state for axis in axes
                )
                size = self.prices.program.values[value].bytes / cut * self.prices.narrowing(value)
                found.append(Collectives(step.seconds, size, ((step.kind, step.axes),)))
        return found

    def served(self, value: int) -> list[list[Reader]]:
        """Return the readers of a copy, as one list for each time that it is made."""
        readers, ops = self.prices.dataflow.readers[value], self.prices.program.ops
        found = list(copy_readers(readers, ops, self.chosen, self.decisions))
        if self.prices.machine.chip.compiler.denies("tpu.identical-gathers-are-one"):
            return [[use] for use in found]
        if self.decisions.mode[value] != ANEW:
            return [found]
        phases = (Phase.FIRST, Phase.SECOND)
        return [[use for use in found if use.phase is phase] for phase in phases]

    def needed(
        self, begun: Collection[int]
    ) -> tuple[dict[int, list[tuple[int, int]]], dict[int, int]]:
        """Return when the copies of each value are read, and when its own buffer is free.

        If the collective of a copy has `begun` earlier, it has read the value before the copy's
        first reader. Otherwise it reads the value at that reader. The solver decides on a copy
        before it knows the readers, so it keeps both buffers live until the last reader of either.
        """
        copies: dict[int, list[tuple[int, int]]] = {}
        released: dict[int, int] = {}
        for value, readers in enumerate(self.prices.dataflow.readers):
            if self.decisions.copy[value] is None or self.decisions.stored[value] is None:
                continue
            served = [life for life in self.served(value) if life]
            copies[value] = [
                (min(use.at for use in life), max(use.last for use in life) + 1) for life in served
            ]
            if not self.prices.dataflow.temporary[value]:
                continue
            known = {(use.op, use.position) for life in served for use in life}
            beside = value in begun and self.of_copy(value) is not None
            made = [first + (not beside) for first, _ in copies[value]]
            others = [use.last + 1 for use in readers if (use.op, use.position) not in known]
            released[value] = max([*made, *others])
        return copies, released

    def communicates(self, loop: Region) -> bool:
        """Whether any op of a loop needs a collective."""
        program = self.prices.program
        return any(
            self.of_sum(op)
            or any(
                self.of_copy(output)
                for output in op.outputs
                if op.region != loop.index or region_read_in(program, output) == loop.index
            )
            for op in program.ops[loop.start : loop.stop]
        )


def region_read_in(program: Program, value: int) -> int:
    """Return the region in which a value is read: for a loop's results, the enclosing region."""
    producer = program.values[value].producer
    if producer < 0:
        return 0
    op = program.ops[producer]
    return program.regions[op.region].parent if op.primitive in LEAVING else op.region
