"""The solver on the public instances of the ASPLOS/EuroSys 2025 contest: `autoshard bench iopddl`.

Instances: https://github.com/google/iopddl. The contest gave 60 to 300 s on eight cores, and scored
the sum over the instances of (cost of the best entry) / (cost): https://github.com/asplos-contest/2025.
Seconds count from before the file is read, and the time limit with them. The columns:

    nodes, reduced, left  in the file, after the exact reductions, and after reduced costs dropped
                          what cannot beat the best plan found
    objective             of the best plan, by the file's own numbers
    bound, gap            proven: no plan costs less; (objective - bound) / |objective|
    first, seconds        until the first plan, and in all
    peak                  of memory, GiB, of a process of its own for each instance
    contest, ratio        cost of the contest's best entry, and that over ours: above 1 is better
    known                 the lowest cost known, over ours

The CSV has the numbers unrounded, and `seconds_read`, `limit_hit`, `error` besides.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoshard.units import format_percent

# The contest's best entry, and the lowest cost known (A, B, G, P, V: proven optimal).
BEST = {
    "A": (6_548_641_531, 6_548_553_650),
    "B": (532_843, 532_843),
    "G": (217_039, 217_039),
    "K": (2_274_276_676, 2_207_698_580),
    "P": (662_197_407_330, 651_833_115_436),
    "S": (1_534_613_444, 1_517_914_993),
    "V": (1_632_051, 1_617_084),
}
# Letters of the instances, by the seconds that the contest gave.
SECONDS = {60: "ABCDE", 120: "FGHIJ", 180: "KLMNO", 240: "PQRST", 300: "UVWXY"}
CONTEST_NAME = re.compile(r"asplos-2025-iopddl-([A-Y])")
CSV_KEYS = (
    "instance", "path", "status", "nodes", "reduced", "left", "objective", "bound", "gap", "first",
    "seconds", "seconds_read", "time_limit", "limit_hit", "peak_gib", "contest", "ratio", "known",
    "known_ratio", "error",
)  # fmt: skip


def letter(name: str) -> str:
    """The contest's letter for an instance of that name, or an empty string."""
    match = CONTEST_NAME.fullmatch(name)
    return match[1] if match else ""


def contest_seconds(name: str) -> float | None:
    """The seconds that the contest gave an instance of that name."""
    which = letter(name)
    return next((float(s) for s, letters in SECONDS.items() if which and which in letters), None)


def _whole(value: float) -> str:
    return f"{math.floor(value):,}" if abs(value) >= 1e4 else f"{value:.6g}"


# Key of the row, heading, width, and how a value looks.
COLUMNS: tuple[tuple[str, str, int, Callable[[Any], str]], ...] = (
    ("instance", "instance", 10, lambda name: letter(name) or str(name)),
    ("nodes", "nodes", 6, str),
    ("reduced", "reduced", 7, str),
    ("left", "left", 6, str),
    ("status", "status", 10, str),
    ("objective", "objective", 15, _whole),
    ("bound", "bound", 15, _whole),
    ("gap", "gap", 8, lambda gap: format_percent(gap, ".3f")),
    ("first", "first", 6, "{:.1f}".format),
    ("seconds", "seconds", 7, "{:.1f}".format),
    ("peak_gib", "peak", 5, "{:.2f}".format),
    ("contest", "contest", 15, _whole),
    ("ratio", "ratio", 7, "{:.5f}".format),
    ("known_ratio", "known", 7, "{:.5f}".format),
)


def run(options: argparse.Namespace) -> int:
    """Measure and print all rows, and the mean ratio."""
    from autoshard.cli.common import FAILED, INTERRUPTED, USAGE
    from autoshard.cli.rows import measure
    from autoshard.terminal import paragraph

    print(_line([heading for _, heading, _, _ in COLUMNS]), flush=True)
    options.told = rows = []
    interrupted = False
    try:
        for path in options.paths:
            row = {"path": str(path), "time_limit": options.time_limit}
            row.update(measure(__file__, row))
            rows.append(judged(row))
            print(_printed(rows[-1]), flush=True)
            _save(options.csv, rows)
    except KeyboardInterrupt:
        interrupted = True
    print(paragraph(summary(rows)), flush=True)
    if options.csv is not None and rows:
        print(f"autoshard: wrote {options.csv}", file=sys.stderr)
    if interrupted:
        print(f"autoshard: interrupted after {len(rows)} of {len(options.paths)}", file=sys.stderr)
        return INTERRUPTED
    statuses = {row["status"] for row in rows}
    return FAILED if "refuted" in statuses else USAGE if "error" in statuses else 0


