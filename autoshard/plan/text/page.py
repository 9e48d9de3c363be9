"""How a plan looks: a page of plain text, tables aligned. In a terminal it is as wide as that, from
80 to 200 columns, sentences go on in further lines, other cells are cut, and headings are bold
unless NO_COLOR is set; elsewhere sentences are wrapped at 120, and nothing is cut.

From the top: the verdict (step, memory, proof), the well-known schemes beside it, the layouts of
inputs and outputs, the collectives by kind and axes, the dearest of them one by one with the line
of the user's code, transfers to the host's memory and back, and the mesh shapes that were
considered.

Layouts are folded, so that 126 layers fill one block: equal neighbours in a list become `[*]` or
`[3:9]`, equal leaves of one dictionary share a line, and a subtree that equals an earlier one
(Adam's moments, a state that comes back) is one line that names it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.plan.fits import fits, refusal
from autoshard.plan.plan import Move, Plan
from autoshard.plan.text import transfers
from autoshard.plan.text.kept import kept_rows, said_in_program
from autoshard.plan.text.layouts import folded_layouts
from autoshard.plan.text.moves import alike_moves, collective_name, shared_scope
from autoshard.plan.text.trees import Line
from autoshard.plan.work import work_rows
from autoshard.terminal import (
    aligned,
    bold,
    page_width,
    paragraph,
    shorten,
    shorten_left,
    table,
)
from autoshard.units import counted, format_bytes, format_gap, format_percent, format_seconds

DEAREST = 12


def format_plan(plan: Plan, *, dearest: int = DEAREST) -> str:
    """The whole report of `plan`, with its `dearest` collectives one by one."""
    sections = [
        _header(plan),
        _notes(plan),
        _kept(plan),
        _requirements(plan),
        _baselines(plan),
        _layouts(plan),
        _collectives(plan),
        _dearest(plan.moves, dearest, plan.mesh.names),
        _transfers(plan),
        _meshes(plan),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _header(plan: Plan) -> str:
    estimate, proof = plan.estimate, plan.proof
    devices = math.prod(plan.mesh.sizes)
    exposed, _ = transfers.exposed_seconds(plan)
    rows = [
        (
            "step",
            format_seconds(estimate.step_seconds),
            f"between {format_seconds(estimate.lower_seconds)} (every collective hidden) and "
            f"{format_seconds(estimate.upper_seconds)} (none hidden)",
        ),
        *_order_rows(plan),
        (
            "compute",
            format_seconds(estimate.compute_seconds),
            f"{share(estimate.compute_seconds, estimate.step_seconds)} of the step",
        ),
        (
            "collectives",
            format_seconds(estimate.collective_seconds),
            f"{format_seconds(exposed)} of it exposed, "
            f"{share(exposed, estimate.step_seconds)} of the step",
        ),
        *work_rows(plan.work, estimate.step_seconds, devices),
        (
            "memory",
            format_bytes(estimate.peak_bytes),
            f"of {format_bytes(plan.memory_limit)} per device",
        ),
        *_memory_rows(plan),
        *transfers.header_rows(plan),
        *_product_rows(plan),
        *([("compiler", "", plan.belief)] if plan.belief else []),
        ("proof", proof.status, proof_text(plan)),
    ]
    if plan.compiled is not None:
        rows.insert(
            1,
            (
                "compiled",
                format_seconds(plan.compiled["step_seconds"]),
                f"{format_bytes(plan.compiled['peak_bytes'])} at the peak, by "
                f"XLA:{plan.compiled['compiler'].upper()}; seconds: {plan.compiled['basis']}",
            ),
        )
    title = f"{plan.title} ({counted(devices, 'device', ',')})"
    idle = [
        f"{name}={size}"
        for axis, (name, size) in enumerate(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
        if size > 1 and all(a is None or a[axis] < 0 for a in plan.decisions.assignment)
    ]
    if idle:
        rows.append(("idle", ", ".join(idle), "every device along it computes the same"))
    return bold(shorten(title)) + "\n\n" + table(rows, right=(1,), heading=False)


def proof_text(plan: Plan) -> str:
    """What is proven of the plan, and what ended the search."""
    proof = plan.proof
    stopped = "" if proof.limit_hit is None else f", {proof.limit_hit.message}"
    if proof.bound <= 0:
        return f"no bound is proven yet, in {proof.seconds:.1f} s{stopped}"
    return (
        f"no plan in the space is faster than {format_seconds(proof.bound)}: "
        f"gap {format_gap(proof.gap)} in {proof.seconds:.1f} s{stopped}"
    )


def share(part: float, whole: float) -> str:
    """A part in percent of the whole."""
    return format_percent(part / whole) if whole > 0 else "-"


def _order_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """What a step takes in the compiler's own order, where that hides collectives."""
    seconds = plan.estimate.scheduled_seconds
    if seconds is None:
        return []
    return [("", format_seconds(seconds), "in the order in which its compiler runs this plan")]


