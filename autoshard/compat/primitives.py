"""The primitives that JAX knows, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.compat.fused_attention import FUSED_ATTENTION


def registered_primitives() -> frozenset[str]:
    """Names of all primitives that JAX can lower on some platform.

    Kernels and experimental parts register theirs when they are imported; here they are.
    """
    from jax._src.interpreters import mlir

    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values()]
    return frozenset(primitive.name for table in tables for primitive in table)


def sparse_function(equation: Any) -> Callable[..., Any] | None:
    """What an operation of `jax.experimental.sparse` on a BCOO or BCSR array runs, or None.

    It takes the operands and the parameters of the equation. None also where JAX is told to call
    cuSPARSE for them (`jax_bcoo_cusparse_lowering`).
    """
    from jax._src import config

    name = equation.primitive.name
    kind = name.partition("_")[0]
    if kind not in {"bcoo", "bcsr"} or config.bcoo_cusparse_lowering.value:
        return None
    from jax.experimental import sparse

    return getattr(getattr(sparse, kind), f"_{name}_impl", None)


def has_lowering(name: str, platform: str) -> bool:
    """Whether JAX lowers a primitive on a platform (`cpu`, `cuda`, `tpu`).

    A primitive of which no platform knows is not JAX's, and is taken to have one.
    """
    from jax._src.interpreters import mlir

    if name in FUSED_ATTENTION:  # lowered anywhere, to what a GPU alone can
        name = name.removesuffix("_wrapper")
    own = mlir._platform_specific_lowerings.get(platform, {})
    if any(primitive.name == name for table in (mlir._lowerings, own) for primitive in table):
        return True
    return name not in registered_primitives()


def single_device_effects(equation: Any) -> bool:
    """Whether an equation has an ordered effect that JAX runs in programs for one device alone."""
    from jax._src import effects

    ordered = effects.ordered_effects.filter_in(equation.effects)
    return bool(effects.shardable_ordered_effects.filter_not_in(ordered))
