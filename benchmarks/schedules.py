"""Our schedules beside the best of the named ones and of others: `autoshard bench schedules`.

A file of instances is a JSON list of schedule problems (`autoshard.solve.schedule.instance_json`),
each with `mem_limits`. A file of peers has one object for each (instance, limit, objective), with
the `value` of the best schedule known; a file of peers by problem leaves the placement free: names
are those of the instances without their last part. `--large` adds problems of 32 meshes and 128
microbatches: alike or with heavy ends, one stage a mesh, two in a loop, two in a V.

Every order is run again by the simulator. Each limit starts from what a tighter one has given, and
the span from the makespan, unless `--cold`. The columns:

    ours, bound, gap   value, what no schedule can beat, and (ours - bound) / ours
    peer, change       the peer's value, and ours against it: less than zero is better
    seconds, by        of our search, and the part of it that found the order
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from autoshard.files import read_json
from autoshard.units import counted, format_percent

KEYS = (
    "instance", "limit", "objective", "ours", "bound", "gap", "status", "seconds", "by", "peer",
    "change", "peer_name", "met_bound",
)  # fmt: skip
TOLERANCE = 1e-9
LARGE_MESHES, LARGE_MICROBATCHES = 32, 128


def run(options: argparse.Namespace) -> int:
    """Solve all rows and print them, then the summary."""
    from autoshard.cli.common import INTERRUPTED

    written = [*options.written, *(large() if options.large else ())]
    written = [one for one in written if all(part in one["name"] for part in options.only)]
    peers = _by_key(options.peers, "instance")
    options.told = rows = []
    interrupted = False
    print(_line(dict(zip(KEYS, KEYS, strict=True))), flush=True)
    try:
        for one in written:
            for row in _solved(one, options):
                rows.append(_judged(row, peers))
                print(_line(rows[-1]), flush=True)
                _save(options.csv, rows)
                if row["by"] == "interrupted":
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        interrupted = True
    for line in summary(rows, _by_key(options.peers_by_problem, "problem")):
        print(line, flush=True)
    if options.csv is not None and rows:
        print(f"autoshard: wrote {options.csv}", file=sys.stderr)
    return INTERRUPTED if interrupted else 0


def _solved(written: dict[str, Any], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of one instance: all limits, tighter ones first, and objectives."""
    from autoshard.solve.schedule.instance_json import instance_from_json
    from autoshard.solve.schedule.optimise import solve
    from autoshard.solve.schedule.optimise.solve import InfeasibleLimitError
    from autoshard.solve.schedule.timeline import simulate

    instance = instance_from_json(written)
    known: list[Any] = []
    for name in options.limits:
        limited = instance.with_limit(instance.limit_named(name))
        for objective in options.objectives:
            row: dict[str, Any] = {
                "instance": instance.name, "limit": name, "objective": objective
            }  # fmt: skip
            try:
                outcome = solve(
                    limited,
                    objective=objective,
                    time_limit=options.time_limit,
                    threads=options.threads,
                    warm_starts=() if options.cold else known,
                )
            except InfeasibleLimitError as error:
                yield row | {"status": f"infeasible: {error.faults[0]}"}
                continue
            row["seconds"], row["bound"] = outcome.seconds, outcome.bound
            row["status"], row["by"] = outcome.status.name.lower(), outcome.found_by
            if outcome.order is not None:
                known.append(outcome.order)
                row["ours"] = simulate(limited, outcome.order).value(objective)
                row["gap"] = outcome.gap
            if outcome.limit_hit == "interrupted":
                row["by"] = "interrupted"
            yield row


def _judged(row: dict[str, Any], peers: dict[tuple[str, ...], dict[str, Any]]) -> dict[str, Any]:
    peer = peers.get((row["instance"], row["limit"], row["objective"]))
    if peer is None or row.get("ours") is None:
        return row
    change = row["ours"] / peer["value"] - 1
    met = peer.get("bound") is not None and peer["value"] <= peer["bound"] * (1 + TOLERANCE)
    return row | {
        "peer": peer["value"], "peer_name": peer.get("peer", ""), "change": change, "met_bound": met
    }  # fmt: skip


