"""Versions of jaxlib: which are tested, and which flags of XLA one no longer knows."""

from __future__ import annotations

import functools
import re
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
_REFUSED = {"xla_tpu_enable_async_collective_fusion_fuse_all_gather": (0, 0, 43)}
"""First libtpu that refuses a flag on every chip but v5e, and ends a compile for it in
FAILED_PRECONDITION: 0.0.42.1 takes it, and 0.0.43.2 to 0.0.50.1 do not."""


def known_flags(flags: Mapping[str, _Value]) -> dict[str, _Value]:
    """Those of `flags`, by name, that the XLA of the installed jaxlib knows."""
    installed = installed_jaxlib()
    return {
        name: value
        for name, value in flags.items()
        if _NEW.get(name, installed) <= installed < _GONE.get(name, (*installed, 0))
    }


def taken_on_tpu(flags: Mapping[str, _Value], chip: str) -> dict[str, _Value]:
    """Those of `flags` that the installed libtpu takes on a chip; all where there is none."""
    try:
        installed = _numbers(metadata.version("libtpu"))
    except metadata.PackageNotFoundError:
        return dict(flags)
    return {
        name: value
        for name, value in flags.items()
        if chip == "TPU v5e" or installed < _REFUSED.get(name, (*installed, 0))
    }


@functools.cache
def warn_if_untested() -> None:
    """Warn, once in a process, where jaxlib is newer than those that were tested."""
    if installed_jaxlib() >= UNTESTED:
        found, last = metadata.version("jaxlib"), ".".join(map(str, UNTESTED))
        warnings.warn(
            f"jaxlib {found} is newer than what autoshard was tested with (before {last}): hold "
            "plans to their compiler, `autoshard verify PLAN --compile`",
            stacklevel=3,
        )


def installed_jaxlib() -> tuple[int, ...]:
    """The first two numbers of its version."""
    return _numbers(metadata.version("jaxlib"))[:2]


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers with which a version begins."""
    return tuple(map(int, re.match(r"[\d.]*\d", version)[0].split(".")))  # type: ignore[index]
