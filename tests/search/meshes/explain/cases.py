"""Plans of small steps on two meshes, and the step priced again by hand."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.machine.cluster import load_cluster
from autoshard.search.meshes.explain.staged import StagedPlan
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.problem import TICK, loop_seconds, outer_seconds, schedule_problem
from autoshard.search.meshes.search import search_meshes
from autoshard.solve.schedule.optimise import solve
from tests.lower.mpmd.cases import small_step

MESHES = "2 x h100-2"


def wide_step(layers: int = 4):
    """A step whose tasks take longer than the controller to enqueue them."""
    return small_step(layers, scan=True, width=256, rows=4096, vocabulary=1024)


def planned(step, **options) -> PipelinePlan:
    asked = {"modes": ("fused",), "stages": (2,), "gap": 0.05, "time_limit": 60, **options}
    return search_meshes({4: step}, load_cluster(MESHES), compare=False, **asked)


def by_hand(
    staged: StagedPlan, prices: Sequence[StagePrice], partition=None
) -> tuple[float, float]:
    """The seconds of a step in the plan's order, and that no order of it is faster than."""
    plan, cluster = staged.plan, staged.cluster
    partition = partition or staged.step.partition
    instance = schedule_problem(
        partition, prices, plan.mesh_of, cluster, plan.memory_limit, plan.mode
    )
    once = max(outer_seconds(partition, prices, plan.mesh_of, cluster))
    loop = loop_seconds(instance, plan.order, plan.mode, plan.dispatch_seconds)
    bound = float(solve(instance, time_limit=20, gap=0.0).bound) * TICK
    return loop + once, bound + once
