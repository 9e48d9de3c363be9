"""How XLA:TPU computes softmaxes of scores, and in which order the scores lie.

scores = q k                      a product
exponentials = exp(scores - max)  f32, written in place of the scores: one kernel of both
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_probes import alone, bf16, products, written


def _attention(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    """Attention with grouped queries, projections included."""
    queries = jnp.einsum("bsm,mkgd->bskgd", x, wq)
    keys, values = (jnp.einsum("bsm,mkd->bskd", x, w) for w in (wk, wv))
    scores = jnp.einsum("bqkgd,bskd->bkgqs", queries, keys).astype(jnp.float32) * 0.1
    shares = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    return jnp.einsum("bkgqs,bskd->bqkgd", shares, values)


def _sequences(number: int) -> tuple[Any, ...]:
    return bf16(number, 1024, 512), bf16(512, 2, 4, 128), bf16(512, 2, 128), bf16(512, 2, 128)


def _plain_attention(x: Any, *weights: Any) -> Any:
    """Attention with as many keys as queries, projections included."""
    queries, keys, values = (jnp.einsum("bsm,mhd->bshd", x, w) for w in weights)
    scores = jnp.einsum("bqhd,bshd->bhqs", queries, keys).astype(jnp.float32) * 0.1
    shares = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    return jnp.einsum("bhqs,bshd->bqhd", shares, values)


def _one_kernel_of_four(built: Built) -> bool:
    (softmax,) = written(built, "f32[2,8,1024,1024]")
    fused = softmax.opcodes >= {"convolution", "exponential", "reduce"}
    return fused and not written(built, "bf16[2,8,1024,1024]")


def _one_kernel(built: Built) -> bool:
    (softmax,) = written(built, "f32[2,2,4,1024,1024]")
    return softmax.opcodes >= {"convolution", "exponential", "reduce"} and not written(
        built, "bf16[2,2,*1024,1024*]"
    )


def _scores_written(built: Built) -> bool:
    """The product writes them and their largest; two kernels make the exponentials anew."""
    (scores,) = written(built, "bf16[2,1024,1024,4]")
    readers = [one for one in built.kernels("exponential") if scores.name in one.operands]
    return scores in products(built) and len(readers) == 2 and not written(built, "f32[*1024,1024]")


def _plain(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bshd->bhqs", q, k).astype(jnp.float32)
    shares = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("bhqs,bshd->bqhd", shares, v)


def _plain_gradient(q: Any, k: Any, v: Any) -> Any:
    return jax.grad(lambda *qkv: jnp.sum(_plain(*qkv).astype(jnp.float32) ** 2), (0, 1, 2))(q, k, v)


def _lie_by_positions(built: Built) -> bool:
    (scores,) = written(built, "bf16[4,8,1024,1024]")
    order = scores.orders[scores.writes.index("bf16[4,8,1024,1024]")]
    return {*order[-2:]} == {2, 3} and "exponential" not in scores.opcodes


def _made_anew(built: Built) -> bool:
    """Scores, and the cotangents of them, are all that is written of their size."""
    scores, *others = written(built, "bf16[4,8,1024,1024]")
    readers = [one for one in built.kernels("exponential") if scores.name in one.operands]
    alone = len(others) == 1 and not written(built, "f32[4,8,1024,1024]")
    return alone and len(readers) >= 4


def _masked_gradient(q: Any, k: Any, v: Any) -> Any:
    """Of causal attention with grouped queries."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k).astype(jnp.float32) * 0.1
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(q.dtype)
        return jnp.sum(jnp.einsum("bkgqs,bskd->bqkgd", shares, v).astype(jnp.float32) ** 2)

    return jax.grad(loss, (0, 1, 2))(q, k, v)


def _shares_written(built: Built) -> bool:
    """The product writes the scores with groups innermost; shares have them outermost."""
    (scores,) = written(built, "bf16[2,4096,4096,4]")
    (shares,) = [
        one for one in written(built, "bf16[2,4,4096,4096]") if "convolution" not in one.opcodes
    ]
    readers = [one for one in products(built) if shares.name in one.operands]
    made = shares.opcodes >= {"exponential", "divide"} and scores.name in shares.operands
    return made and len(readers) == 2


def _slopes_made_anew(built: Built) -> bool:
    """Both products that read the slopes of the scores read their own operands, not the slopes."""
    (scores,) = written(built, "bf16[2,4096,4096,4]")
    (cotangents,) = [
        one for one in written(built, "bf16[*2,4,4096,4096]") if "convolution" in one.opcodes
    ]
    readers = [one for one in products(built) if cotangents.name in one.operands]
    return len(readers) == 2 and all(scores.name in one.operands for one in readers)


def _shares_made_anew(built: Built) -> bool:
    """All that is written of their size is the cotangents, by a product."""
    (scores,) = written(built, "bf16[2,4096,4096,4]")
    (cotangents,) = written(built, "bf16[*2,4,4096,4096]")
    readers = [one for one in built.kernels("exponential") if scores.name in one.operands]
    return "convolution" in cotangents.opcodes and len(readers) >= 5


HABITS: tuple[Habit, ...] = (
    alone(
        "softmaxes-of-five-dimensions-in-one-kernel",
        "Scores of five dimensions are not written: one kernel writes their float32 exponentials.",
        _attention,
        _sequences(2),
        _one_kernel,
    ),
    alone(
        "softmaxes-of-plain-heads-in-one-kernel",
        "In a forward pass scores of four dimensions that lie as their softmax are not written.",
        _plain_attention,
        (bf16(2, 1024, 512), *(bf16(512, 8, 128),) * 3),
        _one_kernel_of_four,
    ),
    alone(
        "scores-of-one-sequence-written",
        "Scores of grouped queries of one sequence are written, their exponentials made anew.",
        _attention,
        _sequences(1),
        _scores_written,
    ),
    alone(
        "scores-lie-by-positions",
        "Scores lie with queries and keys innermost, whatever dimensions are before them.",
        _plain,
        (bf16(4, 1024, 8, 128),) * 3,
        _lie_by_positions,
    ),
    alone(
        "exponentials-made-anew-backward",
        "The backward pass of attention makes exponentials anew from the scores in every kernel.",
        _plain_gradient,
        (bf16(4, 1024, 8, 128),) * 3,
        _made_anew,
        results=3,
    ),
    alone(
        "shares-of-turned-scores-written",
        "On chips of two cores masked shares are written where the scores lie in another order.",
        _masked_gradient,
        (bf16(1, 4096, 2, 4, 128), bf16(1, 4096, 2, 128), bf16(1, 4096, 2, 128)),
        _shares_written,
        results=3,
        machine="v5p-1",
        chips=("TPU v4", "TPU v5p"),
    ),
    alone(
        "slopes-of-turned-scores-made-anew",
        "On chips of two cores products make the slopes of such scores anew.",
        _masked_gradient,
        (bf16(1, 4096, 2, 4, 128), bf16(1, 4096, 2, 128), bf16(1, 4096, 2, 128)),
        _slopes_made_anew,
        results=3,
        machine="v5p-1",
        chips=("TPU v4", "TPU v5p"),
    ),
    alone(
        "shares-of-turned-scores-made-anew",
        "On chips of one core products make masked shares anew from scores in another order.",
        _masked_gradient,
        (bf16(1, 4096, 2, 4, 128), bf16(1, 4096, 2, 128), bf16(1, 4096, 2, 128)),
        _shares_made_anew,
        results=3,
        chips=("TPU v5e", "TPU v6e"),
    ),
)
