"""Plans to runnable programs: `spmd` writes annotations, `verify` holds them to the compiler.

`autoshard.lower(plan, fn, *args)` is `autoshard.lower.spmd.lower`.
"""

from __future__ import annotations

from typing import Any

from autoshard.callable_module import make_callable


def __getattr__(name: str) -> Any:
    if name == "lower":
        from autoshard.lower.spmd import lower

        return lower
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


make_callable(__name__)
