"""Our solver beside plain CP-SAT, HiGHS, CBC and SCIP: `autoshard bench solvers`.

Every problem is solved by autoshard, and by each of the others in two forms:

    given       the problem as it is: one variable per choice and per allowed pair, the marginals of
                every pair, all memory (`autoshard.solve.backends.complete`); the strongest linear
                model that pairs alone give, and nothing of ours done to it
    presolved   the same model of what our exact reductions leave, so that one sees what is due to
                them, and what to the search

Each is a row, and a process of its own (`benchmarks/solver_row.py`). The others get `--threads`
(SCIP has one); autoshard has two at most. None gets a start. The columns:

    variables, rows, coefficients   of the linear model; memory: written as rows or as running sums
    build                 seconds to make that model (and to presolve); not part of `seconds`
    seconds               from the model, or for autoshard from the problem, to the answer
    status                optimal, feasible, infeasible, or none (no plan found in time);
                          invalid: its plan breaks the problem; refuted: it says that there is no
                          plan, or none below a bound, but another row has one; too large, killed,
                          failed
    objective             of the plan, priced by the independent evaluator on the problem as given
    bound, gap            as proven; (objective - bound) / |objective|
    peak                  GiB of memory of the largest process
    time, cost            seconds and objective over ours

A problem is a file of the IOPDDL contest, or PROGRAM@MACHINE@MESH such as `llama3-8b@v5p-64@8x8`.
A row that does not end by itself is ended a few seconds after its limit.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoshard.units import format_percent

CONTEST = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "iopddl"
LETTERS = "ABGKPSV"
PROGRAMS = ("mlp@v5e-8@2x4", "llama3-8b:tiny@v5e-8@2x4", "llama3-8b@v5p-64@8x8")
OURS = "autoshard"
SOLVERS = (OURS, "CP-SAT", "HiGHS", "CBC", "SCIP")
FORMS = ("given", "presolved")
ROW = Path(__file__).with_name("solver_row.py")
WRONG = 1e-6
"""A bound refuted by more than this, relatively, is no matter of rounding."""
CSV_KEYS: tuple[str, ...] = (
    "problem", "form", "solver", "threads", "time_limit", "variables", "rows", "coefficients",
    "memory", "build", "handover", "seconds", "status", "objective", "bound", "gap", "peak_gib",
    "time_ratio", "cost_ratio", "note",
)  # fmt: skip


def _number(value: float) -> str:
    return f"{math.floor(value):,}" if abs(value) >= 1e4 else f"{value:.6g}"


# Key of the row, heading, width, and how a value looks.
COLUMNS: tuple[tuple[str, str, int, Callable[[Any], str]], ...] = (
    ("problem", "problem", 25, str),
    ("form", "form", 9, str),
    ("solver", "solver", 9, str),
    ("variables", "variables", 9, "{:,}".format),
    ("rows", "rows", 7, "{:,}".format),
    ("coefficients", "coefficients", 12, "{:,}".format),
    ("memory", "memory", 6, str),
    ("build", "build", 5, "{:.1f}".format),
    ("seconds", "seconds", 7, "{:.1f}".format),
    ("status", "status", 10, str),
    ("objective", "objective", 17, _number),
    ("bound", "bound", 17, _number),
    ("gap", "gap", 8, lambda gap: format_percent(gap, ".3f")),
    ("peak_gib", "peak", 5, "{:.2f}".format),
    ("time_ratio", "time", 7, "{:.2f}".format),
    ("cost_ratio", "cost", 9, "{:.5g}".format),
)


def problems(named: Sequence[str]) -> list[str]:
    """The problems that are named, or the default ones.

    Raises:
      ValueError: naming every program, machine and mesh that does not fit.
    """
    if not named:
        files = [CONTEST / f"{letter}.json.gz" for letter in LETTERS]
        return [*(str(file) for file in files if file.is_file()), *PROGRAMS]
    faults = [fault for word in named if "@" in word for fault in _program_faults(word)]
    if faults:
        raise ValueError("\n  ".join(faults))
    return list(named)


def _program_faults(word: str) -> list[str]:
    from autoshard.machine.load import load
    from autoshard.models import find as reference
    from autoshard.units import counted

    parts = word.split("@")
    if len(parts) != 3 or not re.fullmatch(r"\d+(x\d+){0,2}", parts[2]):
        return [f"{word!r} is not a PROGRAM@MACHINE@MESH such as llama3-8b@v5p-64@8x8"]
    faults = []
    for look in (lambda: reference.find(parts[0]), lambda: load(parts[1])):
        try:
            look()
        except ValueError as error:
            faults.append(f"{word}: {error}")
    if not faults and math.prod(map(int, parts[2].split("x"))) != (chips := load(parts[1]).chips):
        faults.append(
            f"{word}: mesh {parts[2]} does not use the {counted(chips, 'chip')} of {parts[1]}"
        )
    return faults


def run(options: argparse.Namespace) -> int:
    """Measure and print all rows; ours that prove wrong make it fail."""
    from autoshard.cli.common import FAILED, INTERRUPTED
    from autoshard.cli.rows import measure

    print(
        f"{options.threads} threads each (SCIP: 1; autoshard: 2), {options.time_limit:g} s, "
        f"{options.memory_limit / 2**30:.1f} GiB, {os.cpu_count()} cores"
    )
    print(_line([heading for _, heading, _, _ in COLUMNS]), flush=True)
    options.told = kept = []
    wrong = interrupted = False
    try:
        for problem in options.problems:
            rows: list[dict[str, Any]] = []
            for form, solver in _rows(options.forms, options.solvers):
                asked = {
                    "problem": problem, "form": form, "solver": solver,
                    "threads": options.threads, "time_limit": options.time_limit,
                    "memory_limit": options.memory_limit,
                }  # fmt: skip
                row = finished({**asked, **measure(str(ROW), asked)}, rows)
                rows.append(row)
                others = [other for other in refuted(rows) if other is not row]
                print(_printed(row), flush=True)
                for other in others:
                    print(f"    refutes {_name(other)}: {other['note']}", flush=True)
                _save(options.csv, kept + rows)
            wrong |= any(
                row["solver"] == OURS and row["status"] in ("refuted", "invalid") for row in rows
            )
            kept += rows
    except KeyboardInterrupt:
        interrupted = True
    if options.csv is not None and kept:
        print(f"autoshard: wrote {options.csv}", file=sys.stderr)
    return FAILED if wrong else INTERRUPTED if interrupted else 0


def _rows(forms: Iterable[str], solvers: Sequence[str]) -> list[tuple[str, str]]:
    """Form and solver of every row; ours comes first and has no form."""
    others = [(form, solver) for form in forms for solver in solvers if solver != OURS]
    return [("", OURS), *others] if OURS in solvers else others


def finished(row: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row as measured, with its gap, and its ratios to ours among the rows before it."""
    from autoshard.solve.problem import relative_gap

    out = dict(row)
    out["problem"] = re.sub(r"\.json(\.gz)?$", "", Path(out["problem"]).name)
    if "error" in out:  # the process ended without an answer
        out.setdefault("status", "failed")
        out["note"] = out.pop("error")
    if out.get("objective") is not None and out.get("bound") is not None:
        out["gap"] = relative_gap(out["objective"], out["bound"])
    ours = next((other for other in before if other["solver"] == OURS), None)
    if ours is not None:
        for key, ratio in (("seconds", "time_ratio"), ("objective", "cost_ratio")):
            if out.get(key) is not None and ours.get(key):
                out[ratio] = out[key] / ours[key]
    return out


def refuted(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mark the rows that say that a plan does not exist which another row has; those newly so."""
    best = min((row["objective"] for row in rows if row.get("objective") is not None), default=None)
    marked: list[dict[str, Any]] = []
    for row in rows:
        if best is None or row["status"] == "refuted":
            continue
        bound = math.inf if row["status"] == "infeasible" else row.get("bound")
        if bound is not None and bound > best + WRONG * abs(best):
            assert isinstance(row, dict)
            claim = "no plan" if bound == math.inf else f"no plan below {bound:.12g}"
            row.update(status="refuted", note=f"{claim}, it said; there is one of {best:.12g}")
            marked.append(row)
    return marked


def _name(row: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (row["problem"], row["form"], row["solver"])))


def _line(cells: Sequence[str]) -> str:
    from autoshard.cli.rows import line

    return line(cells, [width for _, _, width, _ in COLUMNS])


def _printed(row: Mapping[str, Any]) -> str:
    text = _line(["" if row.get(key) is None else form(row[key]) for key, _, _, form in COLUMNS])
    return f"{text}\n    {row['note']}" if row.get("note") else text


def _save(path: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows so far: what was measured outlives an interrupt."""
    if path is None:
        return
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, CSV_KEYS, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
