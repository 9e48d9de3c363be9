"""What-if: one program over many clusters and sizes, a row for each, and what follows from them.

`autoshard.whatif(program, sweep)` is `autoshard.whatif.sweep.whatif`.
"""

from __future__ import annotations

from typing import Any

from autoshard.callable_module import make_callable


def __getattr__(name: str) -> Any:
    if name == "whatif":
        from autoshard.whatif.sweep import whatif

        return whatif
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


make_callable(__name__)
