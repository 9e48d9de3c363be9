"""All ways in which one op can be sharded over a mesh.

A **strategy** maps every mesh axis to one factor of the op's rule, or to none. It fixes the layouts
that the op reads and the layout that it writes. For `([i, k], [k, j])->([i, j])` on axes (x, y):

    x->i, y->k   reads [i@x, k@y] and [k@y, j], writes [i@x, j] as a partial sum over y

An axis on a reduction factor leaves a partial result, which the strategy settles at once: by an
all-reduce (the result is replicated over the axis) or by a reduce-scatter onto a dimension. When
several axes are reduced, all of them are scattered or none is: this is what the partitioner emits.

Absent, because forbidden: shards that do not divide a factor; axes on a minor factor of a merged
dimension (`[ij]`) whose major factors are not used up; layouts whose axes would not stand in mesh
order within a dimension. Factors that Shardy marks as needing replication, permutation or blocking
are never sharded, nor are ops on arrays of no elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.rules import FactorKind, Rule

Axes = NDArray[np.int64]
SCATTERABLE = frozenset({"sum"})


@dataclass(frozen=True, slots=True, eq=False)
class Strategies:
    """`count` strategies of one op as arrays; every row of every array is one strategy.

    Attributes:
      assignment: `[count, axes]`, the factor of every axis, or -1.
      reads: per operand `[count, axes]`, the dimension that every axis shards, or -1.
      written: per result, the same, before partial sums are settled.
      stored: per result, the same, after they are settled.
      reduced: `[count, axes]`, whether the axis leaves a partial result.
      scattered: `[count]`, whether the partial result is settled by a reduce-scatter.
      shards: `[count]`, into how many equal parts the op's work is cut.
    """

    assignment: Axes
    reads: tuple[Axes, ...]
    written: tuple[Axes, ...]
    stored: tuple[Axes, ...]
    reduced: NDArray[np.bool_]
    scattered: NDArray[np.bool_]
    shards: Axes

    def __len__(self) -> int:
        return len(self.assignment)


def is_layout_determined(rule: Rule) -> bool:
    """Whether the layout of the only result determines the strategy (elementwise and its like)."""
    if len(rule.results) != 1:
        return False
    in_result = {factor for dimension in rule.results[0] for factor in dimension}
    return all(
        index in in_result
        for index, factor in enumerate(rule.factors)
        if factor.size > 1 and factor.kind in (FactorKind.PASS, FactorKind.REDUCE)
    ) and not any(factor.kind is FactorKind.REDUCE and factor.size > 1 for factor in rule.factors)


def enumerate_strategies(
    rule: Rule, mesh_shape: Sequence[int], result_shapes: Sequence[Sequence[int]]
) -> Strategies:
    """All strategies of an op with `rule` on a mesh; the first one replicates everything."""
    axes = len(mesh_shape)
    usable = [
        index
        for index, factor in enumerate(rule.factors)
        if factor.size > 1
        and factor.kind in (FactorKind.PASS, FactorKind.REDUCE)
        and all(other.size for other in rule.factors)
    ]
    assignment = _assignments(rule, usable, mesh_shape)
    for mapping in (*rule.operands, *rule.results):
        assignment = assignment[_contiguous(rule, mapping, assignment, mesh_shape)]
    reads = tuple(_project(mapping, assignment) for mapping in rule.operands)
    written = tuple(_project(mapping, assignment) for mapping in rule.results)
    reducing = np.array(
        [factor.kind is FactorKind.REDUCE for factor in rule.factors] + [False], dtype=bool
    )
    reduced = reducing[assignment]
    sizes = np.asarray(mesh_shape, dtype=np.int64)
    shards = np.where(assignment >= 0, sizes, 1).prod(axis=1)
    base = Strategies(
        assignment, reads, written, written, reduced, np.zeros(len(assignment), bool), shards
    )
    scatters = _scatters(rule, base, mesh_shape, result_shapes)
    return base if scatters is None else _concatenate(base, scatters, axes)


def _assignments(rule: Rule, usable: Sequence[int], mesh_shape: Sequence[int]) -> Axes:
    """Axis-to-factor assignments whose shards divide, built axis by axis."""
    factor_sizes = np.array([f.size for f in rule.factors] + [1], dtype=np.int64)
    rows = np.zeros((1, 0), dtype=np.int64)
    counts = np.ones((1, len(factor_sizes)), dtype=np.int64)
    for size in mesh_shape:
        options = np.array([-1, *(usable if size > 1 else [])], dtype=np.int64)
        rows = np.concatenate(
            [np.repeat(rows, len(options), axis=0), np.tile(options, len(rows))[:, None]], axis=1
        )
        counts = np.repeat(counts, len(options), axis=0)
        chosen = rows[:, -1] >= 0
        counts[chosen, rows[chosen, -1]] *= size
        keep = (factor_sizes % counts == 0).all(axis=1)
        rows, counts = rows[keep], counts[keep]
    return rows


def _contiguous(
    rule: Rule,
    mapping: Sequence[Sequence[int]],
    assignment: Axes,
    mesh_shape: Sequence[int],
) -> NDArray[np.bool_]:
    """Which rows shard every merged dimension of one operand in contiguous, mesh-ordered parts."""
    keep = np.ones(len(assignment), dtype=bool)
    sizes = np.asarray(mesh_shape, dtype=np.int64)
    axes = np.arange(len(mesh_shape))
    for dimension in mapping:
        for major, minor in itertools.pairwise(dimension):
            on_major, on_minor = assignment == major, assignment == minor
            used = np.where(on_major, sizes, 1).prod(axis=1)
            last_major = np.where(on_major, axes, -1).max(axis=1, initial=-1)
            first_minor = np.where(on_minor, axes, len(axes)).min(axis=1, initial=len(axes))
            full = used == rule.factors[major].size
            keep &= ~on_minor.any(axis=1) | (full & (last_major < first_minor))
        # A minor factor behind an unsharded factor of size > 1 in between is refused above,
        # because the pair (that factor, the minor one) is not full.
    return keep


def _project(mapping: Sequence[Sequence[int]], assignment: Axes) -> Axes:
    highest = max((f for dimension in mapping for f in dimension), default=-1)
    table = np.full(max(highest, int(assignment.max(initial=-1))) + 2, -1, dtype=np.int64)
    for number, dimension in enumerate(mapping):
        for factor in dimension:
            table[factor] = number
    table[-1] = -1
    return table[assignment]


def _scatters(
    rule: Rule,
    base: Strategies,
    mesh_shape: Sequence[int],
    result_shapes: Sequence[Sequence[int]],
) -> Strategies | None:
    """The strategies that settle every partial sum by reduce-scatter onto result dimensions."""
    if len(rule.results) != 1:
        return None
    operators = {f.operator for f in rule.factors if f.kind is FactorKind.REDUCE and f.size > 1}
    shape = tuple(result_shapes[0])
    if not shape or not operators or not operators <= SCATTERABLE:
        return None
    sizes = np.asarray(mesh_shape, dtype=np.int64)
    axes = len(mesh_shape)
    parts: list[Strategies] = []
    for pattern in sorted({tuple(row) for row in base.reduced.tolist()}):
        reduced_axes = [axis for axis in range(axes) if pattern[axis]]
        if not reduced_axes:
            continue
        rows = np.flatnonzero((base.reduced == np.array(pattern)).all(axis=1))
        written = base.written[0][rows]
        cut = np.stack(
            [np.where(written == d, sizes, 1).prod(axis=1) for d in range(len(shape))], axis=1
        ).reshape(len(rows), len(shape))
        for targets in itertools.product(range(len(shape)), repeat=len(reduced_axes)):
            stored = written.copy()
            total = cut.copy()
            for axis, target in zip(reduced_axes, targets, strict=True):
                stored[:, axis] = target
                total[:, target] *= mesh_shape[axis]
            keep = (np.asarray(shape) % total == 0).all(axis=1)
            for axis, target in zip(reduced_axes, targets, strict=True):
                # A scattered axis is appended as the minor one: it must come last in mesh order.
                keep &= ~(written[:, axis + 1 :] == target).any(axis=1)
            if keep.any():
                parts.append(_take(base, rows[keep], stored[keep]))
    if not parts:
        return None
    first, *rest = parts
    for part in rest:
        first = _concatenate(first, part, axes)
    return first


def _take(base: Strategies, rows: NDArray[np.int64], stored: Axes) -> Strategies:
    return Strategies(
        base.assignment[rows],
        tuple(read[rows] for read in base.reads),
        tuple(write[rows] for write in base.written),
        (stored,),
        base.reduced[rows],
        np.ones(len(rows), dtype=bool),
        base.shards[rows],
    )


def _concatenate(first: Strategies, second: Strategies, axes: int) -> Strategies:
    def join(a: NDArray, b: NDArray) -> NDArray:
        return np.concatenate([a.reshape(-1, axes), b.reshape(-1, axes)])

    return Strategies(
        join(first.assignment, second.assignment),
        tuple(join(a, b) for a, b in zip(first.reads, second.reads, strict=True)),
        tuple(join(a, b) for a, b in zip(first.written, second.written, strict=True)),
        tuple(join(a, b) for a, b in zip(first.stored, second.stored, strict=True)),
        join(first.reduced, second.reduced),
        np.concatenate([first.scattered, second.scattered]),
        np.concatenate([first.shards, second.shards]),
    )


def project_assignment(
    rule: Rule, assignment: Axes, stored: tuple[Axes, ...], mesh_shape: Sequence[int]
) -> Strategies:
    """The strategies of `assignment` `[count, axes]` whose results are stored as given."""
    reads = tuple(_project(mapping, assignment) for mapping in rule.operands)
    written = tuple(_project(mapping, assignment) for mapping in rule.results)
    reducing = np.array(
        [factor.kind is FactorKind.REDUCE for factor in rule.factors] + [False], dtype=bool
    )
    reduced = reducing[assignment]
    scattered = np.zeros(len(assignment), dtype=bool)
    for before, after in zip(written, stored, strict=True):
        scattered |= (before != after).any(axis=1)
    shards = np.where(assignment >= 0, np.asarray(mesh_shape), 1).prod(axis=1)
    return Strategies(assignment, reads, written, stored, reduced, scattered, shards)
