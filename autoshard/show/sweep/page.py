"""The report of a sweep as one HTML file that asks the network for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.show.document import document, fragment, head, versions
from autoshard.show.html import Cell, Column, Markup, element, join, table
from autoshard.show.plots import Bar, bars
from autoshard.show.sections import bytes_cell, facts, seconds_cell
from autoshard.show.sweep.pareto import pareto_section
from autoshard.show.sweep.verdict import sweep_verdict
from autoshard.study.whatif.answers import break_even, efficient, largest_sizes, smallest_clusters
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.table import WhatIf
from autoshard.units import counted, format_bytes, format_gap, format_percent


def sweep_page(sweep: WhatIf) -> str:
    """The whole report of a sweep as an HTML document."""
    sections = [
        ("pareto", "Speed against cost", pareto_section(sweep)),
        ("rows", "Rows, the best first", _rows(sweep)),
        ("binds", "What binds", _binds(sweep)),
        ("clusters", "Smallest clusters that fit", _clusters(sweep)),
        ("sizes", "Largest sizes that fit", _sizes(sweep)),
        ("even", "Break-even of chips", _worth(sweep)),
        ("unfit", "Without a plan", _unfit(sweep)),
        ("versions", "Versions of this report", facts(list(versions()))),
    ]
    return document(_name(sweep), _head(sweep), sections)


def sweep_fragment(sweep: WhatIf) -> str:
    """What a notebook shows of a sweep: the verdict, the picture, the rows."""
    return fragment(_head(sweep), *([pareto_section(sweep), _rows(sweep)] if sweep.rows else []))


def _name(sweep: WhatIf) -> str:
    return f"{sweep.program}: a sweep" if sweep.program != "a sweep" else "A sweep"


def _head(sweep: WhatIf) -> Markup:
    if not sweep.rows:
        return head(_name(sweep), "", "No row was asked for.", ())
    told = sweep_verdict(sweep)
    count = f"{counted(len(sweep.rows), 'row', ',')}: {_swept(sweep)}"
    return head(_name(sweep), count, told.line, told.answers)


def _swept(sweep: WhatIf) -> str:
    """The values that were combined."""
    values: dict[str, dict[str, None]] = {}
    for row in sweep.rows:
        for name, value in (("chip", row.chip), ("chips", row.chips), *row.sizes.items()):
            values.setdefault(name, {})[str(value)] = None
    limits = {row.limit_bytes for row in sweep.rows}
    if len(limits) > len({row.chip for row in sweep.rows}):
        values["limit"] = {format_bytes(limit): None for limit in sorted(limits)}
    return "; ".join(f"{name} {', '.join(found)}" for name, found in values.items())


def number_cell(value: float | None, shape: str = "{:,.3g}") -> Cell:
    """A number, sorted as such."""
    return Cell("-" if value is None else shape.format(value), value)


def _share_cell(share: float | None) -> Cell:
    return Cell("-" if share is None else format_percent(share), share)


def _rows(sweep: WhatIf) -> Markup | None:
    ranked = sweep.ranked()
    if not ranked:
        return None
    front = {id(sweep.rows[number]) for number in efficient(sweep)}
    names = list(ranked[0].sizes)
    priced = any(sweep.cost_per_hour(row) is not None for row in ranked)
    powered = any(sweep.joules_per_token(row) is not None for row in ranked)
    running = sweep.train_tokens is not None
    money = sweep.prices.currency
    columns = [
        Column("front"),
        Column("machine", name=True),
        Column("chips", True),
        *(Column(name, True) for name in names),
        Column("step", True),
        Column("bound", True),
        Column("gap", True),
        Column("tokens/s a chip", True),
        Column("MFU", True),
        Column("memory", True),
        *([Column(f"{money}/Mtok", True)] if priced else []),
        *([Column("J/token", True)] if powered else []),
        *([Column("days", True)] if running else []),
        *([Column(f"run, {money}", True)] if running and priced else []),
        Column("binds"),
        Column("mesh"),
        Column("layouts", code=True),
    ]
    lines = [
        (
            "●" if id(row) in front else "",
            row.machine,
            number_cell(row.chips, "{:,}"),
            *(_size(row.sizes.get(name)) for name in names),
            seconds_cell(row.step_seconds),
            seconds_cell(row.bound_seconds or None),
            Cell(format_gap(row.gap or 0.0), row.gap),
            number_cell(row.tokens_per_second_per_chip, "{:,.0f}"),
            _share_cell(row.utilisation),
            bytes_cell(row.peak_bytes),
            *([number_cell(sweep.cost_per_million_tokens(row))] if priced else []),
            *([number_cell(sweep.joules_per_token(row))] if powered else []),
            *([number_cell(sweep.days(row), "{:,.1f}")] if running else []),
            *([number_cell(sweep.run_cost(row), "{:,.0f}")] if running and priced else []),
            row.binds or "",
            row.mesh or "",
            row.layouts or "",
        )
        for row in ranked
    ]
    slow = sum(row.fits for row in sweep.rows) - len(ranked)
    said = (
        "● on the front: no other row of equal work is both faster and cheaper. Layouts: what "
        "share of the state is sharded in which way, an entry for each dimension."
    )
    if slow:
        said += f" Left out: {counted(slow, 'row')} slower than {sweep.latency:g} s a step."
    return join(element("p", said, class_="soft"), table(columns, lines, sorts=True))


def _size(value: Any) -> Cell:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(f"{value:,}" if number else str(value), float(value) if number else None)


def _binds(sweep: WhatIf) -> Markup | None:
    """What a tenth more of each resource saves, of the best row of every chip."""
    best: dict[str, Row] = {}
    for row in sweep.ranked():
        if row.saved_seconds:
            best.setdefault(row.chip, row)
    if not best:
        return None
    blocks: list[Markup] = [
        element(
            "p",
            "What a tenth more of each resource saves of a step, the plan as it is, in the best "
            "row of every kind of chip.",
            class_="soft",
        )
    ]
    most = max(
        seconds / (row.step_seconds or 1.0)
        for row in best.values()
        for seconds in row.saved_seconds.values()
    )
    for row in best.values():
        step = row.step_seconds or 1.0
        shares = sorted(row.saved_seconds.items(), key=lambda item: -item[1])
        drawn = [
            Bar(name, ((number % 8, seconds / step),), format_percent(seconds / step, ".2f"))
            for number, (name, seconds) in enumerate(shares)
        ]
        blocks += [element("h3", str(row)), bars(drawn, most=most)]
    return join(*blocks)


def _question(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sizes.items())


def _clusters(sweep: WhatIf) -> Markup | None:
    if len({row.chips for row in sweep.rows}) < 2:
        return None
    columns = [Column("chip"), Column("sizes"), Column("limit", True), Column("chips", True)]
    columns.append(Column("machine", name=True))
    rows = [
        (
            one["chip"],
            _question(one["sizes"]),
            bytes_cell(one["limit_bytes"]),
            number_cell(one["chips"], "{:,}"),
            one["machine"] or "none up to " + counted(one["most_tried"], "chip", ","),
        )
        for one in smallest_clusters(sweep)
    ]
    return table(columns, rows, sorts=True)


def _sizes(sweep: WhatIf) -> Markup | None:
    found = largest_sizes(sweep)
    columns = [
        Column("machine", name=True),
        Column("other sizes"),
        Column("limit", True),
        Column("size"),
    ]
    columns += [Column("largest", True), Column("")]
    rows = [
        (
            one["machine"],
            _question(one["sizes"]),
            bytes_cell(one["limit_bytes"]),
            one["size"],
            number_cell(one["largest"], "{:,}"),
            "the largest tried" if one["largest"] == one["most_tried"] else "",
        )
        for one in found
    ]
    return table(columns, rows, sorts=True) if rows else None


def _worth(sweep: WhatIf) -> Markup | None:
    found = break_even(sweep)
    if len({one["chip"] for one in found}) < 2:
        return None
    columns = [
        Column("work"),
        Column("chip"),
        Column("its best machine", name=True),
        Column("batch", True),
        Column("tokens/s/chip", True),
        Column("an hour is worth", True),
        Column(f"even at, {sweep.prices.currency} a chip-hour", True),
    ]
    rows = [
        (
            _question(one["work"]),
            one["chip"],
            one["machine"],
            number_cell(one["batch"], "{:,}"),
            number_cell(one["tokens_per_second_per_chip"], "{:,.0f}"),
            Cell(f"{one['worth']:.2f} of {one['in_hours_of']}", one["worth"]),
            number_cell(one["chip_hour"]),
        )
        for one in found
    ]
    said = (
        "Each kind of chip at its best; at these ratios of prices a token costs the same on both."
    )
    return join(element("p", said, class_="soft"), table(columns, rows, sorts=True))


def _unfit(sweep: WhatIf) -> Markup | None:
    columns = [
        Column("machine", name=True),
        Column("sizes"),
        Column("limit", True),
        Column("why", words=True),
    ]
    rows = [
        (row.machine, _question(row.sizes), bytes_cell(row.limit_bytes), row.why or row.status)
        for row in sweep.rows
        if not row.fits
    ]
    return table(columns, rows, sorts=True) if rows else None
