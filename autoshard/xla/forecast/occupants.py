"""What lies in memory in the order in which the compiler runs a plan: points and bytes.

Each function yields changes: at a program point so many bytes come, or go.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping

from autoshard.cost.step_prices import StepPrices
from autoshard.machine.chip import Chip
from autoshard.plan.decisions import Decisions
from autoshard.plan.memory_events import UnderWay, buffer_events, op_events, passing
from autoshard.xla.forecast.collective_dim_order import FirstDimensions
from autoshard.xla.forecast.event_marks import Passed, Passes, Picks, Replaces, Sent
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.forecast.tpu_vector_memory import Life, spared

WORKSPACES = (
    "gpu.products-are-calls",
    "gpu.workspace-of-ampere",
    "gpu.workspace-of-hopper",
    "gpu.workspace-of-blackwell",
)
"""Habits by which a call of the library takes the bytes that a machine file names."""


def of_ops(now: StepPrices, decided: Decided, flights: UnderWay) -> Iterator[tuple[int, float]]:
    """Points and bytes of what ops need beside their operands and results."""
    for op in now.program.ops:
        if decided.decisions.assignment[op.index] is not None:
            yield from op_events(now, op, decided.chosen(op), flights)


def workspaces(now: StepPrices, decisions: Decisions) -> Iterator[tuple[int, float]]:
    """Points and bytes of what the library takes for each product."""
    size = _workspace_bytes(now.machine.chip)
    for op in now.program.ops:
        if op.primitive == "dot_general" and decisions.assignment[op.index] is not None:
            yield from passing(now.dataflow.when[op.index], size)


def _workspace_bytes(chip: Chip) -> float:
    """What a call of the library takes beside its arrays."""
    own = chip.compiler
    return own.workspace_bytes if all(map(own.has, WORKSPACES)) else 0.0


def of_values(
    now: StepPrices, decisions: Decisions, flights: UnderWay
) -> Iterator[tuple[int, float]]:
    """Points and bytes of values and their copies in the main memory."""
    flow, chip = now.dataflow, now.machine.chip
    lives: list[Life] = []
    for value in now.program.values:
        buffer = sorted(buffer_events(now, decisions, value.index, flights).items())
        yield from buffer
        if len(buffer) == 2 and flow.temporary[value.index]:  # it comes and goes once
            (start, size), (stop, _) = buffer
            if stop < flow.end:  # results of the step lie in the main memory
                lives.append(Life(start, stop, size))
    stay = "tpu.short-lived-in-vector-memory", "tpu.half-of-vector-memory-stays"
    if all(map(chip.compiler.has, stay)):
        for life in spared(lives, chip.vector_memory_bytes, flow.end):
            yield life.start, -life.bytes
            yield life.stop, life.bytes


def of_marks(now: StepPrices, marks: Mapping[Hashable, int]) -> Iterator[tuple[int, float]]:
    """Points and bytes of what is passed between collectives, and of what is picked for pools."""
    for one, at in marks.items():
        if isinstance(one, Passes):
            size = one.bytes * now.scratch_factor
            yield at, size
            yield marks[Passed(one)], -size
        if isinstance(one, Picks):
            size = one.bytes * now.scratch_factor
            yield at, size
            yield now.dataflow.when[one.op] + 1, -size


def converted_before(prices: StepPrices, decisions: Decisions) -> Iterator[tuple[int, float]]:
    """Points and bytes of stacks that are converted as a whole before the loop that slices them.

    Copies of stacks that are narrower are converted already.
    """
    if not prices.machine.chip.compiler.has("tpu.stacks-converted-before-loops"):
        return
    program, narrowed = prices.program, prices.dataflow.narrowed
    for value, one in prices.dataflow.slices.items():
        stack, layout = program.values[one.stack], decisions.stored[value]
        if one.stack in narrowed and decisions.copy[one.stack] is not None:
            continue
        if program.values[value].itemsize < stack.itemsize and layout is not None:
            size = stack.shape[0] * prices.scratch_bytes(value, layout)
            yield one.start, size
            yield one.stop, -size


def waiting(
    prices: StepPrices,
    decisions: Decisions,
    beside: Collection[int],
    marks: Mapping[Hashable, int],
) -> Iterator[tuple[int, float]]:
    """Points and bytes of results `beside` their places until a mark, or copied at once."""
    copied = {one.value: at for one, at in marks.items() if isinstance(one, Replaces)}
    when = prices.dataflow.when
    for value in beside:
        layout = decisions.stored[value]
        if layout is not None:
            size = prices.scratch_bytes(value, layout)
            made = when[prices.program.values[value].producer]
            yield made, size
            yield max(copied.get(value, made), made + 1), -size


def put_in_order(
    prices: StepPrices, decisions: Decisions, first: FirstDimensions
) -> Iterator[tuple[int, float]]:
    """Points and bytes of what is gathered and put in order for a loop, one after the other."""
    when: dict[int, int] = {}
    for op in prices.program.ops:
        if first.is_put_in_order(op):
            at = prices.dataflow.when[op.index]
            when[op.inputs[0]] = min(at, when.get(op.inputs[0], at))
    for value, at in when.items():
        layout = decisions.copy[value]
        assert layout is not None
        yield from passing(at, prices.scratch_bytes(value, layout))
    for value, one in prices.dataflow.slices.items():
        layout = decisions.stored[one.stack]
        if layout is not None and first.is_stacked_otherwise(value):
            at = prices.dataflow.when[prices.program.values[value].producer]
            yield from passing(at, prices.scratch_bytes(one.stack, layout))


def beside_sent(
    prices: StepPrices,
    decided: Decided,
    first: FirstDimensions,
    marks: Mapping[Hashable, int],
) -> Iterator[tuple[int, float]]:
    """Points and bytes of values in the order in which they are sent, beside the values."""
    sent = {(one.value, one.life): at for one, at in marks.items() if isinstance(one, Sent)}
    program, when = prices.program, prices.dataflow.when
    for (value, life), at in sent.items():
        served = {(use.op, use.position) for use in decided.served(value)[life]}
        others = [u for u in prices.dataflow.readers[value] if (u.op, u.position) not in served]
        if not others or not first.is_sent(value):
            continue
        producer = program.values[value].producer
        layout = decided.decisions.stored[value]
        assert layout is not None
        size = prices.scratch_bytes(value, layout)
        yield min(when[producer] if producer >= 0 else at, at), size
        yield at, -size


def beside_scattered(
    prices: StepPrices, decided: Decided, first: FirstDimensions
) -> Iterator[tuple[int, float]]:
    """Points and bytes of products in the order in which they are scattered, beside themselves.

    They are put in order after the library is done with its workspace, and before they become what
    they are scattered into, which both count at that point, too.
    """
    for op in prices.program.ops:
        if op.primitive == "dot_general" and first.is_scattered_otherwise(op):
            at = prices.dataflow.when[op.index]
            strategy, product = decided.chosen(op), op.outputs[0]
            size = prices.scratch_bytes(product, strategy.written[0][0])
            others = prices.scratch_bytes(product, strategy.stored[0][0])
            others += _workspace_bytes(prices.machine.chip)
            yield from passing(at, max(size - others, 0.0))
