"""The optimiser: a pure-number `Problem` in, an `Outcome` with a proven bound out."""

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

if TYPE_CHECKING:
    from autoshard.solve.minimum import minimum_limit
    from autoshard.solve.pipeline import solve

__all__ = [
    "Duals",
    "Edge",
    "Evaluation",
    "Node",
    "Outcome",
    "Problem",
    "ProblemError",
    "Progress",
    "Report",
    "Solution",
    "Status",
    "Usage",
    "evaluate",
    "minimum_limit",
    "solve",
]


def __getattr__(name: str) -> object:
    # These two load the compiled loops; records and evaluation come without them.
    if name == "solve":
        from autoshard.solve.pipeline import solve

        return solve
    if name == "minimum_limit":
        from autoshard.solve.minimum import minimum_limit

        return minimum_limit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
