"""Two plans side by side, as one HTML file that asks the network for nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

from autoshard.plan.plan import Plan
from autoshard.plan.text.layouts import folded_layouts
from autoshard.plan.text.moves import collective_name
from autoshard.plan.text.transfers import exposed_seconds
from autoshard.plan.work import work_texts
from autoshard.show.document import document, head
from autoshard.show.html import Cell, Column, Markup, element, join, table
from autoshard.show.plots import Bar, bars, legend
from autoshard.show.sections import bytes_cell, seconds_cell
from autoshard.show.verdict import Answer, verdict
from autoshard.units import counted, format_bytes, format_percent, format_seconds

NAMES = ("A", "B")


def compared(first: Plan, second: Plan) -> str:
    """The page: which is faster and by what, then figures, collectives and layouts beside another.

    Args:
      first, second: plans for one mesh each, of one program or of two.
    """
    plans = (first, second)
    body = [
        ("figures", "Figures", _figures(plans)),
        ("seconds", "Where the step goes", _seconds(plans)),
        ("collectives", "Collectives", _collectives(plans)),
        ("layouts", "Layouts that differ", _layouts(plans)),
        ("notes", "Notes", _notes(plans)),
    ]
    about = "; ".join(f"{name}: {plan.title}" for name, plan in zip(NAMES, plans, strict=True))
    answers = [_faster(plans), _smaller(plans), _surer(plans)]
    line = f"{answers[0].said}; {answers[1].said}."
    name = " and ".join(dict.fromkeys(plan.program for plan in plans))
    return document(f"Two plans: {name}", head("Two plans", about, line, answers), body)


Plans = tuple[Plan, Plan]


def _faster(plans: Plans) -> Answer:
    steps = [plan.estimate.step_seconds for plan in plans]
    said = _less(steps, "takes the same time as", "is faster")
    if max(steps) > 2 * min(steps) > 0:
        said = f"{NAMES[steps.index(min(steps))]} is {max(steps) / min(steps):.2f} times as fast"
    detail = f"{' and '.join(map(format_seconds, steps))} a step"
    chips = list(map(_chips, plans))
    if chips[0] != chips[1]:
        work = _less(_chip_seconds(plans), "takes as many chip-seconds as", "takes less of them")
        spent = " and ".join(map(format_seconds, _chip_seconds(plans)))
        detail += f", on {chips[0]:,} and {chips[1]:,} chips: {spent} of chips; {work}"
    for name, plan in zip(NAMES, plans, strict=True):
        if told := work_texts(plan.work, plan.estimate.step_seconds, _chips(plan)):
            detail += f"; {name}: {'; '.join(told)}"
    return Answer("Which is faster?", said, detail)


def _chips(plan: Plan) -> int:
    return math.prod(plan.mesh.sizes)


def _chip_seconds(plans: Plans) -> list[float]:
    return [plan.estimate.step_seconds * _chips(plan) for plan in plans]


def _smaller(plans: Plans) -> Answer:
    peaks = [float(plan.estimate.expected_bytes) for plan in plans]
    said = _less(peaks, "takes the same memory as", "takes less memory")
    detail = " and ".join(map(format_bytes, peaks))
    return Answer("Which is smaller?", said, f"{detail} per device at the peak")


def _surer(plans: Plans) -> Answer:
    told = [next(a for a in verdict(p).answers if a.question == "How sure?") for p in plans]
    said = "; ".join(f"{name}: {one.said}" for name, one in zip(NAMES, told, strict=True))
    same = plans[0].fingerprint == plans[1].fingerprint
    words = (
        "each of the plans of the same program"
        if same
        else "the plans were made for programs that differ in code, shapes or what the backward "
        "pass is left: a step of one may do other work than a step of the other"
    )
    return Answer("How sure?", said, words)


def _less(values: list[float], same: str, better: str) -> str:
    low, high = sorted(values)
    if high <= low * (1 + 1e-9):
        return f"A {same} B"
    share = f", by {format_percent(1 - low / high)}" if high > 0 else ""
    return f"{NAMES[values.index(low)]} {better}{share}"


def _columns(what: str, *, name: bool = False) -> list[Column]:
    return [Column(what, name=name), *(Column(name, True) for name in NAMES), Column("B - A", True)]


def _row(name: str, values: list[float], cell: Callable[[float], Cell]) -> tuple[str | Cell, ...]:
    change = values[1] - values[0]
    sign = "+" if change > 0 else "-" if change < 0 else ""
    return (name, *map(cell, values), Cell(f"{sign}{cell(abs(change)).text}", change))


def _figures(plans: Plans) -> Markup:
    estimates = [plan.estimate for plan in plans]
    timed = {
        "step": [one.step_seconds for one in estimates],
        "step, of all chips together": _chip_seconds(plans),
        "proven bound": [plan.proof.bound for plan in plans],
        "compute": [one.compute_seconds for one in estimates],
        "collectives": [one.collective_seconds for one in estimates],
        "collectives, exposed": [exposed_seconds(plan)[0] for plan in plans],
    }
    if any(plan.transfers for plan in plans):
        timed["transfers"] = [one.transfer_seconds for one in estimates]
        timed["transfers, exposed"] = [exposed_seconds(plan)[1] for plan in plans]
    sized = {
        "peak": [float(one.peak_bytes) for one in estimates],
        "peak as compiled": [float(one.expected_bytes) for one in estimates],
        "limit": [plan.memory_limit for plan in plans],
    }
    if any(one.host_bytes for one in estimates):
        sized["host memory"] = [float(one.host_bytes) for one in estimates]
    rows = [_row(name, values, seconds_cell) for name, values in timed.items()]
    rows += [_row(name, values, bytes_cell) for name, values in sized.items()]
    rows += _throughput(plans)
    words = [
        (name, *(get(plan) for plan in plans))
        for name, get in (
            ("program", lambda plan: plan.program),
            ("machine", lambda plan: plan.machine),
            ("mesh", lambda plan: str(plan.mesh)),
            ("chips", lambda plan: f"{_chips(plan):,}"),
        )
    ]
    columns = [Column(""), *(Column(name, words=True) for name in NAMES)]
    return join(table(columns, words), table(_columns("figure"), rows, sorts=True))


def _throughput(plans: Plans) -> list[tuple[str | Cell, ...]]:
    """Tokens a second, of one chip, and MFU, where both plans know them."""
    works = [plan.work for plan in plans if plan.work is not None]
    if len(works) < len(plans):
        return []
    steps = [plan.estimate.step_seconds for plan in plans]
    rows = []
    if min(steps) > 0 and all(work.tokens for work in works):
        rates = [(work.tokens or 0) / step for work, step in zip(works, steps, strict=True)]
        each = [rate / _chips(plan) for rate, plan in zip(rates, plans, strict=True)]
        rows.append(_row("tokens/s", rates, lambda rate: Cell(f"{rate:,.0f}", rate)))
        rows.append(_row("tokens/s of a chip", each, lambda rate: Cell(f"{rate:,.0f}", rate)))
    used = [work.utilisation(step) for work, step in zip(works, steps, strict=True)]
    rows.append(_row("MFU", used, lambda share: Cell(format_percent(share), share)))
    return rows


def _seconds(plans: Plans) -> Markup:
    rows = []
    for name, plan in zip(NAMES, plans, strict=True):
        estimate = plan.estimate
        exposed, moved = exposed_seconds(plan)
        parts = ((0, estimate.compute_seconds), (3, exposed), (5, moved))
        rows.append(Bar(name, parts, format_seconds(estimate.step_seconds)))
    named = [(0, "compute"), (3, "collectives that compute does not hide")]
    named += [(5, "transfers that it does not hide")] if any(p.transfers for p in plans) else []
    return join(legend(named), bars(rows))


def _collectives(plans: Plans) -> Markup:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for number, plan in enumerate(plans):
        for move in plan.moves:
            sums[collective_name(move.kind, move.axes, plan.mesh.names)][number] += (
                move.exposed_seconds
            )
    if not sums:
        return element("p", "No collectives in either.")
    ranked = sorted(sums.items(), key=lambda one: -max(one[1]))
    rows = [_row(name, values, seconds_cell) for name, values in ranked]
    said = element("p", "Exposed seconds of a step, by kind and mesh axes.", class_="soft")
    return join(said, table(_columns("collective", name=True), rows, sorts=True))


def _layouts(plans: Plans) -> Markup:
    texts: list[dict[str, str]] = []
    for plan in plans:
        blocks = folded_layouts(plan)
        texts.append({f"{b.noun} {line.path}": line.text for b in blocks for line in b.lines})
    paths = dict.fromkeys([*texts[0], *texts[1]])
    rows = [
        (path, *(side.get(path, "-") for side in texts))
        for path in paths
        if texts[0].get(path) != texts[1].get(path)
    ]
    if not rows:
        return element("p", "None: all inputs and outputs lie alike.")
    alike = len(paths) - len(rows)
    columns = [Column("input or output", code=True), *(Column(n, code=True) for n in NAMES)]
    said = f"{counted(len(rows), 'line', ',')} of the folded trees otherwise, {alike:,} alike."
    return join(element("p", said, class_="soft"), table(columns, rows))


def _notes(plans: Plans) -> Markup | None:
    noted = [
        element("p", f"{name}: {note}.")
        for name, plan in zip(NAMES, plans, strict=True)
        for note in plan.notes
    ]
    return join(*noted) if noted else None
