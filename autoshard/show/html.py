"""HTML (and SVG inside of it) as values: what is text is escaped, and only `Markup` is not.

element("p", "a < b", class_="note")  ->  <p class="note">a &lt; b</p>
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.units import visible

VOID = frozenset({"meta", "wbr", "br"})
_OPTION = re.compile(r"(?<!\S)(--[a-z][\w-]*(?: [\w.@=,:*-]*\w)?)")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None


def element(tag: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element; children that are None, and attributes that are None or False, are left out.

    A trailing underscore of an attribute's name is dropped, other underscores become hyphens.
    """
    opened = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        written = name.rstrip("_").replace("_", "-")
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        opened.append(written if value is True else f'{written}="{html.escape(visible(text))}"')
    start = f"<{' '.join(opened)}>"
    return Markup(start if tag in VOID else f"{start}{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Children one after the other; text is escaped."""
    return Markup("".join(_escaped(child) for child in children if child is not None))


def _escaped(child: str) -> str:
    return child if isinstance(child, Markup) else html.escape(visible(child))


def in_pieces(text: str, tag: str) -> Iterator[Child]:
    """A text whose options, such as `--remat search`, are elements that stay in one line."""
    if isinstance(text, Markup):
        yield text
        return
    for k, part in enumerate(_OPTION.split(text)):
        yield element(tag, part, class_="whole") if k % 2 else part


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: what stands there, and the number by which its column is sorted."""

    text: str
    order: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and whether it holds numbers, code, sentences, or unbroken names."""

    heading: str
    number: bool = False
    code: bool = False
    words: bool = False
    name: bool = False


ABREAST = 4
"""Columns of numbers that a narrow screen has beside each other."""


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], *, sorts: bool = False
) -> Markup:
    """A table in a box that scrolls; with `sorts`, a click on a heading sorts it.

    One of more than `ABREAST` columns, or as many with texts in them, is on a narrow screen a list
    of its rows: every cell in a line of its own, after the heading of its column.
    """
    texts = any(column.code or column.words or column.name for column in columns)
    cards = len(columns) + texts > ABREAST
    named = ("number", "code", "words", "name")
    kinds = [next((kind for kind in named if getattr(c, kind)), None) for c in columns]
    heads = []
    for column, kind in zip(columns, kinds, strict=True):
        label = element("button", column.heading, type="button") if sorts else column.heading
        heads.append(element("th", label, scope="col", class_=kind))
    lines = []
    for row in rows:
        cells = []
        for cell, column, kind in zip(row, columns, kinds, strict=True):
            cell = cell if isinstance(cell, Cell) else Cell(cell)
            order = None if cell.order is None else repr(float(cell.order))
            head = column.heading if cards else None
            parts = in_pieces(cell.text, "span") if kind == "code" else (cell.text,)
            cells.append(element("td", *parts, class_=kind, data_order=order, data_heading=head))
        lines.append(element("tr", *cells))
    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", *heads)),
            element("tbody", *lines),
            class_=" ".join(filter(None, ("sorts" if sorts else "", "cards" if cards else "")))
            or None,
        ),
        class_="wide",
        tabindex="0",
    )
