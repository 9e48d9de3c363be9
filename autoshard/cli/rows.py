"""Rows of a benchmark: each is measured by a child process, printed, and saved as CSV.

A child is `python SCRIPT ROW.json` and prints one line of JSON. Its peak memory is the kernel's
count for that child alone.
"""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoshard.terminal import GAP, is_terminal, page_width, paragraph, shorten

INDENT = 4
"""Columns before what belongs to the row above."""


def measure(script: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a child of `script` for `row`, with `peak_gib` of that child.

    If the child fails, the result has `error` with the last line that it wrote, or the signal that
    ended it.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(
            [sys.executable, script, json.dumps(row)],
            stdout=out,
            stderr=err,
            text=True,
            env={"JAX_PLATFORMS": "cpu", **os.environ},
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        lines, complaints = out.read().strip().split("\n"), err.read().strip().split("\n")
    # Kibibytes on Linux, bytes on macOS (getrusage(2)).
    unit = 1 if sys.platform == "darwin" else 1024
    answer: dict[str, Any] = {"peak_gib": usage.ru_maxrss * unit / 2**30}
    if child.returncode == 0:
        answer.update(json.loads(lines[-1]))
    elif child.returncode < 0:
        answer["error"] = f"ended by {signal.Signals(-child.returncode).name}"
    else:
        answer["error"] = complaints[-1] or f"exit code {child.returncode}"
    return answer


def line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One row, aligned to the right; where a terminal is not as wide, it goes on in further lines.

    Widths are given, as a row is printed when it is measured, before those that come later. They
    say which cells stand in which line, so that those of all rows stand below their headings.
    """
    most = page_width() if is_terminal() else math.inf
    lines: list[list[str]] = [[]]
    used = 0
    for cell, width in zip(cells, widths, strict=True):
        if lines[-1] and used + GAP + width > most:
            lines.append([" " * (INDENT - GAP)])
            used = INDENT - GAP
        used += width + (GAP if lines[-1] else 0)
        lines[-1].append(cell.rjust(width))
    texts = [shorten((" " * GAP).join(one).rstrip()) for one in lines]
    while len(texts) > 1 and not texts[-1]:
        texts.pop()
    return "\n".join(texts)


class Rows:
    """Prints a table row by row as it is measured, and writes it as CSV at the end.

    `formats` says how numbers of a column are printed; what is kept and written is the number.
    """

    def __init__(
        self,
        columns: Sequence[str],
        widths: Sequence[int],
        formats: Mapping[str, Callable[[float], str]] | None = None,
    ) -> None:
        self.columns = columns
        self.widths = widths
        self.formats = formats or {}
        self.kept: list[dict[str, Any]] = []
        self._print(columns)

    def add(self, row: Mapping[str, Any]) -> None:
        """Print and keep one row."""
        self.kept.append(dict(row))
        self._print([self._cell(column, row.get(column, "")) for column in self.columns])
        if row.get("error"):
            print(paragraph(str(row["error"]), indent=INDENT), flush=True)

    def write(self, path: str | None, *, quiet: bool = False) -> None:
        """Write all rows so far to a CSV file, and print a message unless `quiet`."""
        if path is None:
            return
        names = list(dict.fromkeys(name for row in self.kept for name in row))
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.kept)
        if not quiet:
            print(f"autoshard: wrote {path}", file=sys.stderr)

    def _cell(self, column: str, value: Any) -> str:
        if column in self.formats and isinstance(value, int | float):
            return self.formats[column](value)
        return _cell(value)

    def _print(self, cells: Sequence[str]) -> None:
        print(line(cells, self.widths), flush=True)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
