"""Memory spaces in types: whether an array lies in the memory of its device, or of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HOST_KIND = "pinned_host"
"""The memory kind of shardings of what lies in the host's memory."""


def in_host(aval: Any) -> bool:
    """Whether a type says that an array lies in the host's memory."""
    return getattr(getattr(aval, "memory_space", None), "name", "") == "Host"


def given_in_host(leaf: Any) -> bool:
    """Whether an argument, or the shape of one, lies in the host's memory."""
    import jax

    if isinstance(leaf, jax.ShapeDtypeStruct):
        return "host" in (getattr(leaf.sharding, "memory_kind", None) or "")
    return in_host(leaf if is_type(leaf) else jax.typeof(leaf))


def is_type(leaf: Any) -> bool:
    """Whether an argument is not an array, nor stands for one, but is the type of one."""
    from jax._src import core

    return isinstance(leaf, core.AbstractValue)


def host_shape(shape: Sequence[int], dtype: Any, *, weak_type: bool = False) -> Any:
    """What a step may be traced with in place of an array that lies in the host's memory."""
    import jax
    from jax._src import core

    space = jax.memory.Space.Host
    return core.ShapedArray(tuple(shape), dtype, weak_type=weak_type, memory_space=space)


def is_transfer(equation: Any) -> bool:
    """Whether an equation puts an array into another memory."""
    if equation.primitive.name != "device_put" or len(equation.outvars) != 1:
        return False
    (given,), (made,) = equation.invars, equation.outvars
    return in_host(given.aval) != in_host(made.aval)
