"""The sections of a report that a plan file alone can fill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.plan.fits import within
from autoshard.plan.plan import Plan
from autoshard.plan.text.layouts import folded_layouts
from autoshard.plan.text.moves import alike_moves, collective_name, shared_scope
from autoshard.plan.text.page import proof_text, share
from autoshard.plan.text.transfers import exposed_seconds, transfer_rows
from autoshard.program.layout import LayoutError
from autoshard.program.subaxes import joined
from autoshard.show.html import Cell, Column, Markup, element, join, table
from autoshard.show.layout import layout_grid, svg
from autoshard.show.plots import Bar, bars, legend, span
from autoshard.units import format_bytes, format_seconds

MOST_BASELINES_LONGER = 5
"""Bars of schemes that take longer than so many times the plan are cut there."""


def seconds_cell(seconds: float | None) -> Cell:
    """Seconds, sorted as the number that they are."""
    return Cell("-" if seconds is None else format_seconds(seconds), seconds)


def bytes_cell(count: float | None) -> Cell:
    """Bytes, sorted as the number that they are."""
    return Cell("-" if count is None else format_bytes(count), count)


def arrows(types: str) -> str:
    """Types before and after, with an arrow that is not torn apart where lines break."""
    return types.replace("->", "→")


def facts(rows: list[tuple[str, str | Markup]]) -> Markup:
    """Names with what is to be said of them."""
    pairs = (join(element("dt", name), element("dd", said)) for name, said in rows)
    return element("dl", *pairs)


def bounds(plan: Plan) -> Markup:
    """What is proven, and between what the step lies."""
    estimate, proof = plan.estimate, plan.proof
    exposed, moved = exposed_seconds(plan)
    hidden = max(estimate.collective_seconds - exposed, 0.0)
    marks = [(estimate.step_seconds, "f3", f"step {format_seconds(estimate.step_seconds)}")]
    named = [(7, "between all and no collectives hidden"), (3, "this plan")]
    if proof.bound > 0:
        marks.append((proof.bound, "f2", f"proven bound {format_seconds(proof.bound)}"))
        named.append((2, "proven bound"))
    if plan.compiled is not None:
        seconds = float(plan.compiled["step_seconds"])
        marks.append((seconds, "f4", f"compiled {format_seconds(seconds)}"))
        named.append((4, "compiled"))
    most = max(estimate.upper_seconds, *(where for where, _, _ in marks)) * 1.02 or 1.0
    lower, upper = format_seconds(estimate.lower_seconds), format_seconds(estimate.upper_seconds)
    rows: list[tuple[str, str | Markup]] = [
        ("step", format_seconds(estimate.step_seconds)),
        ("this plan at best", f"{lower}, every collective hidden"),
        ("this plan at worst", f"{upper}, no collective hidden"),
        ("proven of all plans", proof_text(plan)),
        ("status", proof.status),
    ]
    if plan.compiled is not None:
        rows.append(
            (
                "compiled",
                f"{format_seconds(plan.compiled['step_seconds'])} and "
                f"{format_bytes(plan.compiled['peak_bytes'])} at the peak, by "
                f"XLA:{str(plan.compiled['compiler']).upper()}; seconds: {plan.compiled['basis']}",
            )
        )
    shown = [
        Bar("compute", ((0, estimate.compute_seconds),), _part(plan, estimate.compute_seconds)),
        Bar("collectives, exposed", ((3, exposed),), _part(plan, exposed)),
        Bar("collectives, hidden", ((7, hidden),), format_seconds(hidden)),
    ]
    if plan.transfers:
        rest = max(estimate.transfer_seconds - moved, 0.0)
        shown.append(Bar("transfers, exposed", ((5, moved),), _part(plan, moved)))
        shown.append(Bar("transfers, hidden", ((7, rest),), format_seconds(rest)))
    parts = bars(shown)
    line = span(estimate.lower_seconds, estimate.upper_seconds, marks, most=most)
    return join(legend(named), line, facts(rows), parts)


def _part(plan: Plan, seconds: float) -> str:
    return f"{format_seconds(seconds)} ({share(seconds, plan.estimate.step_seconds)})"


def transfers(plan: Plan) -> Markup | None:
    """What moves to the memory of hosts and back, and what lies there."""
    if not plan.transfers and not plan.estimate.host_bytes:
        return None
    said = f"At most {format_bytes(plan.estimate.host_bytes)} per device in the memory of its host."
    rows = transfer_rows(plan)
    names = ("kind", *rows[0][1:5], "type", "line") if rows else ()
    columns = [
        Column(name, number in range(1, 5), code=number > 4) for number, name in enumerate(names)
    ]
    return join(element("p", said), table(columns, rows[1:]) if rows else None)


def meshes(plan: Plan) -> Markup | None:
    """The mesh shapes that were considered; those of equal figures share a row."""
    if len(plan.proof.meshes) < 2:
        return None
    columns = [Column("mesh considered"), Column("bound", True), Column("best found", True)]
    alike: dict[tuple[str, str], list[tuple[str, float, float | None]]] = {}
    for row in sorted(plan.proof.meshes, key=lambda row: (row[2] is None, row[2] or row[1])):
        _, bound, objective = row
        found = "-" if objective is None else format_seconds(objective)
        alike.setdefault((format_seconds(bound), found), []).append(row)
    rows = [
        (
            "; ".join(name for name, _, _ in group),
            seconds_cell(group[0][1] if group[0][1] > 0 else None),
            seconds_cell(group[0][2]),
        )
        for group in alike.values()
    ]
    return table(columns, rows, sorts=True)


def baselines(plan: Plan) -> Markup | None:
    """The well-known schemes beside the plan."""
    if not plan.baselines:
        return None
    step = plan.estimate.step_seconds
    longest = MOST_BASELINES_LONGER * step
    rows = [Bar("this plan", ((3, step),), _times(step, step))]
    too_large = False
    for one in plan.baselines:
        if one.step_seconds is not None:
            small = one.peak_bytes is None or within(one.peak_bytes, plan.memory_limit)
            too_large |= not small
            shown = ((0 if small else 6, min(one.step_seconds, longest)),)
            rows.append(Bar(one.name, shown, _times(one.step_seconds, step)))
    columns = [
        Column("scheme on this mesh"),
        Column("step", True),
        Column("step / this plan's", True),
        Column("peak", True),
        Column("note", words=True),
    ]
    cells = [
        (
            one.name,
            seconds_cell(one.step_seconds),
            Cell("-")
            if one.step_seconds is None or step <= 0
            else Cell(f"{one.step_seconds / step:.3f}", one.step_seconds / step),
            bytes_cell(one.peak_bytes),
            one.note,
        )
        for one in plan.baselines
    ]
    named = [(3, "this plan"), (0, "the same mesh and prices, laid out by a scheme")]
    if too_large:
        named.append((6, "a scheme that does not fit"))
    cut = any(one.step_seconds is not None and one.step_seconds > longest for one in plan.baselines)
    note = f"Bars end at {MOST_BASELINES_LONGER} times the plan." if cut else None
    return join(
        legend(named),
        bars(rows),
        None if note is None else element("p", note, class_="soft"),
        table(columns, cells, sorts=True),
    )


def _times(seconds: float, step: float) -> str:
    ratio = f" ({seconds / step:.2f})" if step > 0 else ""
    return f"{format_seconds(seconds)}{ratio}"


def collectives(plan: Plan) -> Markup:
    """Every collective: by kind and axes, then one by one with the line that needs it."""
    if not plan.moves:
        return element("p", "No collectives: every device works alone.")
    groups, names = alike_moves(plan.moves), plan.mesh.names
    sums: dict[str, list[float]] = {}
    for move in plan.moves:
        both = sums.setdefault(collective_name(move.kind, move.axes, names), [0.0, 0.0])
        both[0] += move.exposed_seconds
        both[1] += move.seconds - move.exposed_seconds
    ranked = sorted(sums.items(), key=lambda item: -sum(item[1]))
    chart = bars(
        [
            Bar(name, ((3, exposed), (7, hidden)), format_seconds(exposed + hidden))
            for name, (exposed, hidden) in ranked
        ]
    )
    columns = [
        Column("kind"),
        Column("axes"),
        Column("exposed", True),
        Column("seconds", True),
        Column("times", True),
        Column("bytes each", True),
        Column("bytes in all", True),
        Column("type before and after", code=True),
        Column("scope", code=True),
        Column("line", code=True),
    ]
    rows = []
    for group in groups:
        first, times = group[0], sum(move.count for move in group)
        rows.append(
            (
                first.kind,
                ", ".join(joined(first.axes, names)),
                seconds_cell(sum(move.exposed_seconds for move in group)),
                seconds_cell(sum(move.seconds for move in group)),
                Cell(f"{times:,}", times),
                bytes_cell(first.bytes),
                bytes_cell(float(first.bytes) * times),
                arrows(first.value),
                shared_scope([move.scope for move in group]) or "(top)",
                first.line,
            )
        )
    count = f"{len(plan.moves):,} in the program, {len(rows):,} that differ in more than a number"
    return join(
        legend([(3, "exposed"), (7, "hidden behind compute")]),
        chart,
        element("p", f"{count}. Bytes are per device and execution.", class_="soft"),
        table(columns, rows, sorts=True),
    )


def layouts(plan: Plan) -> Markup:
    """The layouts of inputs and outputs, folded, with a drawing of each that is cut."""
    blocks = []
    mesh = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    drawn: dict[str, Markup] = {}
    for block in folded_layouts(plan):
        side = f"{block.noun}s"
        held = sum(line.bytes for line in block.lines)
        columns = [
            Column("path", code=True),
            Column("global type, dimensions @ mesh axes", code=True),
            Column("copies", True),
            Column("each per device", True),
            Column("per device", True),
        ]
        rows = [
            (
                line.path or "(all)",
                line.text,
                Cell(f"{line.copies:,}", line.copies),
                bytes_cell(line.bytes / line.copies),
                bytes_cell(line.bytes),
            )
            for line in block.lines
        ]
        heading = element("h3", f"{side.capitalize()}: {format_bytes(held)} per device")
        blocks += [heading, table(columns, rows)]
        for line in block.lines:
            path = block.examples.get(line.text)
            if path is not None and "@" in line.text and line.text not in drawn:
                picture = _drawing(plan.types[side][path], plan.specs[side][path], mesh)
                if picture is not None:
                    drawn[line.text] = picture
    pictures = [
        element("details", element("summary", element("code", text)), picture)
        for text, picture in drawn.items()
    ]
    if pictures:
        blocks += [element("h3", "Which devices hold which part"), *pictures]
    return join(*blocks)


def _drawing(kind: str, spec: Any, mesh: Mapping[str, int]) -> Markup | None:
    inside = kind.partition("[")[2].rpartition("]")[0]
    shape = [int(size) for size in inside.split(",") if size.strip()]
    try:
        return svg(layout_grid(shape, spec, mesh))
    except LayoutError:
        return None  # a type that is not a plain array


def requirements(plan: Plan) -> Markup | None:
    """What was asked of the plan, whether it is kept, and how it was read."""
    notes = join(*(element("p", f"Note: {note}.") for note in plan.notes))
    if not plan.requirements:
        return notes if plan.notes else None
    columns = [Column("requirement", code=True), Column("from"), Column(""), Column("how")]
    rows = []
    for one in plan.requirements:
        found = [
            f"{name}: {', '.join(axes) or 'whole'}" for name, axes in one.get("rules", {}).items()
        ]
        how = "; ".join([*one["how"], *found])
        rows.append((one["text"], one["source"], "kept" if one["kept"] else "dropped", how))
    return join(table(columns, rows), notes)


def verification(verdicts: Mapping[str, Any] | None) -> Markup | None:
    """What the judges of `autoshard verify` said."""
    if verdicts is None:
        return None
    words = {True: "agrees", False: "REFUTES", None: "not run"}
    rows = [(one["judge"], words[one["agrees"]], one["text"]) for one in verdicts["verdicts"]]
    return table([Column("judge"), Column("verdict"), Column("what it says", code=True)], rows)
