"""What would make a pipeline faster: the order as it is, one part of the machine a tenth better.

A mesh that is a tenth faster does its tasks, and what it does once a step, in 1 / 1.1 of the time;
so do links that are a tenth faster. The order stays, so the best plan then takes at most that long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoshard.machine.improvements import MORE
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.problem import loop_seconds
from autoshard.show.sensitivity import Gain
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.task import Order
from autoshard.solve.schedule.timeline import simulate

LINKS = "the links between meshes"


def pipeline_gains(plan: PipelinePlan) -> tuple[Gain, ...]:
    """Every change by itself, the one that helps most first; seconds of the step."""
    rows = []
    for mesh, instance in _faster(plan.instance):
        part, outer = _name(mesh), list(plan.outer_seconds)
        if mesh is not None:
            outer[mesh] /= 1 + MORE
            part += f" ({plan.machines[mesh]})"
        loop = loop_seconds(instance, plan.order, plan.mode, plan.dispatch_seconds)
        rows.append(Gain(f"10 % faster: {part}", part, loop + max(outer)))
    if plan.waits_for_controller:
        quicker = [seconds / (1 + MORE) for seconds in plan.dispatch_seconds]
        loop = loop_seconds(plan.instance, plan.order, plan.mode, quicker)
        part = "the controller"
        rows.append(Gain(f"10 % faster: {part}", part, loop + max(plan.outer_seconds)))
    return tuple(sorted(rows, key=lambda row: row.step_seconds))


def order_gains(instance: Instance, order: Order, objective: str) -> tuple[Gain, ...]:
    """The same of an order by itself; `step_seconds` is the objective, in the instance's time."""
    rows = []
    for mesh, better in _faster(instance):
        value = float(simulate(better, order).value(objective))
        rows.append(Gain(f"10 % faster: {_name(mesh)}", _name(mesh), value))
    return tuple(sorted(rows, key=lambda row: row.step_seconds))


def _name(mesh: int | None) -> str:
    return LINKS if mesh is None else f"mesh {mesh}"


def _faster(instance: Instance) -> Iterator[tuple[int | None, Instance]]:
    """Instances in which a mesh is a tenth faster, or (None) the links; the rest is as before."""
    for mesh in range(instance.meshes):
        scale = list(instance.time_scale)
        scale[mesh] /= 1 + MORE
        yield mesh, replace(instance, time_scale=tuple(scale))
    if any(any(row) for row in instance.transfer):
        transfer = tuple(tuple(time / (1 + MORE) for time in row) for row in instance.transfer)
        yield None, replace(instance, transfer=transfer)
