"""A step on several meshes: one `jax.jit` program per mesh, stage and kind, and one controller.

    lowered = place_partition(partition, meshes, schedule="1f1b")
    loss, params, opt_state = lowered.run(params, opt_state, batch)

`run` takes and returns what the step does. Stacked weights of layers that are in several stages
come back as `Stacked` leaves, one array a stage; `lowered.whole` makes them ordinary arrays. What
crosses from one mesh to another goes by `jax.device_put`, resharded on the way.

`autoshard.lower_mpmd` does all of it, from the step on, and plans the sharding of every stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.lower.interpret import LoweringError
from autoshard.lower.mpmd.instructions import Script, Slot
from autoshard.lower.mpmd.merging import merge_script
from autoshard.lower.mpmd.partition import Partition
from autoshard.lower.mpmd.programs import Otherwise, programs_of
from autoshard.lower.mpmd.recording import Recording
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.merging import Merge, MergeRule, merges_by, paying_merges
from autoshard.solve.schedule.named import NAMED, Schedule
from autoshard.solve.schedule.task import Order

Layout = Callable[[str, tuple[int, ...], Mesh], PartitionSpec]
"""(tree path of an input, shape, mesh) -> how it is sharded there."""


@dataclass(frozen=True, slots=True, eq=False)
class LoweredMpmd:
    """A step as programs for several meshes.

    Attributes:
      partition: the step in fragments.
      meshes: of devices, as `placement` numbers them.
      placement: the mesh of every stage.
      order: the tasks of every mesh.
      merges: tasks that are one program.
      script: what the controller does.
      programs: for every unit of the script its jitted function; equal programs are one.
      layouts: for slots whose sharding is fixed, the sharding.
    """

    partition: Partition
    meshes: tuple[Mesh, ...]
    placement: tuple[int, ...]
    order: Order
    merges: tuple[Merge, ...]
    script: Script
    programs: tuple[Any, ...]
    layouts: Mapping[Slot, NamedSharding]

    def run(self, *args: Any) -> Any:
        """The step: the same arguments and the same result."""
        from autoshard.lower.mpmd.runtime import execute

        return execute(self, args)

    def record(self, *args: Any) -> tuple[Any, Recording]:
        """The step, and what each of its programs and transfers took.

        It waits for each of them: see `autoshard.lower.mpmd.recording`. A program that runs for the
        first time is compiled within its seconds; run a step before.
        """
        from autoshard.lower.mpmd.runtime import execute_recorded

        return execute_recorded(self, args)

    def whole(self, tree: Any) -> Any:
        """A result with its `Stacked` leaves as host arrays; other leaves stay as they are."""
        from autoshard.lower.mpmd.runtime import joined

        return joined(tree)

    @property
    def unmerged(self) -> Script:
        """What the controller would do if no tasks were merged."""
        return self.partition.script(self.placement, self.order)

    def __str__(self) -> str:
        different = len({id(program) for program in self.programs})
        lines = [f"{self.partition}", f"{self.script}, {different} of the programs are different"]
        for mesh in range(len(self.meshes)):
            stages = [s for s, place in enumerate(self.placement) if place == mesh]
            shape = ", ".join(f"{k}={n}" for k, n in self.meshes[mesh].shape.items())
            lines.append(f"mesh {mesh} ({shape}): stages {stages}")
        return "\n".join(lines)


def place_partition(
    partition: Partition,
    meshes: Sequence[Mesh],
    *,
    placement: Sequence[int] | None = None,
    schedule: str | Order | Schedule = "1f1b",
    merge: MergeRule | None = None,
    instance: Instance | None = None,
    dispatch: Sequence[float] = (),
    layout: Layout | None = None,
    specs: Mapping[Slot, PartitionSpec] | None = None,
    compiler_options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    otherwise: Otherwise | None = None,
) -> LoweredMpmd:
    """Lower a step that was cut into stages.

    Args:
      partition: the step.
      meshes: the meshes, of any sizes; axes must be Auto.
      placement: the mesh of every stage; by default stages go round the meshes.
      schedule: a name in `autoshard.solve.schedule.NAMED`, the tasks of every mesh, or a function
        that makes them of the schedule problem (times in FLOP, memory in bytes).
      merge: which tasks become one program: whether two neighbours do, or all merges; by default
        where it pays (`autoshard.solve.schedule.merging.paying_merges`). `()` merges none.
      instance: the schedule problem, for what pays; by default that in FLOP.
      dispatch: of the controller for one program, by mesh, in the instance's unit of time; by
        default it takes no time.
      layout: how an input is sharded on a mesh; by default `batch_sharded`.
      specs: how single slots are sharded; for them `layout` is not asked.
      compiler_options: for every program, or for those of each mesh, as `jax.jit` takes them.
      otherwise: what is run in place of the function of a program, such as the same in double
        precision; by default that function.

    Raises:
      ScheduleError: the schedule is not made for these stages and microbatches, or merged tasks
        would wait for each other.
      LoweringError: a mesh has axes that are not Auto, or shares devices with another.
    """
    check_meshes(meshes)
    if placement is None:
        placement = [stage % len(meshes) for stage in range(partition.stages)]
    schedule = order_of(partition, len(meshes), placement, schedule)
    script = partition.script(placement, schedule)
    if merge is None:
        instance = instance or partition.instance(len(meshes), placement)
        merges = paying_merges(instance, schedule, dispatch=dispatch)
    else:
        merges = merges_by(merge, schedule)
    script = merge_script(script, merges)
    if compiler_options is None or isinstance(compiler_options, Mapping):
        compiler_options = [compiler_options or {}] * len(meshes)
    layouts = _layouts(partition, script, meshes, layout or batch_sharded, specs or {})
    return LoweredMpmd(
        partition,
        tuple(meshes),
        tuple(placement),
        schedule,
        merges,
        script,
        programs_of(partition, script, layouts, compiler_options, otherwise),
        layouts,
    )


def order_of(
    partition: Partition, meshes: int, placement: Sequence[int], schedule: str | Order | Schedule
) -> Order:
    """The tasks of every mesh, of a schedule as `place_partition` takes it."""
    if isinstance(schedule, str):
        if schedule not in NAMED:
            known = ", ".join(NAMED)
            raise LoweringError(f"no schedule is called {schedule!r}; known: {known}")
        schedule = NAMED[schedule]
    if callable(schedule):
        return schedule(partition.instance(meshes, placement))
    return schedule


def batch_sharded(path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Data with its first dimension over all axes, where that divides; all else replicated.

    Data is what does not come back from the step. State is asked for with a path that begins with
    `state:`.
    """
    if path.startswith("state:") or not shape or shape[0] % mesh.size:
        return PartitionSpec()
    return PartitionSpec(tuple(mesh.axis_names))


