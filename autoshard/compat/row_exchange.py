"""`jax.lax.ragged_all_to_all` on all parts at once: a primitive of whole arrays.

Of a `shard_map` whose body is run on all parts (`autoshard.compat.parts`), each part `s` has rows
for each part `t`, in pieces whose sizes are known at run time alone:

    operand  [*batch, parts, rows, ...]         output   [*batch, parts, places, ...]
    input_offsets, send_sizes, output_offsets, recv_sizes   [*batch, parts, parts x pieces]

    result[t, output_offsets[s, t] + n] = operand[s, input_offsets[s, t] + n],  n < send_sizes[s, t]

and `output` elsewhere. `recv_sizes` say the same as `send_sizes`, seen from the part that receives;
of two that differ the smaller one counts here.
`parts` is one dimension for all mesh axes that the call names, in row-major order. On one device it
is a gather; cut along its parts it is the collective again (`autoshard.lower.parts.sent_rows`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.interpreters.batching import fancy_primitive_batchers

from autoshard.compat.explicit_types import plain_aval

ROW_EXCHANGE = "ragged_exchange"
"""The name of the primitive on whole arrays."""

_WHOLE, _OF_PART = Primitive(ROW_EXCHANGE), Primitive("ragged_exchange_of_part")


def send_rows(arrays: Sequence[Any], axes: Sequence[str], sizes: Sequence[int]) -> Any:
    """The result of the collective on one part.

    Args:
      arrays: its six operands on one part.
      axes, sizes: the mesh axes over which rows are sent, each of several parts.
    """
    if axes:
        return _OF_PART.bind(*arrays, axes=tuple(axes), sizes=tuple(sizes), lead=())
    return exchange_rows([lax.expand_dims(one, [0]) for one in arrays], 0)[0]


def exchange_rows(arrays: Sequence[Any], batch: int) -> Any:
    """The collective on whole arrays with so many dimensions of a batch."""
    return _WHOLE.bind(*arrays, batch=batch)


def exchanged(
    operand: Any, output: Any, begin: Any, count: Any, place: Any, taken: Any, *, batch: int = 0
) -> Any:
    """What the primitive computes, in ordinary operations."""
    run = _exchanged
    for _one in range(batch):
        run = jax.vmap(run)
    return run(operand, output, begin, count, place, taken)


def _exchanged(operand: Any, output: Any, begin: Any, count: Any, place: Any, taken: Any) -> Any:
    parts, rows = operand.shape[:2]
    sent = operand.reshape(parts * rows, *operand.shape[2:])
    first = jnp.arange(parts, dtype=jnp.int32)[:, None, None] * rows
    pieces = [one.astype(jnp.int32).reshape(parts, parts, -1) for one in (begin, count, place)]
    pieces[0] = pieces[0] + first
    to_each = [jnp.moveaxis(one, 1, 0).reshape(parts, -1) for one in pieces]
    to_each[1] = jnp.minimum(to_each[1], taken.astype(jnp.int32))
    return jax.vmap(received, (None, 0, 0, 0, 0))(sent, output, *to_each)


def received(rows: Any, output: Any, begin: Any, count: Any, place: Any) -> Any:
    """`output` with `count` of `rows` from `begin` on, at `place` on, for each of several pieces.

    Args:
      rows: `[rows, ...]`.
      output: `[places, ...]`.
      begin, count, place: `[pieces]`, int32.
    """
    from_each = jnp.arange(output.shape[0], dtype=jnp.int32)[:, None] - place
    is_from = (from_each >= 0) & (from_each < count)
    source = jnp.argmax(is_from, axis=1)
    row = jnp.take_along_axis(begin + from_each, source[:, None], 1)[:, 0]
    found = rows[jnp.clip(row, 0, rows.shape[0] - 1)]
    which = jnp.expand_dims(is_from.any(axis=1), range(1, rows.ndim))
    return jnp.where(which, found, output)


# -- what they are, and what becomes of them -----------------------------------------------------


def _like_output(operand: Any, output: Any, *_: Any, **__: Any) -> Any:
    return plain_aval(output)


def _in_front(arrays: Sequence[Any], dims: Sequence[int | None], size: int) -> list[Any]:
    """Arrays with the batched dimension in front; those without it get one of equal elements."""
    return [
        lax.broadcast_in_dim(one, (size, *one.shape), range(1, one.ndim + 1))
        if d is None
        else jnp.moveaxis(one, d, 0)
        for one, d in zip(arrays, dims, strict=True)
    ]


def _batch_part(
    data: Any,
    arrays: Any,
    dims: Any,
    *,
    axes: tuple[str, ...],
    sizes: tuple[int, ...],
    lead: tuple[str | None, ...],
) -> Any:
    """One more leading dimension: of the parts of a mesh axis that is named, or of a batch."""
    arrays = _in_front(arrays, dims, data.size)
    lead = (data.name if data.name in axes else None, *lead)
    if any(axis not in lead for axis in axes):
        return _OF_PART.bind(*arrays, axes=axes, sizes=sizes, lead=lead), 0
    batches = [d for d, label in enumerate(lead) if label is None]
    front = [*batches, *(lead.index(axis) for axis in axes)]
    merged = [_merged(one, front, len(batches), len(axes)) for one in arrays]
    result = exchange_rows(merged, len(batches))
    apart = [*result.shape[: len(batches)], *sizes, *result.shape[len(batches) + 1 :]]
    order = [*front, *range(len(front), len(apart))]
    return lax.transpose(lax.reshape(result, apart), [order.index(d) for d in range(len(order))]), 0


def _merged(array: Any, front: Sequence[int], batches: int, parts: int) -> Any:
    array = lax.transpose(array, [*front, *range(len(front), array.ndim)])
    shape = array.shape
    count = math.prod(shape[batches : batches + parts])
    return lax.reshape(array, (*shape[:batches], count, *shape[batches + parts :]))


def _batch_whole(arrays: Any, dims: Any, *, batch: int) -> Any:
    size = next(one.shape[d] for one, d in zip(arrays, dims, strict=True) if d is not None)
    return exchange_rows(_in_front(arrays, dims, size), batch + 1), 0


_WHOLE.def_abstract_eval(_like_output)
_WHOLE.def_impl(functools.partial(jax.jit, static_argnames="batch")(exchanged))
_OF_PART.def_abstract_eval(_like_output)
mlir.register_lowering(_WHOLE, mlir.lower_fun(exchanged, multiple_results=False))
batching.primitive_batchers[_WHOLE] = _batch_whole
fancy_primitive_batchers[_OF_PART] = _batch_part