def summary(
    rows: Sequence[dict[str, Any]], by_problem: dict[tuple[str, ...], dict[str, Any]]
) -> Iterator[str]:
    """What the rows come to."""
    solved = [row for row in rows if row.get("ours") is not None]
    optimal = sum(row["status"] == "optimal" for row in solved)
    yield f"\n{counted(len(rows), 'row')}, {len(solved)} with a schedule, {optimal} proven optimal"
    beside = [row for row in solved if "peer" in row]
    if beside:
        yield f"beside the best peer: {_tally(beside)}"
        for name in dict.fromkeys(row["limit"] for row in beside):
            open_rows = [row for row in beside if row["limit"] == name and not row["met_bound"]]
            if open_rows:
                yield f"limit {name}, where the peer does not meet its bound: {_tally(open_rows)}"
    free = list(_placement_free(solved, by_problem))
    if free:
        yield f"placement free: {_tally(free)}"


def _tally(rows: Sequence[dict[str, Any]]) -> str:
    changes = [row["change"] for row in rows]
    better = sum(change < -TOLERANCE for change in changes)
    worse = sum(change > TOLERANCE for change in changes)
    return (
        f"{better} better, {len(rows) - better - worse} equal, {worse} worse of {len(rows)}; "
        f"mean {format_percent(sum(changes) / len(changes), '+.3f')}, "
        f"best {format_percent(min(changes), '+.2f')}, worst {format_percent(max(changes), '+.2f')}"
    )


def _placement_free(
    rows: Sequence[dict[str, Any]], by_problem: dict[tuple[str, ...], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Our best placement of each problem beside the peers' best."""
    best: dict[tuple[str, ...], float] = {}
    for row in rows:
        key = (row["instance"].rpartition("-")[0], row["limit"], row["objective"])
        best[key] = min(best.get(key, float("inf")), row["ours"])
    for key, value in best.items():
        if key in by_problem:
            yield {"change": value / by_problem[key]["value"] - 1}


def large() -> list[dict[str, Any]]:
    """Problems of many meshes and microbatches, in the times of the Zero Bubble paper's 28.3B."""
    p, m = LARGE_MESHES, LARGE_MICROBATCHES
    places = {
        "v1": [*range(p)],
        "v2loop": [*range(p), *range(p)],
        "v2V": [*range(p), *reversed(range(p))],
    }
    made = []
    for ends in ("none", "embloss"):
        for place, placement in places.items():
            stages = len(placement)
            heavy = {0, stages - 1} if ends == "embloss" else set()
            share = p / stages
            times = {
                kind: [round(time * share + time * 0.25 * (s in heavy)) for s in range(stages)]
                for kind, time in (("F", 10419), ("B", 10207), ("W", 7715))
            }
            take = round(454656 * share)
            back = round(258048 * share)
            limit = p * 454656
            made.append(
                {
                    "name": f"p{p}m{m}-28.3B-{ends}-{place}", "p": p, "m": m, "S": stages, **times,
                    "comm": 408, "placement": placement, "mem_F": take, "mem_B": -back,
                    "mem_W": back - take,
                    "mem_limits": {"1f1b": limit, "2x": 2 * limit, "none": None},
                }
            )  # fmt: skip
    return made


def _by_key(rows: Sequence[dict[str, Any]], name: str) -> dict[tuple[str, ...], dict[str, Any]]:
    return {(row[name], row["limit"], row["objective"]): row for row in rows}


def _line(row: dict[str, Any]) -> str:
    def cell(key: str, width: int, shown: Callable[[Any], str] = "{:.12g}".format) -> str:
        value = row.get(key)
        text = "" if value is None else value if isinstance(value, str) else shown(value)
        return text.rjust(width)

    from autoshard.cli.rows import line

    cells = (
        str(row["instance"]).ljust(25), cell("limit", 5), cell("objective", 9),
        cell("ours", 10), cell("bound", 10),
        cell("gap", 8, lambda gap: format_percent(gap, ".3f")), cell("peer", 10),
        cell("change", 9, lambda change: format_percent(change, "+.3f")),
        cell("seconds", 7, "{:.1f}".format),
        str(row.get("by", row.get("status", ""))),
    )  # fmt: skip
    return line(cells, (25, 5, 9, 10, 10, 8, 10, 9, 7, 0))


def _save(path: str | None, rows: Sequence[dict[str, Any]]) -> None:
    """All rows so far: what was measured outlives an interrupt."""
    if path is None:
        return
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, KEYS, restval="")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: str) -> list[dict[str, Any]]:
    """The objects of a JSON list.

    Raises:
      ValueError: the file cannot be read, or holds something else.
    """
    rows = read_json(path, "the list")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            f"{path!r} is not a list of objects; give a JSON list, an object for each row"
        )
    return rows
