"""Lowers a step to meshes of devices: the stages, shardings and programs not given are decided.

    lowered = lower_mpmd(step, params, opt_state, batch, meshes=meshes, donate_argnums=(0, 1))
    loss, params, opt_state = lowered.run(params, opt_state, batch)

See `autoshard.lower.mpmd.place` for the result. `autoshard.search.meshes.search` also decides the
mesh shapes, the number of stages, their placement and the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from autoshard.lower.compiler_options import told_by
from autoshard.lower.mpmd.partition import partition_step
from autoshard.lower.mpmd.place import Layout, LoweredMpmd, check_meshes, order_of, place_partition
from autoshard.machine.machine import Machine
from autoshard.search.meshes.candidate import flags_of
from autoshard.search.meshes.devices import machines_of
from autoshard.search.meshes.layouts import planned_specs
from autoshard.solve.schedule.merging import MergeRule
from autoshard.solve.schedule.named import Schedule
from autoshard.solve.schedule.task import Order


def lower_mpmd(
    fn: Callable[..., Any],
    *args: Any,
    meshes: Sequence[Mesh],
    stages: int | Sequence[Sequence[str]] | None = None,
    placement: Sequence[int] | None = None,
    schedule: str | Order | Schedule = "1f1b",
    merge: MergeRule | None = None,
    layout: Layout | None = None,
    donate_argnums: int | Sequence[int] = (),
    infer_transfers: bool = True,
    inputs: Mapping[str, int] | None = None,
    outputs: Mapping[str, int] | None = None,
    machine: str | Machine | Sequence[str | Machine] | None = None,
    memory_limit: float | None = None,
    seconds_per_stage: float = 5.0,
    compiler_options: Mapping[str, Any] | None = None,
) -> LoweredMpmd:
    """Return a step that is cut into stages and lowered to programs for several meshes.

    Args:
      fn: a step that computes its gradients with `autoshard.accumulate_grads`.
      *args: pytrees of arrays or `jax.ShapeDtypeStruct`s.
      meshes: the meshes, of any sizes; their axes must be Auto.
      stages: the number of stages, or the scopes of each; by default one stage per mesh.
      placement: the mesh of every stage; by default stages are placed round-robin.
      schedule: a name in `autoshard.solve.schedule.NAMED`, the tasks of every mesh, or a function
        that computes them from the schedule problem (times in FLOP, memory in bytes).
      merge: which tasks become one program: a predicate over two neighbouring tasks of a mesh, or
        the tasks of every merge. By default tasks are merged if the schedule gets no longer, such
        as the last stage's forward and backward. `()` merges none.
      layout: how an input is sharded on a mesh, such as `autoshard.lower.mpmd.place.batch_sharded`.
        By default the one-mesh solver plans every stage on its mesh, and equal stages once.
      donate_argnums: positions of arguments that the step may overwrite (state).
      machine: the chips for which stages are planned: a machine or its name, one per mesh or one
        for all. By default the chips of the meshes; see `autoshard.search.meshes.devices`.
      memory_limit: bytes per device for a stage; by default the chip's memory less its reserve.
      seconds_per_stage: seconds for the plan of one stage; up to ten times as many if none is found
        by then.
      infer_transfers: whether ops outside all stages may need values of several stages.
      inputs, outputs: the meshes of arguments and results by tree path, such as
        `{"params.embedding": 1}` or `{"result[0]": 0}` (`autoshard.lower.mpmd.cut.homes`). By
        default, an argument is on the mesh that first reads it, state stays there, and a result is
        on the mesh that computes it.
      compiler_options: options for every program, as `jax.jit` takes them; they go before the flags
        of a mesh's machine.

    Raises:
      LoopError, StageError, PlacementError: the step cannot be cut in this way, or its arguments
        and results cannot be placed in this way.
      ScheduleError: the schedule is not for these stages and microbatches, or merged tasks would
        wait for each other.
      LoweringError: a mesh has axes that are not Auto, or shares devices with another mesh; or a
        stage has no plan on its mesh.
      MachineError: there is no such machine, or not in the size of its mesh.
    """
    check_meshes(meshes)
    stages = len(meshes) if stages is None else stages
    partition = partition_step(
        fn,
        *args,
        stages=stages,
        donate_argnums=donate_argnums,
        infer_transfers=infer_transfers,
    )
    partition = partition.put(inputs or {}, outputs or {}, meshes=len(meshes))
    if placement is None:
        placement = [stage % len(meshes) for stage in range(partition.stages)]
    order = order_of(partition, len(meshes), placement, schedule)
    specs = None
    told: list[Mapping[str, Any]] = [{}] * len(meshes)
    if layout is None:
        fused = any(task.kind == "BW" for tasks in order for task in tasks)
        machines = machines_of(meshes, machine)
        told = [{} if one is None else told_by(flags_of(one)) for one in machines]
        specs = planned_specs(
            partition,
            meshes,
            machines,
            placement,
            mode="fused" if fused else "split",
            memory_limit=memory_limit,
            seconds=seconds_per_stage,
        )
    return place_partition(
        partition,
        meshes,
        placement=placement,
        schedule=order,
        merge=merge,
        layout=layout,
        specs=specs,
        compiler_options=[{**one, **(compiler_options or {})} for one in told],
    )
