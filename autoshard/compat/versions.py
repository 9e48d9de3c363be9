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
_GONE = {"xla_cpu_use_fusion_emitters": (0, 11)}
"""First jaxlib without a flag. XLA ends the process on a flag that it does not know."""
_NEW = {"xla_gpu_experimental_use_collective_kernels": (0, 11)}
"""First jaxlib with a flag."""
_AT_ONCE = {"all_gather": 128 << 20, "reduce_scatter": 64 << 20, "all_reduce": 128 << 20}
"""As MaxText's scripts for one host have it (`configs/gpu/a3/llama_2_7b/1vm.sh`). Of four of its
models on 8 H100s gathers of 64 MiB are slower as compiled in three, by 0.9 % at most, and 0.4 %
faster in one."""
_PIPELINING_MODES = (0, 11)
"""The first jaxlib whose XLA:GPU has a mode of pipelining for each kind of collectives."""


def known_flags(flags: Mapping[str, _Value]) -> dict[str, _Value]:
    """Those of `flags`, by name, that the XLA of the installed jaxlib knows."""
    installed = _installed()
    return {
        name: value
        for name, value in flags.items()
        if _NEW.get(name, installed) <= installed < _GONE.get(name, (*installed, 0))
    }


def pipelined_collectives() -> dict[str, str]:
    """The options by which XLA:GPU pipelines the collectives of loops, as compilers take them.

    Those of one turn are joined up to `_AT_ONCE` bytes, whatever dimensions they are of.
    """
    kinds = "all_gather", "reduce_scatter", "all_reduce"
    if _installed() < _PIPELINING_MODES:
        found = {f"xla_gpu_enable_pipelined_{kind}": "True" for kind in kinds}
    else:
        found = {f"xla_gpu_pipeline_{kind}": "COLLECTIVE_PIPELINING_MODE_ON" for kind in kinds}
    return {
        **found,
        **{f"xla_gpu_{kind}_combine_threshold_bytes": str(n) for kind, n in _AT_ONCE.items()},
        "xla_gpu_enable_all_gather_combine_by_dim": "False",
        "xla_gpu_enable_reduce_scatter_combine_by_dim": "False",
        "xla_gpu_enable_while_loop_double_buffering": "True",
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
