"""Published runs on real machines, predicted and beaten: `autoshard bench measured TABLE`.

Every row of the table is one run (`autoshard.study.measured.table` has the columns). Printed are

    measured, predicted   seconds of a step, as published and as priced at the run's own mesh
    ratio                 predicted over measured
    GiB                   predicted, of one device
    ours                  seconds of our own plan of the same program and machine
    compiled              our plan's compiled seconds over those of the run's own configuration
    status                `priced` and what was taken to be so, or why the run cannot be priced

Rows are priced by one child process (`benchmarks/measured_row.py`), which is begun anew where a row
takes longer than its time limit or ends it. With `--csv` rows are kept as they come; with
`--resume` those that are kept are not priced again.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROW = Path(__file__).with_name("measured_row.py")
COLUMNS = ("id", "chip", "parallelism", "measured", "predicted", "ratio", "GiB", "ours", "compiled")
WIDTHS = (42, 10, 26, 9, 9, 6, 7, 8, 8)


def chosen(runs: list[Any], patterns: str | None) -> list[Any]:
    """The runs whose id matches one of several patterns, separated by commas.

    Raises:
      ValueError: a pattern matches none.
    """
    if patterns is None:
        return runs
    words = [word for word in patterns.split(",") if word]
    idle = [word for word in words if not any(fnmatch.fnmatch(run.id, word) for run in runs)]
    if idle:
        raise ValueError(f"no row of the table has an id like {', '.join(idle)}")
    return [run for run in runs if any(fnmatch.fnmatch(run.id, word) for word in words)]


class Pricer:
    """A child that prices one row after another."""

    def __init__(self, *, ours: float, compiles: float, time_limit: float) -> None:
        self.ours, self.compiles, self.time_limit = ours, compiles, time_limit
        self.limit = time_limit + ours + 2 * compiles
        self.child: subprocess.Popen[bytes] | None = None

    def price(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a row; its status says so where there is none."""
        if self.child is None:
            self.child = subprocess.Popen(
                [sys.executable, str(ROW)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )
        assert self.child.stdin is not None
        asked = {
            "run": cells,
            "ours": self.ours,
            "compiles": self.compiles,
            "time_limit": self.time_limit,
        }
        self.child.stdin.write(json.dumps(asked).encode() + b"\n")
        self.child.stdin.flush()
        line = self._line()
        if line:
            return json.loads(line)
        from autoshard.study.measured.summary import LATE

        reason = f"{LATE} {self.limit:g} s"
        if line is not None:
            code = self.child.wait()
            reason = f"its process ended: {signal.Signals(-code).name if code < 0 else code}"
        self.close()
        known = ("id", "model", "chip", "chips")
        return {**{name: cells[name] for name in known}, "status": f"unreachable: {reason}"}

    def _line(self) -> bytes | None:
        """What the child says, empty where it ends; None where it takes too long."""
        assert self.child is not None
        assert self.child.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self.child.stdout, selectors.EVENT_READ)
            if not ready.select(self.limit):
                return None
        return self.child.stdout.readline()

    def close(self) -> None:
        """End the child."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.child = None


def run(options: argparse.Namespace) -> int:
    """Price the rows, print them and what they come to."""
    from autoshard.cli.common import INTERRUPTED
    from autoshard.cli.rows import Rows
    from autoshard.study.measured.question import JAX
    from autoshard.study.measured.summary import UNASKED, summary
    from autoshard.study.measured.table import cells_of
    from autoshard.terminal import paragraph

    kept = _kept(options.csv) if options.resume else {}
    rows, answers = Rows(COLUMNS, WIDTHS), []
    options.told = answers
    pricer = Pricer(ours=options.ours, compiles=options.compiled, time_limit=options.time_limit)
    interrupted = False
    try:
        for one in options.runs:
            answer = kept.get(one.id) or pricer.price(cells_of(one))
            jax = "yes" if any(name in one.framework for name in JAX) else "no"
            answer = {**answer, "group": one.group, "quality": one.quality, "jax": jax}
            answer["precision"] = one.precision
            answers.append(answer)
            rows.add(_shown(answer))
            print(f"    {answer['status']}", flush=True)
            _write(options.csv, answers)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        pricer.close()
    answers += [
        {**cells_of(one), "parallelism": "", "status": UNASKED}
        for one in options.runs[len(answers) :]
    ]
    print("", *(paragraph(line, hanging=2) for line in summary(answers).splitlines()), sep="\n")
    if options.markdown or options.svg:
        from autoshard.cli.outputs import write_files
        from autoshard.study.measured import page as pages

        name = Path(options.svg).name if options.svg else "measured.svg"
        texts = {
            options.markdown: lambda: pages.page(answers, name),
            options.svg: lambda: pages.plot(answers),
        }
        write_files(texts, quiet=False)
    return INTERRUPTED if interrupted else 0


def _shown(answer: Mapping[str, Any]) -> dict[str, Any]:
    def number(name: str) -> float | str:
        return float(answer[name]) if answer.get(name) else ""

    measured, predicted = number("measured_seconds"), number("predicted_seconds")
    both = isinstance(measured, float) and isinstance(predicted, float)
    own, better = number("own_compiled"), number("ours_compiled")
    judged = isinstance(own, float) and isinstance(better, float)
    return {
        **{name: answer.get(name, "") for name in ("id", "chip", "parallelism")},
        "measured": measured,
        "predicted": predicted,
        "ratio": predicted / measured if both else "",  # type: ignore[operator]
        "GiB": number("predicted_gib"),
        "ours": number("ours_seconds"),
        "compiled": better / own if judged else "",  # type: ignore[operator]
    }


def _kept(path: str | None) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run by their id; those that ran out of time are asked again."""
    if path is None or not Path(path).exists():
        return {}
    with Path(path).open(newline="", encoding="utf-8") as file:
        return {
            row["id"]: row for row in csv.DictReader(file) if "longer than" not in row["status"]
        }


def _write(path: str | None, answers: list[dict[str, Any]]) -> None:
    if path is None:
        return
    from autoshard.files import write_whole

    names = list(dict.fromkeys(name for row in answers for name in row))
    lines: list[str] = []

    class Lines:
        def write(self, text: str) -> None:
            lines.append(text)

    writer = csv.DictWriter(Lines(), names)
    writer.writeheader()
    writer.writerows(answers)
    write_whole(path, "".join(lines).encode())
