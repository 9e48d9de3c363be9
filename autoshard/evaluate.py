"""The independent evaluator: the price of decisions, op by op on the whole program.

It knows nothing of the solver's problem, of folded repeats or of the tables: it walks the program,
checks that every op reads what is there, adds the seconds of every op and of every collective, and
sweeps the buffers over time. Every plan is priced here before anyone sees it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.copies import BACKWARD, FORWARD, KEPT, VISIBLE, copy_intervals
from autoshard.cost.reordering import stack_bytes, transposing
from autoshard.cost.step import StepPrices
from autoshard.decisions import Decisions
from autoshard.layout import UNREDUCED
from autoshard.plan import Estimate, Move
from autoshard.planned_moves import copy_moves, settlement_moves
from autoshard.program import Op
from autoshard.strategy import Strategies, project_assignment
from autoshard.sums import find_sums

Events = NDArray[np.float64] | defaultdict[int, float]


class InconsistentPlanError(ValueError):
    """Decisions under which some op reads a layout that is not there; every one is listed."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The estimate, the planned collectives in program order, and bytes in use by program point.

    The program points are those of `Dataflow`; the most that is in use is the estimate's peak.
    """

    estimate: Estimate
    moves: tuple[Move, ...]
    occupied: NDArray[np.float64] = field(compare=False, repr=False)


def evaluate(prices: StepPrices, decisions: Decisions, axis_names: Sequence[str]) -> Evaluation:
    """Price `decisions` on the unfolded program.

    Raises:
      InconsistentPlanError: the decisions contradict themselves or the program.
    """
    check(prices, decisions)
    program, flow = prices.program, prices.dataflow
    names = tuple(axis_names)
    compute = 0.0
    moves: list[Move] = []
    events = np.zeros(flow.end + 2)
    events[0] += program.constant_bytes
    for value in program.values:
        if value.producer < 0 and decisions.copy[value.index] is not None:
            moves += copy_moves(prices, decisions, value.index, names)
    for op, strategy, seconds in compute_seconds(prices, decisions):
        compute += seconds
        moves += settlement_moves(prices, op, strategy, names)
        if op.index in flow.transposed:
            for life, (copy, held) in zip(
                flow.turned[op.index], transposing(prices, op, strategy)[1], strict=True
            ):
                events[life.start] += copy[0]
                events[life.reduced] += held[0] - copy[0]
                events[life.stop] -= held[0]
        for number, output in enumerate(op.outputs):
            if strategy.scattered[0]:
                scratch = float(
                    prices.local_bytes(output, strategy.written[number])[0]
                    - prices.local_bytes(output, strategy.stored[number])[0]
                )
                scratch = max(scratch, 0.0) * prices.scratch_factor
                events[flow.when[op.index]] += scratch
                events[flow.when[op.index] + 1] -= scratch
            if decisions.copy[output] is not None:
                moves += copy_moves(prices, decisions, output, names)
    for value in program.values:
        _occupy(prices, decisions, value.index, events)
    occupied = np.cumsum(events)[: flow.end]
    peak = int(occupied.argmax())
    collective = sum(move.seconds for move in moves)
    exposed = sum(move.exposed_seconds for move in moves)
    estimate = Estimate(
        step_seconds=compute + exposed,
        lower_seconds=compute,
        upper_seconds=compute + collective,
        compute_seconds=compute,
        collective_seconds=collective,
        peak_bytes=round(float(occupied[peak])),
        peak_at=str(program.ops[flow.when.index(peak)])
        if peak < len(program.ops)
        else "the end of the step",
    )
    return Evaluation(estimate, tuple(moves), occupied)


def compute_seconds(
    prices: StepPrices, decisions: Decisions
) -> Iterator[tuple[Op, Strategies, float]]:
    """Every op that is not free, its strategy, and its compute seconds in one step."""
    program, flow = prices.program, prices.dataflow
    chosen = ChosenStrategies(decisions, prices.mesh_shape, prices.evaluated)
    seconds_of: dict[object, float] = prices.evaluated
    for op in program.ops:
        if decisions.assignment[op.index] is None:
            continue
        strategy = chosen(op)
        # Ops with equal strategies, sizes and surroundings take equal time; ask once.
        tensors = tuple(
            (program.values[v].bytes, program.values[v].dtype) if v >= 0 else None
            for v in (*op.inputs, *op.outputs)
        )
        key = ("seconds", id(strategy), op.primitive, op.flops, tensors, flow.surroundings(op))
        key = (*key, prices.corrections.factor(op))
        if key not in seconds_of:
            seconds_of[key] = float(prices.compute_seconds(op, strategy)[0])
        yield op, strategy, seconds_of[key] * op.trips * op.weight


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


def tidy(prices: StepPrices, decisions: Decisions) -> Decisions:
    """`decisions` without copies that nobody reads; a copy serves only the passes that read it.

    A slice costs nothing, so that a solver may leave one about.
    """
    copy, mode = list(decisions.copy), list(decisions.mode)
    chosen = ChosenStrategies(decisions, prices.mesh_shape, prices.evaluated)
    for value, uses in enumerate(prices.dataflow.readers):
        if copy[value] is None:
            continue
        served = 0
        for use in uses:
            if decisions.assignment[use.op] is None:
                continue
            strategy = chosen(prices.program.ops[use.op])
            wanted = tuple(strategy.reads[use.position][0].tolist())
            if wanted == copy[value]:
                served |= VISIBLE[use.phase] & mode[value]
        if not served:
            copy[value], mode[value] = None, 0
        elif served != KEPT:
            mode[value] = served
    return Decisions(decisions.stored, tuple(copy), tuple(mode), decisions.assignment)


def check(prices: StepPrices, decisions: Decisions) -> None:
    """Verify that every op reads layouts that are there and stores what it may store.

    Raises:
      InconsistentPlanError: with every offender.
    """
    program, flow = prices.program, prices.dataflow
    chosen = ChosenStrategies(decisions, prices.mesh_shape, prices.evaluated)
    sums = find_sums(program, flow)
    problems: list[str] = []
    sizes = (
        (decisions.stored, decisions.copy, decisions.mode, decisions.assignment),
        (program.values, program.values, program.values, program.ops),
    )
    if any(len(a) != len(b) for a, b in zip(*sizes, strict=True)):
        raise InconsistentPlanError("the decisions are for a program of another size: search again")
    for value in program.values:
        if (decisions.stored[value.index] is None) != value.free:
            problems.append(f"value {value.index} ({value}) has no layout")
    if problems:
        raise InconsistentPlanError("\n  - ".join(["the plan is incomplete:", *problems[:20]]))
    read_phase = {(use.op, use.position): use.phase for uses in flow.readers for use in uses}
    for op in program.ops:
        assigned = decisions.assignment[op.index]
        if assigned is None:
            if not all(program.values[o].free for o in op.outputs):
                problems.append(f"{op}: no strategy")
            continue
        if UNREDUCED in assigned and op.index not in sums.joins:
            problems.append(f"{op}: it adds up no terms, but is to read them unreduced")
            continue
        strategy = chosen(op)
        for position, value in enumerate(op.inputs):
            if value < 0 or program.values[value].free:
                continue
            wanted = tuple(strategy.reads[position][0].tolist())
            there = {decisions.stored[value]}
            if decisions.mode[value] & VISIBLE[read_phase[op.index, position]]:
                there.add(decisions.copy[value])
            if wanted not in there:
                problems.append(
                    f"{op}: operand {position} ({program.values[value]}) is read in {wanted}, but "
                    f"is there in {sorted(layout for layout in there if layout)}"
                )
        for number in range(len(op.outputs)):
            before = strategy.written[number][0]
            after = strategy.stored[number][0]
            may_change = strategy.reduced[0]
            waits = after == UNREDUCED
            if waits.any() and op.outputs[number] not in sums.pending:
                problems.append(f"{op}: result {number} is unreduced, but is no term of a sum")
            if waits.any() and (waits != may_change).any():
                problems.append(f"{op}: result {number} is settled over some of its axes only")
            if ((before != after) & ~may_change).any():
                problems.append(
                    f"{op}: result {number} is written in {tuple(before.tolist())} but stored in "
                    f"{tuple(after.tolist())}, which no settled sum explains"
                )
    same = [(program.inputs[i], program.outputs[o], "state") for i, o in program.ties]
    same += [(first, second, "carry") for first, second in program.carries]
    for first, second, kind in same:
        a, b = decisions.stored[first], decisions.stored[second]
        if a is not None and b is not None and a != b:
            path = program.values[first].path or str(program.values[first])
            problems.append(f"{kind} {path} comes in {a} and goes out in {b}")
    if problems:
        more = [f"and {len(problems) - 20} more"] if len(problems) > 20 else []
        raise InconsistentPlanError(
            "\n  - ".join(["the plan contradicts itself:", *problems[:20], *more])
        )


def buffer_events(prices: StepPrices, decisions: Decisions, value: int) -> dict[int, float]:
    """By program point, the bytes by which a value's buffer and its copy grow (or shrink) there."""
    events: defaultdict[int, float] = defaultdict(float)
    _occupy(prices, decisions, value, events)
    return dict(events)


def _occupy(prices: StepPrices, decisions: Decisions, value: int, events: Events) -> None:
    flow = prices.dataflow
    layout, copy, mode = decisions.stored[value], decisions.copy[value], decisions.mode[value]
    if layout is None:
        return
    start, stop = flow.start[value], flow.stop[value]
    if stop > start:
        size = float(prices.local_bytes(value, np.array(layout))) * prices.heap_factor(value)
        events[start] += size
        events[stop] -= size
    if copy is None:
        return
    size = float(prices.local_bytes(value, np.array(copy))) * prices.scratch_factor
    if value in flow.slices:
        one = flow.slices[value]
        stack = float(stack_bytes(prices, value, np.array([layout]), np.array([copy]))[0])
        events[one.start] += stack
        events[one.stop] -= stack
    serves = {
        "forward": bool(mode & FORWARD),
        "backward": bool(mode & BACKWARD),
        "between": mode == KEPT,
    }
    for part, (first, last) in copy_intervals(flow.readers[value]).items():
        if serves[part] and last > first:
            events[first] += size
            events[last] -= size
