"""Flags of XLA by the version of jaxlib that no longer knows them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import TypeVar

_Value = TypeVar("_Value")

_GONE = {"xla_cpu_use_fusion_emitters": (0, 11)}
"""First jaxlib without a flag. XLA ends the process on a flag that it does not know."""


def known_flags(flags: Mapping[str, _Value]) -> dict[str, _Value]:
    """Those of `flags`, by name, that the XLA of the installed jaxlib knows."""
    installed = tuple(int(part) for part in metadata.version("jaxlib").split(".")[:2])
    return {name: value for name, value in flags.items() if installed < _GONE.get(name, (999,))}
