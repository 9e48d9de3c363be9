"""The search around the solver: mesh shapes, the memory loop, and the final plan.

This package is callable: `autoshard.search(program, machine)` calls its function `search`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from autoshard.plan.plan import Plan
from autoshard.search.search import InfeasibleError, candidates, search

__all__ = ["InfeasibleError", "candidates", "search"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Plan:
        return search(*args, **options)


sys.modules[__name__].__class__ = _Callable
