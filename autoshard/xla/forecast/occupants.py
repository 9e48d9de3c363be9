"""List the memory events of a plan in the compiler's own order.

Each function yields pairs of a program point and the bytes allocated (positive) or freed (negative)
there.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace

from autoshard.cost.reordering import transposing
from autoshard.cost.step_prices import StepPrices
from autoshard.machine.chip import Chip
from autoshard.plan.decisions import Decisions
from autoshard.plan.memory_events import UnderWay, buffer_events, op_events, passing
from autoshard.program.ragged import RAGGED
from autoshard.xla.forecast.collective_dim_order import FirstDimensions
from autoshard.xla.forecast.event_marks import Passed, Passes, Picks, Replaces, Sent
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.forecast.tpu_vector_memory import Life, spared
from autoshard.xla.in_place import carry_of

_AMPERE = 2.0**22
"""What a call takes at most without Blackwell's habit: the workspace of Ampere."""


def of_ops(now: StepPrices, decided: Decided, flights: UnderWay) -> Iterator[tuple[int, float]]:
    """Yield the memory events of what ops need in addition to their operands and results."""
    for op in now.program.ops:
        if decided.decisions.assignment[op.index] is not None:
            yield from op_events(now, op, decided.chosen(op), flights)


def workspaces(now: StepPrices, decisions: Decisions) -> Iterator[tuple[int, float]]:
    """Yield the memory events of the library's workspace for each product."""
    size, slices = _workspace_bytes(now.machine.chip), now.dataflow.slices
    most = now.machine.chip.compiler.workspace_bytes if size else size
    for op in now.program.ops:
        called = op.primitive in ("dot_general", RAGGED)
        if called and decisions.assignment[op.index] is not None:
            sliced = any(value in slices for value in op.inputs)
            yield from passing(now.dataflow.when[op.index], most if sliced else size)


def _workspace_bytes(chip: Chip) -> float:
    """Return the workspace bytes of a library call that reads whole arrays."""
    own = chip.compiler
    if not own.has("gpu.products-are-calls"):
        return 0.0
    if own.has("gpu.workspace-of-blackwell"):
        return own.workspace_bytes
    return min(own.workspace_bytes, _AMPERE)


def carries_beside(now: StepPrices, decided: Decided) -> Iterator[tuple[int, float]]:
    """Yield the memory events of loop carries in order, beyond what their ops were counted to need.

    A carry that products read in another order is put in that order before the loop: all of it that
    a device holds, even where the plan cuts its slices further. Of those of one loop that take the
    same bytes one needs memory, since each goes where the one before it lay. A carry that a plan
    cuts otherwise finds no such place.
    """
    program, flow = now.program, now.dataflow
    held = {
        index: tuple(replace(life, parts=1.0) for life in lives)
        for index, lives in flow.turned.items()
    }
    alone = replace(now, dataflow=replace(flow, turned=held))
    placed = set[tuple[int, int]]()
    for index, lives in flow.turned.items():
        op = program.ops[index]
        if op.primitive != "dot_general" or decided.decisions.assignment[index] is None:
            continue
        strategy = decided.chosen(op)
        counted, copies = (transposing(prices, op, strategy)[1] for prices in (now, alone))
        for number, (one, life) in enumerate(zip(flow.transposed[index], lives, strict=True)):
            carry = carry_of(program, op.inputs[one.position])
            layout = decided.decisions.stored[carry] if carry >= 0 else None
            if layout is None or not copies[number][0][0]:
                continue
            size = round(now.scratch_bytes(carry, layout))
            key = program.ops[program.values[carry].producer].region, size
            more = float(size * (key not in placed) - counted[number][0][0])
            placed.add(key)
            yield life.start, more
            yield life.stop, -more


def of_values(
    now: StepPrices, decisions: Decisions, flights: UnderWay
) -> Iterator[tuple[int, float]]:
    """Yield the memory events of values and their copies in main memory."""
    flow, chip = now.dataflow, now.machine.chip
    lives: list[Life] = []
    for value in now.program.values:
        buffer = sorted(buffer_events(now, decisions, value.index, flights).items())
        yield from buffer
        if len(buffer) == 2 and flow.temporary[value.index]:  # one live range
            (start, size), (stop, _) = buffer
            if stop < flow.end:  # results of the step stay in main memory
                lives.append(Life(start, stop, size))
    stay = "tpu.short-lived-in-vector-memory", "tpu.half-of-vector-memory-stays"
    if all(map(chip.compiler.has, stay)):
        for life in spared(lives, chip.vector_memory_bytes, flow.end):
            yield life.start, -life.bytes
            yield life.stop, life.bytes


def of_marks(now: StepPrices, marks: Mapping[Hashable, int]) -> Iterator[tuple[int, float]]:
    """Yield the memory events of results between collectives, and of what pool gradients pick."""
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
    """Yield the memory events of stacks converted as a whole before the loop that slices them.

    Stacks whose copies have a narrower type are already converted, and are left out.
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
    """Yield the memory events of results with a buffer of their own (`beside`) until copied back.

    A mark gives the point of the copy; without one, the copy follows at once.
    """
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
    """Yield the memory events of gathered arrays that are transposed for a loop, one at a time."""
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


def gathered_beside(
    prices: StepPrices, decided: Decided, first: FirstDimensions
) -> Iterator[tuple[int, float]]:
    """Yield the memory events of gathered operands that a product has put in order.

    Beyond what was counted for operands that lie otherwise whether they are gathered or not.
    """
    flow = prices.dataflow
    for op in prices.program.ops:
        for position in first.read_in_order(op):
            layout = decided.decisions.copy[op.inputs[position]]
            assert layout is not None
            copies = transposing(prices, op, decided.chosen(op))[1]
            turned = zip(flow.transposed.get(op.index, ()), copies, strict=False)
            counted = sum(float(held[0]) for one, (held, _) in turned if one.position == position)
            size = prices.scratch_bytes(op.inputs[position], layout) - counted
            yield from passing(flow.when[op.index], max(size, 0.0))


def beside_sent(
    prices: StepPrices,
    decided: Decided,
    first: FirstDimensions,
    marks: Mapping[Hashable, int],
) -> Iterator[tuple[int, float]]:
    """Yield the memory events of copies in the order of sending, where the value stays live too."""
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
    """Yield the memory events of products that are copied to the order of their reduce-scatter.

    The copy is made after the library has released its workspace, and before the scattered result
    exists. Both are counted at that point already, so only the bytes beyond them are added.
    """
    for op in prices.program.ops:
        if op.primitive == "dot_general" and first.is_scattered_otherwise(op):
            at = prices.dataflow.when[op.index]
            strategy, product = decided.chosen(op), op.outputs[0]
            size = prices.scratch_bytes(product, strategy.written[0][0])
            others = prices.scratch_bytes(product, strategy.stored[0][0])
            others += _workspace_bytes(prices.machine.chip)
            yield from passing(at, max(size - others, 0.0))
