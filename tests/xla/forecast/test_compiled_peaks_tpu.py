"""The predicted peak beside that of XLA:TPU's deviceless compile, one cause a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.compiler.target import why_missing
from autoshard.models.attention import plain
from tests.xla.forecast.test_compiled_peaks import SCATTERED, array, peaks

pytestmark = pytest.mark.skipif(bool(why_missing("tpu")), reason=why_missing("tpu") or "installed")


def test_a_sum_over_all_chips_of_a_torus_is_made_whole(tmp_path: Path) -> None:
    predicted, compiled = peaks(
        lambda x, y: jnp.einsum("bd,bf->df", x, y).astype(jnp.float32) + 1.0,
        (array(4096, 8192, dtype=jnp.bfloat16),) * 2,
        ("x [x, None]", "y [x, None]", "result [x, None]"),
        tmp_path,
        machine="v5e-16",
        limits=SCATTERED,
    )
    whole, result = 8192 * 8192 * 2, 8192 * 8192 * 4 / 16
    assert compiled > whole + result
    assert predicted == pytest.approx(compiled, rel=0.1)


@pytest.mark.parametrize("batch", [pytest.param(16, marks=pytest.mark.long), 8])
def test_a_softmax_of_five_dimensions_writes_its_exponentials(batch: int, tmp_path: Path) -> None:
    """In float32; of one sequence a chip it writes the scores, in bfloat16."""

    def step(queries: Any, keys: Any, values: Any) -> Any:
        def body(queries: Any, _: Any) -> tuple[Any, None]:
            return plain(queries, keys, values), None

        return jax.lax.scan(body, queries, length=2)[0]

    sizes = ((batch, 2048, heads, 128) for heads in (16, 4, 4))
    pins = [f"{name} [x, None, None, None]" for name in ("queries", "keys", "values", "result")]
    predicted, compiled = peaks(
        step, [array(*size, dtype=jnp.bfloat16) for size in sizes], pins, tmp_path, machine="v6e-8"
    )
    scores = batch // 8 * 16 * 2048 * 2048
    assert (compiled > 4 * scores) == (batch > 8)
    assert predicted == pytest.approx(compiled, rel=0.1)


def test_weights_that_a_loop_converts_are_converted_before_they_are_gathered(
    tmp_path: Path,
) -> None:
    def step(stack: Any, x: Any) -> Any:
        def body(x: Any, weight: Any) -> tuple[Any, None]:
            return jnp.tanh(x @ weight.astype(jnp.bfloat16)), None

        return jax.lax.scan(body, x, stack)[0]

    kinds = ("all_to_all", "all_reduce", "reduce_scatter")
    predicted, compiled = peaks(
        step,
        (array(8, 4096, 4096), array(8192, 4096, dtype=jnp.bfloat16)),
        ("stack [None, x, None]", "x [x, None]", "result [x, None]"),
        tmp_path,
        machine="v5p-8",
        limits=("all_gather count 1", *(f"{kind} count 0" for kind in kinds)),
    )
    narrow = 8 * 4096 * 4096 * 2
    assert narrow < compiled < 2 * narrow
    assert predicted == pytest.approx(compiled, rel=0.1)


def test_what_a_product_is_scattered_into_lies_beside_it(tmp_path: Path) -> None:
    predicted, compiled = peaks(
        lambda x, w: x @ w,
        (array(8192, 16384, dtype=jnp.bfloat16), array(16384, 8192, dtype=jnp.bfloat16)),
        ("x [None, x]", "w [x, None]", "result [x, None]"),
        tmp_path,
        machine="v5e-8",
        limits=SCATTERED,
    )
    product, arguments = 8192 * 8192 * 2, 2 * 8192 * 16384 * 2 // 8
    assert compiled > arguments + product * 9 / 8 - 1
    assert predicted == pytest.approx(compiled, rel=0.05)


@pytest.mark.long
def test_shares_that_several_products_read_are_written_where_their_order_is_another(
    tmp_path: Path,
) -> None:
    """Of grouped queries, in the backward pass of one sequence a chip."""

    def step(queries: Any, keys: Any, values: Any) -> Any:
        def loss(values: Any) -> Any:
            def body(queries: Any, _: Any) -> tuple[Any, None]:
                return plain(queries, keys, values), None

            body = jax.checkpoint(body)
            return jnp.sum(jax.lax.scan(body, queries, length=2)[0].astype(jnp.float32) ** 2)

        return jax.grad(loss)(values)

    sizes = ((8, 2048, heads, 128) for heads in (16, 4, 4))
    pins = [f"{name} [x, None, None, None]" for name in ("queries", "keys", "values", "result")]
    predicted, compiled = peaks(
        step, [array(*size, dtype=jnp.bfloat16) for size in sizes], pins, tmp_path, machine="v6e-8"
    )
    assert compiled > 2 * 16 * 2048 * 2048 * 2  # the scores, and their shares
    assert predicted == pytest.approx(compiled, rel=0.1)