def _memory_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Where the peak is, and what it is in the compiler's own order, as far as they are known."""
    at, size = plan.estimate.peak_at, plan.estimate.scheduled_bytes
    rows = [("", "", f"at its peak in {at}")] if at else []
    if size is not None:
        order = "in the order in which its compiler runs this plan"
        rows.append(("", format_bytes(size), order))
    if not fits(plan.estimate, plan.memory_limit):
        rows.append(("", "too much", refusal(plan.estimate, plan.memory_limit)))
    return rows


def _product_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """How many products are computed otherwise than JAX writes them, where some are."""
    otherwise, by_rows = len(plan.product_orders), len(plan.row_major)
    why = "computed in another order than they are written, so that nothing large is transposed"
    rows = [("products", f"{otherwise:,}", why)] if otherwise else []
    why = "written by rows, as loops save what is read along with them"
    return [*rows, ("products", f"{by_rows:,}", why)] if by_rows else rows


def _baselines(plan: Plan) -> str:
    if not plan.baselines:
        return ""
    best = plan.estimate.step_seconds
    rows = [("scheme on this mesh", "step", "/ plan", "peak", "")]
    rows.append(
        ("this plan", format_seconds(best), "1.000", format_bytes(plan.estimate.peak_bytes), "")
    )
    for row in plan.baselines:
        if row.step_seconds is None:
            rows.append((row.name, "-", "-", "-", row.note))
            continue
        peak = "-" if row.peak_bytes is None else format_bytes(row.peak_bytes)
        ratio = f"{row.step_seconds / best:.3f}" if best > 0 else "-"
        rows.append((row.name, format_seconds(row.step_seconds), ratio, peak, row.note))
    return table(rows, right=(1, 2, 3))


def _notes(plan: Plan) -> str:
    return "\n".join(paragraph(f"note: {note}", indent=2, hanging=2) for note in plan.notes)


def _kept(plan: Plan) -> str:
    """What is saved for the backward pass, and how the program would say so itself."""
    rows = kept_rows(plan)
    if not rows:
        return ""
    said = paragraph(said_in_program(plan), indent=2, hanging=2)
    return table(rows, right=(1,)) + "\n" + said


def _requirements(plan: Plan) -> str:
    rows = []
    for one in plan.requirements:
        source = f"{one['source']}: " if one["source"] else ""
        rows.append(("kept" if one["kept"] else "dropped", f"{source}{one['text']}"))
        rows.extend(("", f"  {how}") for how in one["how"])
        for name, axes in one.get("rules", {}).items():
            rows.append(("", f"  {name}: {', '.join(axes) or 'whole'}"))
    return table([("requirement", ""), *rows]) if rows else ""


def _layouts(plan: Plan) -> str:
    rows = [("", "dimensions @ mesh axes", "per device")]
    for block in folded_layouts(plan):
        held = format_bytes(sum(line.bytes for line in block.lines))
        rows.append((f"{block.noun}s", "", held))
        rows.extend((f"  {line.path or '(all)'}", line.text, _held(line)) for line in block.lines)
    _, types, held = (max(len(row[column]) for row in rows) for column in range(3))
    widest = max(page_width() - types - held - 6, 20)
    return table([(shorten_left(path, widest), *rest) for path, *rest in rows], right=(2,))


