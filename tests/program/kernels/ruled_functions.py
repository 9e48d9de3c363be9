"""Functions with rules of their own: a kernel with a derivative, rows that share weights, FFI."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autoshard
from autoshard.program.rules.user import UserRule
from tests.program.kernels.functions import attention


def plain_attention(q: Any, k: Any, v: Any) -> Any:
    k, v = (jnp.repeat(one, q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(seen, scores, -1e30)), v)


@jax.custom_vjp
def causal(q: Any, k: Any, v: Any) -> Any:
    return attention(q, k, v, causal=True)


causal.defvjp(
    lambda *operands: (causal(*operands), operands),
    lambda operands, back: jax.vjp(plain_attention, *operands)[1](back),
)
attend = autoshard.kernel("b h q d, b h k d, b h k d -> b h q d", replicate=("q", "k", "d"))(causal)


@autoshard.kernel("... d, d, -> ... d", replicate=("d",), flops=lambda x, *_: 7.0 * x.size)
def normed(x: Any, weight: Any, count: Any) -> Any:
    """Rows, the weights that all share, and an integer."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1.0) * weight + count


@autoshard.kernel(UserRule("i k, k j -> i j", reduction={"k": "sum"}))
def product(x: Any, y: Any) -> Any:
    return x @ y


def cholesky(matrices: Any) -> Any:
    """LAPACK's, by FFI: of each matrix of a batch, and whether it worked."""
    batch = matrices.shape[:-2]
    last = len(batch)
    turned = (*range(last), last + 1, last)
    out = [
        jax.ShapeDtypeStruct(matrices.shape, matrices.dtype),
        jax.ShapeDtypeStruct(batch, jnp.int32),
    ]
    call = jax.ffi.ffi_call(
        "lapack_spotrf_ffi",
        out,
        input_layouts=[turned],
        output_layouts=[turned, tuple(range(last))],
        input_output_aliases={0: 0},
    )
    return call(matrices, uplo=np.uint8(ord("L")))


CHOLESKY = {"lapack_spotrf_ffi": UserRule("b i j -> b i j, b", replicate=("i", "j"))}
