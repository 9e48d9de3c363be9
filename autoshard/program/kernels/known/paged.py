"""Attention over keys and values that lie in pages: JAX's kernels for TPUs.

    paged_attention          one query a sequence: `[b, n, h]` over pages `[k, p, s, h]`
    ragged_paged_attention   tokens `[t, n, h]` of sequences of any lengths, over pages
                             `[p, s, 2 k, h]` that hold keys and values in turn

They copy pages by themselves, ahead of time, so that nothing can be said of their grids. Yet
sequences are apart, and so are heads of keys, and the heads of queries that share one. Pages are
whole on every device, but for their heads. Tokens may be cut anywhere: a sequence of which a part
has queries up to some place ends there, for that part, and its keys with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard import compat
from autoshard.program.bodies import equations_in
from autoshard.program.kernels.known.record import (
    Dimension,
    Form,
    kernels_of,
    literals_in,
    ranks_of,
    rule_of,
    whole,
)
from autoshard.program.kernels.ruled import Said, call_with_rule

HIDDEN = -1e4
"""Literals below are what hidden scores are set to."""

CORES = 2
"""Of a chip between which `megacore_mode` divides sequences or heads."""


def decode_forms(_: Callable[..., Any], equation: Any) -> Iterator[Form]:
    """The forms of `paged_attention`."""
    kernels = kernels_of(equation)
    if ranks_of(equation) != (3, 4, 4, 1, 2) or len(kernels) != 1:
        return
    call = compat.kernel_call(kernels[0])
    hidden, caps = _scores(call.body)
    cores: tuple[str | None, ...] = ("kv_head", "batch") if call.grid[0] == CORES else (None,)
    operands = ("q", "k_pages", "v_pages", "lengths", "page_indices")
    for mask, cap, mode in itertools.product(hidden, caps, cores):
        told = {
            "pages_per_compute_block": call.scratch[0].shape[1],
            "inline_seq_dim": len(call.grid) == 3,
            "megacore_mode": mode,
            "mask_value": mask,
            "attn_logits_soft_cap": cap,
        }
        yield Form(operands, told)


def _scores(body: Any) -> tuple[list[float], list[float | None]]:
    """What hidden scores may be set to in a kernel, and what scores may be capped by."""
    numbers = literals_in(body, np.floating)
    names = {one.primitive.name for one in equations_in(body)}
    caps: list[float | None] = [*numbers] if "tanh" in names else [None]
    return [one for one in numbers if one < HIDDEN], caps


def decode(function: Callable[..., Any], form: Form, arrays: Sequence[Any]) -> list[Any]:
    """A call of `paged_attention` that may be cut by sequences and heads."""
    queries, pages, _, _, table = arrays
    batch, count, width = queries.shape
    heads, _, size, _ = pages.shape
    mode = form.options["megacore_mode"]
    rule = rule_of(
        "b k g h, k p s h, k p s h, b, b m -> b k g h",
        b=Dimension(batch, CORES if mode == "batch" else 1),
        k=Dimension(heads, CORES if mode == "kv_head" else 1),
        g=Dimension(count // heads),
        h=whole(width),
        p=whole(pages.shape[1]),
        s=whole(size),
        m=whole(table.shape[1]),
    )
    places = table.shape[1] * size
    said = _work(batch * count * places, width, 2.0 * batch * heads * places * pages.dtype.itemsize)

    def part(queries: Any, *rest: Any) -> list[Any]:
        flat = queries.reshape(queries.shape[0], -1, queries.shape[-1])
        return [form.call(function, [flat, *rest]).reshape(queries.shape)]

    grouped = queries.reshape(batch, heads, -1, width)
    (out,) = call_with_rule(part, [grouped, *arrays[1:]], rule, name=function.__name__, said=said)
    return [out.reshape(queries.shape)]


def _work(scores: float, width: int, page_bytes: float) -> Said:
    """Two products for each score; pages are read, of all positions that a table can hold."""
    return Said(flops=4.0 * scores * width, bytes=page_bytes * width)


def ragged_forms(_: Callable[..., Any], equation: Any) -> Iterator[Form]:
    """The forms of `ragged_paged_attention`."""
    kernels = kernels_of(equation)
    if ranks_of(equation) != (3, 4, 1, 2, 1, 1) or len(kernels) != 1:
        return
    call = compat.kernel_call(kernels[0])
    hidden, caps = _scores(call.body)
    numbers = literals_in(call.body, np.floating)
    windows = [None, *literals_in(call.body, np.integer)]
    limit = getattr(kernels[0].params["compiler_params"], "vmem_limit_bytes", None)
    operands = ("q", "kv_pages", "kv_lens", "page_indices", "cu_q_lens", "num_seqs")
    scales: list[tuple[float | None, float | None]] = [(None, None)]
    scales += list(itertools.product(numbers, numbers))
    for (keys, values), window, cap, mask, scale in itertools.product(
        scales, windows, caps, hidden, numbers
    ):
        told = {
            "num_kv_pages_per_block": call.scratch[0].shape[1],
            "num_queries_per_block": call.blocks[0].sizes[0],
            "vmem_limit_bytes": limit,
            "sm_scale": scale,
            "mask_value": mask,
            "soft_cap": cap,
            "sliding_window": window,
            "k_scale": keys,
            "v_scale": values,
        }
        yield Form(operands, told)


def ragged(function: Callable[..., Any], form: Form, arrays: Sequence[Any]) -> list[Any]:
    """A call of `ragged_paged_attention` that may be cut by tokens and heads."""
    queries, pages, _, table, *_ = arrays
    tokens, count, width = queries.shape
    _, size, both, _ = pages.shape
    heads = both // 2
    shape = tokens, heads, count // heads, width

    def part(queries: Any, pages: Any, lengths: Any, table: Any, *rest: Any) -> list[Any]:
        ends, number, first = rest
        flat = queries.reshape(queries.shape[0], -1, width)
        given = lengths, table, ends, number
        if queries.shape[0] < tokens:
            given = sequences_of(*given, first[0], queries.shape[0])
        return [form.call(function, [flat, pages, *given]).reshape(queries.shape)]

    places = jnp.arange(tokens, dtype=jnp.int32)
    operands = [queries.reshape(shape), pages, *arrays[2:], places]
    rule = rule_of(
        "t k g h, p s k+two h, n, n m, e, o, t -> t k g h",
        t=Dimension(tokens),
        k=Dimension(heads, _unit(part, operands, heads)),
        g=whole(count // heads),
        two=whole(2),
        h=whole(width),
        p=whole(pages.shape[0]),
        s=whole(size),
        n=whole(table.shape[0]),
        m=whole(table.shape[1]),
        e=whole(table.shape[0] + 1),
        o=whole(1),
    )
    read = table.shape[0] * table.shape[1] * size
    keys = table.shape[1] * size
    said = _work(tokens * count * keys, width, read * both * pages.dtype.itemsize)
    (out,) = call_with_rule(part, operands, rule, name=function.__name__, said=said)
    return [out.reshape(queries.shape)]


def _unit(part: Callable[..., Any], operands: Sequence[Any], heads: int) -> int:
    """The least number of heads of keys of which, and of its multiples, the function makes parts.

    It wants rows of heads that fill its registers, which depends on types.
    """
    divisors = [one for one in range(1, heads) if heads % one == 0]
    unit = heads
    for one in reversed(divisors):
        if not _runs(part, operands, one):
            break
        unit = one
    return unit


def _runs(part: Callable[..., Any], operands: Sequence[Any], heads: int) -> bool:
    queries, pages, *rest = (jax.ShapeDtypeStruct(one.shape, one.dtype) for one in operands)
    queries = queries.update(shape=(queries.shape[0], heads, *queries.shape[2:]))
    pages = pages.update(shape=(*pages.shape[:2], 2 * heads, pages.shape[3]))
    try:
        jax.eval_shape(part, queries, pages, *rest)
    except Exception:  # whatever a library says of sizes that it does not take
        return False
    return True


def sequences_of(
    lengths: Any, table: Any, ends: Any, number: Any, first: Any, count: int
) -> tuple[Any, Any, Any, Any]:
    """Those sequences that have tokens among `count` from `first` on, as the kernel takes them.

    Args:
      lengths: `[n]`, keys of each sequence.
      table: `[n, m]`, its pages.
      ends: `[n + 1]`, tokens before each sequence, and behind the last.
      number: `[1]`, how many sequences there are.
      first, count: of the tokens.

    Returns the same four for the part. Where it has no tokens, it has one sequence of one token,
    whose result nobody reads, since the kernel begins to copy its pages.
    """
    last = first + count
    most = lengths.shape[0]
    starts, stops = ends[:-1], ends[1:]
    here = (jnp.arange(most) < number[0]) & (stops > first) & (starts < last)
    found = jnp.sum(here, dtype=number.dtype)
    bounds = jnp.minimum(jnp.argmax(here) + jnp.arange(most + 1), most)
    place = jnp.minimum(bounds[:-1], most - 1)
    left = lengths - jnp.maximum(stops - last, 0)
    own = jnp.clip(ends, first, last) - first
    alone = jnp.minimum(jnp.arange(most + 1), 1).astype(ends.dtype)
    return (
        jnp.where(found > 0, left[place], 1),
        table[place],
        jnp.where(found > 0, own[bounds], alone),
        jnp.maximum(found, 1)[None],
    )
