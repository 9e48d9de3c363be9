"""Plans to runnable programs, and the judges that need no real compiler.

`autoshard.lower(plan, fn, *args)` is `lower` here: the package can be called like its function.

spmd      one program with Shardy annotations
explicit  one `shard_map` with every collective written out
verify    a plan held to Shardy's collectives and to numbers on fake devices
mpmd      a step on several meshes, one program per mesh, stage and kind
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from autoshard.lower.spmd import Lowered, lower

__all__ = ["Lowered", "lower"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Lowered:
        return lower(*args, **options)


sys.modules[__name__].__class__ = _Callable
