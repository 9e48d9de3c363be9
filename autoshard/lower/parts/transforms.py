"""Equations bound again; Fourier transforms so that every compiler can compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoshard import compat


def bind_equation(equation: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of an equation on `arrays`.

    XLA:CPU computes transforms in one order of dimensions (`autoshard.compat.dimension_order`).
    """
    if equation.primitive.name != "fft":
        return compat.bind_equation(equation, arrays)
    ordered = map(compat.in_default_order, arrays)
    return [*map(compat.in_default_order, compat.bind_equation(equation, list(ordered)))]
