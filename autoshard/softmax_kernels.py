"""Softmaxes that XLA:TPU computes in one kernel, with the product that they are of.

    scores = q k         bf16[b, k, g, q, s], not written
    largest = max(scores); total = sum(exp(scores - largest))
    exponentials         f32[b, k, g, q, s], written in place of the scores

What is read afterwards, the shares and their cotangents, is made of the exponentials. So XLA:TPU
compiles attention whose scores have five dimensions of more than one element on a device: grouped
queries with more than one sequence (of 1,024 to 4,096 positions, with and without a causal mask, on
v5e, v5p and v6e). Those of fewer are written themselves, and their exponentials are made anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
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
) -> Fusion:
    """What is fused under some decisions where softmaxes may be one kernel.

    Args:
      program, chip, into_products: see `autoshard.fusion.fuse`.
      decisions: how values are cut.
      mesh_shape: sizes of the mesh axes.
    """
    plain = fuse(program, chip, into_products)
    found = list(_softmaxes(program, plain, decisions, mesh_shape))
    if not found:
        return plain
    written = {one.exponentials for one in found}
    again = fuse(program, chip, into_products, written=written)
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
    return fuse(program, chip, into_products, written=written, unwritten=alone)


def _softmaxes(
    program: Program, fusion: Fusion, decisions: Decisions, mesh_shape: tuple[int, ...]
) -> Iterator[Softmax]:
    readers = program.consumers()
    products = {op.index for op in program.ops if op.primitive == "dot_general"}
    for op in program.ops:
        exponentials = program.values[op.outputs[0]]
        stored = decisions.stored[exponentials.index]
        if op.primitive != "exp" or exponentials.dtype != "float32" or stored is None:
            continue
        sizes = local_shape(exponentials.shape, stored, mesh_shape)
        summed = any(program.ops[r].primitive == "reduce_sum" for r, _ in readers[op.outputs[0]])
        if not summed or sum(size > 1 for size in sizes) < DIMENSIONS:
            continue
        for source in fusion.sources[op.inputs[0]]:
            scores = program.values[source]
            if scores.producer not in products:
                continue
            if math.prod(scores.shape) == math.prod(exponentials.shape):
                yield Softmax(source, exponentials.index)


def _kernels_that_read(program: Program, fusion: Fusion) -> dict[int, set[int]]:
    """By value that is written, the ops that write something and read it."""
    found: dict[int, set[int]] = {value.index: set() for value in program.values}
    for op in program.ops:
        if any(fusion.materialised[output] for output in op.outputs):
            for value in op.inputs:
                for source in fusion.sources[value] if value >= 0 else ():
                    found[source].add(op.index)
    return found
