"""Plans under ranges: where a plan stays best, what to measure, and the plan of least regret.

`autoshard.robust(program, machine)` is `autoshard.robust.answer.robust`.
"""

from __future__ import annotations

from typing import Any

from autoshard.callable_module import make_callable


def __getattr__(name: str) -> Any:
    if name == "robust":
        from autoshard.robust.answer import robust

        return robust
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


make_callable(__name__)
