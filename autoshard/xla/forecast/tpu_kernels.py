"""What XLA:TPU computes as one kernel, and what it makes whole, under a plan.

Softmaxes in one kernel, with the product that they are of:

    scores = q k         bf16[b, k, g, q, s], not written
    largest = max(scores); total = sum(exp(scores - largest))
    exponentials         f32[b, k, g, q, s], written in place of the scores

What is read afterwards, the shares and their cotangents, is made of the exponentials. So XLA:TPU
compiles attention in training steps whose scores have five dimensions of more than one element on a
device: grouped queries with more than one sequence (of 1,024 to 4,096 positions, with and without a
causal mask, on v5e, v5p and v6e). Scores of fewer dimensions are taken as written, and their
exponentials as made anew by what reads them; in a forward pass alone XLA:TPU makes one kernel of
those of plain heads, too. Where the product writes them in another order than its softmax has, as
it does with grouped queries, shares that several products read are taken as written in a backward
pass; XLA:TPU writes masked ones of 4,096 positions on v4 and v5p, and makes them anew on v5e, v6e.

Products in the kernel that adds them to a table's other gradient:

    dE = scatter(ids, dx) + dlogits^T h       a table that is looked up and multiplied with, too

An addition is fused into the product that it reads. Where the scatter is exchanged, summed or cut
before it is added, the product waits for the scatter, which a backward pass comes to last, and what
it reads lies in memory until then: the logits through all of the layers' backward pass. Where
nothing stands between, the scatter starts from the product, and that is computed where it stands.

Sums made whole, although a plan has only their parts: a reduce-scatter over all chips of a square
or a cube is an all-reduce there (`MeshTopology.leaves_whole`). The sum lies in memory as a whole
until something reads it, or a collective begins that does: that cuts out its part.

    down's gradient: bf16[8192, 32768]{unreduced=x}  --all-reduce-->  bf16[8192, 32768]  until read

An all-reduce writes over what it adds up. But a product beside which another collective runs writes
a tuple, and what is added up of it lies beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autoshard.cost.step_prices import StepPrices
from autoshard.machine.chip import Chip
from autoshard.plan.decisions import Decisions
from autoshard.plan.memory_events import UnderWay, passing
from autoshard.program.graph import Op
from autoshard.program.layout import local_shape
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Program
from autoshard.program.vocabulary import ADDITIONS
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.fusion import Fusion, fuse

DIMENSIONS = 5
"""Scores of so many dimensions, at least."""


class Softmax(NamedTuple):
    """The values of one: of the product that writes its scores, and of their exponentials."""

    scores: int
    exponentials: int


def with_softmaxes(
    program: Program,
    chip: Chip,
    into_products: Collection[int],
    decisions: Decisions,
    mesh_shape: tuple[int, ...],
    unwritten: Collection[int] = (),
) -> Fusion:
    """What is fused under some decisions where softmaxes may be one kernel.

    Args:
      program, chip, into_products, unwritten: see `autoshard.xla.fusion.fuse`.
      decisions: how values are cut.
      mesh_shape: sizes of the mesh axes.
    """
    plain = fuse(program, chip, into_products, unwritten=unwritten)
    every = list(_softmaxes(program, plain))
    sizes = {
        one: _sizes(program, decisions, mesh_shape, one.exponentials)
        for one in every
        if decisions.stored[one.exponentials] is not None
    }
    has = chip.compiler.has
    least = DIMENSIONS if has("tpu.scores-of-one-sequence-written") else 0
    found = [one for one in sizes if sum(size > 1 for size in sizes[one]) >= least]
    if not has("tpu.softmaxes-of-five-dimensions-in-one-kernel"):
        found = []
    shares = set[int]()
    if has("tpu.shares-of-turned-scores-written"):
        others = (one for one in sizes if one not in found)
        turned = {one.scores for one in others if _turns(program, plain, one, sizes[one])}
        shares = set(_shares(program, plain, turned))
    into_products = set(into_products) - shares
    written = {one.exponentials for one in found} | shares
    if not written:
        return plain
    again = fuse(program, chip, into_products, written=written, unwritten=unwritten)
    readers = _kernels_that_read(program, again)
    alone = {
        one.scores
        for one in found
        if all(
            program.ops[reader].primitive == "reduce_max"
            or one.exponentials in program.ops[reader].outputs
            for reader in readers[one.scores]
        )
    }
    return fuse(program, chip, into_products, written=written, unwritten=alone.union(unwritten))


def _softmaxes(program: Program, fusion: Fusion) -> Iterator[Softmax]:
    """Those of scores that a product makes, if they are as many."""
    readers = program.consumers()
    products = {op.index for op in program.ops if op.primitive == "dot_general"}
    for op in program.ops:
        exponentials = program.values[op.outputs[0]]
        if op.primitive != "exp" or exponentials.dtype != "float32":
            continue
        if not any(program.ops[r].primitive == "reduce_sum" for r, _ in readers[op.outputs[0]]):
            continue
        for source in fusion.sources[op.inputs[0]]:
            scores = program.values[source]
            if scores.producer not in products:
                continue
            if math.prod(scores.shape) == math.prod(exponentials.shape):
                yield Softmax(source, exponentials.index)


def _sizes(
    program: Program, decisions: Decisions, mesh_shape: tuple[int, ...], value: int
) -> tuple[int, ...]:
    layout = decisions.stored[value]
    assert layout is not None
    return local_shape(program.values[value].shape, layout, mesh_shape)


def _turns(program: Program, fusion: Fusion, softmax: Softmax, sizes: Sequence[int]) -> bool:
    """Whether the dimensions of the scores stand in another order in the exponentials of `sizes`.

    Those of one element on a device stand anywhere.
    """
    order = [(d,) for d, size in enumerate(sizes) if size > 1]
    value = softmax.exponentials
    while value != softmax.scores and order:
        op = program.ops[program.values[value].producer]
        position = next(
            p for p, v in enumerate(op.inputs) if v >= 0 and softmax.scores in fusion.sources[v]
        )
        before, after = op.rule.operands[position], op.rule.results[0]
        held = [{factor for d in group for factor in after[d]} for group in order]
        order = [tuple(d for d, f in enumerate(before) if one & set(f)) for one in held]
        value = op.inputs[position]
    flat = [d for group in order for d in group]
    return flat != sorted(flat)


def _shares(program: Program, fusion: Fusion, scores: Collection[int]) -> Iterator[int]:
    """What several products read that is made of some scores, and of nothing else by a product."""
    for one in scores:
        read: dict[int, set[int]] = {}
        for op in program.ops:
            for value in op.inputs if op.primitive == "dot_general" else ():
                if value < 0 or fusion.materialised[value] or one not in fusion.sources[value]:
                    continue
                others = fusion.sources[value] - {one}
                if not any(_is_product(program, other) for other in others):
                    read.setdefault(value, set()).add(op.index)
        yield from (value for value, ops in read.items() if len(ops) > 1)


def _is_product(program: Program, value: int) -> bool:
    producer = program.values[value].producer
    return producer >= 0 and program.ops[producer].primitive == "dot_general"


def _kernels_that_read(program: Program, fusion: Fusion) -> dict[int, set[int]]:
    """By value that is written, the ops that write something and read it."""
    found: dict[int, set[int]] = {value.index: set() for value in program.values}
    for op in program.ops:
        if any(fusion.materialised[output] for output in op.outputs):
            for value in op.inputs:
                for source in fusion.sources[value] if value >= 0 else ():
                    found[source].add(op.index)
    return found


CASTS = frozenset({"convert_element_type", "reshape", "transpose"})


def late_products(decided: Decided) -> Iterator[int]:
    """The values that such products would write."""
    program = decided.prices.program
    for op in program.ops:
        if op.primitive not in ADDITIONS or len(op.inputs) != 2 or min(op.inputs) < 0:
            continue
        for term, other in (op.inputs, op.inputs[::-1]):
            scatter, exchanged = _made_by(decided, other)
            if scatter is None or scatter.primitive != "scatter-add" or not exchanged:
                continue
            product, moved = _made_by(decided, term)
            if product is None or product.primitive != "dot_general" or moved:
                continue
            if product.region == op.region:
                yield product.outputs[0]


def _made_by(decided: Decided, value: int) -> tuple[Op | None, bool]:
    """What makes a value that is cast for its one reader, and whether it is moved on the way.

    None where something else reads it.
    """
    program, moved = decided.prices.program, False
    while value >= 0 and program.values[value].producer >= 0:
        if len(decided.prices.dataflow.readers[value]) > 1:
            return None, moved
        maker = program.ops[program.values[value].producer]
        settled = decided.of_sum(maker) is not None
        moved = moved or settled or decided.decisions.copy[value] is not None
        if maker.primitive not in CASTS:
            return maker, moved
        value = maker.inputs[0]
    return None, moved


def whole_sums(
    prices: StepPrices, decided: Decided, flights: UnderWay
) -> Iterator[tuple[int, float]]:
    """Points and bytes of sums beside what `autoshard.plan.memory_events.op_events` counts.

    Args:
      prices: in the order in which the ops run.
      decided: the plan.
      flights: where collectives begin and end.
    """
    own = prices.machine.chip.compiler
    cut_by_readers = own.has("tpu.readers-cut-whole-sums")
    always_beside = own.denies("tpu.sums-in-place")
    beside_tuples = own.has("tpu.sums-beside-tuples")
    if not (cut_by_readers or always_beside or beside_tuples):
        return
    begun: dict[int, int] = {}
    busy = np.zeros(prices.dataflow.end + 1, dtype=bool)
    for (value, life), at in flights.begun.items():
        begun[value] = min(at, begun.get(value, at))
        steps = decided.steps_of_copy(value)
        if any(kind != "all_slice" for step in steps for kind, _ in step.kinds):
            busy[at : flights.copies[value][life][0]] = True
    for op in prices.program.ops:
        if decided.decisions.assignment[op.index] is None:
            continue
        strategy = decided.chosen(op)
        axes = np.flatnonzero(strategy.reduced[0]).tolist()
        if not axes or strategy.pending[0]:
            continue
        scattered = bool(strategy.scattered[0])
        if scattered and not prices.topology.leaves_whole(axes):
            continue
        at = prices.dataflow.when[op.index]
        if always_beside or (beside_tuples and busy[at]):
            yield from _beside(prices, op, strategy)
        if scattered and cut_by_readers:
            settled = max(flights.settled.get(op.index, at), at + 1)
            yield from _until_read(prices, op, strategy, settled, begun)


def _beside(prices: StepPrices, op: Op, strategy: Strategies) -> Iterator[tuple[int, float]]:
    at = prices.dataflow.when[op.index]
    for number, output in enumerate(op.outputs):
        yield from passing(at, prices.scratch_bytes(output, strategy.written[number][0]))


def _until_read(
    prices: StepPrices, op: Op, strategy: Strategies, settled: int, begun: Mapping[int, int]
) -> Iterator[tuple[int, float]]:
    """From where the sum is there; until then it is counted as what the op writes."""
    for number, output in enumerate(op.outputs):
        read = min([use.last + 1 for use in prices.dataflow.readers[output]], default=settled)
        read = min(read, begun.get(output, read))
        rest = prices.scratch_bytes(output, strategy.written[number][0]) - prices.scratch_bytes(
            output, strategy.stored[number][0]
        )
        if read > settled and rest > 0:
            yield settled, rest
            yield read, -rest
