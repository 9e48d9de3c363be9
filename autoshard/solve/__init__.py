"""The optimiser: a pure-number `Problem` in, an `Outcome` with a proven bound out."""

import importlib
from typing import TYPE_CHECKING

from autoshard.solve.evaluate import Evaluation, evaluate
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
from autoshard.solve.sensitivity.part import Part, part_cost, scaled

if TYPE_CHECKING:
    from autoshard.solve.pipeline import solve
    from autoshard.solve.sensitivity.limit import LimitGain, MemoryPrice, limit_gain, memory_price
    from autoshard.solve.sensitivity.minimum import minimum_limit
    from autoshard.solve.sensitivity.nearby import solve_again
    from autoshard.solve.sensitivity.scales import ScaleEnd, ScaleRange, scale_range
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
    "LimitGain": "sensitivity.limit",
    "MemoryPrice": "sensitivity.limit",
    "ScaleEnd": "sensitivity.scales",
    "ScaleRange": "sensitivity.scales",
    "limit_gain": "sensitivity.limit",
    "memory_price": "sensitivity.limit",
    "minimum_limit": "sensitivity.minimum",
    "scale_range": "sensitivity.scales",
    "solve": "pipeline",
    "solve_again": "sensitivity.nearby",
    "tightened": "whole",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(importlib.import_module(f"autoshard.solve.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
