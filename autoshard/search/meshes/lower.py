"""Lowers a plan for several meshes to programs that run.

    plan = PipelinePlan.load("plan.json")
    lowered = lower_plan(plan, step, params, opt_state, batch, donate_argnums=(0, 1))
    loss, params, opt_state = lowered.run(params, opt_state, batch)

The plan fixes the shardings of state, totals of gradients, each microbatch's data, and the values
sent from stage to stage. Inside each program, XLA propagates shardings between these. Where the
plan says what stages save for their backward passes, each runs as it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from autoshard.lower.compiler_options import told_by, with_room
from autoshard.lower.interpret import LoweringError
from autoshard.lower.mpmd.place import LoweredMpmd, place_partition
from autoshard.lower.mpmd.programs import Otherwise
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.search.meshes.layouts import slot_specs
from autoshard.search.meshes.matching import matched
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.problem import TICK
from autoshard.solve.schedule.merging import MergeRule


def lower_plan(
    plan: PipelinePlan,
    fn: Callable[..., Any],
    *args: Any,
    devices: Sequence[Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
    merge: MergeRule | None = None,
    otherwise: Otherwise | None = None,
) -> LoweredMpmd:
    """Return a step lowered according to a plan.

    Args:
      plan: the plan of this step.
      fn: the step.
      *args: pytrees of arrays or `jax.ShapeDtypeStruct`s.
      devices: the devices of the first mesh, then of the second, and so on; by default all devices
        that JAX sees.
      donate_argnums: positions of arguments that the step may overwrite (state).
      merge: which tasks become one program (see `autoshard.lower_mpmd`); by default tasks are
        merged where that pays.
      otherwise: what is run in place of the function of a program
        (`autoshard.lower.mpmd.place.place_partition`).

    Raises:
      PlanError: the plan is for another step.
      LoweringError: there are too few devices.
    """
    meshes = meshes_of(plan, jax.devices() if devices is None else devices)
    step = matched(plan, fn, *args, donate_argnums=donate_argnums)
    partition = step.partition
    return place_partition(
        partition,
        meshes,
        placement=plan.mesh_of,
        schedule=plan.order,
        merge=merge,
        instance=plan.instance,
        dispatch=[seconds / TICK for seconds in plan.dispatch_seconds],
        compiler_options=_compiler_options(plan),
        otherwise=otherwise,
        specs=slot_specs(
            partition,
            plan.mesh_of,
            [
                list(zip(program.arguments, [one.spec for one in planned], strict=True))
                for program, planned in zip(step.programs, plan.shardings, strict=True)
            ],
        ),
    )


def _compiler_options(plan: PipelinePlan) -> list[dict[str, Any]] | None:
    """What the programs of each mesh are compiled with: flags, and room for what is on the host.

    XLA:GPU takes what lies there for bytes of the device (`autoshard.lower.compiler_options`).
    """
    found: list[dict[str, Any]] = [dict(told_by(flags)) for flags in plan.flags]
    for mesh, options in enumerate(found):
        kept = [
            plan.host_kept[s] for s, m in enumerate(plan.mesh_of) if plan.host_kept and m == mesh
        ]
        limit, most = plan.memory_limit[mesh], max(kept, default=0.0)
        if most and math.isfinite(limit) and _is_gpu(plan.machines[mesh]):
            options |= with_room(limit, plan.fixed_bytes[mesh] + most, limit + most)
    return found or None


def _is_gpu(name: str) -> bool:
    """Whether programs for a machine are compiled by XLA:GPU, as far as it is known here."""
    try:
        return load(name).chip.compiler.name == "xla:gpu"
    except MachineError:
        return False


def meshes_of(plan: PipelinePlan, devices: Sequence[Any]) -> list[Mesh]:
    """Return the meshes of a plan, made of consecutive groups of these devices.

    Raises:
      LoweringError: there are too few devices.
    """
    sizes = [math.prod(shape.sizes) for shape in plan.shapes]
    if len(devices) < sum(sizes):
        raise LoweringError(
            f"the plan is for meshes of {' + '.join(map(str, sizes))} devices; "
            f"there are {len(devices)}: give as many, or search for a plan of these"
        )
    meshes, start = [], 0
    for shape, size in zip(plan.shapes, sizes, strict=True):
        chosen = np.array(devices[start : start + size]).reshape(shape.sizes)
        meshes.append(Mesh(chosen, shape.names, axis_types=(AxisType.Auto,) * len(shape.names)))
        start += size
    return meshes
