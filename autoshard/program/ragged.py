"""Products of rows that lie in groups: `jax.lax.ragged_dot_general`, as numbers of dimensions.

The left operand has one ragged dimension, and `group_sizes` says how many of its elements belong to
each of `g` groups, one group after another. Which kind of dimension that is makes three products:

    rows        [m, k] x [g, k, n] -> [m, n]      each row by its group's matrix: the forward pass
    contracted  [m, k] x [m, n] -> [g, k, n]      one product per group: the matrices' gradient
    batch       [b, m, k] x [b, k, n] -> [b, m, n]    the groups change nothing

Every row belongs to one group at most, so a ragged product has `2 m k n` FLOP whatever the groups
are. A compiler without a kernel for it computes the product of all rows with every group instead:
`g` times as many.

Where rows and groups are cut over the same axes (expert parallelism), each device has a part of the
rows, in their order, and the matrices of some groups. Rows go to the devices of their groups, and
results come back, by an all-to-all of as many rows as there are: none is dropped, none is filled
up. A device works on a window of rows at a time,

    window = ceil(SLACK x rows of a part / parts in which groups are cut beside)

and on the next one where its groups have more rows than that, until the fullest device is done. All
devices know the sizes of all groups, so that they agree on who sends what, and on how often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax.numpy as jnp
from jax import lax

RAGGED = "ragged_dot_general"
"""The name of the primitive."""
SLACK = 1.25
"""Rows of a window for each row that a device has on average: groups may be so uneven at no cost.

It is the capacity factor that Switch Transformers train with (https://arxiv.org/abs/2101.03961,
table 1), there of rows that are kept, here of those that are done at once.
"""
ROUNDS = "rounds_of_ragged_rows"
"""The scope of the loop over windows, which runs once where groups are that even."""


class RaggedKind(Enum):
    """Which kind of dimension is ragged; see the module docstring."""

    ROWS = "rows"
    CONTRACTED = "contracted"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class RaggedProduct:
    """The dimension numbers of a ragged product.

    Attributes:
      kind: which kind of dimension is ragged.
      ragged: the ragged dimension of the left operand.
      group: the dimension of the right operand that has one matrix per group; None but for ROWS.
      contracted, batch: pairs of dimensions, of the left and of the right operand.
      left_free, right_free: the other dimensions of each.
      before: the dimensions of the left operand for which `group_sizes` has sizes of its own, in
        its order; empty where all have the same.
    """

    kind: RaggedKind
    ragged: int
    group: int | None
    contracted: tuple[tuple[int, int], ...]
    batch: tuple[tuple[int, int], ...]
    left_free: tuple[int, ...]
    right_free: tuple[int, ...]
    before: tuple[int, ...]

    @property
    def ragged_right(self) -> int:
        """The right operand's dimension that is contracted with the ragged one."""
        return dict(self.contracted)[self.ragged]

    @property
    def ragged_result(self) -> int:
        """The result's dimension that is the ragged one."""
        return len(self.batch) + self.left_free.index(self.ragged)


def ragged_product(equation: Any) -> RaggedProduct:
    """The dimension numbers of an equation of `ragged_dot_general`."""
    left, right, sizes = (len(atom.aval.shape) for atom in equation.invars[:3])
    numbers = equation.params["ragged_dot_dimension_numbers"]
    contracted, batch = (tuple(zip(*pairs, strict=True)) for pairs in numbers.dot_dimension_numbers)
    (ragged,), groups = numbers.lhs_ragged_dimensions, tuple(numbers.rhs_group_dimensions)
    bound = (*contracted, *batch)
    left_free = tuple(d for d in range(left) if d not in [pair[0] for pair in bound])
    taken = [*groups, *(pair[1] for pair in bound)]
    right_free = tuple(d for d in range(right) if d not in taken)
    lefts, batches = [pair[0] for pair in contracted], [pair[0] for pair in batch]
    if ragged in left_free:
        kind, before = RaggedKind.ROWS, [*batches, *left_free[: left_free.index(ragged)]]
    elif ragged in lefts:
        kind, before = RaggedKind.CONTRACTED, [*batches, *lefts[: lefts.index(ragged)]]
    else:
        kind, before = RaggedKind.BATCH, batches[: batches.index(ragged)]
    return RaggedProduct(
        kind,
        ragged,
        groups[0] if groups else None,
        contracted,
        batch,
        left_free,
        right_free,
        tuple(before) if sizes > 1 else (),
    )


def window_rows(rows: int, groups_cut: int = 1) -> int:
    """Rows that a device works on at a time where rows are exchanged.

    >>> window_rows(1000), window_rows(1000, 2)
    (1250, 625)

    Args:
      rows: of a device's part.
      groups_cut: into how many parts the groups are cut beside the exchange.
    """
    return max(math.ceil(SLACK * rows / groups_cut), 1)


def with_batch(numbers: Any) -> tuple[lax.RaggedDotDimensionNumbers, int]:
    """The numbers of a ragged product with a batch more, the first dimension of all operands.

    Returns them, and where the result has that dimension.
    """
    contracted, batch = (
        tuple([d + 1 for d in map(int, side)] for side in pairs)
        for pairs in numbers.dot_dimension_numbers
    )
    ragged, groups = (
        [d + 1 for d in map(int, side)]
        for side in (numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions)
    )
    batch = tuple([0, *side] for side in batch)
    more = lax.RaggedDotDimensionNumbers((contracted, batch), ragged, groups)
    return more, int(ragged[0] in contracted[0])


def without_batch(product: RaggedProduct) -> lax.RaggedDotDimensionNumbers:
    """The numbers of one of the products of which it makes a batch, whose dimensions come first."""
    lefts, rights = (sorted(pair[k] for pair in product.batch) for k in (0, 1))

    def left(d: int) -> int:
        return d - sum(one < d for one in lefts)

    def right(d: int) -> int:
        return d - sum(one < d for one in rights)

    contracted = [[left(one) for one, _ in product.contracted]]
    contracted += [[right(one) for _, one in product.contracted]]
    groups = [] if product.group is None else [right(product.group)]
    return lax.RaggedDotDimensionNumbers(
        (tuple(contracted), ((), ())), [left(product.ragged)], groups
    )


def ragged_flops(equation: Any) -> float:
    """FLOP of a ragged product: two for each row, contracted element and column."""
    product = ragged_product(equation)
    left = equation.invars[0].aval.shape
    result = equation.outvars[0].aval.shape
    columns = result[1:] if product.kind is RaggedKind.CONTRACTED else result
    return 2.0 * math.prod(columns) * math.prod(left[one] for one, _ in product.contracted)


def groups_of(equation: Any) -> int:
    """How many times its FLOP an op has where it is computed once per group; 1 of all else."""
    if equation.primitive.name != RAGGED:
        return 1
    if ragged_product(equation).kind is RaggedKind.BATCH:
        return 1
    return max(int(equation.invars[2].aval.shape[-1]), 1)


def sizes_of_rows(sizes: Any, first: Any, count: int) -> Any:
    """How many rows of each group lie among `count` rows from `first` on."""
    first = jnp.asarray(first).astype(sizes.dtype)
    ends = jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype)
    starts = ends - sizes
    return jnp.clip(ends, first, first + count) - jnp.clip(starts, first, first + count)
