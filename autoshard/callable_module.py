"""Modules that can be called like the function they are named after.

`autoshard.search` and `autoshard.lower` are the entry points of this package and, as the design
has it, a module and a folder too. Calling the module calls its function, whoever imported it first.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module whose call is that of its function of the same last name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **options)


def make_callable(name: str) -> None:
    """Let the module `name`, which is being imported, be called."""
    sys.modules[name].__class__ = CallableModule
