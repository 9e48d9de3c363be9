"""The optimiser: a pure-number `Problem` in, an `Outcome` with a proven bound out."""

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
    "solve",
]


def __getattr__(name: str) -> object:
    # `solve` compiles its loops on import; records and evaluation come without that.
    if name == "solve":
        from autoshard.solve.pipeline import solve

        return solve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
