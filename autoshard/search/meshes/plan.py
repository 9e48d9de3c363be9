"""The plan for several meshes: stages, their meshes and shardings, the task order, the price."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from jax.sharding import PartitionSpec

from autoshard.files import read_json, typed, write_whole
from autoshard.files.errors import shown
from autoshard.plan.plan import MeshShape, Plan, PlanError
from autoshard.plan.records import Work
from autoshard.search.meshes.keep.saved import StageSaves
from autoshard.search.meshes.problem import TICK, loop_seconds
from autoshard.search.meshes.stage_program import Argument, Mode
from autoshard.search.meshes.written import (
    Choice,
    OneMesh,
    WrittenPipeline,
    stage_plans_to_json,
)
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.instance_json import instance_from_json, instance_to_json
from autoshard.solve.schedule.task import Order, order_from_json, order_to_json
from autoshard.solve.schedule.timeline import Timeline, peak, simulate

SCHEMA_VERSION = 3
KIND = "autoshard plan for several meshes"


@dataclass(frozen=True, slots=True)
class Sharding:
    """How an argument of a stage (`stage_program.Argument`) is sharded."""

    argument: Argument
    spec: PartitionSpec


@dataclass(frozen=True, slots=True, eq=False)
class PipelinePlan:
    """A plan for several meshes.

    Attributes:
      program: the name of the program.
      cluster: the cluster as the user wrote it; `described` adds its links.
      machines: the machine of every mesh.
      shapes: the mesh shape of every mesh.
      stages: the names of the blocks of every stage.
      mesh_of: the mesh of every stage.
      placement, mode: the name of the placement; whether backward is one task.
      order: the tasks of every mesh.
      instance: the schedule problem, in nanoseconds and bytes per device.
      outer_seconds: seconds of the work that is done once a step, by mesh.
      dispatch_seconds: seconds that the controller takes to enqueue one program, by mesh.
      memory_limit: bytes per device, by mesh.
      fixed_bytes: bytes that are not kept for microbatches, by mesh.
      bound: a lower bound in seconds for all plans on several meshes, at these prices.
      order_bound: a lower bound in seconds for all orders of these tasks.
      shardings: the shardings of the arguments of every stage.
      choices: the choices that were considered.
      one_mesh: the plan on all chips as one mesh; None if it was not computed.
      limit_hit: what ended the search, or None.
      seconds: seconds spent on the search.
      saves: what every stage saves for its backward pass, if the search chose that.
      notes: what a reader should know of the search.
      flags: the set of flags of XLA:GPU, by mesh, see `autoshard.machine.compiler.FLAGS`; none
        where a plan says nothing of them.
      accumulated: whether the step is not written in microbatches, and is cut into them.
      host_kept: bytes of a device that a microbatch keeps in the memory of its host, by stage; none
        where nothing lies there.
      host_fixed, host_limit: bytes of a device that lie there always, and of its part of the
        host's memory, by mesh, likewise.
      work: tokens and products of a step, whatever the plan; None in files that do not say.
      stage_plans: the plan of every stage as one program (`stage_program.StageProgram`), of which
        files keep what `autoshard explain` needs; none in files that do not say.
    """

    program: str
    cluster: str
    described: str
    machines: tuple[str, ...]
    shapes: tuple[MeshShape, ...]
    stages: tuple[tuple[str, ...], ...]
    mesh_of: tuple[int, ...]
    placement: str
    mode: Mode
    order: Order
    instance: Instance
    outer_seconds: tuple[float, ...]
    dispatch_seconds: tuple[float, ...]
    memory_limit: tuple[float, ...]
    fixed_bytes: tuple[float, ...]
    bound: float
    order_bound: float
    shardings: tuple[tuple[Sharding, ...], ...]
    choices: tuple[Choice, ...]
    one_mesh: OneMesh | None
    limit_hit: LimitHit | None
    seconds: float
    saves: tuple[StageSaves, ...] = ()
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    work: Work | None = None
    host_kept: tuple[float, ...] = ()
    host_fixed: tuple[float, ...] = ()
    host_limit: tuple[float, ...] = ()
    accumulated: bool = False
    stage_plans: tuple[Plan, ...] = ()

    @property
    def microbatches(self) -> int:
        """Return the number of microbatches."""
        return self.instance.microbatches

    @property
    def chips(self) -> int:
        """Return the number of chips of all meshes."""
        return sum(math.prod(shape.sizes) for shape in self.shapes)

    @property
    def timeline(self) -> Timeline:
        """Return the times at which every task runs, in nanoseconds."""
        return simulate(self.instance, self.order)

    @property
    def step_seconds(self) -> float:
        """Return the seconds of a step: the loop, then the longest update.

        The loop ends when its last task is done and dispatched.
        """
        loop = loop_seconds(self.instance, self.order, self.mode, self.dispatch_seconds)
        return loop + max(self.outer_seconds)

    @property
    def waits_for_controller(self) -> bool:
        """Return whether the loop takes longer than its tasks because the controller is late."""
        tasks = float(self.timeline.makespan) * TICK
        return self.step_seconds - max(self.outer_seconds) > tasks * (1 + 1e-9)

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """Return the peak bytes per device, by mesh."""
        peaks = self.timeline.peak_memory
        return tuple(f + float(p) for f, p in zip(self.fixed_bytes, peaks, strict=True))

    @property
    def host_bytes(self) -> tuple[float, ...]:
        """Return the most bytes of a device in the memory of its host, by mesh."""
        if not self.host_kept:
            return (0.0,) * len(self.machines)
        there = replace(
            self.instance,
            memory_forward=self.host_kept,
            memory_backward=(0.0,) * len(self.stages),
            memory_weight=tuple(-one for one in self.host_kept),
        )
        pairs = zip(self.host_fixed, self.order, strict=True)
        return tuple(fixed + float(peak(there, tasks)) for fixed, tasks in pairs)

    @property
    def gap(self) -> float:
        """Return the relative gap between the plan and the bound of plans on several meshes."""
        return max(0.0, 1 - self.bound / self.step_seconds)

    @property
    def loses(self) -> bool:
        """Return whether one mesh of all chips is faster."""
        one = self.one_mesh
        return (
            one is not None
            and one.step_seconds is not None
            and one.step_seconds < self.step_seconds
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data with a schema version."""
        one = self.one_mesh
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "program": self.program,
            "cluster": self.cluster,
            "described": self.described,
            "machines": list(self.machines),
            "shapes": [dict(zip(s.names, s.sizes, strict=True)) for s in self.shapes],
            "microbatches": self.microbatches,
            "stages": [list(names) for names in self.stages],
            "mesh_of": list(self.mesh_of),
            "placement": self.placement,
            "mode": self.mode,
            "step_seconds": self.step_seconds,
            "bound": self.bound,
            "order_bound": self.order_bound,
            "gap": self.gap,
            "outer_seconds": list(self.outer_seconds),
            "dispatch_seconds": list(self.dispatch_seconds),
            "memory_limit": list(self.memory_limit),
            "fixed_bytes": list(self.fixed_bytes),
            "peak_bytes": list(self.peak_bytes),
            "instance": instance_to_json(self.instance),
            "order": order_to_json(self.order),
            "shardings": [[_sharding_to_json(one) for one in stage] for stage in self.shardings],
            "choices": [_fields(choice) for choice in self.choices],
            "one_mesh": None if one is None else _fields(one),
            "limit_hit": self.limit_hit,
            "seconds": self.seconds,
            "saves": [asdict(one) for one in self.saves],
            "notes": list(self.notes),
            "flags": list(self.flags),
            "work": None if self.work is None else asdict(self.work),
            "accumulated": self.accumulated,
            "host_kept": list(self.host_kept),
            "host_fixed": list(self.host_fixed),
            "host_limit": list(self.host_limit),
            "host_bytes": list(self.host_bytes),
            **stage_plans_to_json(self.stage_plans),
        }

    @classmethod
    def from_json(cls, data: Any) -> PipelinePlan:
        """Return the plan that `to_json` wrote.

        Raises:
          PlanError: the data is not such a plan, has another schema version, or is damaged.
        """
        if not isinstance(data, Mapping) or data.get("kind") != KIND:
            raise PlanError(
                "not a plan for several meshes; give what `autoshard search --meshes ... -o` wrote"
            )
        if (version := data.get("schema_version")) != SCHEMA_VERSION:
            raise PlanError(
                f"the plan has schema version {shown(version)}, this autoshard reads "
                f"{SCHEMA_VERSION}: search again"
            )
        written = typed(data, WrittenPipeline, name="the plan is damaged", error=PlanError)
        try:
            instance = instance_from_json(written.instance)
            order = order_from_json(written.order, instance.meshes)
        except ScheduleError as error:
            raise PlanError(f"the plan is damaged: {error}") from error
        faults = [*written.faults(), *_misfits(written, instance)]
        if faults:
            raise PlanError("\n  - ".join(["the plan is damaged:", *faults[:20]]))
        return cls(
            program=written.program,
            cluster=written.cluster,
            described=written.described,
            machines=written.machines,
            shapes=tuple(MeshShape(tuple(one), tuple(one.values())) for one in written.shapes),
            stages=written.stages,
            mesh_of=written.mesh_of,
            placement=written.placement,
            mode=written.mode,
            order=order,
            instance=instance,
            outer_seconds=written.outer_seconds,
            dispatch_seconds=written.dispatch_seconds,
            memory_limit=written.memory_limit,
            fixed_bytes=written.fixed_bytes,
            bound=written.bound,
            order_bound=written.order_bound,
            shardings=tuple(
                tuple(Sharding(one.argument(), one.partition_spec()) for one in stage)
                for stage in written.shardings
            ),
            choices=written.choices,
            one_mesh=written.one_mesh,
            limit_hit=written.limit_hit,
            seconds=written.seconds,
            saves=written.saves,
            notes=written.notes,
            flags=written.flags,
            work=written.work,
            accumulated=written.accumulated,
            host_kept=written.host_kept,
            host_fixed=written.host_fixed,
            host_limit=written.host_limit,
            stage_plans=written.plans_of_stages(),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan; an existing file is replaced only once the new one is complete."""
        write_whole(os.fspath(path), json.dumps(self.to_json()).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PipelinePlan:
        """Return the plan in a file.

        Raises:
          PlanError: the file does not exist, is not JSON, or is not such a plan.
        """
        data = read_json(path, "the plan", error=PlanError)
        try:
            return cls.from_json(data)
        except PlanError as error:
            raise PlanError(f"{os.fspath(path)!r}: {error}") from error


def _misfits(written: WrittenPipeline, instance: Instance) -> Iterator[str]:
    """Where the schedule problem in the plan is another one than the plan's."""
    pairs = (
        ("meshes", instance.meshes, len(written.machines)),
        ("microbatches", instance.microbatches, written.microbatches),
        ("placement", list(instance.placement), list(written.mesh_of)),
    )
    for name, one, other in pairs:
        if one != other:
            yield f"instance: its {name} is {one}, that of the plan {other}"


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _sharding_to_json(one: Sharding) -> dict[str, Any]:
    spec = [list(entry) if isinstance(entry, tuple) else entry for entry in one.spec]
    return {**_fields(one.argument), "spec": spec}
