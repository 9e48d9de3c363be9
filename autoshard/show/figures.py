"""Figures of all benchmarks as a page and as Markdown, beside peers and targets."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoshard.show.document import document, head, versions
from autoshard.show.html import Cell, Column, Markup, element, table
from autoshard.show.sections import facts
from autoshard.show.verdict import Answer
from autoshard.study.figures import Figure
from autoshard.units import counted

Figures = Sequence[Figure]


def figures_page(
    figures: Figures, about: Mapping[str, Any], worse: Sequence[str] | None = None
) -> str:
    """One HTML file that asks the network for nothing.

    Args:
      figures: what was measured.
      about: how they were measured.
      worse: what got worse against an earlier run, a line each; None if there is none to compare.
    """
    sections: list[tuple[str, str, Markup | None]] = [
        (part, part.capitalize(), _table([one for one in figures if one.part == part]))
        for part in dict.fromkeys(one.part for one in figures)
    ]
    if worse:
        listed = element("ul", *(element("li", one) for one in worse))
        sections.insert(0, ("worse", "Worse than before", listed))
    sections.append(("about", "Machine, versions and date", facts(list(surroundings(about)))))
    with_target = [one for one in figures if one.met is not None]
    met = sum(one.met is True for one in with_target)
    answers = [
        Answer("Targets", f"{met} of {len(with_target)} met", _missed(with_target),
               met == len(with_target)),
        Answer("Answers", f"{sum(one.value is not None for one in figures)} of {len(figures)}",
               "figures that came to a number"),
    ]  # fmt: skip
    if worse is not None:
        answers.append(Answer("Regressions", str(len(worse)), "", not worse))
    line = f"{answers[0].said} of the figures that have a target{_quickly(about)}."
    name = "Benchmarks of autoshard"
    return document(name, head(name, _today(), line, answers), sections)


def figures_markdown(figures: Figures, about: Mapping[str, Any]) -> str:
    """The same as Markdown, for a file in a repository."""
    lines = ["# Results", "", f"Written by `autoshard bench all --markdown`{_quickly(about)}.", ""]
    if about.get("quick"):
        lines += [
            "This is a quick run: few rows, and little time for each. The full benchmarks come to "
            "other figures.",
            "",
        ]
    for part in dict.fromkeys(one.part for one in figures):
        lines += [
            f"## {part.capitalize()}",
            "",
            "| row | figure | ours | better | peer | target | note |",
        ]
        lines.append("|---|---|---:|---|---:|---:|---|")
        for one in figures:
            if one.part == part:
                cells = (one.row, one.figure, _value(one) or "-", one.better,
                         _peer(one), _target(one), one.note)  # fmt: skip
                text = " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
                lines.append(f"| {text} |")
        lines.append("")
    lines += ["## Machine, versions and date", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {said} |" for name, said in surroundings(about)]
    return "\n".join(lines) + "\n"


def surroundings(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Date, processor, memory, load, versions, and how was measured."""
    found = [
        ("date", _today()),
        ("processor", f"{_processor()}, {counted(len(os.sched_getaffinity(0)), 'core')}"),
        ("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"),
        ("load when written", f"{os.getloadavg()[1]:.1f} over 5 minutes"),
        ("system", platform.platform()),
    ]
    return [*found, *versions(), *((name, str(value)) for name, value in about.items())]


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _quickly(about: Mapping[str, Any]) -> str:
    return ", in a quick run" if about.get("quick") else ""


def _missed(figures: Figures) -> str:
    missed = [f"{one.row}: {one.figure}" for one in figures if not one.met]
    shown = "; ".join(missed[:3]) + (f"; and {len(missed) - 3} more" if missed[3:] else "")
    return f"missed: {shown}" if missed else ""


def _table(figures: Figures) -> Markup:
    columns = [
        Column("row"),
        Column("figure"),
        Column("ours", True),
        Column("better"),
        Column("peer"),
        Column("peer's", True),
        Column("target", True),
        Column(""),
        Column("note", words=True),
    ]
    words = {True: "met", False: "missed", None: ""}
    rows = [
        (
            one.row,
            one.figure,
            Cell(_value(one) or "-", one.value),
            one.better,
            one.peer,
            Cell(_shown(one.peer_value), one.peer_value),
            Cell(_target(one), one.target),
            element("span", words[one.met], class_="good" if one.met else "bad"),
            one.note,
        )
        for one in figures
    ]
    return table(columns, rows, sorts=True)


def _value(one: Figure) -> str:
    return f"{_shown(one.value)} {one.unit}".strip()


def _peer(one: Figure) -> str:
    return "" if one.peer_value is None else f"{_shown(one.peer_value)} ({one.peer})"


def _target(one: Figure) -> str:
    sign = "≤" if one.better == "less" else "≥"
    return "" if one.target is None else f"{sign} {_shown(one.target)}"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"
