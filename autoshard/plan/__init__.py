"""What was decided, its independent price, and whether it fits."""

from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import Evaluation, evaluate
from autoshard.plan.fits import fits, needed_bytes
from autoshard.plan.plan import Baseline, Estimate, MeshShape, Move, Plan, PlanError, Proof

__all__ = [
    "Baseline",
    "Decisions",
    "Estimate",
    "Evaluation",
    "MeshShape",
    "Move",
    "Plan",
    "PlanError",
    "Proof",
    "evaluate",
    "fits",
    "needed_bytes",
]