def _held(line: Line) -> str:
    if not line.bytes:
        return ""
    each = format_bytes(line.bytes / line.copies)
    return each if line.copies == 1 else f"{line.copies:,} x {each}"


def _where(moves: Sequence[Move], width: int) -> str:
    """Source line and scope of moves that are alike."""
    place = f"{moves[0].line}  " if moves[0].line else ""
    scope = shared_scope([move.scope for move in moves])
    return place + shorten_left(scope or "(top)", max(width - len(place), 10))


def _collectives(plan: Plan) -> str:
    if not plan.moves:
        return "  no collectives: every device works alone"
    groups: dict[tuple[str, tuple[str, ...]], list[Move]] = {}
    for move in plan.moves:
        groups.setdefault((move.kind, move.axes), []).append(move)
    rows = [("collectives", "exposed", "seconds", "times", "bytes in all")]
    summed = [
        (
            sum(move.exposed_seconds for move in moves),
            sum(move.seconds for move in moves),
            sum(move.count for move in moves),
            sum(move.count * move.bytes for move in moves),
            collective_name(*key, plan.mesh.names),
        )
        for key, moves in groups.items()
    ]
    for exposed, seconds, count, size, name in sorted(summed, reverse=True):
        rows.append(
            (
                name,
                format_seconds(exposed),
                format_seconds(seconds),
                f"{count:,}",
                format_bytes(size),
            )
        )
    return table(rows, right=(1, 2, 3, 4))


def _dearest(moves: Sequence[Move], most: int, names: Sequence[str]) -> str:
    groups = alike_moves(moves)
    if not groups or most <= 0:
        return ""
    rows = [("dearest", "exposed", "seconds", "times", "bytes each")]
    for group in groups[:most]:
        rows.append(
            (
                collective_name(group[0].kind, group[0].axes, names),
                format_seconds(sum(move.exposed_seconds for move in group)),
                format_seconds(sum(move.seconds for move in group)),
                f"{sum(move.count for move in group):,}",
                format_bytes(group[0].bytes),
            )
        )
    heads, *texts = aligned(rows, right=(1, 2, 3, 4))
    left = max(map(len, (heads, *texts))) + 2
    lines = [bold(f"{heads:<{left}}where")]
    for text, group in zip(texts, groups[:most], strict=True):
        lines.append(shorten(f"{text:<{left}}{_where(group, page_width() - left)}"))
        lines.append(shorten(f"      {group[0].value}"))
    rest = groups[most:]
    if rest:
        exposed = sum(move.exposed_seconds for group in rest for move in group)
        lines.append(f"  and {len(rest)} more, {format_seconds(exposed)} exposed in all")
    return "\n".join(lines)


def _transfers(plan: Plan) -> str:
    rows = transfers.transfer_rows(plan)
    return table(rows, right=(1, 2, 3, 4)) if rows else ""


def _meshes(plan: Plan) -> str:
    considered = plan.proof.meshes
    if len(considered) < 2:
        return ""
    ordered = sorted(considered, key=lambda row: (row[2] is None, row[2] or row[1]))
    least = ordered[0][2]
    equal = [name for name, _, objective in ordered if least is not None and objective == least]
    # Axes that the plan never tells apart are merged, which may leave none of those considered.
    own = str(plan.mesh) if str(plan.mesh) in equal else next(iter(equal), "")
    rows = [("mesh considered", "bound", "best found", "")]
    for name, bound, objective in ordered:
        word = "chosen" if name == own else "as good" if name in equal else ""
        rows.append(
            (
                name,
                format_seconds(bound) if bound > 0 else "-",
                "-" if objective is None else format_seconds(objective),
                word or ("" if objective is not None or bound > 0 else "not reached"),
            )
        )
    return table(rows, right=(1, 2))
