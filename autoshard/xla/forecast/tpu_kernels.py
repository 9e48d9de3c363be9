"""Model three habits of XLA:TPU under a plan: fused softmaxes, late products, whole sums.

Fused softmaxes. A softmax runs in one kernel with the product that computes its scores:

    scores = q k         bf16[b, k, g, q, s], not written
    largest = max(scores); total = sum(exp(scores - largest))
    exponentials         f32[b, k, g, q, s], written in place of the scores

Later ops compute the shares (the softmax's result) and their cotangents from the exponentials.
XLA:TPU does this for attention in training steps whose scores have five dimensions of more than one
element on a device: grouped queries with more than one sequence (of 1,024 to 4,096 positions, with
and without a causal mask, on v5e, v5p and v6e). Scores of fewer dimensions are assumed to be
written, and their exponentials to be recomputed by their readers. (In a forward pass alone XLA:TPU
also fuses the softmaxes of plain heads.) With grouped queries the product writes the scores in
another dimension order than the softmax has. Shares that several products read are then assumed to
be written in a backward pass. XLA:TPU writes masked ones of 4,096 positions on v4 and v5p, and
recomputes them on v5e and v6e.

Late products. A product is fused into the kernel that adds it to a table's other gradient:

    dE = scatter(ids, dx) + dlogits^T h       a table that is looked up and multiplied with, too

The addition is fused into the product that it reads. If a collective exchanges, sums or slices the
scatter's result before the addition, the product waits for the scatter, which comes last in a
backward pass. The product's operands stay live until then: the logits through the backward pass of
all layers. With no collective in between, the scatter starts from the product, and the product runs
at its usual place.

Whole sums. A reduce-scatter over all chips of a square or a cube is an all-reduce there
(`MeshTopology.leaves_whole`), although the plan keeps only shards of the sum. The whole sum is live
until an op reads it, or a collective that reads it begins. That reader slices out its shard.

    down's gradient: bf16[8192, 32768]{unreduced=x}  --all-reduce-->  bf16[8192, 32768]  until read

An all-reduce writes over its operand. But a product that runs while another collective is in flight
writes a tuple, and the sum of its result gets a buffer of its own.
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
"""The least number of dimensions of the scores of a fused softmax."""


class Softmax(NamedTuple):
    """The values of a softmax: the scores, written by a product, and their exponentials."""

    scores: int
    exponentials: int


def with_softmaxes(
    program: Program,
    chip: Chip,
    into_products: Collection[int],
    decisions: Decisions,
    mesh_shape: tuple[int, ...],
    unwritten: Collection[int] = (),
    written: Collection[int] = (),
) -> Fusion:
    """Return the fusion under some decisions, where softmaxes may be one kernel.

    Args:
      program, chip, into_products, unwritten, written: see `autoshard.xla.fusion.fuse`.
      decisions: how values are sharded.
      mesh_shape: sizes of the mesh axes.
    """
    plain = fuse(program, chip, into_products, written=written, unwritten=unwritten)
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
        slopes = not has("tpu.slopes-of-turned-scores-made-anew")
        shares = set(_shares(program, plain, turned, slopes))
    into_products = set(into_products) - shares
    more = {one.exponentials for one in found} | shares
    if not more:
        return plain
    written = more.union(written)
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
    """Yield the softmaxes of scores that a product computes, one exponential per score."""
    readers = program.consumers()
    products = {op.index for op in program.ops if op.primitive == "dot_general"}
    for op in program.ops:
        if op.primitive != "exp":
            continue
        exponentials = program.values[op.outputs[0]]
        if exponentials.dtype != "float32":
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
    """Whether the exponentials, of `sizes`, have the dimensions of the scores in another order.

    Dimensions of one element on a device do not count.
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


def _shares(
    program: Program, fusion: Fusion, scores: Collection[int], slopes: bool
) -> Iterator[int]:
    """Yield values that several products read, and whose only product operand is some scores.

    With `slopes`, also those that are made of the scores and of another product.
    """
    for one in scores:
        read: dict[int, set[int]] = {}
        for op in program.ops:
            for value in op.inputs if op.primitive == "dot_general" else ():
                if value < 0 or fusion.materialised[value] or one not in fusion.sources[value]:
                    continue
                others = fusion.sources[value] - {one}
                if slopes or not any(_is_product(program, other) for other in others):
                    read.setdefault(value, set()).add(op.index)
        yield from (value for value, ops in read.items() if len(ops) > 1)


def _is_product(program: Program, value: int) -> bool:
    producer = program.values[value].producer
    return producer >= 0 and program.ops[producer].primitive == "dot_general"


def _kernels_that_read(program: Program, fusion: Fusion) -> dict[int, set[int]]:
    """Return, by value that is written, the ops whose kernels read it."""
    found: dict[int, set[int]] = {value.index: set() for value in program.values}
    for op in program.ops:
        if any(fusion.materialised[output] for output in op.outputs):
            for value in op.inputs:
                for source in fusion.sources[value] if value >= 0 else ():
                    found[source].add(op.index)
    return found


CASTS = frozenset({"convert_element_type", "reshape", "transpose"})


def late_products(decided: Decided) -> Iterator[int]:
    """Yield the results of late products (see the module), which are not written."""
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
    """Return the op behind the casts of a value, and whether a collective moves it on the way.

    The op is None where something else reads a value of this chain, too.
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
    """Yield the memory events of sums that `autoshard.plan.memory_events.op_events` omits.

    Args:
      prices: the prices, with ops in the order in which they run.
      decided: the plan.
      flights: the points at which collectives begin and end.
    """
    own = prices.machine.chip.compiler
    cut_by_readers = own.has("tpu.readers-cut-whole-sums")
    always_beside = own.denies("tpu.sums-in-place")
    if not (cut_by_readers or always_beside):
        return
    begun: dict[int, int] = {}
    for (value, _), at in flights.begun.items():
        begun[value] = min(at, begun.get(value, at))
    for op in prices.program.ops:
        if decided.decisions.assignment[op.index] is None:
            continue
        strategy = decided.chosen(op)
        scattered = bool(strategy.scattered[0])
        axes = np.flatnonzero((strategy.onto if scattered else strategy.reduced)[0]).tolist()
        if not axes or strategy.pending[0]:
            continue
        if scattered and not prices.topology.leaves_whole(axes):
            continue
        at = prices.dataflow.when[op.index]
        if always_beside:
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
    """Yield the bytes of whole sums once they are ready; before, they count as the op's result."""
    for number, output in enumerate(op.outputs):
        read = min([use.last + 1 for use in prices.dataflow.readers[output]], default=settled)
        read = min(read, begun.get(output, read))
        rest = prices.scratch_bytes(output, strategy.written[number][0]) - prices.scratch_bytes(
            output, strategy.stored[number][0]
        )
        if read > settled and rest > 0:
            yield settled, rest
            yield read, -rest
