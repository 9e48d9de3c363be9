"""Tables and sentences as wide as the terminal; outside of one nothing is cut.

In a terminal, which counts as from 80 to 200 columns wide, sentences go on in further lines, other
cells are cut, and headings are bold unless NO_COLOR is set. Elsewhere sentences are wrapped at 120.

Rich lays tables out and writes emphasis; it is imported with the first of them. What it does not do
is here: names lose their beginning, as their end tells them apart; where a terminal is too narrow
for all columns, rows go on in further lines, so that no number loses digits; further lines of a
sentence are indented by `textwrap`.
"""

from __future__ import annotations

import functools
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from autoshard.units import held_together

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST, WIDTH, WIDEST = 80, 120, 200
FEWEST = 24
"""Columns that the last cell of a row needs to go on in further lines; else it is cut."""
GAP = 2
"""Columns between two cells."""
FURTHER = 4
"""Columns by which the further lines of a row begin after its first."""


def page_width(stream: TextIO | None = None) -> int:
    """Columns at which text is wrapped: those of the terminal within bounds, 120 without one."""
    if not is_terminal(stream):
        return WIDTH
    return min(max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST), WIDEST)


def drawing_columns() -> int:
    """Columns for the drawing of a schedule, beside the names of its meshes."""
    return min(page_width() - 14, 100)


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether what is written to a stream, by default stdout, is read on a terminal."""
    stream = sys.stdout if stream is None else stream
    return stream is not None and stream.isatty()


def colour_system(stream: TextIO | None = None) -> str | None:
    """How a stream is coloured and emphasised; None if it is no terminal or that is not wanted."""
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return None if unwanted or not is_terminal(stream) else "standard"


@functools.cache
def _console(width: int, colours: str | None) -> Console:
    from rich.console import Console

    return Console(
        width=width,
        color_system=colours,  # pyright: ignore[reportArgumentType]
        force_terminal=colours is not None,
        force_jupyter=False,
        highlight=False,
        markup=False,
        emoji=False,
    )


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
    first, *more = _laid_out(rows, right=right, indent=indent)
    heads = [bold(line) for line in first] if heading else first
    return "\n".join([*heads, *(line for row in more for line in row)])


def aligned(
    rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: int = 2
) -> list[str]:
    """The lines of a table without any emphasis.

    In a terminal that is too narrow, names in the first column lose their beginning, or the last
    column goes on in further lines where there is room for it. Where there is none, the last
    columns of every row stand in further lines of it, and those of headings below the headings.
    """
    return [line for row in _laid_out(rows, right=right, indent=indent) for line in row]


def _laid_out(
    rows: Sequence[Sequence[str]], *, right: Sequence[int], indent: int
) -> list[list[str]]:
    """The lines of each row of a table."""
    from rich.cells import cell_len

    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    most = page_width() if is_terminal() else math.inf
    last = len(widths) - 1
    beyond = indent + sum(widths) + GAP * last - most
    if beyond > 0 and 0 not in right and widths[0] - beyond >= FEWEST:
        widths[0] -= int(beyond)
        rows = [(shorten_left(first, widths[0]), *rest) for first, *rest in rows]
    elif beyond > 0 and last not in right and widths[last] - beyond >= FEWEST:
        widths[last] -= int(beyond)
    parts: list[list[int]] = [[]]
    used = indent
    for column, width in enumerate(widths):
        if parts[-1] and used + width > most:
            parts.append([])
            used = indent + FURTHER
        parts[-1].append(column)
        used += width + GAP
    if parts[-1] == [last]:
        widths[last] = int(min(widths[last], most - indent - FURTHER))
    lines: list[list[str]] = [[] for _ in rows]
    for k, part in enumerate(parts):
        cells = [[row[column] for column in part] for row in rows]
        side = [j for j, column in enumerate(part) if column in right]
        started = indent + (FURTHER if k else 0)
        laid = _grid(cells, [widths[c] for c in part], right=side, indent=started)
        for of_row, further in zip(lines, laid, strict=True):
            of_row += [shorten(line) for line in further if line or not k]
    return lines


def columns(
    rows: Sequence[Sequence[str]],
    widths: Sequence[int] = (),
    *,
    right: Sequence[int] = (),
    indent: int = 0,
) -> list[str]:
    """The lines of aligned cells, whole wherever they are printed.

    Args:
      rows: all of as many cells.
      widths: of the columns; by default those of the widest cells. A last cell that is wider goes
        on in further lines.
      right: the columns that are aligned to the right.
      indent: columns before the first.
    """
    laid_out = _grid(rows, widths, right=right, indent=indent)
    return [line for row in laid_out for line in row]


def _grid(
    rows: Sequence[Sequence[str]], widths: Sequence[int], *, right: Sequence[int], indent: int
) -> list[list[str]]:
    """The lines of each row of aligned cells."""
    from rich.cells import cell_len
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    count = len(rows[0])
    widths = widths or [max(cell_len(row[column]) for row in rows) for column in range(count)]
    console = _console(indent + sum(widths) + GAP * (count - 1), None)
    found = []
    for row in rows:
        grid = Table.grid(padding=(0, GAP, 0, 0))
        for column, width in enumerate(widths):
            side = "right" if column in right else "left"
            grid.add_column(width=width, justify=side, overflow="fold", no_wrap=column < count - 1)
        grid.add_row(*map(Text, row))
        with console.capture() as laid_out:
            console.print(Padding(grid, (0, 0, 0, indent)))
        found.append([line.rstrip() for line in laid_out.get().rstrip("\n").split("\n")])
    return found


def paragraph(text: str, *, indent: int = 0, hanging: int = 0) -> str:
    """A sentence in lines of the page's width, those after the first `hanging` further in.

    Numbers and their units stay together.
    """
    first, later = " " * indent, " " * (indent + hanging)
    return textwrap.fill(
        held_together(text),
        page_width(),
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    ).replace("\N{NO-BREAK SPACE}", " ")


def bold(text: str) -> str:
    """`text` as a terminal emphasises it; as it is elsewhere, or where NO_COLOR is set."""
    return styled(text, "bold")


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """`text` in a style as rich names them, such as `bold red`; as it is outside of a terminal."""
    colours = colour_system(stream)
    if colours is None or not text:
        return text
    from rich.text import Text

    console = _console(page_width(stream), colours)
    with console.capture() as written:
        console.print(Text(text, style=style), end="", soft_wrap=True)
    return written.get()


def shorten(text: str) -> str:
    """`text`, cut at the end where a terminal is not as wide."""
    if not is_terminal():
        return text
    from rich.text import Text

    cut = Text(text)
    cut.truncate(page_width(), overflow="ellipsis")
    return cut.plain


def shorten_left(text: str, width: int) -> str:
    """`text`, cut at its beginning in a terminal to so many columns."""
    if not is_terminal():
        return text
    from rich.cells import cell_len, chop_cells

    if cell_len(text) <= width:
        return text
    return "\u2026" + chop_cells(text[::-1], width - 1)[0][::-1]
