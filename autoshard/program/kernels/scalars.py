"""Arithmetic of the scalars by which kernels find their place in a grid, in numpy.

Index maps and the conditions of kernels are integer arithmetic on places in the grid. They are
computed here on whole arrays of places, without tracing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _quotient(left: Array, right: Array) -> Array:
    """Division as XLA has it: rounded to zero for integers; by zero gives -1, all bits of it."""
    if left.dtype.kind not in "iu":
        return left / right
    safe = np.where(right == 0, 1, right)
    exact = np.abs(left) // np.abs(safe) * np.sign(left) * np.sign(safe)
    return np.where(right == 0, np.array(-1).astype(exact.dtype), exact)


def _remainder(left: Array, right: Array) -> Array:
    return (
        left - right * _quotient(left, right) if left.dtype.kind in "iu" else np.fmod(left, right)
    )


_TWO: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _quotient,
    "rem": _remainder,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_ONE: Mapping[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "sign": np.sign,
    "abs": np.abs,
    "not": np.invert,
    "stop_gradient": np.asarray,
    "copy": np.asarray,
    "multiple_of": np.asarray,
    "squeeze": np.asarray,
    "reshape": np.asarray,
    "broadcast_in_dim": np.asarray,
    "integer_pow": np.asarray,
}


def is_scalar(equation: Any) -> bool:
    """Whether an equation reads and makes scalars alone, and is known here."""
    name = equation.primitive.name
    known = name in _TWO or name in _ONE or name in ("select_n", "clamp", "convert_element_type")
    atoms = (*equation.invars, *equation.outvars)
    return known and all(getattr(atom.aval, "shape", None) == () for atom in atoms)


def compute(equation: Any, operands: list[Array]) -> Array:
    """The result of a scalar equation, for an array of each of its operands."""
    name = equation.primitive.name
    if name == "select_n":
        which, *cases = operands
        return np.choose(which.astype(np.int64), cases)
    if name == "clamp":
        low, value, high = operands
        return np.minimum(np.maximum(value, low), high)
    if name == "convert_element_type":
        kind = np.dtype(equation.outvars[0].aval.dtype).kind
        return operands[0].astype({"b": bool, "i": np.int64, "u": np.int64}.get(kind, float))
    if name == "integer_pow":
        return operands[0] ** equation.params["y"]
    if name in _TWO:
        return _TWO[name](*operands)
    return _ONE[name](operands[0])
