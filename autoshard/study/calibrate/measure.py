"""Times of matmuls, elementwise operations, attention and launches, as rows of a table.

Sizes grow until one operation is long or an array is large (`Effort`), so that one sweep fits a
laptop and a GPU. `autoshard.study.calibrate.chains` are the programs that are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from autoshard.study.calibrate import chains
from autoshard.study.calibrate.measure_collectives import collective_rows, step_rows
from autoshard.study.calibrate.timing import (
    Effort,
    compile_on,
    device_mesh,
    link_seconds,
    random_parts,
)

Row = dict[str, Any]

KINDS = ("launch", "matmul", "elementwise", "compute", "attention", "collective", "step")
DTYPES = ("bfloat16", "float32", "float16")
SMALLEST_BYTES = 2**14
LAUNCH_ELEMENTS = 256
HEADS, HEAD_DIM = 4, 64


def measured_rows(
    devices: Sequence[Any],
    effort: Effort,
    *,
    kinds: Sequence[str] = KINDS,
    dtypes: Sequence[str] = DTYPES,
) -> Iterator[Row]:
    """Yield the rows of a table as they are measured.

    What cannot be timed honestly is left out, with a warning.

    Args:
      devices: those that run together; one alone has no rows of kind collective and step.
      effort: how large and how long.
      kinds: which rows to measure.
      dtypes: of matmuls and attention.
    """
    mesh = device_mesh(devices, len(devices))
    if "launch" in kinds:
        seconds = _elementwise(mesh, effort, LAUNCH_ELEMENTS)
        yield from _row(seconds, kind="launch")
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


def _row(seconds: float | None, **cells: Any) -> Iterator[Row]:
    """The row of what was measured; none for what drowned in noise."""
    if seconds is not None:
        yield {**cells, "seconds": seconds}


def _matmul_rows(mesh: Mesh, effort: Effort, dtype: str) -> Iterator[Row]:
    shapes: list[tuple[int, int, int]] = []
    for size in _sizes(64, 2, lambda size: size * size * jnp.dtype(dtype).itemsize, effort):
        seconds = _matmul(mesh, effort, (size, size, size), dtype)
        yield from _row(seconds, kind="matmul", m=size, n=size, k=size, dtype=dtype)
        # Wide and deep: a quarter of the FLOP. Flat: bound by memory, as in decoding.
        shapes = [(size // 4, size, size), (size, size, size // 4), (16, size, size)]
        if 8 * (seconds or 0.0) > effort.longest_seconds:
            break
    for shape in dict.fromkeys(shapes):
        m, n, k = shape
        seconds = _matmul(mesh, effort, shape, dtype)
        yield from _row(seconds, kind="matmul", m=m, n=n, k=k, dtype=dtype)


def _elementwise_rows(mesh: Mesh, effort: Effort) -> Iterator[Row]:
    """The smallest size and the two largest; of those between, caches may hold the arrays."""
    found: list[Row] = []
    for size in _sizes(SMALLEST_BYTES, 4, lambda size: size, effort):
        seconds = _elementwise(mesh, effort, size // 4)
        found += _row(seconds, kind="elementwise", bytes=3 * size)
        if 4 * (seconds or 0.0) > effort.longest_seconds:
            break
    yield from found if len(found) < 3 else (found[0], *found[-2:])


def _vector_rows(mesh: Mesh, effort: Effort) -> Iterator[Row]:
    for size in _sizes(SMALLEST_BYTES, 16, lambda size: size, effort):
        elements = size // 4
        starts = [(random_parts(mesh, (elements,), "float32", seed),) for seed in (1, 2)]
        # Its links are long programs.
        few = replace(effort, most_links=min(64, effort.most_links))
        seconds = _seconds(mesh, chains.multiply_adds, starts, few)
        yield from _row(
            seconds,
            kind="compute",
            flops=float(2 * chains.MULTIPLY_ADDS * elements),
            bytes=2 * size,
            dtype="float32",
            unit="vector",
        )
        if 16 * (seconds or 0.0) > effort.longest_seconds:
            break


def _attention_rows(mesh: Mesh, effort: Effort, dtype: str) -> Iterator[Row]:
    itemsize = jnp.dtype(dtype).itemsize
    for length in _sizes(32, 4, lambda length: HEADS * length * length * itemsize, effort):
        shape = (HEADS, length, HEAD_DIM)
        keys, values = (random_parts(mesh, shape, dtype, seed) for seed in (1, 2))
        starts = [(random_parts(mesh, shape, dtype, seed), keys, values) for seed in (3, 4)]
        seconds = _seconds(mesh, chains.attention, starts, effort)
        sizes = {"heads": HEADS, "queries": length, "keys": length, "head_dim": HEAD_DIM}
        yield from _row(seconds, kind="attention", batch=1, **sizes, dtype=dtype)
        if 16 * (seconds or 0.0) > effort.longest_seconds:
            break


def _matmul(mesh: Mesh, effort: Effort, shape: tuple[int, int, int], dtype: str) -> float | None:
    m, n, k = shape
    # Of variance 1/k and 1/n, so that values neither grow nor vanish along the chain.
    weights = [
        random_parts(mesh, (k, n), dtype, 1, (3 / k) ** 0.5),
        random_parts(mesh, (n, k), dtype, 2, (3 / n) ** 0.5),
    ]
    starts = [(random_parts(mesh, (m, k), dtype, seed), *weights) for seed in (3, 4)]
    return _seconds(mesh, chains.matmul, starts, effort)


def _elementwise(mesh: Mesh, effort: Effort, elements: int) -> float | None:
    others = [random_parts(mesh, (elements,), "float32", seed) for seed in (1, 2)]
    starts = [(random_parts(mesh, (elements,), "float32", seed), *others) for seed in (3, 4)]
    return _seconds(mesh, chains.elementwise, starts, effort, each="fusion")


def _seconds(
    mesh: Mesh,
    program: Callable[[int], chains.Program],
    variants: Sequence[Sequence[Any]],
    effort: Effort,
    *,
    each: str | None = None,
) -> float | None:
    """Seconds of a link; each must compile to an HLO operation called `each`."""
    return link_seconds(
        lambda links: compile_on(
            mesh, program(links), variants, wanted=None if each is None else (each, links)
        ),
        effort,
    )


def _sizes(
    first: int, factor: int, bytes_of: Callable[[int], float], effort: Effort
) -> Iterator[int]:
    size = first
    while bytes_of(size) <= effort.largest_bytes:
        yield size
        size *= factor
