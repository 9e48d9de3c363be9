"""What a file holds that a command wrote, and its text: any such file can be shown and named."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autoshard.cli.common import CommandError
from autoshard.units import format_gap, format_percent, visible

if TYPE_CHECKING:
    from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome

COLUMNS = 100
"""Of the drawing of a schedule."""


def schedule_text(outcome: ScheduleOutcome, name: str, reason: str, columns: int) -> str:
    """What a schedule takes, and its drawing.

    Args:
      outcome: with an order.
      name: of the problem, where it has none of its own.
      reason: why this placement was chosen, where there were others.
      columns: of the drawing.
    """
    from autoshard.solve.schedule.drawing import LEGEND, draw_text
    from autoshard.terminal import drawing_columns, paragraph, table

    timeline, limits = outcome.timeline, outcome.instance.memory_limit
    assert timeline is not None
    rows = [("mesh", "memory at its peak", *(["limit"] if limits else []))]
    for mesh, peak in enumerate(timeline.peak_memory):
        known = [f"{limits[mesh]:,.12g}"] if limits else []
        rows.append((str(mesh), f"{peak:,.12g}", *known))
    lines = [
        paragraph(f"{outcome.instance.name or name}: {outcome}"),
        paragraph(
            f"makespan {timeline.makespan:,.12g}, span {timeline.span:,.12g}, "
            f"bubble {format_percent(timeline.bubble)}, found by {outcome.found_by}"
        ),
        "",
        table(rows, right=(0, 1, 2), indent=0),
        "times and memory: in the units of the problem's file",
        "",
        *([paragraph(reason), ""] if reason else []),
        paragraph(LEGEND),
    ]
    return "\n".join([*lines, draw_text(timeline, min(columns, drawing_columns()))])


def solution_text(answer: dict[str, Any], file: str) -> str:
    """A line about a solution, as its file has it."""
    known = [f"{key} {answer[key]:.12g}" for key in ("objective", "bound") if answer.get(key)]
    gap = "" if answer.get("gap") is None else f", gap {format_gap(answer['gap'])}"
    stopped = f", stopped: {answer['limit_hit']}" if answer.get("limit_hit") else ""
    return (
        f"{answer.get('name') or file}: {answer['status']}, {', '.join(known)}{gap}, "
        f"{answer['seconds']:.1f} s{stopped}"
    )


def _plan(data: Any, path: str, moves: int) -> str:
    from autoshard.plan.plan import Plan, PlanError
    from autoshard.plan.text.page import format_plan

    try:
        return format_plan(Plan.from_json(data), dearest=moves)
    except PlanError as error:
        raise CommandError(f"{path!r}: {error}") from error


def _pipeline(data: Any, path: str, moves: int) -> str:
    from autoshard.plan.plan import PlanError
    from autoshard.search.meshes.plan import PipelinePlan
    from autoshard.search.meshes.report import format_pipeline

    try:
        return format_pipeline(PipelinePlan.from_json(data))
    except PlanError as error:
        raise CommandError(f"{path!r}: {error}") from error


def _schedule(data: Any, path: str, moves: int) -> str:
    from autoshard.solve.schedule.faults import ScheduleError
    from autoshard.solve.schedule.optimise.outcome_json import outcome_from_json

    try:
        outcome = outcome_from_json(data)
    except ScheduleError as error:
        raise CommandError(f"{path!r}: {error}") from error
    return schedule_text(outcome, outcome.instance.name or path, "", COLUMNS)


def _sweep(data: Any, path: str, moves: int) -> str:
    from autoshard.show.sweep.file import SweepFileError, read_sweep
    from autoshard.show.sweep.serving_file import is_serving, read_serving

    text = json.dumps(data)
    try:
        return str(read_serving(text) if is_serving(text) else read_sweep(text))
    except SweepFileError as error:
        raise CommandError(f"{path!r}: {error}") from error


def _robust(data: Any, path: str, moves: int) -> str:
    from autoshard.study.robust.record import Robust

    try:
        return str(Robust.from_json(data))
    except ValueError as error:
        raise CommandError(f"{path!r}: {error}") from error


def _frontier(data: Any, path: str, moves: int) -> str:
    from autoshard.plan.plan import PlanError
    from autoshard.study.frontier import Frontier

    try:
        return str(Frontier.from_json(data))
    except PlanError as error:
        raise CommandError(f"{path!r}: {error}") from error


def _verdicts(data: Any, path: str, moves: int) -> str:
    from autoshard.cli.common import Verdict, WrittenVerdicts
    from autoshard.files import FileError, typed

    try:
        written = typed(data, WrittenVerdicts, name=repr(path))
    except FileError as error:
        raise CommandError(str(error)) from error
    return "\n".join(str(Verdict(v.judge, v.agrees, v.text)) for v in written.verdicts)


def _solution(data: Any, path: str, moves: int) -> str:
    return solution_text(data, path)


PRINTERS: dict[str, Callable[[Any, str, int], str]] = {
    "a plan": _plan,
    "a plan for several meshes": _pipeline,
    "a schedule": _schedule,
    "a sweep": _sweep,
    "an answer about serving": _sweep,
    "an answer about ranges": _robust,
    "a front of memory and time": _frontier,
    "verdicts": _verdicts,
    "a solution": _solution,
}
"""The report of each kind of file, from its data, the path, and how many collectives to list."""


def show_command(options: argparse.Namespace) -> int:
    """Run `autoshard show`."""
    from autoshard.cli.kinds.files import KINDS, kind_of_file

    data = _data(options.plan)
    kind = kind_of_file(options.plan)
    if kind is None:
        makers = (f"`{kind.made}`" for kind in KINDS if kind.what in PRINTERS)
        raise CommandError(
            f"{options.plan!r} is not a file of a command; show reads those of {', '.join(makers)}"
        )
    if options.json:
        print(json.dumps(data))
    else:
        print(PRINTERS[kind.what](_visible(data), options.plan, options.moves).rstrip("\n"))
    return 0


def _visible(data: Any) -> Any:
    """Data whose texts hold nothing that a terminal obeys."""
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, list):
        return [_visible(one) for one in data]
    if isinstance(data, dict):
        return {_visible(key): _visible(value) for key, value in data.items()}
    return data


def _data(path: str) -> Any:
    from autoshard.files import FileError, json_of, read_text

    try:
        text = read_text(path, "the plan")
        return _rows(text) if _is_table(text) else json_of(text, path)
    except FileError as error:
        raise CommandError(str(error)) from error


def _is_table(text: str) -> bool:
    """Whether it is the CSV of a sweep."""
    from autoshard.show.sweep.file import is_sweep

    return not text.lstrip().startswith(("{", "[")) and is_sweep(text)


def _rows(text: str) -> Any:
    from autoshard.show.sweep.file import read_sweep

    return read_sweep(text).to_json()
