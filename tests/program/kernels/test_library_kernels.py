"""Which axes of the kernels that JAX ships are cut, forward and backward; the guide lists them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard import compat
from autoshard.program.bodies import all_equations
from autoshard.program.kernels.cuts import kernel_cuts
from autoshard.program.kernels.known.table import PALLAS, TABLE
from tests.program.kernels.functions import f

GUIDE = Path(__file__).parents[3] / "docs/guide/kernels.md"
Q = f(2, 4, 256, 128)


def slopes(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jax.grad(
        lambda *given: jnp.sum(fn(*given) ** 2), argnums=tuple(range(len(args)))
    )(*args)


def flash(*operands: Any) -> Any:
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

    sizes = BlockSizes(128, 128, 128, 1, *[128] * 7)
    return flash_attention(*operands, causal=True, block_sizes=sizes)


def splash(*operands: Any) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    sizes = splash_attention_kernel.BlockSizes(**{f"block_{name}": 128 for name in names})
    masks = [splash_attention_mask.CausalMask((256, 256)) for _ in range(4)]
    kernel = splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask(masks),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
    )
    return jax.vmap(kernel)(*operands)


def matmul(*operands: Any) -> Any:
    from jax.experimental.pallas.ops.tpu.matmul import matmul

    return matmul(*operands, block_shape=(128, 128), block_k=128)


def mha(*operands: Any) -> Any:
    from jax.experimental.pallas.ops.gpu import attention

    return attention.mha(*operands, None, causal=True)


def softmax(x: Any) -> Any:
    from jax.experimental.pallas.ops.gpu.softmax import softmax

    return softmax(x)


def normed(*operands: Any) -> Any:
    from jax.experimental.pallas.ops.gpu import layer_norm

    return layer_norm.layer_norm(*operands)


def decoded(*operands: Any) -> Any:
    from jax.experimental.pallas.ops.gpu import decode_attention

    return decode_attention.gqa(*operands)


ROWS = f(2, 256, 4, 64)
KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, list[tuple[int, ...]]]]] = {
    "tpu.flash_attention": (
        slopes(flash),
        (Q, Q, Q),
        {
            "_flash_attention_kernel": [(0, 1, 2)],
            "_flash_attention_dkv_kernel": [(0, 1, 2)],
            "_flash_attention_dq_kernel": [(0, 1, 2)],
        },
    ),
    "tpu.splash_attention": (
        slopes(splash),
        (Q, f(2, 2, 256, 128), f(2, 2, 256, 128)),
        {
            "splash_mha_fwd_residuals": [(0, 1, 2)],
            "splash_mha_dkv_no_residuals": [(0, 1, 2)],
            "splash_mha_dq_no_residuals": [(0, 1, 2)],
        },
    ),
    "tpu.matmul": (matmul, (f(512, 512), f(512, 512)), {"matmul_kernel": [(0, 1)]}),
    "gpu.attention.mha": (
        slopes(mha),
        (ROWS, ROWS, ROWS),
        {
            "mha_forward": [(0, 1, 2)],
            "mha_preprocess_backward": [(0, 1, 2)],
            "mha_backward": [(0, 1, 2)],
        },
    ),
    "gpu.decode_attention": (
        decoded,
        (f(4, 16, 64), f(4, 512, 4, 64), f(4, 512, 4, 64)),
        {"mha_forward": [(0, 1, 3)]},
    ),
    "gpu.layer_norm": (
        slopes(normed),
        (f(4, 64, 128), f(128), f(128)),
        {
            "ln_forward": [(0, 1)],
            "ln_backward_dx": [(0,)],
            "ln_backward_dw_db": [()],
        },
    ),
    "gpu.softmax": (softmax, (f(64, 128),), {"_vmappable_softmax_kernel": [(0,)]}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_axes_of_the_grids_of_kernels_that_jax_ships(name: str) -> None:
    fn, args, expected = KERNELS[name]
    with warnings.catch_warnings():  # newer versions of JAX mean to leave some to tokamax
        warnings.simplefilter("ignore", DeprecationWarning)
        program = autoshard.trace(fn, *args)
    found: dict[str, list[tuple[int, ...]]] = {}
    for equation in all_equations(program.jaxpr.jaxpr):
        if equation.primitive.name == compat.PALLAS:
            axes = tuple(cut.axis for cut in kernel_cuts(equation).cuts)
            found.setdefault(compat.kernel_call(equation).name, []).append(axes)
    assert found == expected


def test_the_guide_lists_these_kernels_and_those_of_the_table() -> None:
    rows = re.findall(r"^\| `((?:tpu|gpu)\.[\w.]+)`", GUIDE.read_text(), flags=re.MULTILINE)
    ours = [one.modules[0] for one in TABLE if one.modules[0].startswith(PALLAS)]
    known = {f"tpu.{one.removeprefix(f'{PALLAS}.').split('.')[0]}" for one in ours}
    assert sorted(rows) == sorted({*KERNELS, *known})