def judged(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the costs that are known for its instance, and the ratios to them."""
    out = {"status": "error", **row}
    out.setdefault("instance", re.sub(r"\.json(\.gz)?$", "", Path(row["path"]).name))
    if letter(out["instance"]) in BEST:
        out["contest"], out["known"] = BEST[letter(out["instance"])]
        if out.get("objective") is not None:
            out["ratio"] = out["contest"] / out["objective"]
            out["known_ratio"] = out["known"] / out["objective"]
    return out


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line: the mean ratio as the contest scores it, and how much is proven."""
    from autoshard.units import counted

    scored = [row for row in rows if row.get("contest") is not None]
    solved = sum(row.get("objective") is not None for row in rows)
    optimal = sum(row["status"] == "optimal" for row in rows)
    line = f"{counted(len(rows), 'instance')}, {solved} with a plan, {optimal} proven optimal"
    if not scored:
        return line
    mean = sum(row.get("ratio", 0.0) for row in scored) / len(scored)
    known = sum(row.get("known_ratio", 0.0) for row in scored) / len(scored)
    return (
        f"{line}; mean ratio {mean:.5f} to the contest's best, {known:.5f} to the best known "
        f"(of {len(scored)}; without a plan a ratio is 0)"
    )


def _line(cells: Sequence[str]) -> str:
    from autoshard.cli.rows import line

    return line(cells, [width for _, _, width, _ in COLUMNS])


def _printed(row: Mapping[str, Any]) -> str:
    cells = ["" if row.get(key) is None else form(row[key]) for key, _, _, form in COLUMNS]
    text = _line(cells)
    if row.get("error"):
        text += "".join(f"\n    {line}" for line in str(row["error"]).split("\n"))
    return text


def _save(path: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows so far: what was measured outlives an interrupt."""
    if path is None:
        return
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, CSV_KEYS, restval="")
        writer.writeheader()
        writer.writerows(rows)


def measure_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row, in this process."""
    started = time.monotonic()
    from autoshard.solve import ProblemError
    from autoshard.solve.iopddl import ForbiddenError, read

    try:
        instance = read(row["path"])
    except ForbiddenError as error:
        return {"status": "infeasible", "error": str(error)}
    except (OSError, ProblemError) as error:
        return {"status": "error", "error": str(error)}
    limit = row["time_limit"]
    if limit is None:
        limit = contest_seconds(instance.name)
    if limit is None:
        return {
            "status": "error",
            "error": f"{row['path']!r} is called {instance.name!r}, which is not an instance of "
            "the contest; give its time limit in seconds",
        }
    return _solved(instance, limit, started)


def _solved(instance: Any, limit: float, started: float) -> dict[str, Any]:
    from autoshard.solve import solve

    read_by = time.monotonic()
    first: list[float] = []
    left = [len(instance.problem.nodes)]

    def heard(news: Any) -> None:
        left.append(news.nodes_left)
        if news.objective < math.inf and not first:
            first.append(time.monotonic() - started)

    remaining = max(started + limit - read_by, 0.0)
    outcome = solve(instance.problem, time_limit=remaining, progress=heard)
    report = outcome.report
    answer = {
        "instance": instance.name or None,
        "status": outcome.status.name.lower(),
        "nodes": left[0],
        # The first news comes once the problem is reduced.
        "reduced": left[min(1, len(left) - 1)],
        "left": min(left),
        "bound": report.bound if math.isfinite(report.bound) else None,
        "seconds": time.monotonic() - started,
        "seconds_read": read_by - started,
        "time_limit": limit,
        "limit_hit": report.limit_hit,
    }
    if outcome.solution is not None:
        answer["first"] = first[0] if first else answer["seconds"]
        choices = instance.original(outcome.solution.choices)
        complaint = instance.refute(choices, report.objective)
        if complaint:
            answer.update(status="refuted", error=f"the file's own numbers disagree: {complaint}")
        else:
            answer.update(objective=instance.evaluate(choices).objective, gap=report.gap)
    return {key: value for key, value in answer.items() if value is not None}


if __name__ == "__main__":
    print(json.dumps(measure_row(json.loads(sys.argv[1]))))
