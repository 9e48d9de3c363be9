"""A model whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from autoshard.solve.backends.linear import LinearModel


@pytest.fixture
def knapsack() -> LinearModel:
    """minimise -2 a - b  with  a + b <= 1 and 3 a + 2 b <= 4; the best is a alone, at -2."""
    return LinearModel(
        np.array([-2.0, -1.0]),
        np.array([True, True]),
        sparse.csr_matrix(np.array([[1.0, 1.0], [3.0, 2.0]])),
        np.array([-np.inf, -np.inf]),
        np.array([1.0, 4.0]),
    )
