"""The primitives that JAX knows, by name."""

from __future__ import annotations


def registered_primitives() -> frozenset[str]:
    """Names of all primitives that JAX can lower on some platform.

    Kernels and experimental parts register theirs when they are imported; here they are.
    """
    from jax._src.interpreters import mlir

    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values()]
    return frozenset(primitive.name for table in tables for primitive in table)
