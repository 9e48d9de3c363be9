"""Weights and examples of a small step of stacked layers."""

from __future__ import annotations

from typing import Any

import numpy as np


def stacked_arguments(
    lead: tuple[int, ...], batch: int, width: int, inner: int
) -> tuple[dict[str, Any], Any]:
    """Weights between `width` and `inner` and back, with leading dimensions, and examples."""
    dice = np.random.default_rng(0)
    up = dice.standard_normal((*lead, width, inner)).astype(np.float32) / 8
    down = dice.standard_normal((*lead, inner, width)).astype(np.float32) / 8
    return {"up": up, "down": down}, dice.standard_normal((batch, width)).astype(np.float32)
