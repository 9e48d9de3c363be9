"""Small kernels of the kinds that people write, in interpret mode where they run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

F32 = jnp.float32


def f(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def matmul(x: Any, y: Any, *, block: int = 8, semantics: Any = None) -> Any:
    """A product whose sums grow in scratch along the last axis of the grid."""

    def body(x_ref: Any, y_ref: Any, out_ref: Any, sum_ref: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    rows, inner = x.shape
    columns = y.shape[1]
    return pl.pallas_call(
        body,
        out_shape=f(rows, columns, dtype=x.dtype),
        grid=(rows // block, columns // block, inner // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((block, block), F32)],
        name="matmul",
    )(x, y)


def row_softmax(x: Any) -> Any:
    """Whole rows in blocks of two."""

    def body(x_ref: Any, out_ref: Any) -> None:
        shifted = x_ref[...] - jnp.max(x_ref[...], axis=-1, keepdims=True)
        out_ref[...] = jnp.exp(shifted) / jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True)

    spec = pl.BlockSpec((2, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=f(*x.shape),
        grid=(pl.cdiv(x.shape[0], 2),),
        in_specs=[spec],
        out_specs=spec,
        name="row_softmax",
    )(x)


def attention(q: Any, k: Any, v: Any, *, causal: bool = False, block: int = 8) -> Any:
    """Batch, heads and blocks of queries; heads of queries share those of keys and values."""

    def body(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any) -> None:
        scores = jnp.dot(q_ref[...], k_ref[...].T)
        if causal:
            row = pl.program_id(2) * block + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            column = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(row >= column, scores, -1e30)
        weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        out_ref[...] = jnp.dot(weights, v_ref[...])

    batch, heads, length, width = q.shape
    shared = heads // k.shape[1]
    whole = pl.BlockSpec((None, None, k.shape[2], width), lambda b, h, i: (b, h // shared, 0, 0))
    part = pl.BlockSpec((None, None, block, width), lambda b, h, i: (b, h, i, 0))
    return pl.pallas_call(
        body,
        out_shape=f(*q.shape),
        grid=(batch, heads, length // block),
        in_specs=[part, whole, whole],
        out_specs=part,
        name="attention",
    )(q, k, v)


def running_sum(x: Any, *, anew: bool = False, apart: bool = False) -> Any:
    """A sum that goes on from row to row; begun once, or anew for each block of columns.

    Where blocks are said to be apart, data says in which rows sums begin.
    """

    def body(x_ref: Any, out_ref: Any, sum_ref: Any) -> None:
        first = pl.program_id(1) == 0
        if apart:
            first = x_ref[0, 0] == 0.0
        elif not anew:
            first &= pl.program_id(0) == 0

        @pl.when(first)
        def _() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += x_ref[...]
        out_ref[...] = sum_ref[...]

    spec = pl.BlockSpec((1, 4), lambda j, i: (i, j))
    return pl.pallas_call(
        body,
        out_shape=f(*x.shape),
        grid=(x.shape[1] // 4, x.shape[0]),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((1, 4), F32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel" if apart else "arbitrary", "arbitrary")
        ),
        name="running_sum",
    )(x)


def carried_sum(x: Any) -> Any:
    """A sum that goes on from row to row and from block to block, begun in the first row."""

    def body(x_ref: Any, out_ref: Any, sum_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += x_ref[...]
        out_ref[...] = sum_ref[...]

    spec = pl.BlockSpec((1, 4), lambda i, j: (i, j))
    return pl.pallas_call(
        body,
        out_shape=f(*x.shape),
        grid=(x.shape[0], x.shape[1] // 4),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((1, 4), F32)],
        name="carried_sum",
    )(x)


def looked_up(places: Any, table: Any) -> Any:
    """Rows of a table at places that are given in advance, in blocks of columns."""

    def body(places_ref: Any, table_ref: Any, out_ref: Any) -> None:
        del places_ref
        out_ref[...] = table_ref[...]

    return pl.pallas_call(
        body,
        out_shape=f(places.shape[0], 1, table.shape[2]),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(places.shape[0], table.shape[2] // 8),
            in_specs=[pl.BlockSpec((1, 1, 8), lambda i, j, at: (at[i], 0, j))],
            out_specs=pl.BlockSpec((1, 1, 8), lambda i, j, at: (i, 0, j)),
        ),
        name="looked_up",
    )(places, table)


def updated(x: Any, y: Any) -> Any:
    """A sum that takes the place of its first operand."""

    def body(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + y_ref[...]

    spec = pl.BlockSpec((2, 8), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=f(*x.shape),
        grid=(x.shape[0] // 2,),
        in_specs=[spec, pl.BlockSpec((1, 8), lambda i: (0, 0))],
        out_specs=spec,
        input_output_aliases={0: 0},
        name="updated",
    )(x, y)


def turned(x: Any) -> Any:
    """Blocks in the other order."""

    def body(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

    count = x.shape[0] // 2
    return pl.pallas_call(
        body,
        out_shape=f(*x.shape),
        grid=(count,),
        in_specs=[pl.BlockSpec((2, 8), lambda i: (count - 1 - i, 0))],
        out_specs=pl.BlockSpec((2, 8), lambda i: (i, 0)),
        name="turned",
    )(x)


def column_sum(x: Any) -> Any:
    """A sum over blocks of rows, which the result takes in one after the other."""

    def body(x_ref: Any, out_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.sum(x_ref[...], axis=0, keepdims=True)

    return pl.pallas_call(
        body,
        out_shape=f(1, x.shape[1]),
        grid=(x.shape[1] // 8, x.shape[0] // 2),
        in_specs=[pl.BlockSpec((2, 8), lambda j, i: (i, j))],
        out_specs=pl.BlockSpec((1, 8), lambda j, i: (0, j)),
        name="column_sum",
    )(x)


def masked(x: Any, y: Any, *, inside: bool = False) -> Any:
    """Rows by their place, their number, and the block before; asked for first, or in a branch."""

    def body(x_ref: Any, before_ref: Any, out_ref: Any) -> None:
        place, count = pl.program_id(0), pl.num_programs(0)

        @pl.when(place % 3 > 0)
        def _() -> None:
            here = pl.program_id(0) if inside else place
            out_ref[...] = x_ref[...] * (here + 1)

        @pl.when(place % 3 == 0)
        def _() -> None:
            out_ref[...] = x_ref[...] - before_ref[...] * count

    spec = pl.BlockSpec((2, 8), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=f(*x.shape),
        grid=(x.shape[0] // 2,),
        in_specs=[spec, pl.BlockSpec((2, 8), lambda i: (jnp.maximum(i - 1, 0), 0))],
        out_specs=spec,
        name="masked",
    )(x, y)
