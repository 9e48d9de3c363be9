"""Whether decisions agree with each other and with the program.

Every op must read its operands in layouts that are there, and store what it may store; state and
carries come in as they go out. What was found about an op is remembered by what it depends on, so
that plans that differ little are checked quickly.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.copies import VISIBLE
from autoshard.plan.decisions import Decisions
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.plan.unreduced_sums import find_sums
from autoshard.program.graph import is_free
from autoshard.program.layout import UNREDUCED
from autoshard.program.select import shown_path
from autoshard.program.trace import Op
from autoshard.units import counted


class InconsistentPlanError(ValueError):
    """Decisions under which some op reads a layout that is not there; every one is listed."""


def check(prices: StepPrices, decisions: Decisions) -> None:
    """Verify that every op reads layouts that are there and stores what it may store.

    Raises:
      InconsistentPlanError: with every offender.
    """
    program = prices.program
    problems: list[str] = []
    sizes = (
        (decisions.stored, decisions.copy, decisions.mode, decisions.assignment),
        (program.values, program.values, program.values, program.ops),
    )
    if any(len(a) != len(b) for a, b in zip(*sizes, strict=True)):
        raise InconsistentPlanError(
            f"the decisions are for {counted(len(decisions.stored), 'value')} and "
            f"{counted(len(decisions.assignment), 'op')}, but {program.name} has "
            f"{len(program.values)} and {len(program.ops)}: search again"
        )
    for value in program.values:
        if (decisions.stored[value.index] is None) != value.free:
            problems.append(f"value {value.index} ({value}) has no layout")
    if problems:
        raise InconsistentPlanError("\n  - ".join(["the plan is incomplete:", *problems[:20]]))
    asked = _Ops(prices, decisions)
    for op in program.ops:
        problems += asked.problems(op)
    same = [(program.inputs[i], program.outputs[o], "state") for i, o in program.ties]
    same += [(first, second, "carry") for first, second in program.carries]
    for first, second, kind in same:
        a, b = decisions.stored[first], decisions.stored[second]
        if a is not None and b is not None and a != b:
            path = shown_path(program, first) or str(program.values[first])
            problems.append(f"{kind} {path} comes in {a} and goes out in {b}")
    if problems:
        more = [f"and {len(problems) - 20} more"] if len(problems) > 20 else []
        raise InconsistentPlanError(
            "\n  - ".join(["the plan contradicts itself:", *problems[:20], *more])
        )


class _Ops:
    """What is wrong with single ops under some decisions."""

    def __init__(self, prices: StepPrices, decisions: Decisions) -> None:
        self.program, self.decisions = prices.program, decisions
        self.known = prices.evaluated
        self.chosen = ChosenStrategies(decisions, prices.mesh_shape, self.known)
        key = "sums and phases"
        if key not in self.known:
            readers = prices.dataflow.readers
            phases = {(use.op, use.position): use.phase for uses in readers for use in uses}
            self.known[key] = find_sums(prices.program, readers), phases
        self.sums, self.phases = self.known[key]

    def problems(self, op: Op) -> tuple[str, ...]:
        stored, copy, mode = self.decisions.stored, self.decisions.copy, self.decisions.mode
        read = tuple((stored[v], copy[v], mode[v]) if v >= 0 else None for v in op.inputs)
        written = tuple(stored[v] for v in op.outputs)
        key = "problems", op.index, self.decisions.assignment[op.index], read, written
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = tuple(self._found(op))
        return found

    def _found(self, op: Op) -> Iterator[str]:
        values, assigned = self.program.values, self.decisions.assignment[op.index]
        if assigned is None:
            if not is_free(op, values):
                yield f"{op}: no strategy"
            return
        if UNREDUCED in assigned and op.index not in self.sums.joins:
            yield f"{op}: it adds up no terms, but is to read them unreduced"
            return
        strategy = self.chosen(op)
        for position, value in enumerate(op.inputs):
            if value < 0 or values[value].free:
                continue
            wanted = tuple(strategy.reads[position][0].tolist())
            there = {self.decisions.stored[value]}
            if self.decisions.mode[value] & VISIBLE[self.phases[op.index, position]]:
                there.add(self.decisions.copy[value])
            if wanted not in there:
                yield (
                    f"{op}: operand {position} ({values[value]}) is read in {wanted}, but "
                    f"is there in {sorted(layout for layout in there if layout)}"
                )
        for number in range(len(op.outputs)):
            before = strategy.written[number][0]
            after = strategy.stored[number][0]
            may_change = strategy.reduced[0]
            waits = after == UNREDUCED
            if waits.any() and op.outputs[number] not in self.sums.pending:
                yield f"{op}: result {number} is unreduced, but is not a term of a sum"
            if waits.any() and (waits != may_change).any():
                yield f"{op}: result {number} is settled over some of its axes only"
            if strategy.in_steps[0] and op.index not in self.sums.in_steps:
                yield f"{op}: result {number} is settled in steps, but is not a matrix product"
            if ((before != after) & ~may_change).any():
                yield (
                    f"{op}: result {number} is written in {tuple(before.tolist())} but stored in "
                    f"{tuple(after.tolist())}, which no settled sum explains"
                )
