"""Published points of serving engines and what bounds them: `autoshard bench served TABLE`.

Every row of the table is one configuration (`autoshard.study.served.table` has the columns).
Printed are, where they were published,

    first      milliseconds until the first token: predicted over measured
    further    of each token after it: predicted over measured
    tokens/s   measured over predicted
    status     `priced`, or why the row cannot be priced
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

COLUMNS = ("id", "chip", "mesh", "first", "further", "tokens/s", "ours")
WIDTHS = (42, 11, 18, 7, 8, 8, 5)
PREDICTED = ("ttft_ms", "tpot_ms", "tokens_per_s", "memory_gb")


def run(options: argparse.Namespace) -> int:
    """Price the points, print them and what they come to."""
    from autoshard.cli.rows import Rows
    from autoshard.study.measured.version import version
    from autoshard.study.served.answer import answer
    from autoshard.study.served.summary import lines, ratio
    from autoshard.terminal import paragraph

    rows, told = Rows(COLUMNS, WIDTHS), []
    options.told = told
    kept = _kept(options.csv) if options.resume else {}
    for point in options.points:
        found = {} if point.id in kept else asdict(answer(point, ours=options.ours))
        row: dict[str, Any] = kept.get(point.id) or {
            **{name: "" if value is None else value for name, value in asdict(point).items()},
            **{f"predicted_{name}": found[name] for name in PREDICTED},
            **{name: found[name] for name in ("mesh", "ours", "ours_mesh", "status")},
            "version": version("study/served"),
        }
        told.append(row)
        shown = {name: ratio(row, measure) for name, measure in _RATIOS.items()}
        shown |= {name: row[name] for name in ("id", "chip", "mesh", "ours")}
        rows.add({name: "" if value is None else value for name, value in shown.items()})
        if row["status"] != "priced":
            print(f"    {row['status']}", flush=True)
        _write(options.csv, told)
    print("", *(paragraph(line, hanging=2) for line in lines(told)), sep="\n")
    if options.markdown or options.svg:
        from autoshard.cli.outputs import write_files
        from autoshard.study.served import page as pages

        name = Path(options.svg).name if options.svg else "served.svg"
        texts = {
            options.markdown: lambda: pages.page(told, name, _made(told)),
            options.svg: lambda: pages.plot(told),
        }
        write_files(texts, quiet=False)
    return 0


_RATIOS = {"first": "ttft", "further": "tpot", "tokens/s": "rate"}


def _made(rows: list[dict[str, Any]]) -> str:
    """When, and by what; rows that were kept are of the sources that priced them."""
    from autoshard.show.document import versions

    named = ", ".join(f"{name} {said}" for name, said in versions())
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    sources = ", ".join(sorted({row["version"] for row in rows}))
    return (
        f"Made {today} at commit {_commit()}; prices are of sources {sources}. Versions: {named}."
    )


def _commit() -> str:
    """The commit of the sources, or "unknown" outside of a repository."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _kept(path: str | None) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run by their id."""
    if path is None or not Path(path).exists():
        return {}
    with Path(path).open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def _write(path: str | None, rows: list[dict[str, Any]]) -> None:
    if path is None:
        return
    from autoshard.files import write_whole

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())
