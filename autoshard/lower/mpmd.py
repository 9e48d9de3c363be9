"""A step on several meshes: one `jax.jit` program per mesh, stage and kind, and one controller.

    lowered = lower_mpmd(step, params, opt_state, batch, meshes=meshes, donate_argnums=(0, 1))
    loss, params, opt_state = lowered.run(params, opt_state, batch)

`run` takes and returns what the step does. Stacked weights of layers that are in several stages
come back as `Stacked` leaves, one array a stage; `lowered.whole` makes them ordinary arrays.

Programs with equal nodes, types, shardings and mesh are one program, compiled once. What crosses
from one mesh to another goes by `jax.device_put`, resharded on the way. Totals of gradients, and
state that the step donates, are updated in place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.lower.interpret import LoweringError
from autoshard.lower.recording import Recording
from autoshard.mpmd.graph import bytes_of, run
from autoshard.mpmd.instructions import Run, Script, Slot, Unit
from autoshard.mpmd.partition import Partition, partition_step
from autoshard.schedule import NAMED, Order, Schedule

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
      script: what the controller does.
      programs: for every unit of the script its jitted function; equal programs are one.
      layouts: for slots whose sharding is fixed, the sharding.
    """

    partition: Partition
    meshes: tuple[Mesh, ...]
    placement: tuple[int, ...]
    order: Order
    script: Script
    programs: tuple[Any, ...]
    layouts: Mapping[Slot, NamedSharding]

    def run(self, *args: Any) -> Any:
        """The step: the same arguments and the same result."""
        from autoshard.lower.runtime import execute

        return execute(self, args)

    def record(self, *args: Any) -> tuple[Any, Recording]:
        """The step, and what each of its programs and transfers took.

        It waits for each of them: see `autoshard.lower.recording`. A program that runs for the
        first time is compiled within its seconds; run a step before.
        """
        from autoshard.lower.runtime import execute_recorded

        return execute_recorded(self, args)

    def whole(self, tree: Any) -> Any:
        """A result with its `Stacked` leaves as host arrays; other leaves stay as they are."""
        from autoshard.lower.runtime import joined

        return joined(tree)

    def __str__(self) -> str:
        different = len({id(program) for program in self.programs})
        lines = [f"{self.partition}", f"{self.script}, {different} of the programs are different"]
        for mesh in range(len(self.meshes)):
            stages = [s for s, place in enumerate(self.placement) if place == mesh]
            shape = ", ".join(f"{k}={n}" for k, n in self.meshes[mesh].shape.items())
            lines.append(f"mesh {mesh} ({shape}): stages {stages}")
        return "\n".join(lines)


def lower_mpmd(
    fn: Callable[..., Any],
    *args: Any,
    meshes: Sequence[Mesh],
    stages: int | Sequence[Sequence[str]] | None = None,
    placement: Sequence[int] | None = None,
    schedule: str | Order | Schedule = "1f1b",
    layout: Layout | None = None,
    donate_argnums: int | Sequence[int] = (),
    infer_transfers: bool = True,
    compiler_options: Mapping[str, Any] | None = None,
) -> LoweredMpmd:
    """Cut a step into stages and lower it to programs for several meshes.

    Args:
      fn: a step that computes its gradients with `autoshard.accumulate_grads`.
      *args: pytrees of arrays or `jax.ShapeDtypeStruct`s.
      meshes: the meshes, of any sizes; axes must be Auto.
      stages: how many stages, or the scopes of each; by default one for each mesh.
      placement: the mesh of every stage; by default stages go round the meshes.
      schedule: a name in `autoshard.schedule.NAMED`, the tasks of every mesh, or a function that
        makes them of the schedule problem (times in FLOP, memory in bytes).
      layout: how an input is sharded on a mesh; by default `batch_sharded`.
      donate_argnums: positions of arguments that the step may overwrite (state).
      infer_transfers: whether ops outside of all stages may need values of several.
      compiler_options: for every program, as `jax.jit` takes them.

    Raises:
      LoopError, StageError, PlacementError: the step cannot be cut so.
      ScheduleError: the schedule is not made for these stages and microbatches.
      LoweringError: a mesh has axes that are not Auto, or shares devices with another.
    """
    _check_meshes(meshes)
    stages = len(meshes) if stages is None else stages
    partition = partition_step(
        fn,
        *args,
        stages=stages,
        donate_argnums=donate_argnums,
        infer_transfers=infer_transfers,
    )
    return place_partition(
        partition,
        meshes,
        placement=placement,
        schedule=schedule,
        layout=layout,
        compiler_options=compiler_options,
    )


