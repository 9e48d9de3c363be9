"""Tables and sentences as wide as the terminal; outside of one nothing is cut.

In a terminal, which counts as from 80 to 200 columns wide, sentences go on in further lines, other
cells are cut, and headings are bold unless NO_COLOR is set. Elsewhere sentences are wrapped at 120.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

NARROWEST, WIDTH, WIDEST = 80, 120, 200
FEWEST = 24
"""Columns that the last cell of a row needs to go on in further lines; else it is cut."""


def page_width() -> int:
    """Columns at which text is wrapped: those of the terminal within bounds, 120 without one."""
    if not _in_a_terminal():
        return WIDTH
    return min(max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST), WIDEST)


def drawing_columns() -> int:
    """Columns for the drawing of a schedule, beside the names of its meshes."""
    return min(page_width() - 14, 100)


def _in_a_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def table(
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    indent: int = 2,
    heading: bool = True,
) -> str:
    """Rows as aligned columns; `right` names those that are aligned to the right.

    The first row is a `heading`, or is a row like the others.
    """
    first, *more = aligned(rows, right=right, indent=indent)
    return "\n".join([bold(first) if heading else first, *more])


def aligned(
    rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: int = 2
) -> list[str]:
    """The lines of a table without any emphasis; each has its width in columns as its length.

    In a terminal that is too narrow, names in the first column lose their beginning.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    beyond = indent + sum(widths) + 2 * (len(widths) - 1) - page_width()
    if _in_a_terminal() and beyond > 0 and 0 not in right and widths[0] - beyond >= FEWEST:
        widths[0] -= beyond
        rows = [(shorten_left(first, widths[0]), *rest) for first, *rest in rows]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        text = " " * indent + "  ".join(cells).rstrip()
        left = indent + sum(widths[:-1]) + 2 * (len(widths) - 1)
        if len(widths) - 1 in right or page_width() - left < FEWEST:
            lines.append(shorten(text))
        else:
            lines += _wrapped(text, left)
    return lines


def paragraph(text: str, *, indent: int = 0, hanging: int = 0) -> str:
    """A sentence in lines of the page's width, those after the first `hanging` further in."""
    first, later = " " * indent, " " * (indent + hanging)
    return _filled(text, page_width(), first, later)


def _filled(text: str, width: int, first: str = "", later: str = "") -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrapped(text: str, left: int) -> list[str]:
    """A row whose last cell, from column `left` on, goes on in further lines of a terminal."""
    width = page_width()
    if len(text) <= width or not _in_a_terminal() or " " not in text[left:]:
        return [shorten(text)]
    first, *more = _filled(text[left:], width - left).split("\n")
    return [shorten(line) for line in (text[:left] + first, *(" " * left + one for one in more))]


def bold(text: str) -> str:
    """`text` as a terminal emphasises it; as it is elsewhere, or where NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not _in_a_terminal() or not text else f"\x1b[1m{text}\x1b[0m"


def shorten(text: str) -> str:
    """`text`, cut at the end where a terminal is not as wide."""
    width = page_width()
    return text if len(text) <= width or not _in_a_terminal() else text[: width - 1] + "…"


def shorten_left(text: str, width: int) -> str:
    """`text`, cut at its beginning in a terminal to so many columns."""
    if not _in_a_terminal():
        return text
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]
