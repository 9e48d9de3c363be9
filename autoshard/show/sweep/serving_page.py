"""The report of `autoshard serving` as one HTML file: latency against throughput, and what fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autoshard.show.document import document, fragment, head, versions
from autoshard.show.html import Cell, Column, Markup, element, join, table
from autoshard.show.sections import bytes_cell, facts, seconds_cell
from autoshard.show.sweep.curves import Curve, curves
from autoshard.show.sweep.page import number_cell
from autoshard.show.sweep.verdict import helps, sure
from autoshard.show.verdict import Answer
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.served import Served, Serving, others
from autoshard.units import counted, format_bytes, format_gap, format_seconds


def serving_page(found: Serving) -> str:
    """The whole report as an HTML document."""
    sections = [
        ("curves", "Batch against latency", _curves(found)),
        ("rows", "Decode steps", _rows(found)),
        ("limits", "Largest batch that fits", _limits(found)),
        ("unfit", "Without a plan", _unfit(found)),
        ("versions", "Versions of this report", facts(list(versions()))),
    ]
    return document(_name(found), _head(found), sections)


def serving_fragment(found: Serving) -> str:
    """What a notebook shows of an answer: the verdict, the curves, the rows, what fits."""
    rows = _rows(found), element("h3", "Largest batch that fits"), _limits(found)
    return fragment(_head(found), *([_curves(found), *rows] if found.rows else []))


def _name(found: Serving) -> str:
    return f"Serving {found.decode.program}"


def _head(found: Serving) -> Markup:
    about = f"{counted(len(found.rows), 'decode step', ',')}"
    if found.prompt is not None:
        about += f", prompts of {counted(found.prompt, 'token', ',')}"
    if found.generate is not None:
        about += f", {counted(found.generate, 'token', ',')} made for each"
    answers = tuple(_answers(found))
    return head(_name(found), about, _line(found, answers), answers)


def _line(found: Serving, answers: Sequence[Answer]) -> str:
    """All answers in a sentence."""
    fits, fast, *rest = answers
    said = f"{fits.said} {'has' if fits.said.startswith('1 of') else 'have'} a plan"
    if not rest:
        return f"{said}, {fast.said}."
    near, binds, help_ = rest
    row = found.within(found.latency)[0].row
    where = f"{row.machine} {others(row)}".strip()
    return (
        f"{said}; best: {where}, batch {row.sizes['batch']}, {fast.said}; {near.said}; bound by "
        f"{binds.said}; what would help most: {help_.said}."
    )


def _answers(found: Serving) -> list[Answer]:
    fits = sum(one.row.fits for one in found.rows)
    answers = [
        Answer(
            "What fits?",
            f"{fits} of {counted(len(found.rows), 'decode step')}",
            _room(found),
            fits > 0,
        )
    ]
    best = found.within(found.latency)
    limit = "" if found.latency is None else f" within {format_seconds(found.latency)} a token"
    if not best:
        return [*answers, Answer("How fast?", f"none{limit}", "", False)]
    row = best[0].row
    rate = row.tokens_per_second or 0.0
    detail = (
        f"{row.machine} {others(row)} at batch {row.sizes['batch']}, on mesh {row.mesh}: "
        f"{format_seconds(row.step_seconds or 0.0)} a token, {rate:,.0f} tokens/s"
    )
    if best[0].first_seconds is not None:
        detail += (
            f"; the first token after {format_seconds(best[0].first_seconds)} at least (prefill "
            f"of {found.prompts} x {found.prompt} tokens)"
        )
    said = f"{rate / row.chips:,.0f} tokens/s/chip{limit}"
    answers.append(Answer("How fast?", said, detail))
    answers.append(sure(row))
    answers.append(Answer("What binds?", row.binds or "not known", "of that decode step"))
    return [*answers, _more(found, row)]


def _more(found: Serving, row: Row) -> Answer:
    """What would help the best step most: another batch or size first, as one can choose it."""
    told = helps(row, [one.row for one in found.rows])
    longer = [
        one.row.step_seconds
        for one in found.rows
        if found.latency is not None
        and one.row.machine == row.machine
        and told.said == f"batch={one.row.sizes['batch']}"
        and (one.row.step_seconds or 0.0) > found.latency
    ]
    if not longer or found.latency is None:
        return told
    beyond = f"more than the {format_seconds(found.latency)} that were asked for"
    return replace(told, detail=told.detail.replace(" a step", f" a token, {beyond}", 1))


def _room(found: Serving) -> str:
    most = max(found.limits, key=lambda one: one.tokens or 0, default=None)
    if most is None or most.tokens is None:
        return ""
    return f"up to {counted(most.tokens, 'token', ',')} in the cache of {most.machine}"


def _curves(found: Serving) -> Markup | None:
    lines: dict[str, list[tuple[tuple[float, float], str]]] = {}
    for one in found.rows:
        row = one.row
        if row.step_seconds is not None and row.tokens_per_second_per_chip:
            name = f"{row.machine} {others(row)}".strip()
            point = (1e3 * row.step_seconds, row.tokens_per_second_per_chip)
            said = (
                f"{name}: batch {row.sizes['batch']}, {format_seconds(row.step_seconds)} a token, "
                f"{row.tokens_per_second_per_chip:,.0f} tokens/s/chip"
            )
            lines.setdefault(name, []).append((point, said))
    drawn = [
        Curve(name, *zip(*sorted(points), strict=True)) for name, points in lines.items() if points
    ]
    if not any(len(one.points) > 1 for one in drawn):
        return None
    limit = None if found.latency is None else 1e3 * found.latency
    return join(
        curves(drawn, "milliseconds a token", "tokens/s/chip", limit=limit),
        element("p", "Each point is a batch; to the right and up, the batch grows.", class_="soft"),
    )


def _rows(found: Serving) -> Markup:
    chosen = {id(one) for one in found.within(found.latency)}
    names = [name for name in found.rows[0].row.sizes if name != "batch"]
    priced = any(one.cost_per_million_tokens is not None for one in found.rows)
    columns = [
        Column("best"),
        Column("machine", name=True),
        *(Column(name, True) for name in names),
        *(Column(name, True) for name in ("batch", "a token", "tokens/s", "tokens/s/chip")),
        *(Column(name, True) for name in ("memory", "gap", "first token", "requests/s")),
        *([Column(f"{found.decode.prices.currency}/Mtok", True)] if priced else []),
        Column("binds"),
        Column("mesh"),
    ]
    machines = list(dict.fromkeys(one.row.machine for one in found.rows))
    fit = [one for one in found.rows if one.row.fits]
    fit.sort(key=lambda one: (machines.index(one.row.machine), others(one.row)))
    rows = [_row(one, names, id(one) in chosen, priced) for one in fit]
    return table(columns, rows, sorts=True)


def _row(one: Served, names: list[str], best: bool, priced: bool) -> tuple[Cell | str, ...]:
    row = one.row

    def size(value: Any) -> Cell:
        return Cell(str(value), value if isinstance(value, int | float) else None)

    return (
        "●" if best else "",
        row.machine,
        *(size(row.sizes[name]) for name in names),
        size(row.sizes["batch"]),
        seconds_cell(row.step_seconds),
        number_cell(row.tokens_per_second, "{:,.0f}"),
        number_cell(row.tokens_per_second_per_chip, "{:,.0f}"),
        bytes_cell(row.peak_bytes),
        Cell(format_gap(row.gap or 0.0), row.gap),
        seconds_cell(one.first_seconds),
        number_cell(one.requests_per_second),
        *([number_cell(one.cost_per_million_tokens)] if priced else []),
        row.binds or "",
        row.mesh or "",
    )


def _limits(found: Serving) -> Markup | None:
    columns = [
        Column("machine", name=True),
        Column("sizes"),
        Column("limit", True),
        Column("batch", True),
    ]
    columns += [Column("tokens in the cache", True), Column("does not fit", True)]
    rows = [
        (
            one.machine,
            ", ".join(f"{name} {value}" for name, value in one.sizes.items()),
            Cell(format_bytes(one.limit_bytes), one.limit_bytes),
            number_cell(one.batch, "{:,}"),
            number_cell(one.tokens, "{:,}"),
            number_cell(one.refused, "{:,}"),
        )
        for one in found.limits
    ]
    return table(columns, rows, sorts=True) if rows else None


def _unfit(found: Serving) -> Markup | None:
    rows = [*found.decode.rows, *(found.prefill.rows if found.prefill is not None else ())]
    lines = [(str(row), row.why or row.status) for row in rows if not row.fits]
    return table([Column("step"), Column("why", words=True)], lines) if lines else None
