"""A plan for several meshes as its file has it: every field of its type, and what must agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from jax.sharding import PartitionSpec

from autoshard.files import Count, NotNegative
from autoshard.plan.plan import Plan, PlanError
from autoshard.plan.records import Work
from autoshard.plan.written import AxisSize, Entry
from autoshard.search.meshes.keep.saved import StageSaves
from autoshard.search.meshes.stage_program import SHARED, Argument, Mode
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.schedule.task import WrittenOrder
from autoshard.units import counted


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice that was considered.

    Attributes:
      name: placement and mode.
      stages, microbatches: their numbers.
      step_seconds: the seconds of a step; None if there is no plan.
      bound: a lower bound in seconds for all orders at these prices; None if it was not computed.
      note: why there is no plan, or empty.
    """

    name: str
    stages: Count
    microbatches: Count
    step_seconds: NotNegative | None
    bound: NotNegative | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class OneMesh:
    """The best plan found on all chips as one mesh, or why there is none."""

    machine: str
    step_seconds: NotNegative | None
    peak_bytes: NotNegative
    mesh: str
    microbatches: Count | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class WrittenSharding:
    """How an argument of a stage is sharded."""

    group: str
    value: int
    spec: tuple[Entry, ...]
    stage: int = SHARED
    path: str = ""

    def argument(self) -> Argument:
        """What the argument is."""
        return Argument(self.group, self.value, self.stage, self.path)

    def partition_spec(self) -> PartitionSpec:
        """Its layout."""
        return PartitionSpec(*self.spec)


@dataclass(frozen=True, slots=True)
class WrittenPipeline:
    """See the module, and `autoshard.search.meshes.plan.PipelinePlan` for the fields."""

    kind: str
    schema_version: Literal[3]
    program: str
    cluster: str
    described: str
    machines: tuple[str, ...]
    shapes: tuple[dict[str, AxisSize], ...]
    microbatches: Count
    stages: tuple[tuple[str, ...], ...]
    mesh_of: tuple[Count, ...]
    placement: str
    mode: Mode
    step_seconds: NotNegative
    bound: NotNegative
    order_bound: NotNegative
    gap: float
    outer_seconds: tuple[NotNegative, ...]
    dispatch_seconds: tuple[NotNegative, ...]
    memory_limit: tuple[NotNegative, ...]
    fixed_bytes: tuple[NotNegative, ...]
    peak_bytes: tuple[NotNegative, ...]
    instance: dict[str, Any]
    order: WrittenOrder
    shardings: tuple[tuple[WrittenSharding, ...], ...]
    choices: tuple[Choice, ...]
    one_mesh: OneMesh | None
    limit_hit: LimitHit | None
    seconds: NotNegative
    saves: tuple[StageSaves, ...] = ()
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    work: Work | None = None
    host_kept: tuple[NotNegative, ...] = ()
    host_fixed: tuple[NotNegative, ...] = ()
    host_limit: tuple[NotNegative, ...] = ()
    host_bytes: tuple[NotNegative, ...] = ()
    accumulated: bool = False
    plans: tuple[dict[str, Any], ...] = ()
    plan_of: tuple[Count, ...] = ()

    def faults(self) -> Iterator[str]:
        """What contradicts itself among fields that are each of the right form."""
        meshes, stages = len(self.machines), len(self.stages)
        if not meshes or not stages:
            yield "it has no machines or no stages"
            return
        for name in (
            "shapes",
            "outer_seconds",
            "dispatch_seconds",
            "memory_limit",
            "fixed_bytes",
            "peak_bytes",
        ):
            if len(getattr(self, name)) != meshes:
                yield (
                    f"{name} has {counted(len(getattr(self, name)), 'entry')} for {meshes} machines"
                )
        for name in ("mesh_of", "shardings"):
            if len(getattr(self, name)) != stages:
                yield (
                    f"{name} has {counted(len(getattr(self, name)), 'entry')} for "
                    f"{counted(stages, 'stage')}"
                )
        if len(self.flags) not in (0, len(self.machines)):
            among = counted(len(self.machines), "mesh")
            yield f"flags has {counted(len(self.flags), 'entry')} for {among}"
        for name in ("saves", "host_kept"):
            if (found := len(getattr(self, name))) not in (0, stages):
                yield f"{name} has {counted(found, 'entry')} for {counted(stages, 'stage')}"
        for name in ("host_fixed", "host_limit"):
            found, wanted = len(getattr(self, name)), meshes if self.host_kept else 0
            if found != wanted:
                yield f"{name} has {counted(found, 'entry')}; with this host_kept it has {wanted}"
        if len(self.plan_of) not in (0, stages) or any(k >= len(self.plans) for k in self.plan_of):
            yield (
                f"plan_of is {list(self.plan_of)} for {counted(stages, 'stage')} and "
                f"{counted(len(self.plans), 'plan')}"
            )
        if any(mesh >= meshes for mesh in self.mesh_of):
            yield f"mesh_of is {list(self.mesh_of)}; the meshes are 0 to {meshes - 1}"

    def plans_of_stages(self) -> tuple[Plan, ...]:
        """The plan of every stage.

        Raises:
          PlanError: one of them is damaged.
        """
        plans = []
        for number, one in enumerate(self.plans):
            try:
                plans.append(Plan.from_json(one))
            except PlanError as error:
                raise PlanError(f"plans[{number}]: {error}") from error
        return tuple(plans[number] for number in self.plan_of)


def stage_plans_to_json(plans: Sequence[Plan]) -> dict[str, Any]:
    """The plans of stages as fields of a file: each different plan once, and the plan of each."""
    different = list({id(one): one for one in plans}.values())
    numbers = {id(one): k for k, one in enumerate(different)}
    nothing: dict[str, Any] = {"inputs": {}, "outputs": {}}
    # What follows from the decisions and the program is not kept.
    kept = [
        replace(one, specs=nothing, types=nothing, moves=(), transfers=(), reshards=(), marks="")
        for one in different
    ]
    return {
        "plans": [one.to_json() for one in kept],
        "plan_of": [numbers[id(one)] for one in plans],
    }
