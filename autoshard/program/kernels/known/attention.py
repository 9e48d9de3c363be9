"""Attention kernels of libraries that can be run as rings, known by their functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from autoshard import compat
from autoshard.program.kernels.known import flash, splash
from autoshard.program.kernels.known.joinable import Joinable

KERNELS: dict[tuple[str, str], Callable[[Any], Joinable | None]] = {
    (compat.FLASH, "_flash_attention_kernel"): flash.forward,
    (compat.FLASH, "_flash_attention_dkv_kernel"): flash.to_keys,
    (compat.FLASH, "_flash_attention_dq_kernel"): flash.to_queries,
} | {
    (compat.SPLASH, f"splash_{kind}_{phase}_residuals"): splash.read
    for kind in ("mha", "mqa")
    for phase in ("fwd", "fwd_no", "dq_no", "dkv_no")
}
"""By module and function of the kernel, what reads a call of it. Each has tests that parts compute
the whole."""


def known_attention(equation: Any) -> Joinable | None:
    """What is known of an attention kernel; None where nothing is.

    A kernel is known by its function's name and file. What is read off it holds if the library,
    called so, makes the same kernel again.
    """
    name, file = compat.kernel_function(equation)
    for (module, function), read in KERNELS.items():
        if function == name and getattr(sys.modules.get(module), "__file__", None) == file:
            dropped = tuple(map(compat.is_dropped, equation.outvars))
            key = read, dropped, str(compat.written_out(equation))
            return _remembered(_Call(key, equation))
    return None


@dataclass(frozen=True, slots=True)
class _Call:
    """A call, the same as others whose kernels say the same."""

    key: tuple[Any, ...]
    equation: Any = field(compare=False)


@lru_cache(maxsize=64)
def _remembered(call: _Call) -> Joinable | None:
    return call.key[0](call.equation)
