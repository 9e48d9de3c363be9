"""Arrays that lie by sequence, and attention that is cut by heads: exchanged before and behind."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

from autoshard.lower.verify import verify
from autoshard.models.splash import splash
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import concrete_like

HEADS, LENGTH, WIDTH = 8, 128, 128
ALONE = [f"limit {kind} count 0" for kind in ("all_gather", "collective_permute", "reduce_scatter")]


def written(q: Any, k: Any, v: Any) -> Any:
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    scores = jnp.where(seen, jnp.einsum("bhqd,bhkd->bhqk", q, k), -1e30)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)


def flash(q: Any, k: Any, v: Any) -> Any:
    return flash_attention(q, k, v, causal=True)


def cudnn(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


def triton(q: Any, k: Any, v: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.experimental.pallas.ops.gpu.attention import mha
    return mha(q, k, v, None, causal=True)


@pytest.mark.parametrize(
    ("attend", "machine", "sequence"),
    [
        (written, "v5p-8", 2),
        (flash, "v5p-8", 2),
        (splash, "v5p-8", 1),
        (cudnn, "h100-8", 1),
        (triton, "h100-8", 1),
    ],
)
def test_heads_are_exchanged_for_sequence(
    attend: Callable[..., Any], machine: str, sequence: int
) -> None:
    """One all-to-all for each of three operands, the cotangent, and each gradient."""
    shape = (1, HEADS, LENGTH, WIDTH) if sequence == 2 else (1, LENGTH, HEADS, WIDTH)
    dtype = jnp.bfloat16 if attend is cudnn else jnp.float32
    args = (jax.ShapeDtypeStruct(shape, dtype),) * 4

    def step(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
        return jax.vjp(attend, q, k, v)[1](cotangent)

    layout = ", ".join("x" if d == sequence else "None" for d in range(4))
    ends = [f"{name} [{layout}]" for name in ("q", "k", "v", "cotangent")]
    ends += [f"result[{k}] [{layout}]" for k in range(3)]
    program = trace(step, *args)
    plan = search(
        program,
        machine,
        mesh={"x": 8},
        requirements=[*ALONE, *(f"pin {one}" for one in ends)],
        time_limit=10,
    )
    sent = [move for move in plan.moves if move.kind != "all_slice"]
    assert [(move.kind, move.count) for move in sent] == [("all_to_all", 1)] * 7
    checked = verify(plan, step, *args, concrete=concrete_like(args))
    assert checked.agrees, str(checked)
