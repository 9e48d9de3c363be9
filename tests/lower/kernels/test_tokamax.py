"""tokamax' ragged products, cut: parts compute what the whole does, and what plain JAX does."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import compat
from autoshard.lower.verify import verify
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import toy_machine
from tests.lower.kernels.test_known import differences, ruled_calls
from tests.program.kernels.known.tokamax_calls import (
    CALLS,
    ERRORS,
    GROUPED,
    MATRICES,
    ROWS,
    SIZES,
    V1,
    V2,
    array,
    gradients,
    on_tpu,
    products,
)

pytest.importorskip("tokamax", reason="tokamax is not installed")


def traced(name: str) -> tuple[Any, Any]:
    fn, arrays = CALLS[name]
    with on_tpu():
        return trace(fn, *arrays).jaxpr, arrays


@pytest.mark.parametrize("kind", [V1, V2])
def test_calls_with_rules_are_ragged_products(kind: str) -> None:
    with on_tpu():
        closed = trace(partial(gradients, kind=kind), *GROUPED, ERRORS).jaxpr
    found = [result for *_, result in ruled_calls(closed, (*GROUPED, ERRORS))]
    pull = jax.vjp(lambda *given: jax.lax.ragged_dot(*given, SIZES), ROWS, MATRICES)[1]
    for one, expected in zip(found[-2:], pull(ERRORS), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "mesh", "every", "ways"),
    [
        ("gmm", (8,), 1, 2),
        ("gmm", (2, 2), 3, 8),
        ("gmm", (2, 2, 2), 20, 5),
        ("tgmm", (2, 2), 4, 12),
        ("gmm_v2", (2, 2), 1, 23),
        ("gmm_v2", (2, 2, 2), 9, 11),
        ("tgmm_v2", (2, 2), 2, 36),
        ("gmm of bf16", (2, 2), 8, 3),
        ("gmm with relu", (2, 2), 5, 3),
        ("gmm of int8 matrices", (2, 2), 6, 4),
        ("gmm of int8", (2, 2), 6, 4),
        ("gmm_v2 of bf16", (2, 2), 4, 6),
        ("gmm_v2 with silu", (2, 2), 2, 8),
        ("gmm_v2 of fp8 matrices", (2, 2), 2, 12),
        ("gmm_v2 of some groups", (2, 2), 2, 12),
    ],
)
def test_ways_to_cut_a_call_compute_what_the_whole_does(
    name: str, mesh: tuple[int, ...], every: int, ways: int
) -> None:
    closed, arrays = traced(name)
    found = differences(closed, arrays, mesh, every)
    narrow = arrays[0].dtype == jnp.bfloat16
    assert len(found) == ways
    assert max(found) < (2e-2 if narrow else 1e-5)


def update(matrices: Any, rows: Any, sizes: Any, *, kind: str) -> Any:
    """A step of descent."""

    def loss(given: Any) -> Any:
        return (products(rows, given, sizes, kind=kind) ** 2).sum()

    return matrices - 0.1 * jax.grad(loss)(matrices)


@pytest.mark.parametrize("kind", [V1, V2])
@pytest.mark.parametrize(
    ("pins", "axes"),
    [(["pin matrices [x, ...]"], {"x": 8}), (["pin rows [x, ...]"], {"x": 4, "y": 2})],
)
def test_plans_of_ragged_products_hold_before_all_judges(kind: str, pins: Any, axes: Any) -> None:
    fn, arrays = partial(update, kind=kind), (MATRICES, ROWS, SIZES)
    with on_tpu():
        program = trace(fn, *arrays)
        plan = search(program, toy_machine(8), mesh=axes, requirements=pins, time_limit=20)
        checked = verify(plan, fn, *arrays, concrete=arrays)
    calls = [op for op in program.ops if op.primitive == compat.RULED]
    assert len(calls) == 2
    assert all(any(k >= 0 for k in plan.decisions.assignment[op.index] or ()) for op in calls)
    assert (checked.agrees, checked.skipped) == (True, ""), str(checked)


def attention(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    """Gradients of a sum of squares."""
    import tokamax

    def loss(*given: Any) -> Any:
        out = tokamax.dot_product_attention(*given, is_causal=causal, implementation=V1)
        return (out**2).sum()

    return jax.grad(loss, (0, 1, 2))(q, k, v)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("pins", "axes"),
    [
        ("pin q [None, None, x, None]", {"x": 4, "y": 2}),
        ("pin q [x, None, y, None]", {"x": 2, "y": 2, "z": 2}),
    ],
)
def test_attention_is_cut_by_batch_and_heads_that_share_keys(
    causal: bool, pins: str, axes: dict[str, int]
) -> None:
    arrays = array(2, 256, 8, 128), *(array(2, 256, 4, 128) for _ in range(2))
    fn = partial(attention, causal=causal)
    with on_tpu():
        program = trace(fn, *arrays)
        plan = search(program, toy_machine(8), mesh=axes, requirements=[pins], time_limit=20)
        checked = verify(plan, fn, *arrays, concrete=arrays)
    kernels = [op for op in program.ops if op.primitive == compat.PALLAS]
    assert len(kernels) == 2
    assert all(min(plan.decisions.assignment[op.index] or ()) >= 0 for op in kernels)
    assert (checked.agrees, checked.skipped) == (True, ""), str(checked)
