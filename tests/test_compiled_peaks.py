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
    **options: Any,
) -> tuple[int, int]:
    """Bytes as predicted and as compiled, of the best plan under pins on one axis of 8."""
    given = autoshard.load_machine(machine)
    plan = autoshard.search(
        autoshard.trace(step, *args, **options),
        given,
        mesh={"x": 8},
        requirements=[f"pin {one}" for one in pins],
        time_limit=10.0,
    )
    compiled = compile_plan(autoshard.lower(plan, step, *args), given, cache=folder)
    return plan.estimate.expected_bytes, compiled.memory.peak_bytes


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
    assert compiled > 2**25
    assert predicted == pytest.approx(compiled, rel=0.1)
