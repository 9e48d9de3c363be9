"""Programs with kernels: planned, cut, lowered, and held to all judges."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)

from autoshard import compat
from autoshard.lower.spmd import lower
from autoshard.lower.verify import verify
from autoshard.program.rules.record import FactorKind
from tests.helpers import MESHES, Case, best_plan, case, concrete_like, random_plan
from tests.program.kernels.functions import attention, f, matmul

BATCH, LENGTH, HEADS, WIDTH = 4, 256, 4, 128
BLOCK = 128


def attended(q: Any, k: Any, v: Any) -> Any:
    """Fused attention forward, plain backward."""
    fused = jax.custom_vjp(attention)

    def plain(q: Any, k: Any, v: Any) -> Any:
        k, v = (jnp.repeat(one, q.shape[1] // k.shape[1], 1) for one in (k, v))
        scores = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k))
        return jnp.einsum("bhqk,bhkd->bhqd", scores, v)

    fused.defvjp(
        lambda *operands: (fused(*operands), operands),
        lambda operands, back: jax.vjp(plain, *operands)[1](back),
    )
    return fused(q, k, v)


@jax.custom_vjp
def scaled(x: Any, w: Any) -> Any:
    return matmul(x, w)


scaled.defvjp(
    lambda x, w: (matmul(x, w), (x, w)),
    lambda kept, back: (matmul(back, kept[1].T), matmul(kept[0].T, back)),
)


def layers(weights: Any, x: Any) -> Any:
    """A step of rematerialised layers in a scan, and its update."""

    @jax.checkpoint
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        q = jnp.einsum("btd,dhk->bhtk", x, w["q"])
        k, v = (jnp.einsum("btd,dhk->bhtk", x, w[name]) for name in ("k", "v"))
        mixed = jnp.einsum("bhtk,hkd->btd", attended(q, k, v), w["o"])
        return x + jax.vmap(lambda one: scaled(one, w["m"]))(mixed), None

    def loss(weights: Any) -> Any:
        return jnp.mean(lax.scan(layer, x, weights)[0] ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def products(w: Any, x: Any) -> Any:
    """Kernels forward and backward: what one contracts, another walks along."""

    def loss(w: Any) -> Any:
        return jnp.sum(jnp.tanh(scaled(jnp.tanh(scaled(x, w[0])), w[1])) ** 2)

    value, grads = jax.value_and_grad(loss)(w)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, w, grads)


def flash(q: Any, k: Any, v: Any) -> Any:
    """JAX's own, forward and backward; batch and heads are axes of all its grids."""
    sizes = BlockSizes(
        *(BLOCK, BLOCK, BLOCK, 1, BLOCK, BLOCK, BLOCK, BLOCK),
        *(BLOCK, BLOCK, BLOCK),
    )

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(flash_attention(q, k, v, causal=True, block_sizes=sizes) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def splash(q: Any, k: Any, v: Any) -> Any:
    """JAX's own, with pairs of heads of queries that share keys; the batch is a `vmap`."""
    heads = [splash_attention_mask.CausalMask((LENGTH, LENGTH)) for _ in range(q.shape[1])]
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    kernel = splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask(heads),
        block_sizes=splash_attention_kernel.BlockSizes(
            **dict.fromkeys([f"block_{name}" for name in names], BLOCK)
        ),
        head_shards=1,
        q_seq_shards=1,
    )

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(jax.vmap(kernel)(q, k, v) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def experts(rows: Any, matrices: Any) -> Any:
    """JAX's own ragged products, of four groups; how many tiles there are, data decides.

    In a loop over layers, ahead of which JAX computes what the function makes for itself alone.
    """

    def layer(rows: Any, matrices: Any) -> tuple[Any, None]:
        first = jnp.where(rows[0, 0] > 0, 96, 0)
        sizes = jnp.full(4, 64, jnp.int32).at[:2].set([first, 128 - first])
        return gmm(rows, matrices, sizes, group_offset=0), None

    def loss(rows: Any, matrices: Any) -> Any:
        return jnp.sum(lax.scan(layer, rows, matrices)[0] ** 2)

    return jax.grad(loss, argnums=(0, 1))(rows, matrices)


def triton(q: Any, k: Any, v: Any) -> Any:
    """JAX's own for GPUs, which reads keys block by block from references to all of them."""
    with warnings.catch_warnings():  # newer versions of JAX mean to leave it to tokamax
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.experimental.pallas.ops.gpu import attention as on_gpu

        return on_gpu.mha(q, k, v, None, causal=True)


def cudnn(q: Any, k: Any, v: Any) -> Any:
    """cuDNN's attention, traced where there is no GPU; heads are grouped."""

    def loss(operands: Any) -> Any:
        out = jax.nn.dot_product_attention(*operands, is_causal=True, implementation="cudnn")
        return jnp.sum(out.astype(jnp.float32) ** 2)

    return jax.grad(loss)((q, k, v))


def f_layers() -> tuple[Any, ...]:
    w = {"q": (16, 4, 8), "k": (16, 2, 8), "v": (16, 2, 8), "o": (4, 8, 16), "m": (16, 16)}
    return {name: f(2, *shape) for name, shape in w.items()}, f(4, 16, 16)


def half(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


QUERIES, KEYS = f(2, 4, LENGTH, WIDTH), f(2, 2, LENGTH, WIDTH)
STEPS = {
    "layers": (layers, f_layers()),
    "products": (products, ((f(32, 32), f(32, 32)), f(32, 32))),
    "flash": (flash, (QUERIES, QUERIES, QUERIES)),
    "splash": (splash, (QUERIES, KEYS, KEYS)),
    "experts": (experts, (f(256, 256), f(2, 4, 256, 256))),
    "cudnn": (cudnn, (half(8, 16, 8, 8), half(8, 16, 4, 8), half(8, 16, 4, 8))),
    "triton": (triton, (f(2, 256, 4, 64),) * 3),
}


def kernels_in(given: Case) -> list[Any]:
    """The kernels of a step, and the calls of known library functions."""
    return [op for op in given.program.ops if op.primitive in (*compat.KERNELS, compat.RULED)]


def cut_kernels(given: Case, plan: Any) -> int:
    """How many kernels a plan cuts."""
    kernels = [op.index for op in kernels_in(given)]
    assignments = (plan.decisions.assignment[number] or () for number in kernels)
    return sum(any(factor >= 0 for factor in one) for one in assignments)


@pytest.mark.parametrize("name", STEPS)
def test_the_best_plan_cuts_every_kernel_and_holds_before_all_judges(name: str) -> None:
    fn, args = STEPS[name]
    given = case(fn, *args, mesh=MESHES["2x4"])
    plan = best_plan(given)
    assert 0 < cut_kernels(given, plan) == len(kernels_in(given))
    checked = verify(plan, fn, *args, concrete=concrete_like(args))
    assert checked.agrees, str(checked)


@pytest.mark.parametrize("mesh", ["8", "2x2x2"])
@pytest.mark.parametrize("name", STEPS)
def test_plans_of_steps_with_kernels_hold_before_all_judges(name: str, mesh: str) -> None:
    fn, args = STEPS[name]
    given = case(fn, *args, mesh=MESHES[mesh])
    plan = random_plan(given, 3)
    checked = verify(plan, fn, *args, concrete=concrete_like(args))
    assert checked.agrees, str(checked)


def test_attention_of_cudnn_is_lowered_where_there_is_no_gpu() -> None:
    """As calls of cuDNN on parts, one forward and one backward, which no partitioner sees."""
    fn, args = STEPS["cudnn"]
    plan = best_plan(case(fn, *args, mesh=MESHES["2x4"]))
    text = lower(plan, fn, *args).lower(platforms=("cuda",)).as_text()
    assert text.count("@__cudnn$fmhaSoftmax(") == 1
    assert text.count("@__cudnn$fmhaSoftmaxBackward(") == 1
    assert "CustomSPMDPartitioning" not in text


def test_a_plan_that_cuts_what_a_kernel_needs_whole_is_refused() -> None:
    """Plans of another origin: here the contracted dimension, over which the kernel adds up."""
    args = f(32, 32), f(32, 32)
    given = case(matmul, *args, mesh=MESHES["8"])
    (op,) = (op for op in given.program.ops if op.primitive == compat.PALLAS)
    kept = next(k for k, one in enumerate(op.rule.factors) if one.kind is FactorKind.REPLICATE)
    plan = best_plan(given)
    assignment = list(plan.decisions.assignment)
    assignment[op.index] = (kept,)
    wrong = replace(plan, decisions=replace(plan.decisions, assignment=tuple(assignment)))
    with pytest.raises(ValueError, match=r"pallas_call .* which must stay whole"):
        lower(wrong, matmul, *args).lower(platforms=("cpu",))
