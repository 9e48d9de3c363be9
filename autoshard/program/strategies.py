"""All ways in which one op can be sharded over a mesh.

A **strategy** maps every mesh axis to one factor of the op's rule, or to none. It fixes the layouts
that the op reads and the layout that it writes. For `([i, k], [k, j])->([i, j])` on axes (x, y):

    x->i, y->k   reads [i@x, k@y] and [k@y, j], writes [i@x, j] as a partial sum over y

An axis on a reduction factor leaves a partial result, which the strategy settles at once: by an
all-reduce (the result is replicated over the axis) or by a reduce-scatter onto a dimension. When
several axes are reduced, all of them are scattered or none is: this is what the partitioner emits.
A matrix product may also be settled **in steps** (`autoshard.plan.unreduced_sums`): some axes are
scattered first, and an all-reduce over the others adds up the parts, as where weights are sharded
within a host and replicated over hosts. Where sums are added up, a result may also be stored
unreduced, and an addition may have an axis on its terms (`UNREDUCED` in its assignment): it reads
them unreduced, and writes a partial result in turn.

Absent, because forbidden: shards that do not divide a factor; axes on a minor factor of a merged
dimension (`[ij]`) whose major factors are not used up; layouts whose axes would not stand in mesh
order within a dimension. Factors that Shardy marks as needing replication, permutation or blocking
are never sharded. Those of kind RING are, by the axes of a ring (`autoshard.program.kernels.ring`),
and those of kind EXCHANGE (`autoshard.program.ragged`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.program.layout import UNREDUCED
from autoshard.program.rules.record import CUT, FactorKind, Rule

Axes = NDArray[np.int64]
SCATTERABLE = frozenset({"sum"})


@dataclass(frozen=True, slots=True, eq=False)
class Strategies:
    """`count` strategies of one op as arrays; every row of every array is one strategy.

    Attributes:
      assignment: `[count, axes]`, the factor of every axis, or -1; -2 on the terms of a sum.
      reads: per operand `[count, axes]`, the dimension that every axis shards, or -1; -2 where
        it is read unreduced.
      written: per result, the same, before partial sums are settled.
      stored: per result, the same, after they are settled; -2 where they are not.
      reduced: `[count, axes]`, whether the axis leaves a partial result.
      scattered: `[count]`, whether the partial result is settled by a reduce-scatter, over all
        axes that leave it or in steps.
      shards: `[count]`, into how many equal parts the op's work is cut.
      found: what was derived from these arrays, so that it is derived once.
    """

    assignment: Axes
    reads: tuple[Axes, ...]
    written: tuple[Axes, ...]
    stored: tuple[Axes, ...]
    reduced: NDArray[np.bool_]
    scattered: NDArray[np.bool_]
    shards: Axes
    found: dict[object, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.assignment)

    @property
    def pending(self) -> NDArray[np.bool_]:
        """`[count]`, whether results are stored unreduced."""
        found = np.zeros(len(self.assignment), dtype=np.bool_)
        for layouts in self.stored:
            found |= (layouts == UNREDUCED).any(axis=1)
        return found

    @property
    def onto(self) -> NDArray[np.bool_]:
        """`[count, axes]`, whether the axis is scattered onto a dimension of the result."""
        found = np.zeros(self.reduced.shape, dtype=np.bool_)
        for before, after in zip(self.written, self.stored, strict=True):
            found |= self.reduced & (before != after) & (after != UNREDUCED)
        return found

    @property
    def in_steps(self) -> NDArray[np.bool_]:
        """`[count]`, whether partial results are scattered over some axes, then all-reduced."""
        return self.scattered & (self.onto != self.reduced).any(axis=1)


def is_layout_determined(rule: Rule) -> bool:
    """Whether the layout of the only result determines the strategy (elementwise and its like).

    What sends elements to other parts is none of these.
    """
    if len(rule.results) != 1 or any(one.kind is FactorKind.EXCHANGE for one in rule.factors):
        return False
    in_result = {factor for dimension in rule.results[0] for factor in dimension}
    return all(
        index in in_result
        for index, factor in enumerate(rule.factors)
        if factor.size > 1 and factor.kind in CUT
    ) and not any(factor.kind is FactorKind.REDUCE and factor.size > 1 for factor in rule.factors)


def enumerate_strategies(
    rule: Rule,
    mesh_shape: Sequence[int],
    result_shapes: Sequence[Sequence[int]],
    *,
    joins: bool = False,
    pending: bool = False,
    last: Collection[int] = (),
) -> Strategies:
    """All strategies of an op with `rule` on a mesh; the first one replicates everything.

    Args:
      rule: of the op.
      mesh_shape: sizes of the mesh axes.
      result_shapes: global shapes of the results.
      joins: whether the op adds up terms that may be unreduced.
      pending: whether its result may be stored unreduced.
      last: axes over which partial results may be added up once they are scattered over the others.
    """
    axes = len(mesh_shape)
    usable = [
        index for index, factor in enumerate(rule.factors) if factor.size > 1 and factor.kind in CUT
    ]
    assignment = _assignments(rule, [*usable, *([UNREDUCED] if joins else [])], mesh_shape)
    for mapping in (*rule.operands, *rule.results):
        assignment = assignment[_contiguous(rule, mapping, assignment, mesh_shape)]
    if rule.joint:
        assignment = assignment[_apart(rule, assignment, mesh_shape)]
    first = len(rule.operands)
    written = tuple(_project(rule, first + k, assignment) for k in range(len(rule.results)))
    base = project_assignment(rule, assignment, written, mesh_shape)
    parts = [base]
    scatters = _scatters(rule, base, mesh_shape, result_shapes, joins=joins, last=last)
    if scatters is not None:
        parts.append(scatters)
    if pending:
        rows = np.flatnonzero(base.reduced.any(axis=1))
        kept = np.where(base.reduced, UNREDUCED, base.written[0])[rows]
        parts.append(_take(base, rows, kept, scattered=False))
    return _concatenate(parts, axes)


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
        chosen = rows[:, -1] >= 0  # terms are not cut
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


def _apart(rule: Rule, assignment: Axes, mesh_shape: Sequence[int]) -> NDArray[np.bool_]:
    """Which rows cut no dimension in two ways that do not go together.

    The parts of an exchange may be cut further, by later axes; those of a ring may not.
    """
    keep = np.ones(len(assignment), dtype=bool)
    sizes = np.asarray(mesh_shape, dtype=np.int64)
    axes = np.arange(len(mesh_shape))
    tensors = (*rule.operands, *rule.results)
    for one in rule.joint:
        here = assignment == one.factor
        others = [other.factor for other in rule.joint if other.factor > one.factor]
        count = np.where(here, sizes, 1).prod(axis=1)
        last = np.where(here, axes, -1).max(axis=1, initial=-1)
        for factors in {tensors[tensor][d] for tensor, d in one.places}:
            own = np.isin(assignment, [*factors, *others])
            both = here.any(axis=1) & own.any(axis=1)
            first = np.where(own, axes, len(axes)).min(axis=1, initial=len(axes))
            parts = np.where(own, sizes, 1).prod(axis=1) * count
            size = math.prod(rule.factors[k].size for k in factors)
            further = rule.factors[one.factor].kind is FactorKind.EXCHANGE
            keep &= ~both | (further & (last < first) & (size % parts == 0))
    return keep


def _project(rule: Rule, tensor: int, assignment: Axes) -> Axes:
    """The dimension of a tensor, operands first, that every axis cuts."""
    homes = rule.homes(tensor)
    highest = max(homes, default=-1)
    table = np.full(max(highest, int(assignment.max(initial=-1))) + 3, -1, dtype=np.int64)
    for factor, number in homes.items():
        table[factor] = number
    table[-2:] = -1  # of UNREDUCED and REPLICATED
    return table[assignment]


def _scatters(
    rule: Rule,
    base: Strategies,
    mesh_shape: Sequence[int],
    result_shapes: Sequence[Sequence[int]],
    *,
    joins: bool,
    last: Collection[int],
) -> Strategies | None:
    """The strategies that settle partial sums by reduce-scatter onto result dimensions."""
    if len(rule.results) != 1:
        return None
    operators = {f.operator for f in rule.factors if f.kind is FactorKind.REDUCE and f.size > 1}
    operators |= {"sum"} if joins else set()
    shape = tuple(result_shapes[0])
    if not shape or not operators or not operators <= SCATTERABLE:
        return None
    sizes = np.asarray(mesh_shape, dtype=np.int64)
    axes = len(mesh_shape)
    parts: list[Strategies] = []
    for pattern in sorted({tuple(row) for row in base.reduced.tolist()}):
        reduced_axes = [axis for axis in range(axes) if pattern[axis]]
        rows = np.flatnonzero((base.reduced == np.array(pattern)).all(axis=1))
        first = [axis for axis in reduced_axes if axis not in last]
        for onto in [reduced_axes] if first == reduced_axes else [reduced_axes, first]:
            found = _scattered(base, rows, onto, sizes, shape)
            if found is not None:
                parts.append(found)
    if not parts:
        return None
    return _concatenate(parts, axes)


def _scattered(
    base: Strategies,
    rows: NDArray[np.int64],
    onto: Sequence[int],
    sizes: NDArray[np.int64],
    shape: Sequence[int],
) -> Strategies | None:
    """Rows of `base` with some reduced axes scattered, onto all dimensions that they can go to."""
    if not onto:
        return None
    written = base.written[0][rows]
    cut = np.stack(
        [np.where(written == d, sizes, 1).prod(axis=1) for d in range(len(shape))], axis=1
    )
    # `[ways, rows, ...]`: in each way every scattered axis has a dimension of its own to go to.
    every = itertools.product(range(len(shape)), repeat=len(onto))
    ways = np.array(list(every), dtype=np.int64)
    numbers = np.arange(len(ways))
    stored, total = (np.tile(one, (len(ways), 1, 1)) for one in (written, cut))
    keep = np.ones((len(ways), len(rows)), dtype=bool)
    for axis, target in zip(onto, ways.T, strict=True):
        stored[:, :, axis] = target[:, None]
        total[numbers, :, target] *= sizes[axis]
        # A scattered axis is appended as the minor one: it must come last in mesh order.
        keep &= ~(written[:, axis + 1 :] == target[:, None, None]).any(axis=2)
    keep &= (np.asarray(shape) % total == 0).all(axis=2)
    return _take(base, rows[np.nonzero(keep)[1]], stored[keep]) if keep.any() else None


def _take(
    base: Strategies, rows: NDArray[np.int64], stored: Axes, *, scattered: bool = True
) -> Strategies:
    return Strategies(
        base.assignment[rows],
        tuple(read[rows] for read in base.reads),
        tuple(write[rows] for write in base.written),
        (stored,),
        base.reduced[rows],
        np.full(len(rows), scattered),
        base.shards[rows],
    )


def _concatenate(parts: Sequence[Strategies], axes: int) -> Strategies:
    if len(parts) == 1:
        return parts[0]

    def join(arrays: Iterable[NDArray]) -> NDArray:
        return np.concatenate([array.reshape(-1, axes) for array in arrays])

    return Strategies(
        join(part.assignment for part in parts),
        tuple(map(join, zip(*(part.reads for part in parts), strict=True))),
        tuple(map(join, zip(*(part.written for part in parts), strict=True))),
        tuple(map(join, zip(*(part.stored for part in parts), strict=True))),
        join(part.reduced for part in parts),
        np.concatenate([part.scattered for part in parts]),
        np.concatenate([part.shards for part in parts]),
    )


def project_assignment(
    rule: Rule, assignment: Axes, stored: tuple[Axes, ...], mesh_shape: Sequence[int]
) -> Strategies:
    """The strategies of `assignment` `[count, axes]` whose results are stored as given."""
    terms = assignment == UNREDUCED
    first = len(rule.operands)
    reads = tuple(np.where(terms, UNREDUCED, _project(rule, k, assignment)) for k in range(first))
    written = tuple(_project(rule, first + k, assignment) for k in range(len(rule.results)))
    kinds = [factor.kind is FactorKind.REDUCE for factor in rule.factors]
    reduced = np.array([*kinds, True, False], dtype=bool)[assignment]
    scattered = np.zeros(len(assignment), dtype=bool)
    for before, after in zip(written, stored, strict=True):
        scattered |= ((before != after) & (after != UNREDUCED)).any(axis=1)
    shards = np.where(assignment >= 0, np.asarray(mesh_shape), 1).prod(axis=1)
    return Strategies(assignment, reads, written, stored, reduced, scattered, shards)
