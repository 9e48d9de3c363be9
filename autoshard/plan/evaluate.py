"""The independent evaluator: the price of decisions, op by op on the whole program.

It knows nothing of the solver's problem, of folded repeats or of the tables: it walks the program,
checks that every op reads what is there, adds the seconds of every op and of every collective, and
sweeps the buffers over time. Every plan is priced here before anyone sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.cut_kernels import cut_seconds
from autoshard.cost.step_prices import StepPrices
from autoshard.plan.consistency import check
from autoshard.plan.copies import KEPT, VISIBLE, value_trips
from autoshard.plan.decisions import Decisions
from autoshard.plan.memory_events import buffer_events, occupied_bytes, op_events
from autoshard.plan.moves import copy_moves, op_moves
from autoshard.plan.plan import Estimate, Move
from autoshard.plan.records import Transfer
from autoshard.plan.strategies_of import ChosenStrategies, copy_readers
from autoshard.plan.transfers import host_occupied, transfer_of
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The estimate, the planned collectives in program order, and bytes in use by program point.

    The program points are those of `Facts`; the most that is in use is the estimate's peak.
    `transfers` are those to and from the memory of hosts, and `hosted` is what is in use there.
    """

    estimate: Estimate
    moves: tuple[Move, ...]
    occupied: NDArray[np.float64] = field(compare=False, repr=False)
    transfers: tuple[Transfer, ...] = ()
    hosted: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)


def evaluate(prices: StepPrices, decisions: Decisions, axis_names: Sequence[str]) -> Evaluation:
    """Price `decisions` on the unfolded program.

    Raises:
      InconsistentPlanError: the decisions contradict themselves or the program.
    """
    check(prices, decisions)
    program, flow = prices.program, prices.dataflow
    parts = _Parts(prices, decisions, tuple(axis_names))
    found = [parts.of_copy(v.index) for v in program.values if v.producer < 0]
    for op in program.ops:
        found.append(parts.of_op(op))
        found += [parts.of_copy(output) for output in op.outputs]
    found += [parts.of_buffer(value.index) for value in program.values]
    moves = tuple(move for part in found for move in part.moves)
    transfers = tuple(part.transfer for part in found if part.transfer is not None)
    compute = sum((part.seconds for part in found), 0.0)
    occupied = occupied_bytes(prices, (event for part in found for event in part.events))
    peak = int(occupied.argmax())
    collective = sum(move.seconds for move in moves)
    moved = sum(one.seconds for one in transfers)
    hosted = host_occupied(prices, decisions) if flow.hosted else None
    estimate = Estimate(
        step_seconds=compute + _exposed(found),
        lower_seconds=compute,
        upper_seconds=compute + max(1.0, prices.corrections.waited) * collective + moved,
        compute_seconds=compute,
        collective_seconds=collective,
        peak_bytes=round(float(occupied[peak])),
        peak_at=str(program.ops[flow.when.index(peak)])
        if peak < len(program.ops)
        else "the end of the step",
        transfer_seconds=moved,
        host_bytes=0 if hosted is None else round(float(hosted.max())),
    )
    return Evaluation(estimate, moves, occupied, transfers, hosted)


def step_seconds(prices: StepPrices, decisions: Decisions, axis_names: Sequence[str]) -> float:
    """What `evaluate` says that a step takes, of decisions that it has priced at other prices.

    Whether they contradict themselves does not depend on prices, and is not looked at again.
    """
    parts = _Parts(prices, decisions, tuple(axis_names))
    found = [parts.of_op(op) for op in prices.program.ops]
    found += [parts.of_copy(value.index) for value in prices.program.values]
    return sum((part.seconds for part in found), 0.0) + _exposed(found)


class _Part(NamedTuple):
    """What one op, one buffer or one copy adds to a step; `events` are changes of memory."""

    seconds: float = 0.0
    moves: tuple[Move, ...] = ()
    events: tuple[tuple[int, float], ...] = ()
    transfer: Transfer | None = None


_NOTHING = _Part()


def _exposed(parts: Sequence[_Part]) -> float:
    """Seconds of collectives and of transfers that add to a step."""
    moves = sum(move.exposed_seconds for part in parts for move in part.moves)
    return moves + sum(part.transfer.exposed_seconds for part in parts if part.transfer)


