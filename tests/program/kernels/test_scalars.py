"""Arithmetic of scalars in numpy is that of XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from autoshard.program.kernels.scalars import compute


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
@pytest.mark.parametrize("function", [jax.lax.div, jax.lax.rem])
def test_division_by_zero_sets_all_bits(function: Callable[..., Any], dtype: Any) -> None:
    left, right = np.array([7, 7, 0], dtype), np.array([2, 0, 0], dtype)
    (equation,) = jax.make_jaxpr(function)(left, right).jaxpr.eqns
    np.testing.assert_array_equal(compute(equation, [left, right]), function(left, right))
