"""What some of the versions of JAX that are tested lack."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


def _found(module: str, name: str) -> Any:
    there = importlib.util.find_spec(module) is not None
    return getattr(importlib.import_module(module), name) if there else None


shard_alike = _found("jax.experimental.shard_alike", "shard_alike")
"""Gone since JAX 0.11."""
needs_shard_alike = pytest.mark.skipif(
    shard_alike is None, reason="jax.experimental.shard_alike is gone from this version of JAX"
)
