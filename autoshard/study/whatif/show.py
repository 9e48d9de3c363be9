"""How a sweep looks: the rows that fit, the best first, those that do not and why, and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoshard.study.whatif.answers import break_even, efficient, largest_sizes, smallest_clusters
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.table import WhatIf
from autoshard.terminal import paragraph, table
from autoshard.units import counted, format_bytes, format_gap, format_percent, format_seconds


def format_sweep(sweep: WhatIf) -> str:
    """The whole report of a sweep, with one line per row."""
    sections = [
        paragraph(_verdict(sweep), hanging=2),
        _rows(sweep),
        paragraph(_slow(sweep)),
        copies(sweep.rows),
        _unfit(sweep),
        _clusters(sweep),
        _sizes(sweep),
        _worth(sweep),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _verdict(sweep: WhatIf) -> str:
    fits = sum(row.fits for row in sweep.rows)
    text = f"{sweep.program}: {counted(len(sweep.rows), 'row')}, {fits} with a plan"
    if sweep.interrupted:
        text += f"; interrupted, {sweep.asked - len(sweep.rows)} not answered"
    best = sweep.best
    if best is not None and best.step_seconds is not None:
        step = format_seconds(best.step_seconds)
        text += f"; best by {sweep.objective}: {best}, {step} a step, bound by {best.binds}"
    return text


def _rows(sweep: WhatIf) -> str:
    front = efficient(sweep)
    marked = {id(sweep.rows[number]) for number in front}
    priced = any(sweep.cost_per_hour(row) is not None for row in sweep.rows)
    powered = sweep.objective == "energy"
    head = ["", "machine", "sizes", "step", "tok/s/chip", "MFU", "memory", "gap", "binds"]
    head += [f"{sweep.prices.currency}/Mtok"] if priced else []
    head += ["J/tok"] if powered else []
    head += ["days"] if sweep.train_tokens is not None else []
    head += [sweep.prices.currency] if sweep.train_tokens is not None and priced else []
    rows = [[*head, "mesh"]]
    for row in sweep.ranked():
        assert row.step_seconds is not None
        assert row.peak_bytes is not None
        rate = row.tokens_per_second_per_chip
        line = [
            "*" if id(row) in marked else "",
            row.machine,
            _question(sweep, row.sizes, row.limit_bytes),
            format_seconds(row.step_seconds),
            "-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}",
            "-" if row.utilisation is None else format_percent(row.utilisation),
            format_bytes(row.peak_bytes),
            format_gap(row.gap or 0.0),
            row.binds or "",
        ]
        if priced:
            line.append(_amount(sweep.cost_per_million_tokens(row)))
        if powered:
            line.append(_amount(sweep.joules_per_token(row)))
        if sweep.train_tokens is not None:
            days = sweep.days(row)
            line.append("-" if days is None else f"{days:,.1f}")
            cost = sweep.run_cost(row)
            line += [("-" if cost is None else f"{cost:,.0f}")] if priced else []
        rows.append([*line, row.mesh or ""])
    if len(rows) == 1:
        return ""
    columns = [3, 4, 5, 6, 7, *range(9, len(head))]
    return table(rows, right=columns, indent=0) + "\n* no other row is both faster and cheaper"


def _slow(sweep: WhatIf) -> str:
    """How many rows are slower than the latency, and the quickest where all are."""
    if sweep.latency is None:
        return ""
    slow = [row for row in sweep.rows if (row.step_seconds or 0.0) > sweep.latency]
    if not slow:
        return ""
    quickest = min(slow, key=lambda row: row.step_seconds or 0.0)
    step = format_seconds(quickest.step_seconds or 0.0)
    text = f"slower than {format_seconds(sweep.latency)} a step: {counted(len(slow), 'row')}"
    return f"{text}, the quickest of them {quickest} with {step}"


def copies(rows: Iterable[Row]) -> str:
    """What rows say of copies that the compiler makes: a line for each that says another thing."""
    said: dict[str, list[Row]] = {}
    for row in rows:
        if row.copies:
            said.setdefault(row.copies, []).append(row)
    lines = [
        paragraph(f"{alike[0]}{_and_more(len(alike) - 1)}: {text}", indent=2, hanging=4)
        for text, alike in said.items()
    ]
    return "\n".join(["copies:", *lines]) if lines else ""


def _and_more(count: int) -> str:
    return f" and {counted(count, 'more row')}" if count else ""


def _unfit(sweep: WhatIf) -> str:
    lines = []
    for row in sweep.rows:
        if not row.fits:
            text = f"{row.machine} {_question(sweep, row.sizes, row.limit_bytes)}: {row.why}"
            lines.append(paragraph(text, indent=2, hanging=4))
    return "\n".join(["without a plan:", *lines]) if lines else ""


def _clusters(sweep: WhatIf) -> str:
    found = smallest_clusters(sweep)
    if len({row.chips for row in sweep.rows}) < 2:
        return ""
    rows = [["smallest cluster that fits", "", ""]]
    for one in found:
        most = one["most_tried"]
        fits = one["machine"] or f"none up to {counted(most, 'chip', ',')}"
        words = _question(sweep, one["sizes"], one["limit_bytes"])
        rows.append([f"  {one['chip']}", words, fits])
    return table(rows, indent=0)


def _sizes(sweep: WhatIf) -> str:
    rows = [["largest size that fits", "", ""]]
    for one in largest_sizes(sweep):
        largest = one["largest"]
        fits = f"{one['size']}={largest}" if largest is not None else f"no {one['size']}"
        more = " (the largest tried)" if largest == one["most_tried"] else ""
        words = _question(sweep, one["sizes"], one["limit_bytes"])
        rows.append([f"  {one['machine']}", words, fits + more])
    return table(rows, indent=0) if len(rows) > 1 else ""


def _worth(sweep: WhatIf) -> str:
    found = break_even(sweep)
    if len({one["chip"] for one in found}) < 2:
        return ""
    rows = [["break-even: what a chip-hour is worth, each kind at its best", "", "", ""]]
    for one in found:
        price = one["chip_hour"]
        rows.append(
            [
                f"  {one['chip']}",
                _words({**one["work"], **({"batch": one["batch"]} if one["batch"] else {})}),
                f"{one['worth']:.2f} hours of {one['in_hours_of']}, on {one['machine']}",
                "" if price is None else f"even at {_amount(price)} {sweep.prices.currency}",
            ]
        )
    return table(rows, indent=0)


def _question(sweep: WhatIf, sizes: Mapping[str, Any], limit: float) -> str:
    """The sizes, and the limit where the sweep has several for a chip."""
    limits = {(row.chip, row.limit_bytes) for row in sweep.rows}
    if len(limits) == len({row.chip for row in sweep.rows}):
        return _words(sizes)
    return f"{_words(sizes)} limit={format_bytes(limit).replace(' ', '')}".strip()


def _words(sizes: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def _amount(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g}"
