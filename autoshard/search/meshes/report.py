"""Formats a plan for several meshes as text: one page of at most 120 columns."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoshard.plan.records import KeptValue
from autoshard.plan.text.kept import folded, starred
from autoshard.plan.work import work_rows
from autoshard.search.meshes.keep.saved import StageSaves
from autoshard.search.meshes.plan import Choice, PipelinePlan
from autoshard.solve.schedule.drawing import LEGEND, draw_text
from autoshard.terminal import bold, drawing_columns, paragraph, shorten, table
from autoshard.units import counted, format_bytes, format_gap, format_percent, format_seconds

CHOICES = 12


def format_pipeline(plan: PipelinePlan, *, choices: int = CHOICES) -> str:
    """Return the report of a plan, with at most `choices` of the choices that were considered."""
    drawing = draw_text(plan.timeline, drawing_columns()).splitlines()
    sections = [
        _header(plan),
        "\n".join(["  why", *(paragraph(one, indent=4, hanging=2) for one in reasons(plan))]),
        _stages(plan),
        _saves(plan),
        _meshes(plan),
        f"{paragraph(f'schedule ({LEGEND})', indent=2, hanging=2)}\n"
        + "".join(f"    {line}\n" for line in drawing),
        _choices(plan, choices),
    ]
    return "\n\n".join(section.rstrip() for section in sections if section) + "\n"


def reasons(plan: PipelinePlan) -> Iterator[str]:
    """Yield the reasons for this plan, and for or against one mesh."""
    timeline = plan.timeline
    busiest = max(float(t) for t in timeline.busy) * 1e-9
    yield (
        f"the busiest mesh works {format_seconds(busiest)} in the loop, meshes wait "
        f"{format_percent(timeline.bubble)} of its time; what is done once takes "
        f"{format_seconds(max(plan.outer_seconds))}"
    )
    if plan.waits_for_controller:
        each = max(plan.dispatch_seconds)
        yield f"the controller is late: to enqueue a program takes it {format_seconds(each)}"
    yield from plan.notes
    one = plan.one_mesh
    if one is None:
        yield (
            "one mesh of all chips was not planned: it needs meshes that are alike"
            if len(set(plan.machines)) > 1
            else "one mesh of all chips was not planned"
        )
    elif one.step_seconds is None:
        yield f"one mesh of all chips ({one.machine}) has no plan: {one.note}"
    else:
        count = "no" if one.microbatches is None else str(one.microbatches)
        text = (
            f"one mesh of all chips ({one.machine}, {one.mesh}, {count} "
            f"{'microbatch' if count == '1' else 'microbatches'}) takes "
            f"{format_seconds(one.step_seconds)} and {format_bytes(one.peak_bytes)}"
        )
        share = abs(plan.step_seconds / one.step_seconds - 1)
        if plan.loses:
            yield f"{text}: pipelining loses, by {format_percent(share)}"
            yield f"  better: --machine {one.machine}"
        else:
            yield f"{text}: pipelining wins, {format_percent(share)} less"


def _header(plan: PipelinePlan) -> str:
    stopped = "" if plan.limit_hit is None else f", {plan.limit_hit.message}"
    rows = [
        (
            "step",
            format_seconds(plan.step_seconds),
            f"no order of these tasks is faster than {format_seconds(plan.order_bound)}",
        ),
        (
            "bound",
            format_seconds(plan.bound),
            f"no plan on several meshes is faster: gap {format_gap(plan.gap)} in "
            f"{plan.seconds:.1f} s{stopped}",
        ),
        *work_rows(plan.work, plan.step_seconds, plan.chips),
        (
            "pipeline",
            plan.placement,
            f"{counted(len(plan.stages), 'stage')}, "
            f"{counted(plan.microbatches, 'microbatch')}, backward {plan.mode}",
        ),
    ]
    return (
        bold(shorten(f"{plan.program} on {plan.described}")) + "\n\n" + table(rows, heading=False)
    )


def _stages(plan: PipelinePlan) -> str:
    hosted = any(plan.host_kept)
    there = ["on the host"] if hosted else []
    last = "weights and gradients sharded"
    rows = [("stage", "mesh", "blocks", "F", "B", "W", "kept", *there, last)]
    instance = plan.instance
    for stage, names in enumerate(plan.stages):
        blocks = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        forward, backward, weight = (
            format_seconds(float(instance.time(kind, stage)) * 1e-9) for kind in ("F", "B", "W")
        )
        rows.append(
            (
                str(stage),
                str(plan.mesh_of[stage]),
                blocks,
                forward,
                backward,
                weight,
                format_bytes(instance.memory_forward[stage]),
                *([format_bytes(plan.host_kept[stage])] if hosted else []),
                _sharding(plan, stage),
            )
        )
    return "  stages: seconds and bytes of a device for one microbatch\n" + table(rows, indent=4)


def _saves(plan: PipelinePlan) -> str:
    """Return what stages save and compute again; those that save alike together."""
    alike: dict[tuple[str, tuple[tuple[str, ...], ...]], list[int]] = {}
    for stage, one in enumerate(plan.saves):
        alike.setdefault((one.title, tuple(_saved_rows(one))), []).append(stage)
    lines = ["  for the backward pass"] if alike else []
    for (title, rows), stages in alike.items():
        listed = ", ".join(map(str, stages))
        lines.append(f"    {'stages' if len(stages) > 1 else 'stage'} {listed}: {title}")
        lines += table(rows, indent=6, heading=False).splitlines() if rows else []
    return "\n".join(shorten(line) for line in lines)


def _saved_rows(saves: StageSaves) -> Iterator[tuple[str, ...]]:
    """Yield what becomes of each value, those of repeated layers together."""
    for several in folded(saves.values):
        one = several[0]
        scope, slash, rest = one.name.rpartition("/")
        name = one.name if len(several) == 1 else f"{starred(scope)}{slash}{rest}"
        yield _kept(one), one.type, name, next(iter(one.lines), "")
    named = {value.name for value in saves.values}
    for name in saves.offloaded:
        if name not in named:
            yield "on the host", "", name, ""


def _kept(value: KeptValue) -> str:
    if value.offloaded:
        return "on the host"
    return "saved" if value.saved else "computed again"


def _sharding(plan: PipelinePlan, stage: int) -> str:
    """Return how many arrays of state each sharding has, the most common first."""
    counts: dict[str, int] = {}
    for one in plan.shardings[stage]:
        if one.argument.group == "state":
            axes = [",".join(e) if isinstance(e, tuple) else e or "-" for e in one.spec]
            text = f"[{' '.join(axes)}]" if any(one.spec) else "replicated"
            counts[text] = counts.get(text, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{n} x {text}" for text, n in ranked)


def _meshes(plan: PipelinePlan) -> str:
    hosted = any(plan.host_bytes)
    there = ["on the host", "of"] if hosted else []
    rows = [
        ("mesh", "machine", "shape", "stages", "memory", "limit", *there, "busy", "once a step")
    ]
    for mesh, machine in enumerate(plan.machines):
        here = [str(s) for s, d in enumerate(plan.mesh_of) if d == mesh]
        rows.append(
            (
                str(mesh),
                machine,
                str(plan.shapes[mesh]),
                ", ".join(here),
                format_bytes(plan.peak_bytes[mesh]),
                format_bytes(plan.memory_limit[mesh]),
                *(_host_cells(plan, mesh) if hosted else []),
                format_percent(float(plan.timeline.busy[mesh]) * 1e-9 / plan.step_seconds),
                format_seconds(plan.outer_seconds[mesh]),
            )
        )
    return "  meshes: bytes of a device\n" + table(rows, indent=4)


def _host_cells(plan: PipelinePlan, mesh: int) -> list[str]:
    """Return what a mesh takes of the hosts' memory for each device, and what there is."""
    return [format_bytes(plan.host_bytes[mesh]), format_bytes(plan.host_limit[mesh])]


def _choices(plan: PipelinePlan, count: int) -> str:
    rows = [("considered", "stages", "microbatches", "step", "order's bound", "")]
    ranked = sorted(plan.choices, key=_rank)
    for one in ranked[:count]:
        known = one.step_seconds is not None
        rows.append(
            (
                one.name,
                str(one.stages),
                str(one.microbatches),
                format_seconds(one.step_seconds or 0.0) if known else "-",
                format_seconds(one.bound or 0.0) if one.bound else "-",
                " ".join(one.note.split()),
            )
        )
    more = f"\n    and {len(ranked) - count} more" if len(ranked) > count else ""
    return table(rows, indent=2) + more


def _rank(choice: Choice) -> float:
    return math.inf if choice.step_seconds is None else choice.step_seconds
