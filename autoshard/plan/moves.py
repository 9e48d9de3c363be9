"""The planned collectives: those that settle partial results, those of rings and exchanges within
operations, and those that make resharded copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from autoshard.cost.collective import Kind
from autoshard.cost.rings import rounds, shares
from autoshard.cost.row_exchange import sent_rows
from autoshard.cost.step_prices import StepPrices
from autoshard.plan.copies import ANEW, SECOND, value_trips
from autoshard.plan.decisions import Decisions
from autoshard.plan.plan import Move
from autoshard.program.layout import Layout, format_state, format_type
from autoshard.program.readers import Phase
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op


class Settlement(NamedTuple):
    """A collective that settles partial results; `seconds` are of one execution, `bytes` its own.

    `axes` are numbers of mesh axes, and `number` is that of the op's result, which goes from one
    layout to another; `left` are the axes over which it is partial afterwards.
    """

    kind: Kind
    axes: tuple[int, ...]
    number: int
    bytes: float
    seconds: float
    layouts: tuple[Layout, Layout]
    left: tuple[int, ...]


def settlements(
    prices: StepPrices, op: Op, strategy: Strategies, *, alone: bool = False
) -> Iterator[Settlement]:
    """The collectives that settle the partial results of `op` under `strategy` (one row).

    Each has its share of the latencies, or if `alone` all of its own.
    """
    if not strategy.reduced[0].any():
        return
    steps = prices.settlements(strategy)
    for step, (kind, axes, _, before) in enumerate(steps):
        left = () if step == len(steps) - 1 else steps[-1][1]
        for number, output in enumerate(op.outputs):
            local = prices.local_bytes(output, strategy.written[number])
            local = local / prices.topology.group_size(before)
            stored = strategy.stored[number]
            found = prices.settled_seconds(op, kind, axes, local, stored, alone=alone)
            written, after = (tuple(one[0].tolist()) for one in (strategy.written[number], stored))
            layouts = (after if before else written), after
            yield Settlement(kind, axes, number, float(local[0]), float(found[0]), layouts, left)


def settlement_moves(
    prices: StepPrices, op: Op, strategy: Strategies, names: tuple[str, ...]
) -> list[Move]:
    """The collectives that settle the partial results of `op` under `strategy` (one row)."""
    program, exposed = prices.program, prices.exposed_of_sums(op)
    moves = []
    for one in settlements(prices, op, strategy):
        seconds = one.seconds * (op.trips * op.weight)
        value = program.values[op.outputs[one.number]]
        moves.append(
            Move(
                kind=one.kind,
                axes=tuple(names[a] for a in one.axes),
                bytes=int(one.bytes),
                count=op.trips,
                seconds=seconds,
                exposed_seconds=seconds * exposed,
                scope=op.scope,
                line=op.line,
                value=_arrow(
                    value.dtype,
                    value.shape,
                    *one.layouts,
                    names,
                    partial=tuple(sorted((*one.axes, *one.left))),
                    left=one.left,
                ),
            )
        )
    return moves


def op_moves(
    prices: StepPrices, op: Op, strategy: Strategies, names: tuple[str, ...]
) -> list[Move]:
    """The collectives of `op` under `strategy` (one row), beside the copies that it reads."""
    moves = [
        *ring_moves(prices, op, strategy, names),
        *exchange_moves(prices, op, strategy, names),
    ]
    return moves + settlement_moves(prices, op, strategy, names)


def ring_moves(
    prices: StepPrices, op: Op, strategy: Strategies, names: tuple[str, ...]
) -> list[Move]:
    """What `op` sends along its sequence under `strategy` (one row), an array each."""
    moves = []
    for one in rounds(op, strategy, prices.mesh_shape):
        for sent, exposed in shares(prices, op, strategy, one):
            value = prices.program.values[sent.value]
            sides = (*strategy.reads, *strategy.written)
            layout = tuple(sides[sent.sending.number][0].tolist())
            moves.append(
                Move(
                    kind="collective_permute",
                    axes=tuple(names[a] for a in one.axes),
                    bytes=int(sent.bytes[0]),
                    count=op.trips * sent.sending.times,
                    seconds=float(sent.seconds[0]) * sent.sending.times * op.trips * op.weight,
                    exposed_seconds=float(exposed[0]) * op.trips * op.weight,
                    scope=op.scope,
                    line=op.line,
                    value=_arrow(value.dtype, value.shape, layout, layout, names),
                )
            )
    return moves


def exchange_moves(
    prices: StepPrices, op: Op, strategy: Strategies, names: tuple[str, ...]
) -> list[Move]:
    """What `op` sends from its rows to their groups under `strategy` (one row), and back."""
    moves = []
    for sent in sent_rows(prices, op, strategy):
        value = prices.program.values[sent.value]
        layout = tuple((*strategy.reads, *strategy.written)[sent.tensor][0].tolist())
        seconds = float(sent.seconds[0]) * op.trips * op.weight
        moves.append(
            Move(
                kind="all_to_all",
                axes=tuple(names[a] for a in sent.axes),
                bytes=round(float(sent.bytes[0])),
                count=op.trips,
                seconds=seconds,
                exposed_seconds=seconds,
                scope=op.scope,
                line=op.line,
                value=_arrow(value.dtype, value.shape, layout, layout, names),
            )
        )
    return moves


def _arrow(
    dtype: str,
    shape: tuple[int, ...],
    before: Layout,
    after: Layout,
    names: tuple[str, ...],
    partial: tuple[int, ...] = (),
    left: tuple[int, ...] = (),
) -> str:
    sides = []
    for layout, axes in ((before, partial), (after, left)):
        terms = f"{{unreduced={','.join(names[a] for a in axes)}}}" if axes else ""
        sides.append(format_type(dtype, shape, layout, names) + terms)
    return " -> ".join(sides)


def copy_place(prices: StepPrices, value: int, mode: int) -> Op | None:
    """The op for which a copy of `value` is made: its first reader, else what makes the value."""
    program, flow = prices.program, prices.dataflow
    wanted = Phase.SECOND if mode == SECOND else Phase.FIRST
    at = next((use.op for use in flow.readers[value] if use.phase is wanted), None)
    at = program.values[value].producer if at is None else at
    return program.ops[at] if at >= 0 else None


def copy_moves(
    prices: StepPrices, decisions: Decisions, value: int, names: tuple[str, ...]
) -> list[Move]:
    """The collectives that make the resharded copy of `value`, which must have one."""
    program = prices.program
    record = program.values[value]
    first, second = decisions.stored[value], decisions.copy[value]
    assert first is not None
    assert second is not None
    mode = decisions.mode[value]
    times = 2 if mode == ANEW else 1
    exposed = prices.exposed_of_copies(value)
    trips = value_trips(program, value)
    narrowing = prices.narrowing(value)
    place = copy_place(prices, value, mode)
    moves = []
    for step in prices.reshard(value).steps(first, second):
        for _ in range(times):
            moves.append(
                Move(
                    kind=step.kind,
                    axes=tuple(names[a] for a in step.axes),
                    bytes=int(step.bytes),
                    count=record.trips,
                    seconds=step.seconds * trips,
                    exposed_seconds=step.seconds * trips * exposed,
                    scope=place.scope if place else "",
                    line=place.line if place else "",
                    value=(
                        f"{format_state(record.dtype, record.shape, step.from_state, names)} -> "
                        f"{format_state(record.dtype, record.shape, step.to_state, names)}"
                    ),
                    sent_bytes=int(step.bytes * narrowing) if narrowing < 1 else None,
                )
            )
    return moves
