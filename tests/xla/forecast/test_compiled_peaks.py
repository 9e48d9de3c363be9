"""The predicted peak beside that of XLA:GPU's deviceless compile, one cause a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.compiler.compiled import compile_plan
from autoshard.compiler.target import why_missing

pytestmark = pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")


def peaks(
    step: Callable[..., Any],
    args: Sequence[Any],
    pins: Sequence[str],
    folder: Path,
    *,
    machine: str = "h100-8",
    limits: Sequence[str] = (),
    **options: Any,
) -> tuple[int, int]:
    """Bytes as predicted and as compiled, of the best plan under pins on one axis of all chips."""
    given = autoshard.load_machine(machine)
    plan = autoshard.search(
        autoshard.trace(step, *args, **options),
        given,
        mesh={"x": given.chips},
        requirements=[*(f"pin {one}" for one in pins), *(f"limit {one}" for one in limits)],
        time_limit=10.0,
    )
    compiled = compile_plan(autoshard.lower(plan, step, *args), given, cache=folder)
    return plan.estimate.expected_bytes, compiled.memory.peak_bytes


def has(habit: str) -> bool:
    """Whether the installed compiler has it: some had habits that later ones lost."""
    return autoshard.load_machine("h100-8").chip.compiler.has(habit)


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_weights_of_transposed_shapes_whose_updates_share_a_literal_are_updated_in_place(
    tmp_path: Path,
) -> None:
    def loss(weights: Any, x: Any) -> Any:
        up, down = (one.astype(jnp.bfloat16) for one in weights)
        return jnp.sum((jax.nn.gelu(x @ up) @ down).astype(jnp.float32) ** 2)

    def step(weights: Any, means: Any, x: Any) -> Any:
        slopes = jax.grad(loss)(weights, x)
        means = [0.9 * mean + 0.1 * slope for mean, slope in zip(means, slopes, strict=True)]
        pairs = zip(weights, means, strict=True)
        return [one - 3e-4 * (mean + 0.1 * one) for one, mean in pairs], means

    shapes = (array(4096, 8192), array(8192, 4096))
    predicted, compiled = peaks(
        step,
        (shapes, shapes, array(4096, 4096, dtype=jnp.bfloat16)),
        [
            *(f"{name}[{k}] [None, None]" for name in ("weights", "means") for k in (0, 1)),
            "x [x, None]",
        ],
        tmp_path,
        donate_argnums=(0, 1),
    )
    assert predicted == pytest.approx(compiled, rel=0.1)


def test_a_product_of_the_library_takes_its_workspace(tmp_path: Path) -> None:
    pins = ("x [x, None]", "w [None, None]", "result [x, None]")
    predicted, compiled = peaks(
        lambda x, w: x @ w,
        (array(2048, 1024, dtype=jnp.bfloat16), array(1024, 1024, dtype=jnp.bfloat16)),
        pins,
        tmp_path,
    )
    blackwell = has("gpu.workspace-of-blackwell")
    assert compiled > (2**25 if blackwell else 2**22)
    assert predicted == pytest.approx(compiled, rel=0.1)


SCATTERED = ("all_to_all count 0", "all_gather count 0")


@pytest.mark.parametrize("machine", ["h100-8", "a100-8"])
def test_what_is_scattered_along_an_inner_dimension_is_put_in_order_first(
    machine: str, tmp_path: Path
) -> None:
    predicted, compiled = peaks(
        lambda x, w: jnp.einsum("bsd,dv->bsv", x, w),
        (array(8, 1024, 1024, dtype=jnp.bfloat16), array(1024, 8192, dtype=jnp.bfloat16)),
        ("x [None, None, x]", "w [x, None]", "result [None, x, None]"),
        tmp_path,
        machine=machine,
        limits=SCATTERED,
    )
    assert compiled > 2 * 8 * 1024 * 8192 * 2  # the partial sums, in two orders
    assert predicted == pytest.approx(compiled, rel=0.1)


def test_a_stack_that_is_read_in_another_order_is_put_in_order_where_it_lies_as_numbered(
    tmp_path: Path,
) -> None:
    def step(carry: Any, w: Any) -> Any:
        carry, stack = jax.lax.scan(lambda c, _: (jnp.tanh(c), c), carry, length=16)
        return jax.lax.scan(lambda c, s: (jnp.tanh(s + c @ w), None), carry, stack)[0]

    predicted, compiled = peaks(
        step,
        (array(4096, 2048, dtype=jnp.bfloat16), array(2048, 2048, dtype=jnp.bfloat16)),
        ("carry [None, x]", "w [x, None]", "result [None, x]"),
        tmp_path,
        limits=SCATTERED,
    )
    in_two_orders = 2 * 16 * 4096 * 2048 / 8 * 2  # the stack
    assert (compiled > in_two_orders) == has("gpu.loop-edges-as-numbered")
    assert predicted == pytest.approx(compiled, rel=0.1)


def test_a_product_that_is_added_to_another_lies_where_that_lay(tmp_path: Path) -> None:
    def step(x: Any, y: Any, up: Any, down: Any) -> Any:
        return jnp.tanh((x @ up + y @ down).astype(jnp.float32)).sum()

    rows, weights = array(65536, 1024, dtype=jnp.bfloat16), array(1024, 8192, dtype=jnp.bfloat16)
    predicted, compiled = peaks(
        step,
        (rows, rows, weights, weights),
        ("x [x, None]", "y [x, None]", "up [None, None]", "down [None, None]"),
        tmp_path,
    )
    product = 65536 * 8192 * 2 / 8
    assert product < compiled < 2 * product
    assert predicted == pytest.approx(compiled, rel=0.1)


def test_caches_that_are_cut_otherwise_are_put_in_order_beside_each_other(tmp_path: Path) -> None:
    def step(caches: Any, q: Any, new: Any) -> Any:
        def layer(carry: Any, number: Any) -> tuple[Any, None]:
            (keys, values), q = carry
            keys, values = (
                jax.lax.dynamic_update_slice(one, new[None], (number, 0, 0, 0, 0))
                for one in (keys, values)
            )
            key, value = (
                jax.lax.dynamic_index_in_dim(one, number, 0, False) for one in (keys, values)
            )
            scores = jnp.einsum("bqkh,bskh->bkqs", q, key)
            return ((keys, values), jnp.tanh(jnp.einsum("bkqs,bskh->bqkh", scores, value))), None

        return jax.lax.scan(layer, (caches, q), jnp.arange(16))[0]

    cache = array(16, 16, 512, 16, 64, dtype=jnp.bfloat16)
    one = array(16, 1, 16, 64, dtype=jnp.bfloat16)
    predicted, compiled = peaks(
        step,
        ((cache, cache), array(16, 32, 16, 64, dtype=jnp.bfloat16), one),
        (
            "caches[0] [None, None, None, None, None]",
            "caches[1] [None, None, None, x, None]",
            "q [None, None, x, None]",
            "new [None, None, None, None]",
        ),
        tmp_path,
        donate_argnums=0,
    )
    whole = 16 * 16 * 512 * 16 * 64 * 2
    assert compiled > 2 * (whole + whole / 8)  # in the order in which they are read, too
    assert predicted == pytest.approx(compiled, rel=0.1)


@pytest.mark.parametrize("cut", ["[x, None, None, None]", "[None, x, None, None]"])
def test_a_batched_product_puts_in_order_what_is_gathered_along_another_dimension(
    tmp_path: Path, cut: str
) -> None:
    """It is there twice then: as gathered, and as the product reads it."""

    def step(scores: Any, values: Any) -> Any:
        return jnp.einsum("bkqs,bksh->bkqh", jnp.exp(scores), values)

    predicted, compiled = peaks(
        step,
        [array(8, 8, 512, 512, dtype=jnp.bfloat16), array(8, 8, 512, 16, dtype=jnp.bfloat16)],
        [f"scores {cut}", "values [None, None, None, None]", "result [None, None, None, None]"],
        tmp_path,
        limits=["all_to_all count 0"],
    )
    assert predicted == pytest.approx(compiled, rel=0.1)
