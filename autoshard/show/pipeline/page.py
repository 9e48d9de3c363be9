"""The report of a plan for several meshes as one HTML file that asks the network for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoshard.plan.text.page import share
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.problem import TICK
from autoshard.search.meshes.report import reasons
from autoshard.show import sections
from autoshard.show.details import gains_table
from autoshard.show.document import document, fragment, head, versions
from autoshard.show.html import Cell, Column, Markup, element, join, table
from autoshard.show.pipeline.gains import pipeline_gains
from autoshard.show.pipeline.gantt import Picture, gantt, memory_chart
from autoshard.show.pipeline.verdict import pipeline_verdict
from autoshard.show.plots import Bar, bars, legend
from autoshard.show.sections import bytes_cell, facts, seconds_cell
from autoshard.show.sensitivity import Gain
from autoshard.units import counted, format_bytes, format_gap, format_seconds, seconds_like


def pipeline_page(plan: PipelinePlan, verification: Mapping[str, Any] | None = None) -> str:
    """The whole report as an HTML document.

    `verification` is what `autoshard verify --json` printed, if it was run.
    """
    picture = picture_of(plan)
    gains = pipeline_gains(plan)
    body = [
        ("schedule", "Schedule", gantt(picture)),
        ("proof", "Proof and bounds", _proof(plan)),
        ("one", "Why not one mesh", _one_mesh(plan)),
        ("meshes", "Time and memory of every mesh", _meshes(plan)),
        ("memory", "Memory over the step", _memory(plan, picture)),
        ("stages", "Stages", _stages(plan)),
        ("transfers", "Transfers between meshes", _transfers(plan)),
        ("layouts", "Layouts of every stage", _layouts(plan)),
        ("sensitivity", "Sensitivity", _sensitivity(plan, gains)),
        ("considered", "What was considered", _considered(plan)),
        ("verification", "Verification", sections.verification(verification)),
        ("versions", "Versions of this report", facts(list(versions()))),
    ]
    return document(_name(plan), _head(plan, gains, verification), body)


def pipeline_fragment(plan: PipelinePlan) -> str:
    """What a notebook shows of a plan for several meshes: the verdict, schedule and meshes."""
    top = _head(plan, pipeline_gains(plan))
    return fragment(top, gantt(picture_of(plan)), element("h3", "Meshes"), _meshes(plan))


def _name(plan: PipelinePlan) -> str:
    return f"{plan.program} on {plan.cluster}"


def _head(
    plan: PipelinePlan, gains: Sequence[Gain], verification: Mapping[str, Any] | None = None
) -> Markup:
    told = pipeline_verdict(plan, gains, verification)
    about = (
        f"{plan.placement}: {counted(len(plan.stages), 'stage')} on "
        f"{counted(len(plan.machines), 'mesh')}, "
        f"{counted(plan.microbatches, 'microbatch')}, backward {plan.mode}; {plan.described}"
    )
    return head(_name(plan), about, told.line, told.answers)


def picture_of(plan: PipelinePlan) -> Picture:
    """The plan's schedule as it is drawn."""
    return Picture(
        instance=plan.instance,
        timeline=plan.timeline,
        time=lambda ticks: format_seconds(ticks * TICK),
        amount=format_bytes,
        tick=lambda ticks: seconds_like(ticks * TICK, plan.step_seconds),
        end=plan.step_seconds / TICK,
        after=tuple(seconds / TICK for seconds in plan.outer_seconds),
        fused=plan.mode == "fused",
    )


def _proof(plan: PipelinePlan) -> Markup:
    stopped = "" if plan.limit_hit is None else f", {plan.limit_hit.message}"
    rows: list[tuple[str, str | Markup]] = [
        ("step", format_seconds(plan.step_seconds)),
        (
            "proven of all orders",
            f"{format_seconds(plan.order_bound)}: no order of these tasks is faster",
        ),
        (
            "proven of all plans",
            f"{format_seconds(plan.bound)}: no plan on several meshes is faster, by these prices "
            f"(gap {format_gap(plan.gap)})",
        ),
        ("search", f"{plan.seconds:.1f} s{stopped}"),
    ]
    return facts(rows)


def _one_mesh(plan: PipelinePlan) -> Markup:
    *_, said = [line for line in reasons(plan) if "one mesh" in line]
    text = element("p", said[:1].upper() + said[1:] + ".")
    one = plan.one_mesh
    if one is None or one.step_seconds is None:
        return text
    rows = [
        Bar("this plan", ((3, plan.step_seconds),), format_seconds(plan.step_seconds)),
        Bar(f"one mesh, {one.mesh}", ((0, one.step_seconds),), format_seconds(one.step_seconds)),
    ]
    hint = f"autoshard search {plan.program} --machine {one.machine}" if plan.loses else None
    return join(
        text, bars(rows), None if hint is None else element("p", element("code", hint), class_="")
    )


