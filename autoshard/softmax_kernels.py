"""Softmaxes that XLA:TPU computes in one kernel, with the product that they are of.

    scores = q k         bf16[b, k, g, q, s], not written
    largest = max(scores); total = sum(exp(scores - largest))
    exponentials         f32[b, k, g, q, s], written in place of the scores

What is read afterwards, the shares and their cotangents, is made of the exponentials. So XLA:TPU
compiles attention whose scores have five dimensions of more than one element on a device: grouped
queries with more than one sequence (of 1,024 to 4,096 positions, with and without a causal mask, on
v5e, v5p and v6e). Those of fewer are written themselves, and their exponentials are made anew by
what reads them. But where the product writes them in another order than its softmax has, as it does
with grouped queries, shares that several products read are written, too: in a backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from autoshard.decisions import Decisions
from autoshard.fusion import Fusion, fuse
from autoshard.layout import local_shape
from autoshard.machine import Chip
from autoshard.program import Program

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
      program, chip, into_products, unwritten: see `autoshard.fusion.fuse`.
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
    found = [one for one in sizes if sum(size > 1 for size in sizes[one]) >= DIMENSIONS]
    turned = {
        one.scores for one in sizes if one not in found and _turns(program, plain, one, sizes[one])
    }
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
