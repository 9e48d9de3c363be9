"""The optimiser: a pure-number `Problem` in, an `Outcome` with a proven bound out."""

import importlib
from typing import TYPE_CHECKING

from autoshard.solve.evaluate import Evaluation, evaluate
from autoshard.solve.part import Part, part_cost, scaled
from autoshard.solve.problem import (
    Duals,
    Edge,
    Node,
    Outcome,
    Problem,
    ProblemError,
    Progress,
    Report,
    Solution,
    Status,
    Usage,
)

if TYPE_CHECKING:
    from autoshard.solve.limit_sensitivity import LimitGain, MemoryPrice, limit_gain, memory_price
    from autoshard.solve.minimum import minimum_limit
    from autoshard.solve.nearby import solve_again
    from autoshard.solve.pipeline import solve
    from autoshard.solve.sensitivity import ScaleEnd, ScaleRange, scale_range
    from autoshard.solve.whole import tightened

__all__ = [
    "Duals",
    "Edge",
    "Evaluation",
    "LimitGain",
    "MemoryPrice",
    "Node",
    "Outcome",
    "Part",
    "Problem",
    "ProblemError",
    "Progress",
    "Report",
    "ScaleEnd",
    "ScaleRange",
    "Solution",
    "Status",
    "Usage",
    "evaluate",
    "limit_gain",
    "memory_price",
    "minimum_limit",
    "part_cost",
    "scale_range",
    "scaled",
    "solve",
    "solve_again",
    "tightened",
]

# These load the compiled loops; records and evaluation come without them.
_LATER = {
    "LimitGain": "limit_sensitivity",
    "MemoryPrice": "limit_sensitivity",
    "ScaleEnd": "sensitivity",
    "ScaleRange": "sensitivity",
    "limit_gain": "limit_sensitivity",
    "memory_price": "limit_sensitivity",
    "minimum_limit": "minimum",
    "scale_range": "sensitivity",
    "solve": "pipeline",
    "solve_again": "nearby",
    "tightened": "whole",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(importlib.import_module(f"autoshard.solve.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