def place_partition(
    partition: Partition,
    meshes: Sequence[Mesh],
    *,
    placement: Sequence[int] | None = None,
    schedule: str | Order | Schedule = "1f1b",
    layout: Layout | None = None,
    specs: Mapping[Slot, PartitionSpec] | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> LoweredMpmd:
    """Lower a step that was cut before; see `lower_mpmd`.

    Args:
      specs: how single slots are sharded; for them `layout` is not asked.
    """
    _check_meshes(meshes)
    if placement is None:
        placement = [stage % len(meshes) for stage in range(partition.stages)]
    if isinstance(schedule, str):
        if schedule not in NAMED:
            known = ", ".join(NAMED)
            raise LoweringError(f"no schedule is called {schedule!r}; known: {known}")
        schedule = NAMED[schedule]
    if callable(schedule):
        schedule = schedule(partition.instance(len(meshes), placement))
    script = partition.script(placement, schedule)
    layouts = _layouts(partition, script, meshes, layout or batch_sharded, specs or {})
    return LoweredMpmd(
        partition,
        tuple(meshes),
        tuple(placement),
        schedule,
        script,
        _programs(partition, script, layouts, compiler_options),
        layouts,
    )


def batch_sharded(path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Data with its first dimension over all axes, where that divides; all else replicated.

    Data is what does not come back from the step: see `lower_mpmd`, which asks for its inputs
    only. State is asked for with a path that begins with `state:`.
    """
    if path.startswith("state:") or not shape or shape[0] % mesh.size:
        return PartitionSpec()
    return PartitionSpec(tuple(mesh.axis_names))


def _check_meshes(meshes: Sequence[Mesh]) -> None:
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


def _programs(
    partition: Partition,
    script: Script,
    layouts: Mapping[Slot, NamedSharding],
    compiler_options: Mapping[str, Any] | None,
) -> tuple[Any, ...]:
    """A jitted function for every unit; units that are equal get one and the same."""
    runs: dict[int, list[tuple[int, Run]]] = {}
    for number, one in enumerate(script.instructions):
        if isinstance(one, Run):
            runs.setdefault(one.unit, []).append((number, one))
    known: dict[Hashable, Any] = {}
    programs = []
    for number, unit in enumerate(script.units):
        if number not in runs:
            programs.append(None)
            continue
        donated = _donated(partition, script, unit, runs[number])
        first = runs[number][0][1]
        shardings = tuple(layouts.get(slot) for slot in first.outputs)
        key = (unit.mesh, unit_key(unit), donated, shardings)
        if key not in known:
            known[key] = jax.jit(function_of(unit), donate_argnums=donated, out_shardings=shardings)
        programs.append(known[key])
    return tuple(programs)


def function_of(unit: Unit) -> Callable[..., tuple[Any, ...]]:
    """A unit as a function of arrays."""

    def program(*arguments: Any) -> tuple[Any, ...]:
        count = len(unit.inputs)
        known = {}
        for value, sliced, array in zip(unit.inputs, unit.sliced, arguments[:count], strict=True):
            if sliced:
                array = jax.lax.dynamic_index_in_dim(array, arguments[-1], keepdims=False)
            known[value] = array
        results = run(unit.nodes, known, (*unit.outputs, *unit.adds))
        split = len(unit.outputs)
        totals = arguments[count : count + len(unit.adds)]
        sums = [total + new for total, new in zip(totals, results[split:], strict=True)]
        return (*results[:split], *sums)

    program.__name__ = unit.name.replace("@", "_on_mesh_")
    return program


def unit_key(unit: Unit) -> Hashable:
    """Equal for units that are the same function."""
    number: dict[int, int] = {}

    def of(value: int) -> int:
        return number.setdefault(value, len(number))

    inputs = tuple(map(of, unit.inputs))
    nodes = tuple(
        (node.key, tuple(map(of, node.inputs)), tuple(map(of, node.outputs))) for node in unit.nodes
    )
    return (
        inputs,
        unit.sliced,
        nodes,
        tuple(map(of, unit.adds)),
        tuple(map(of, unit.outputs)),
    )


def _donated(
    partition: Partition, script: Script, unit: Unit, runs: Sequence[tuple[int, Run]]
) -> tuple[int, ...]:
    """Arguments that no one reads again, each for a result of its type."""
    outer, inner = partition.outer.graph.avals, partition.cut.graph.avals

    def kind(slot: Slot) -> tuple[Any, ...]:
        aval = (outer if slot.microbatch < 0 or slot.total else inner)[slot.value]
        return aval.shape, aval.dtype, bytes_of(aval)

    kept = {
        slot
        for position, pieces in enumerate(script.inputs)
        if position not in partition.donated
        for slots in pieces
        for slot in slots
    }
    results: list[tuple[Any, ...]] = [kind(slot) for slot in runs[0][1].outputs]
    donated = []
    for position, slot in enumerate(runs[0][1].inputs):
        dead = all(
            one.inputs[position] in script.frees[number]
            and one.inputs[position] not in kept
            and one.inputs.count(one.inputs[position]) == 1
            for number, one in runs
        )
        if dead and kind(slot) in results:
            results.remove(kind(slot))
            donated.append(position)
    return tuple(donated)
