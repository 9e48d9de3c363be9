"""Versions of jaxlib: which are tested, and which flags of XLA one no longer knows."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from importlib import metadata
from typing import TypeVar

_Value = TypeVar("_Value")

UNTESTED = (0, 13)
"""The first jaxlib with which nothing has been tested."""
_GONE = {
    "xla_cpu_use_fusion_emitters": (0, 11),
    "xla_gpu_enable_pipelined_all_gather": (0, 11),
    "xla_gpu_enable_pipelined_reduce_scatter": (0, 11),
    "xla_gpu_enable_pipelined_all_reduce": (0, 11),
}
"""First jaxlib without a flag. XLA ends the process on a flag that it does not know."""
_NEW = {
    "xla_gpu_experimental_use_collective_kernels": (0, 11),
    "xla_gpu_pipeline_all_gather": (0, 11),
    "xla_gpu_pipeline_reduce_scatter": (0, 11),
    "xla_gpu_pipeline_all_reduce": (0, 11),
}
"""First jaxlib with a flag."""


def known_flags(flags: Mapping[str, _Value]) -> dict[str, _Value]:
    """Those of `flags`, by name, that the XLA of the installed jaxlib knows."""
    installed = _installed()
    return {
        name: value
        for name, value in flags.items()
        if _NEW.get(name, installed) <= installed < _GONE.get(name, (*installed, 0))
    }


@functools.cache
def warn_if_untested() -> None:
    """Warn, once in a process, where jaxlib is newer than those that were tested."""
    if _installed() >= UNTESTED:
        found, last = metadata.version("jaxlib"), ".".join(map(str, UNTESTED))
        warnings.warn(
            f"jaxlib {found} is newer than what autoshard was tested with (before {last}): hold "
            "plans to their compiler, `autoshard verify PLAN --compile`",
            stacklevel=3,
        )


def _installed() -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version("jaxlib").split(".")[:2])
