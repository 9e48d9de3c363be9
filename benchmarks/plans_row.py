"""One row of `autoshard bench plans`, in a process of its own: see `benchmarks/plans.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.compiler.compiled import Compiled
    from autoshard.machine.machine import Machine
    from autoshard.models.training import Step

OURS, REFINED = "autoshard", "autoshard refined"
AUTO = ("XLA auto-sharding", "XLA auto-sharding, i/o")


def measure_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One plan: made, compiled, and told."""
    from autoshard import load_machine
    from autoshard.compiler.target import CompileError
    from autoshard.models.annotate import RulesError

    machine = load_machine(row["machine"])
    step = step_of(row["program"], row["layers"], row["sizes"])
    try:
        if row["plan"] in AUTO:
            return _auto(row, step, machine)
        return (_ours if row["plan"] in (OURS, REFINED) else _by_hand)(row, step, machine)
    except CompileError as error:
        return {"error": str(error)}
    except RulesError as error:
        lines = str(error).split("\n")
        more = f", and {len(lines) - 2} more" if len(lines) > 2 else ""
        return {"note": f"does not apply: {lines[0]} {lines[min(1, len(lines) - 1)].strip()}{more}"}


def step_of(program: str, layers: int | None, sizes: list[int]) -> Step:
    """The built-in at the sizes asked for: batch, and sequence where there is one."""
    from autoshard import models

    asked = dict(zip(("batch", "sequence"), sizes, strict=False))
    return models.build(program, **asked, **({} if layers is None else {"layers": layers}))


def _by_hand(row: Mapping[str, Any], step: Step, machine: Machine) -> dict[str, Any]:
    from autoshard import models
    from autoshard.compiler.compiled import compile_lowered
    from autoshard.compiler.target import kind_of, target_of
    from autoshard.models.annotate import lower
    from autoshard.models.by_hand import HAND_MADE, chips_of_a_host
    from autoshard.plan.plan import MeshShape
    from autoshard.units import counted

    (plan,) = (one for one in HAND_MADE if one.name == row["plan"])
    if machine.chips % (row["degree"] or 1):
        return {
            "note": f"an axis of {row['degree']} does not divide {counted(machine.chips, 'chip')}"
        }
    rules = plan.rules(machine.chips, chips_of_a_host(machine), row["degree"])
    mesh = MeshShape(tuple(rules.mesh), tuple(rules.mesh.values()))
    target = target_of(machine, mesh, kind_of(machine))
    lowered = lower(step, models.logical_axes(row["program"]), rules, platforms=(target.platform,))
    compiled = compile_lowered(lowered, mesh, machine, time_limit=row["compile_limit"])
    return {"mesh": str(mesh), **_told(compiled, machine)}


def _auto(row: Mapping[str, Any], step: Step, machine: Machine) -> dict[str, Any]:
    """What XLA's own auto-sharder plans for TPUs, on the mesh of FSDP x TP."""
    from auto_sharding.annotate import lower_ends, whole
    from auto_sharding.asked import auto_plan, question_of
    from auto_sharding.environment import AutoShardingError

    from autoshard.compiler.compiled import compile_lowered
    from autoshard.compiler.target import kind_of, target_of
    from autoshard.plan.plan import MeshShape
    from autoshard.units import counted

    if machine.chips % row["degree"]:
        return {
            "note": f"an axis of {row['degree']} does not divide {counted(machine.chips, 'chip')}"
        }
    mesh = MeshShape(("x", "y"), (machine.chips // row["degree"], row["degree"]))
    target = target_of(machine, mesh, kind_of(machine))
    question = question_of(row, step, machine, mesh)
    try:
        plan = auto_plan(question, Path(row["auto_folder"]), time_limit=row["auto_limit"])
        if row["plan"] == AUTO[0]:
            lowered = whole(plan, step)
        else:
            lowered = lower_ends(plan, step, platforms=(target.platform,))
    except AutoShardingError as error:
        return {"mesh": str(mesh), "note": str(error).replace("\n", " ")}
    compiled = compile_lowered(
        lowered, mesh, machine, target=target, time_limit=row["compile_limit"]
    )
    return {
        "mesh": str(mesh),
        **_told(compiled, machine),
        "auto_seconds": plan.seconds,
        "note": f"planned in {plan.seconds:.0f} s for {plan.made_for}",
    }


def _ours(row: Mapping[str, Any], step: Step, machine: Machine) -> dict[str, Any]:
    import autoshard
    from autoshard.compiler.compiled import compile_plan
    from autoshard.compiler.verdict import judge
    from autoshard.search.search import InfeasibleError, NoPlanError
    from autoshard.study.refine import refine

    program = autoshard.trace(step.fn, *step.args, **step.options)
    try:
        if row["plan"] == REFINED:
            found = refine(
                program,
                machine,
                step.fn,
                *step.args,
                count=row["refine"],
                time_limit=row["time_limit"],
            )
            plan = found.plan
        else:
            plan = autoshard.search(program, machine, time_limit=row["time_limit"])
    except (InfeasibleError, NoPlanError) as error:
        return {"note": f"no plan: {error}".replace("\n", " ")}
    lowered = autoshard.lower(plan, step.fn, *step.args)
    compiled = compile_plan(lowered, machine, time_limit=row["compile_limit"])
    notes = []
    faults = judge(plan, compiled).faults
    if faults:
        notes.append(faults[0] + (f", and {len(faults) - 1} more" if faults[1:] else ""))
    estimate = plan.estimate
    return {
        "mesh": str(plan.mesh),
        **_told(compiled, machine),
        "predicted": estimate.step_seconds,
        "pred.GiB": estimate.expected_bytes / 2**30,
        "predicted_compute": estimate.compute_seconds,
        "predicted_collectives": estimate.collective_seconds,
        "gap": plan.proof.gap,
        "limit_hit": plan.proof.limit_hit,
        "note": "; ".join(notes),
    }


def _told(compiled: Compiled, machine: Machine) -> dict[str, Any]:
    peak = compiled.memory.peak_bytes
    told: dict[str, Any] = {
        "peak": peak / 2**30,
        "fits": "yes" if peak <= machine.chip.usable_bytes else "no",
        "compile": compiled.compile_seconds,
        "from_cache": compiled.from_cache,
    }
    if compiled.timeline is not None:
        told |= {
            "step": compiled.timeline.seconds,
            "compute": compiled.timeline.compute_seconds,
            "collectives": compiled.timeline.collective_seconds,
            "exposed": compiled.timeline.exposed_seconds,
        }
    return told


if __name__ == "__main__":
    print(json.dumps(measure_row(json.loads(sys.argv[1]))))
