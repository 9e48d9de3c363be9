"""What the versions of JAX that are tested lack, and what they trace in different ways."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest


def _found(module: str, name: str) -> Any:
    there = importlib.util.find_spec(module) is not None
    return getattr(importlib.import_module(module), name) if there else None


shard_alike = _found("jax.experimental.shard_alike", "shard_alike")
"""Gone since JAX 0.11."""
needs_shard_alike = pytest.mark.skipif(
    shard_alike is None, reason="jax.experimental.shard_alike is gone from this version of JAX"
)
program_order = _found("jax.experimental.overlap", "program_order")
"""New in JAX 0.11; from 0.12 on its barriers are written when it is lowered."""
needs_program_order = pytest.mark.skipif(
    program_order is None, reason="this version of JAX has no jax.experimental.overlap"
)


class Otherwise(NamedTuple):
    """A program that later versions of JAX trace otherwise.

    Attributes:
      since: the first version that does.
      what: it is that differs.
      first: a pattern of the primitives at the first difference.
    """

    since: str
    what: str
    first: str


_TANH = Otherwise("0.11", "tanh has a derivative of other primitives", "sub|one_minus_square")
TRACED_OTHERWISE: Mapping[str, Otherwise] = {
    "mlp": _TANH,
    "vit-l16": _TANH,
    "resnet50": Otherwise("0.12", "gradients are added up in another order", "add_any|reduce_sum"),
}
"""By built-in program; all versions trace the others alike, as far as a plan needs it."""


def traced_otherwise(program: str, version: str, other: str) -> Otherwise | None:
    """What differs between the traces of a built-in by two versions of JAX; None if nothing.

    Args:
      program: as ``mlp`` or ``mlp:tiny``.
      version, other: as ``0.10.2``.
    """
    found = TRACED_OTHERWISE.get(program.partition(":")[0])
    sides = {_ordered(one) >= _ordered(found.since) for one in (version, other) if found}
    return found if len(sides) == 2 else None


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