def _meshes(plan: PipelinePlan) -> Markup:
    step, hosted = plan.step_seconds, any(plan.host_bytes)
    rows, drawn = [], []
    for mesh, machine in enumerate(plan.machines):
        here = [str(s) for s, d in enumerate(plan.mesh_of) if d == mesh]
        busy, outer = float(plan.timeline.busy[mesh]) * TICK, plan.outer_seconds[mesh]
        waits = max(step - busy - outer, 0.0)
        peak, limit = plan.peak_bytes[mesh], plan.memory_limit[mesh]
        rows.append(
            (
                str(mesh),
                machine,
                str(plan.shapes[mesh]),
                ", ".join(here),
                seconds_cell(busy),
                seconds_cell(waits),
                seconds_cell(outer),
                bytes_cell(peak),
                bytes_cell(limit),
                Cell(share(peak, limit), peak / limit if limit else None),
                *([bytes_cell(plan.host_bytes[mesh])] if hosted else []),
            )
        )
        parts = ((0, busy), (6, outer), (7, waits))
        drawn.append(Bar(f"mesh {mesh}", parts, f"{share(busy, step)} at work"))
    columns = [
        Column("mesh"),
        Column("machine", name=True),
        Column("shape"),
        Column("stages"),
        Column("works", True),
        Column("waits", True),
        Column("once a step", True),
        Column("memory", True),
        Column("limit", True),
        Column("full", True),
        *([Column("on the host", True)] if hosted else []),
    ]
    return join(
        legend([(0, "works in the loop"), (6, "once a step: updates"), (7, "waits")]),
        bars(drawn, most=step),
        element("p", "Bytes are per device, at the peak.", class_="soft"),
        table(columns, rows, sorts=True),
    )


def _memory(plan: PipelinePlan, picture: Picture) -> Markup:
    blocks: list[Markup] = []
    for mesh, machine in enumerate(plan.machines):
        peak, limit = plan.peak_bytes[mesh], plan.memory_limit[mesh]
        title = f"Mesh {mesh} ({machine}): {format_bytes(peak)} of {format_bytes(limit)} per device"
        always = [("state, sums of gradients, workspace", plan.fixed_bytes[mesh])]
        blocks += [element("h3", title), memory_chart(picture, mesh, always)]
    return join(*blocks)


def _stages(plan: PipelinePlan) -> Markup:
    instance = plan.instance
    kinds = ("F", "B") if plan.mode == "fused" else ("F", "B", "W")
    names = {"F": "forward", "B": "backward" if plan.mode == "fused" else "input gradient"}
    columns = [
        Column("stage"),
        Column("mesh"),
        Column("blocks"),
        *(Column(names.get(kind, "weight gradient"), True) for kind in kinds),
        Column("keeps of a microbatch", True),
        *([Column("and on the host", True)] if plan.host_kept else []),
    ]
    rows = []
    for stage, blocks in enumerate(plan.stages):
        text = blocks[0] if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]}"
        rows.append(
            (
                str(stage),
                str(plan.mesh_of[stage]),
                text,
                *(seconds_cell(float(instance.time(kind, stage)) * TICK) for kind in kinds),
                bytes_cell(float(instance.memory_forward[stage])),
                *([bytes_cell(plan.host_kept[stage])] if plan.host_kept else []),
            )
        )
    said = "Seconds, and bytes of a device, for one microbatch."
    return join(element("p", said, class_="soft"), table(columns, rows, sorts=True))


def _transfers(plan: PipelinePlan) -> Markup:
    """What goes from mesh to mesh, by pairs of stages: activations there, gradients back."""
    instance, rows = plan.instance, []
    for source, reader in instance.edges:
        a, b = plan.mesh_of[source], plan.mesh_of[reader]
        if a == b:
            continue
        pairs = (("activations", source, reader, a, b), ("gradients", reader, source, b, a))
        for what, first, second, home, there in pairs:
            each = float(instance.transfer[home][there]) * TICK
            count = plan.microbatches
            rows.append(
                (
                    what,
                    f"{first} to {second}",
                    f"mesh {home} to mesh {there}",
                    seconds_cell(each),
                    Cell(f"{count:,}", count),
                    seconds_cell(each * count),
                )
            )
    if not rows:
        return element("p", "None: all stages are on one mesh.")
    columns = [
        Column("what"),
        Column("stages"),
        Column("meshes"),
        Column("each", True),
        Column("times", True),
        Column("together", True),
    ]
    said = (
        "A transfer delays what reads it and keeps no mesh busy; each is priced as the largest "
        "between its meshes."
    )
    return join(element("p", said, class_="soft"), table(columns, rows, sorts=True))


def _layouts(plan: PipelinePlan) -> Markup:
    blocks = []
    for stage, mesh in enumerate(plan.mesh_of):
        counts: dict[tuple[str, str, str], int] = {}
        for one in plan.shardings[stage]:
            entries = [",".join(e) if isinstance(e, tuple) else e or "-" for e in one.spec]
            spec = f"[{', '.join(entries)}]" if any(one.spec) else "replicated"
            path = one.argument.path or f"value {one.argument.value}"
            key = one.argument.group, path, spec
            counts[key] = counts.get(key, 0) + 1
        columns = [Column("what"), Column("path", code=True), Column("layout", code=True)]
        text = (
            f"Stage {stage} on mesh {mesh} ({plan.shapes[mesh]}): {counted(len(counts), 'array')}"
        )
        blocks.append(
            element("details", element("summary", text), table(columns, list(counts), sorts=True))
        )
    return join(*blocks)


def _sensitivity(plan: PipelinePlan, gains: tuple[Gain, ...]) -> Markup:
    said = "The same order of the same tasks; the best plan then takes at most that long."
    heads = "where one part is better", "step"
    return gains_table(gains, plan.step_seconds, said, heads, seconds_cell)


def _considered(plan: PipelinePlan) -> Markup:
    columns = [
        Column("placement and mode"),
        Column("stages", True),
        Column("microbatches", True),
        Column("step", True),
        Column("order's bound", True),
        Column("note", words=True),
    ]
    ranked = sorted(plan.choices, key=lambda one: (one.step_seconds is None, one.step_seconds))
    rows = [
        (
            one.name,
            Cell(str(one.stages), one.stages),
            Cell(str(one.microbatches), one.microbatches),
            seconds_cell(one.step_seconds),
            seconds_cell(one.bound or None),
            " ".join(one.note.split()),
        )
        for one in ranked
    ]
    return table(columns, rows, sorts=True)
