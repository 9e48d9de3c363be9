"""Scalars that the program gives a kernel as constants say which blocks it skips."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import autoshard
from tests.program.kernels.functions import f

ROWS, BLOCK = 8, 8


def skipping(run: Any, next_block: Any, x: Any) -> Any:
    """Each step doubles a block of `x` where `run` says so; `next_block` says which one it is."""

    def body(run: Any, next_block: Any, x: Any, out: Any) -> None:
        del next_block

        @pl.when(run[0, pl.program_id(0)] > 0)
        def _() -> None:
            out[...] = 2 * x[...]

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(ROWS,),
        in_specs=[pl.BlockSpec((BLOCK, 128), lambda i, run, which: (which[0, i], 0))],
        out_specs=pl.BlockSpec((BLOCK, 128), lambda i, *_: (i, 0)),
    )
    return pl.pallas_call(body, grid_spec=grid, out_shape=f(ROWS * BLOCK, 128))(run, next_block, x)


RUN = np.array([[1, 0, 0, 1, 1, 0, 0, 0]], np.int8)
NEXT = np.array([[0, 3, 3, 3, 4, 4, 4, 4]], np.int32)


def kernel_of(fn: Any, *args: Any) -> Any:
    (found,) = (op for op in autoshard.trace(fn, *args).ops if op.kernel is not None)
    assert found.flops == found.kernel.flops
    return found.kernel


@pytest.mark.parametrize("looped", [False, True])
def test_what_constants_say_is_counted(looped: bool) -> None:
    """Three steps of eight run, and three blocks are read; in a loop too."""

    def step(x: Any) -> Any:
        run, which = jnp.asarray(RUN), jnp.asarray(NEXT)
        if not looped:
            return skipping(run, which, x)
        return lax.scan(lambda x, _: (skipping(run, which, x), None), x, length=3)[0]

    kernel = kernel_of(step, f(ROWS * BLOCK, 128))
    assert kernel.arithmetic.elementwise == pytest.approx(RUN.sum() * BLOCK * 128, rel=0.01)
    assert kernel.bytes == (3 + ROWS) * BLOCK * 128 * 4
    assert not kernel.guessed


def test_what_data_says_is_counted_as_if_all_ran() -> None:
    kernel = kernel_of(
        skipping,
        jax.ShapeDtypeStruct(RUN.shape, RUN.dtype),
        jax.ShapeDtypeStruct(NEXT.shape, NEXT.dtype),
        f(ROWS * BLOCK, 128),
    )
    assert kernel.arithmetic.elementwise == pytest.approx(ROWS * BLOCK * 128, rel=0.01)
    assert kernel.bytes == 2 * ROWS * BLOCK * 128 * 4
    assert kernel.guessed
