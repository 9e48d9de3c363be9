"""The solver on the public instances of the ASPLOS/EuroSys 2025 contest: `autoshard bench iopddl`.

Instances: https://github.com/google/iopddl. The contest gave 60 to 300 s on eight cores. `best` is
the best cost of the contest, `ratio` that cost over ours: above 1 is better than every entry.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

CONTEST_BEST = {
    "A": 6_548_641_531,
    "B": 532_843,
    "G": 217_039,
    "K": 2_274_276_676,
    "P": 662_197_407_330,
    "S": 1_534_613_444,
    "V": 1_632_051,
}
COLUMNS = (
    "instance", "nodes", "left", "status", "objective", "bound", "gap", "read", "solve",
    "peak_gib", "best", "ratio",
)  # fmt: skip
WIDTHS = (10, 7, 7, 10, 17, 17, 8, 6, 6, 8, 17, 7)


def run(options: argparse.Namespace) -> int:
    """Measure and print all rows."""
    from autoshard.cli_rows import Rows, measure

    rows = Rows(COLUMNS, WIDTHS)
    for path in options.paths:
        name = re.sub(r"\.json(\.gz)?$", "", Path(path).name)
        row: dict[str, Any] = {"instance": name}
        row.update(measure(__file__, {"path": path, "time_limit": options.time_limit}))
        best = CONTEST_BEST.get(name.removeprefix("asplos-2025-iopddl-"))
        if best is not None:
            row["best"] = best
            if row.get("objective"):
                row["ratio"] = f"{best / row['objective']:.5f}"
        rows.add(row)
    rows.write(options.csv)
    return 0


def measure_row(row: dict[str, Any]) -> dict[str, Any]:
    """One row, in this process."""
    from autoshard.solve import evaluate, solve
    from autoshard.solve.iopddl import read

    started = time.perf_counter()
    instance = read(row["path"])
    ready = time.perf_counter()
    fewest = len(instance.problem.nodes)

    def heard(news: Any) -> None:
        nonlocal fewest
        fewest = min(fewest, news.nodes_left)

    outcome = solve(instance.problem, time_limit=row["time_limit"], progress=heard)
    solved = time.perf_counter()
    answer = {
        "nodes": len(instance.problem.nodes),
        "left": fewest,
        "status": outcome.status.name.lower(),
        "bound": float(outcome.report.bound),
        "gap": f"{outcome.report.gap:.3%}" if outcome.solution is not None else "",
        "read": ready - started,
        "solve": solved - ready,
    }
    if outcome.solution is not None:
        priced = evaluate(instance.problem, outcome.solution.choices)
        answer["objective"] = float(priced.objective)
    return answer


if __name__ == "__main__":
    print(json.dumps(measure_row(json.loads(sys.argv[1]))))