def check_meshes(meshes: Sequence[Mesh]) -> None:
    """Refuse meshes that share devices, or have axes that are not Auto; names all of them."""
    faults = []
    owner: dict[Any, int] = {}
    for number, mesh in enumerate(meshes):
        kinds = getattr(mesh, "axis_types", ())
        if any(str(kind) != "Auto" and getattr(kind, "name", "") != "Auto" for kind in kinds):
            faults.append(f"mesh {number} has axes of types {kinds}: make them AxisType.Auto")
        for device in mesh.devices.flat:
            if owner.setdefault(device, number) != number:
                faults.append(f"{device} is in mesh {owner[device]} and in mesh {number}")
    if faults:
        raise LoweringError("these meshes cannot be used:" + "".join(f"\n  * {f}" for f in faults))


def _layouts(
    partition: Partition,
    script: Script,
    meshes: Sequence[Mesh],
    layout: Layout,
    specs: Mapping[Slot, PartitionSpec],
) -> dict[Slot, NamedSharding]:
    """The shardings of inputs, of state that comes back, and of what has one in `specs`."""
    result = {slot: NamedSharding(meshes[slot.mesh], spec) for slot, spec in specs.items()}
    avals = partition.outer.graph.avals
    state = dict(partition.ties)
    for position, (path, pieces) in enumerate(zip(partition.in_paths, script.inputs, strict=True)):
        name = f"state:{path}" if position in state else path
        for slots in pieces:
            for slot in slots:
                if slot in result:
                    continue
                mesh = meshes[slot.mesh]
                spec = layout(name, avals[slot.value].shape, mesh)
                result[slot] = NamedSharding(mesh, spec)
        if position in state:
            for slots, slot in zip(pieces, script.outputs[state[position]], strict=False):
                if slots[0].mesh == slot.mesh:
                    result.setdefault(slot, result[slots[0]])
    return result