class _Parts:
    """The parts of a step under some decisions, each remembered by what it depends on.

    Plans that are priced one after another differ in few of them.
    """

    def __init__(self, prices: StepPrices, decisions: Decisions, names: tuple[str, ...]) -> None:
        self.prices, self.decisions, self.names = prices, decisions, names
        self.chosen = ChosenStrategies(decisions, prices.mesh_shape, prices.evaluated)

    def of_op(self, op: Op) -> _Part:
        assigned = self.decisions.assignment[op.index]
        if assigned is None:
            return _NOTHING
        stored = tuple(self.decisions.stored[output] for output in op.outputs)
        return self._known(("op", op.index, assigned, stored), lambda: self._op(op))

    def of_copy(self, value: int) -> _Part:
        """The collectives that make the copy of a value."""
        if self.decisions.copy[value] is None:
            return _NOTHING
        return self._known(("copy", *self._lies(value)), lambda: self._copy(value))

    def of_buffer(self, value: int) -> _Part:
        """The memory that a value and its copy take."""
        if self.decisions.stored[value] is None:
            return _NOTHING
        return self._known(("buffer", *self._lies(value)), lambda: self._buffer(value))

    def _lies(self, value: int) -> tuple[object, ...]:
        decisions = self.decisions
        return value, decisions.stored[value], decisions.copy[value], decisions.mode[value]

    def _known(self, key: tuple[object, ...], made: Callable[[], _Part]) -> _Part:
        key = (*key, self.names)
        found = self.prices.evaluated.get(key)
        if found is None:
            found = self.prices.evaluated[key] = made()
        return found

    def _op(self, op: Op) -> _Part:
        prices, strategy = self.prices, self.chosen(op)
        seconds = _op_seconds(prices, op, strategy)
        moves = op_moves(prices, op, strategy, self.names)
        events = op_events(prices, op, strategy)
        moved = transfer_of(prices, op, strategy, self.names)
        return _Part(seconds, tuple(moves), tuple(events), moved)

    def _copy(self, value: int) -> _Part:
        moves = tuple(copy_moves(self.prices, self.decisions, value, self.names))
        stored = np.array([self.decisions.stored[value]])
        cut = float(cut_seconds(self.prices, value, stored)[0])
        return _Part(cut * value_trips(self.prices.program, value), moves)

    def _buffer(self, value: int) -> _Part:
        events = buffer_events(self.prices, self.decisions, value)
        return _Part(events=tuple(events.items()))


def compute_seconds(
    prices: StepPrices, decisions: Decisions
) -> Iterator[tuple[Op, Strategies, float]]:
    """Every op that is not free, its strategy, and its compute seconds in one step."""
    chosen = ChosenStrategies(decisions, prices.mesh_shape, prices.evaluated)
    for op in prices.program.ops:
        if decisions.assignment[op.index] is not None:
            strategy = chosen(op)
            yield op, strategy, _op_seconds(prices, op, strategy)


def op_seconds(prices: StepPrices, op: Op, strategy: Strategies) -> float:
    """Compute seconds of one execution of an op.

    Ops with equal strategies, sizes and surroundings take equal time; ask once.
    """
    values, known = prices.program.values, prices.evaluated
    tensors = tuple(
        (values[v].bytes, values[v].dtype) if v >= 0 else None for v in (*op.inputs, *op.outputs)
    )
    around = prices.dataflow.surroundings(op), prices.corrections.factor(op)
    key = ("seconds", id(strategy), op.primitive, op.flops, op.kernel, tensors, *around)
    if key not in known:
        known[key] = float(prices.compute_seconds(op, strategy)[0])
    return known[key]


def _op_seconds(prices: StepPrices, op: Op, strategy: Strategies) -> float:
    """Compute seconds of an op in one step."""
    return op_seconds(prices, op, strategy) * op.trips * op.weight


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
        for use in copy_readers(uses, prices.program.ops, chosen, decisions):
            served |= VISIBLE[use.phase] & mode[value]
        if not served:
            copy[value], mode[value] = None, 0
        elif served != KEPT:
            mode[value] = served
    return Decisions(decisions.stored, tuple(copy), tuple(mode), decisions.assignment)
