"""One traced step as data: values, ops, factor rules, layouts, who reads what."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoshard.program.facts import Facts
    from autoshard.program.graph import Op, Program, Region, Value
    from autoshard.program.readers import Phase, Reader
    from autoshard.program.rules.record import Rule
    from autoshard.program.rules.user import UserRule
    from autoshard.program.strategies import Strategies
    from autoshard.program.trace import trace

__all__ = [
    "Facts",
    "Op",
    "Phase",
    "Program",
    "Reader",
    "Region",
    "Rule",
    "Strategies",
    "UserRule",
    "Value",
    "trace",
]

# Layouts and factors need no JAX; tracing and rules do.
_LATER = {
    "Facts": "facts",
    "Op": "graph",
    "Phase": "readers",
    "Program": "graph",
    "Reader": "readers",
    "Region": "graph",
    "Rule": "rules.record",
    "Strategies": "strategies",
    "UserRule": "rules.user",
    "Value": "graph",
    "trace": "trace",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(importlib.import_module(f"autoshard.program.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
