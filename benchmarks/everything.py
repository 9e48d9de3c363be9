"""All benchmarks, in figures that can be compared: `autoshard bench all`.

Each part is one of the benchmarks, run as a command of its own; from its CSV come figures:

    search      seconds from a program to a proven plan (`bench layers`), and the gap
    iopddl      cost of the contest's best entry over ours
    plans       our compiled step over the best hand-made one that fits
    fidelity    error and rank correlation of predicted steps, unplanned collectives
    schedules   our schedule over the best known, and the gap

A figure says whether less or more of it is better, what a peer has, and what the target is. With
`--quick` each part is a few rows with little time, so its figures are not those of the full run;
`--compare OLD.csv` shows what got worse: seconds by more than 25 %, all else by more than 0.5 %.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from autoshard.study.figures import Figure, figures_csv, regressions

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
"""Where contest files and schedule problems are looked for, if no folder is named."""
Rows = Sequence[Mapping[str, str]]


def _number(row: Mapping[str, str], name: str) -> float | None:
    try:
        return float(row.get(name, "") or "nan") if math.isfinite(float(row[name])) else None
    except (KeyError, ValueError):
        return None


def search_figures(rows: Rows) -> Iterator[Figure]:
    """Of `bench layers`."""
    for row in rows:
        name = f"llama3-{row['model']}, {row['layers']} layers, {row['form']}, {row['mesh']}"
        beside = row.get("AutoParallel") and "published: another machine, without the optimizer"
        note = row.get("error") or beside or ""
        peer = "AutoParallel" if row.get("AutoParallel") else ""
        published = row.get("AutoParallel", "").removesuffix(" s")
        value = float(published) if published and published[0].isdigit() else None
        total = _number(row, "total")
        yield Figure("search", name, "seconds", total, "s", "less", peer, value, value, note)
        gap = _number(row, "gap")
        yield Figure("search", name, "gap", gap, "", "less", target=0.001, note=note)


def iopddl_figures(rows: Rows) -> Iterator[Figure]:
    """Of `bench iopddl`."""
    for row in rows:
        name = row["instance"] or Path(row["path"]).name
        given = f"{row.get('time_limit') or 'no'} s here; the contest gave 60 to 300 s on 8 cores"
        note = row.get("error") or (given if row.get("contest") else "")
        ratio = _number(row, "ratio")
        known = 1.0 if _number(row, "contest") else None
        yield Figure(
            "iopddl", name, "best entry / ours", ratio, "", "more",
            peer="the contest's best" if known else "", peer_value=known, target=known, note=note,
        )  # fmt: skip
        yield Figure("iopddl", name, "gap", _number(row, "gap"), "", "less", note=note)


def plans_figures(rows: Rows) -> Iterator[Figure]:
    """Of `bench plans`: our rows beside the best hand-made one of the same step."""
    for row in rows:
        if not row["plan"].startswith("autoshard"):
            continue
        step = (row["program"], row["machine"])
        others = [
            (seconds, other["plan"])
            for other in rows
            if (other["program"], other["machine"]) == step
            and not other["plan"].startswith("autoshard")
            and other.get("fits") == "yes"
            and (seconds := _number(other, "step")) is not None
        ]
        seconds, plan = min(others) if others else (None, "")
        name = f"{row['program']} on {row['machine']}, {row['plan']}"
        note = row.get("error") or row.get("note", "")
        ours = _number(row, "step")
        yield Figure(
            "plans", name, "compiled step", ours, "", "less",
            peer=plan, peer_value=seconds, target=seconds, note=note,
        )  # fmt: skip


def fidelity_figures(rows: Rows) -> Iterator[Figure]:
    """Of `bench fidelity`: over all of its plans."""
    from autoshard.study.fidelity import summary

    numbers = [
        {key: _number(row, key) if key not in ("program", "machine", "mesh", "plan") else value
         for key, value in row.items()}
        for row in rows
    ]  # fmt: skip
    found = summary(numbers)
    notes = "; ".join(row["error"] for row in rows if row.get("error"))
    if not len(found.table) or not found.table.loc["all", "plans"]:
        yield Figure("fidelity", "all", "step_error", None, "", "less", note=notes)
        return
    table = found.table.loc["all"]
    programs = dict.fromkeys(f"{row['program']} on {row['machine']}" for row in rows)
    name = ", ".join(programs)
    notes = notes or f"{int(table['plans'])} plans"
    for figure, better, target in (
        ("spearman", "more", 0.9), ("step_error", "less", 0.15), ("peak_near", "more", 0.9),
        ("peak_below", "less", 0.0), ("wire_near", "more", 0.9), ("unplanned", "less", 0.0),
    ):  # fmt: skip
        value = float(table[figure])
        value = value if math.isfinite(value) else None
        yield Figure("fidelity", name, figure, value, "", better, target=target, note=notes)


def schedules_figures(rows: Rows) -> Iterator[Figure]:
    """Of `bench schedules`."""
    for row in rows:
        name = f"{row['instance']}, limit {row['limit']}, {row['objective']}"
        peer = _number(row, "peer")
        note = row["status"] if row["status"].startswith("infeasible") else ""
        ours = _number(row, "ours")
        yield Figure(
            "schedules", name, "schedule", ours, "", "less",
            peer=row.get("peer_name", "") if peer else "", peer_value=peer, target=peer, note=note,
        )  # fmt: skip
        yield Figure("schedules", name, "gap", _number(row, "gap"), "", "less", note=note)


def habits_figures(rows: Rows) -> Iterator[Figure]:
    """Of `bench habits`: how many hold and are broken, of each compiler."""
    of = (("XLA:GPU", "gpu."), ("XLA:TPU", "tpu."), ("XLA's partitioner", "partitioner."))
    for compiler, prefix in of:
        ours = [row for row in rows if row["habit"].startswith(prefix)]
        counts = Counter(row["status"] for row in ours)
        versions = {row["version"] for row in ours if row["version"]}
        broken = [row["habit"] for row in ours if row["status"] == "broken"]
        note = ", ".join(sorted(versions)) or "not installed"
        if counts["no probe"]:
            note += f"; {counts['no probe']} without a probe"
        yield Figure("habits", compiler, "hold", counts["holds"] or None, "", "more", note=note)
        yield Figure(
            "habits", compiler, "broken", counts["broken"], "", "less", target=0,
            note=", ".join(broken),
        )  # fmt: skip


PARTS: Mapping[str, Callable[[Rows], Iterator[Figure]]] = {
    "search": search_figures, "iopddl": iopddl_figures, "plans": plans_figures,
    "fidelity": fidelity_figures, "habits": habits_figures, "schedules": schedules_figures,
}  # fmt: skip


def commands(data: Path, *, quick: bool, seconds: float) -> dict[str, list[str] | str]:
    """The words of every part after `autoshard bench`, or why it cannot be run."""
    limit = ["--time-limit", f"{seconds:g}"]
    contest, problems = data / "iopddl", data / "pipeline" / "instances.json"
    files = sorted(map(str, contest.glob("*.json*"))) if contest.is_dir() else []
    if quick:
        files = [file for file in files if Path(file).name.partition(".")[0] in ("B", "G", "V")]
    few = ["--model", "8b", "--layers", "32", "--axes", "2,3", "--forms", "scan"]
    one = ["--rows", "llama3-1b/4:16x2048@h100-8@4"]
    small = ["--programs", "mlp", "--machines", "h100-8", "--distortions", "1.5"]
    known = [str(problems), "--peers", str(data / "pipeline" / "best_by_instance.json")]
    part = ["--only", "p4m16-1.5B-embloss", "--limits", "1f1b", "--objectives", "makespan"]
    lacking = f"there is no {{}} in {str(data)!r}; name the folder with --data"
    return {
        "search": ["layers", *(few if quick else []), *limit],
        "iopddl": ["iopddl", *files, *limit] if files else lacking.format("iopddl/*.json.gz"),
        "plans": ["plans", *(one if quick else []), *limit],
        "fidelity": ["fidelity", *(small if quick else []), *limit],
        "habits": ["habits"],
        "schedules": ["schedules", *known, *(part if quick else []), *limit]
        if problems.is_file()
        else lacking.format("pipeline/instances.json"),
    }


def run(options: argparse.Namespace) -> int:
    """Run the parts, write what is asked for, and compare."""
    from autoshard.cli.common import FAILED, INTERRUPTED, USAGE

    options.told = figures = []
    spent: dict[str, float] = {}
    interrupted = False
    data = Path(options.data or DATA)
    chosen = commands(data, quick=options.quick, seconds=options.time_limit)
    try:
        for name in options.parts:
            started = time.monotonic()
            print(f"== {name}", flush=True)
            figures += measure(name, chosen[name], sys.stderr if options.json else None)
            spent[name] = time.monotonic() - started
    except KeyboardInterrupt:
        interrupted = True
    about = {
        "quick": options.quick, "time limit of a row, s": options.time_limit,
        **{f"seconds in {name}": round(taken, 1) for name, taken in spent.items()},
    }  # fmt: skip
    worse = [] if options.compare is None else regressions(options.old, figures)
    _write(options, figures, about, worse)
    for one in figures:
        print(one)
    if options.compare is not None:
        print("\n".join(worse) if worse else "nothing got worse")
    if interrupted:
        return INTERRUPTED
    return (
        FAILED if worse else USAGE if any(one.note and one.value is None for one in figures) else 0
    )


def measure(name: str, words: list[str] | str, told: TextIO | None = None) -> list[Figure]:
    """The figures of one part, whose own rows go to `told`, or else to stdout."""
    if isinstance(words, str):
        return [Figure(name, "all", "run", None, "", "less", note=words)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "rows.csv"
        command = [sys.executable, "-m", "autoshard", "bench", *words, "--csv", str(place)]
        code = subprocess.run(command, stdout=told, check=False).returncode
        if not place.exists():
            why = f"`autoshard bench {words[0]}` ended with exit code {code}"
            return [Figure(name, "all", "run", None, "", "less", note=why)]
        with place.open(newline="") as file:
            return list(PARTS[name](list(csv.DictReader(file))))


def _write(
    options: argparse.Namespace,
    figures: Sequence[Figure],
    about: Mapping[str, Any],
    worse: Sequence[str],
) -> None:
    from autoshard.cli.outputs import write_files
    from autoshard.show.figures import figures_markdown, figures_page

    compared = worse if options.compare is not None else None
    write_files(
        {
            options.csv: lambda: figures_csv(figures),
            options.output: lambda: figures_page(figures, about, compared),
            options.markdown: lambda: figures_markdown(figures, about),
        },
        quiet=False,
    )
