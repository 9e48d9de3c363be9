"""Times of matmuls, elementwise operations, attention and launches, as rows of a table.

Every chain is one on which each operation does the same work:

    matmul        x [m, k] @ w [k, n], then @ v [n, k], which has as many FLOP and bytes, and so on
    elementwise   x / 2 + a: two arrays are read and one is written; a barrier keeps links apart
    compute       many multiply-adds per element, for the vector unit
    launch        an elementwise operation on a kilobyte
    attention     queries are the result of the link before

Sizes grow until one operation is long or an array is large (`Effort`), so that the same sweep fits
a laptop and a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from autoshard.calibrate.measure_collectives import collective_rows, step_rows
from autoshard.calibrate.timing import Effort, compile_on, device_mesh, link_seconds, random_parts

Row = dict[str, Any]

KINDS = ("launch", "matmul", "elementwise", "compute", "attention", "collective", "step")
DTYPES = ("bfloat16", "float32", "float16")
SMALLEST_MATMUL = 64
SMALLEST_BYTES = 2**14
MULTIPLY_ADDS = 256
HEAD_DIM = 64


def measured_rows(
    devices: Sequence[Any],
    effort: Effort,
    *,
    kinds: Sequence[str] = KINDS,
    dtypes: Sequence[str] = DTYPES,
) -> Iterator[Row]:
    """Yield the rows of a table as they are measured.

    Args:
      devices: those that run together; one alone has no rows of kind collective and step.
      effort: how large and how long.
      kinds: which rows to measure.
      dtypes: of matmuls and attention.

    Raises:
      LostLinksError: the compiler left out what was to be timed.
    """
    mesh = device_mesh(devices, len(devices))
    if "launch" in kinds:
        yield from _launch_rows(mesh, effort)
    if "matmul" in kinds:
        for dtype in dtypes:
            yield from _matmul_rows(mesh, effort, dtype)
    if "elementwise" in kinds:
        yield from _elementwise_rows(mesh, effort)
    if "compute" in kinds:
        yield from _vector_rows(mesh, effort)
    if "attention" in kinds:
        for dtype in dtypes:
            yield from _attention_rows(mesh, effort, dtype)
    if "collective" in kinds and len(devices) > 1:
        yield from collective_rows(devices, effort)
    if "step" in kinds and len(devices) > 1:
        yield from step_rows(devices, effort)


def _launch_rows(mesh: Mesh, effort: Effort) -> Iterator[Row]:
    seconds = _elementwise(mesh, effort, 256)
    if seconds is not None:
        yield {"kind": "launch", "seconds": seconds}


def _matmul_rows(mesh: Mesh, effort: Effort, dtype: str) -> Iterator[Row]:
    size, shapes = SMALLEST_MATMUL, []
    seconds: float | None = 0.0
    while _fits(size * size, dtype, effort) and (seconds or 0.0) * 8 <= effort.longest_seconds:
        seconds = _matmul(mesh, effort, (size, size, size), dtype)
        yield from _matmul_row((size, size, size), dtype, seconds)
        # Wide and deep: a quarter of the FLOP. Flat: bound by memory, as in decoding.
        shapes = [(size // 4, size, size), (size, size, size // 4), (16, size, size)]
        size *= 2
    for shape in shapes:
        yield from _matmul_row(shape, dtype, _matmul(mesh, effort, shape, dtype))


def _matmul_row(shape: tuple[int, int, int], dtype: str, seconds: float | None) -> Iterator[Row]:
    if seconds is not None:
        m, n, k = shape
        yield {"kind": "matmul", "m": m, "n": n, "k": k, "dtype": dtype, "seconds": seconds}


def _matmul(mesh: Mesh, effort: Effort, shape: tuple[int, int, int], dtype: str) -> float | None:
    m, n, k = shape
    weights = [
        random_parts(mesh, (k, n), dtype, 1, k**-0.5),
        random_parts(mesh, (n, k), dtype, 2, n**-0.5),
    ]
    starts = [random_parts(mesh, (m, k), dtype, seed) for seed in (3, 4)]

    def body(links: int) -> Callable[..., Any]:
        def chain(x: Any, w: Any, v: Any) -> Any:
            for link in range(links):
                x = x @ (v if link % 2 else w)
            return x

        return chain

    variants = [(x, *weights) for x in starts]
    return link_seconds(lambda links: compile_on(mesh, body(links), variants), effort)


def _elementwise_rows(mesh: Mesh, effort: Effort) -> Iterator[Row]:
    """The smallest size and the two largest; of those between, caches may hold the arrays."""
    found: list[Row] = []
    size, seconds = SMALLEST_BYTES, 0.0
    while size <= effort.largest_bytes and (seconds or 0.0) * 4 <= effort.longest_seconds:
        seconds = _elementwise(mesh, effort, size // 4)
        if seconds is not None:
            found.append({"kind": "elementwise", "bytes": 3 * size, "seconds": seconds})
        size *= 4
    yield from found if len(found) < 3 else (found[0], *found[-2:])


def _elementwise(mesh: Mesh, effort: Effort, elements: int) -> float | None:
    others = [random_parts(mesh, (elements,), "float32", seed) for seed in (1, 2)]
    starts = [random_parts(mesh, (elements,), "float32", seed) for seed in (3, 4)]

    def body(links: int) -> Callable[..., Any]:
        def chain(x: Any, a: Any, b: Any) -> Any:
            for link in range(links):
                x = jax.lax.optimization_barrier(x * 0.5 + (b if link % 2 else a))
            return x

        return chain

    variants = [(x, *others) for x in starts]
    return link_seconds(
        lambda links: compile_on(mesh, body(links), variants, wanted=("fusion", links)), effort
    )


def _vector_rows(mesh: Mesh, effort: Effort) -> Iterator[Row]:
    size, seconds = SMALLEST_BYTES, 0.0
    while size <= effort.largest_bytes and (seconds or 0.0) * 16 <= effort.longest_seconds:
        elements = size // 4
        starts = [(random_parts(mesh, (elements,), "float32", seed),) for seed in (1, 2)]

        def body(links: int) -> Callable[..., Any]:
            def chain(x: Any) -> Any:
                for _ in range(links):
                    y = x
                    for _ in range(MULTIPLY_ADDS):
                        y = y * x + 0.125
                    x = jax.lax.optimization_barrier(y)
                return x

            return chain

        def compile_chain(links: int, starts: Any = starts, body: Any = body) -> Any:
            return compile_on(mesh, body(links), starts)

        seconds = link_seconds(compile_chain, effort)
        if seconds is not None:
            flops = float(2 * MULTIPLY_ADDS * elements)
            yield {
                "kind": "compute",
                "flops": flops,
                "bytes": 2 * size,
                "dtype": "float32",
                "unit": "vector",
                "seconds": seconds,
            }
        size *= 16


def _attention_rows(mesh: Mesh, effort: Effort, dtype: str) -> Iterator[Row]:
    length, heads, seconds = 32, 4, 0.0
    while (
        _fits(heads * length * length, dtype, effort)
        and (seconds or 0.0) * 16 <= effort.longest_seconds
    ):
        seconds = _attention(mesh, effort, heads, length, dtype)
        if seconds is not None:
            yield {
                "kind": "attention",
                "batch": 1,
                "heads": heads,
                "queries": length,
                "keys": length,
                "head_dim": HEAD_DIM,
                "dtype": dtype,
                "seconds": seconds,
            }
        length *= 4


def _attention(mesh: Mesh, effort: Effort, heads: int, length: int, dtype: str) -> float | None:
    shape = (heads, length, HEAD_DIM)
    keys, values = (random_parts(mesh, shape, dtype, seed) for seed in (1, 2))
    starts = [random_parts(mesh, shape, dtype, seed) for seed in (3, 4)]

    def body(links: int) -> Callable[..., Any]:
        def chain(q: Any, k: Any, v: Any) -> Any:
            for _ in range(links):
                scores = jnp.einsum("hqd,hkd->hqk", q, k) / math.sqrt(HEAD_DIM)
                q = jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)
            return q

        return chain

    variants = [(q, keys, values) for q in starts]
    return link_seconds(lambda links: compile_on(mesh, body(links), variants), effort)


def _fits(elements: int, dtype: str, effort: Effort) -> bool:
    return elements * jnp.dtype(dtype).itemsize <= effort.largest_bytes
