"""cuDNN's attention in plain JAX: what JAX's own form of the same call computes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.lower.kernels.attention import plain_attention, why_not_plain
from autoshard.lower.numbers.unsharded import reference

BATCH, LENGTH, HEADS, KV_HEADS, WIDTH = 2, 16, 4, 2, 8


def arrays(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {
        "query": (BATCH, LENGTH, HEADS, WIDTH),
        "key": (BATCH, LENGTH, KV_HEADS, WIDTH),
        "value": (BATCH, LENGTH, KV_HEADS, WIDTH),
        "bias": (1, HEADS, LENGTH, LENGTH),
    }
    return {
        name: jnp.asarray(rng.standard_normal(shape), jnp.float16) for name, shape in shapes.items()
    }


LENGTHS = jnp.array([16, 9], jnp.int32)
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "whole": ({}, False),
    "causal": ({"is_causal": True}, False),
    "window": ({"is_causal": True, "local_window_size": (4, 0)}, False),
    "lengths": ({"query_seq_lengths": LENGTHS, "key_value_seq_lengths": LENGTHS}, False),
    "bias": ({"is_causal": True, "scale": 0.25}, True),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_plain_attention_is_what_jax_computes_without_cudnn(name: str) -> None:
    """Output and gradients, of grouped heads."""
    options, biased = VARIANTS[name]
    given = arrays()
    if not biased:
        del given["bias"]

    def step(implementation: str, given: dict[str, Any]) -> Any:
        def loss(given: dict[str, Any]) -> Any:
            out = jax.nn.dot_product_attention(**given, **options, implementation=implementation)
            mask = jnp.arange(LENGTH)[None, :, None, None] < LENGTHS[:, None, None, None]
            out = jnp.where(mask, out, 0) if name == "lengths" else out
            return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

        return jax.grad(loss, has_aux=True)(given)

    wide = jax.tree.map(lambda one: one.astype(jnp.float32), given)
    expected = jax.jit(partial(step, "xla"))(wide)
    found = reference(partial(step, "cudnn"), (given,)).outputs
    for here, there in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(here, there, atol=1e-5)


def test_heads_may_stand_first() -> None:
    """`[b, n, t, h]` is what the module of cuDNN takes beside `[b, t, n, h]`."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    given = arrays()
    operands = [given[name] for name in ("query", "key", "value")]

    def attended(layout: str, *operands: Any) -> Any:
        if layout == "BNTH":
            operands = tuple(jnp.swapaxes(one, 1, 2) for one in operands)
        out = dot_product_attention(*operands, mask_type=MaskType.CAUSAL, qkv_layout=layout)
        return jnp.swapaxes(out, 1, 2) if layout == "BNTH" else out

    def gradients(layout: str) -> Any:
        step = jax.grad(lambda *ops: jnp.sum(jnp.sin(attended(layout, *ops))), argnums=(0, 1, 2))
        return reference(step, operands).outputs

    for here, there in zip(gradients("BNTH"), gradients("BTNH"), strict=True):
        np.testing.assert_array_equal(here, there)


def test_what_has_no_plain_form_says_why() -> None:
    from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention

    given = arrays()
    operands = [given[name] for name in ("query", "key", "value")]
    with compat.traced_without_gpu():
        fn = partial(dot_product_attention, dropout_rate=0.1)
        closed = jax.make_jaxpr(lambda *operands: jax.vjp(fn, *operands)[0])(*operands)
    (equation,) = (e for e in closed.jaxpr.eqns if e.primitive.name in compat.FUSED_ATTENTION)
    assert why_not_plain(equation) == "cuDNN attention with dropout has no equal in plain JAX"


def test_a_kernel_is_replaced_where_it_stands() -> None:
    """In the body of a loop, too; and the rest stays."""
    given = arrays()
    operands = [given[name] for name in ("query", "key", "value")]

    def step(query: Any, key: Any, value: Any) -> Any:
        def body(x: Any, _: None) -> tuple[Any, None]:
            return jax.nn.dot_product_attention(x, key, value, implementation="cudnn"), None

        return jax.lax.scan(body, query, length=2)[0]

    def plain(equation: Any, used: frozenset[Any]) -> Any:
        del used
        return compat.replaced_by(equation, lambda *ops: plain_attention(equation, ops))

    with compat.traced_without_gpu():
        closed = jax.make_jaxpr(step)(*operands)
    (found,) = jaxpr_as_fun(compat.with_kernels(closed, plain))(*operands)
    expected, *others = (one.astype(jnp.float32) for one in operands)
    for _ in range(2):
        expected = jax.nn.dot_product_attention(expected, *others)
    np.testing.assert_allclose(found, expected, atol=1e-2)
