"""`autoshard report` of sweeps, of plans for several meshes, and of schedules."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from autoshard.cli.common import CommandError, WrittenVerdicts

ABOUT_ONE_PLAN = "is about a plan for one mesh"


def other_files(
    options: argparse.Namespace, paths: dict[str, str]
) -> dict[str | None, Callable[[], str]] | None:
    """Return the contents of each requested file; None if PLAN is a plan for one mesh.

    Args:
      options: the options of `autoshard report`.
      paths: the paths of the requested files, by the name of their option.

    Raises:
      CommandError: the file is damaged, or does not have something that was requested.
    """
    text = _read(options.plan)
    for is_one, what, also, texts in _KINDS:
        if is_one(text):
            _refuse(options, paths, what, also)
            return {
                paths[name]: make for name, make in texts(text, options).items() if name in paths
            }
    return None


def is_plan_file(name: str) -> bool:
    """Whether what stands where PROGRAM may is the file of another plan."""
    return name.endswith(".json")


def two_plans(
    options: argparse.Namespace, paths: dict[str, str]
) -> dict[str | None, Callable[[], str]]:
    """The page of PLAN beside another one.

    Raises:
      CommandError: one of them is not a plan for one mesh, or more than the page is asked for.
    """
    from autoshard.cli.search import load_plan
    from autoshard.show.compare import compared

    given = [*paths, *(n for n in ("machine", "verification", "robust") if getattr(options, n))]
    strange = [f"--{name.replace('_', '-')}" for name in given if name != "output"]
    if strange:
        raise CommandError(
            f"{options.plan!r} beside {options.program!r} is a page alone, which -o names; "
            f"{', '.join(strange)} {ABOUT_ONE_PLAN}"
        )
    first, second = load_plan(options.plan), load_plan(options.program)
    return {paths["output"]: lambda: compared(first, second)}


def _read(path: str) -> str:
    """The text of a file, which is JSON unless it is a table.

    Raises:
      CommandError: it cannot be read, or is damaged.
    """
    from autoshard.files import FileError, json_of, read_text

    try:
        text = read_text(path, "the plan")
        if text.lstrip().startswith(("{", "[")):
            json_of(text, path)
    except FileError as error:
        raise CommandError(str(error)) from error
    return text


def _refuse(
    options: argparse.Namespace, paths: dict[str, str], what: str, also: tuple[str, ...]
) -> None:
    words = ("program", "machine", "verification", "robust")
    given = [*paths, *(name for name in words if getattr(options, name))]
    strange = [
        name if name == "program" else f"--{name.replace('_', '-')}"
        for name in given
        if name not in ("output", *also)
    ]
    if strange:
        made = " and ".join(["-o makes a page", *("--trace a trace" for n in also if n == "trace")])
        raise CommandError(
            f"{options.plan!r} is {what}, of which {made}; {', '.join(strange)} {ABOUT_ONE_PLAN}"
        )


Texts = dict[str, Callable[[], str]]


def _sweep(text: str, options: argparse.Namespace) -> Texts:
    from autoshard.show.sweep.file import SweepFileError, read_sweep
    from autoshard.show.sweep.page import sweep_page
    from autoshard.show.sweep.serving_file import is_serving, read_serving
    from autoshard.show.sweep.serving_page import serving_page

    try:
        html = (
            serving_page(read_serving(text)) if is_serving(text) else sweep_page(read_sweep(text))
        )
    except SweepFileError as error:
        raise CommandError(f"{options.plan!r}: {error}") from error
    return {"output": lambda: html}


def _pipeline(text: str, options: argparse.Namespace) -> Texts:
    from autoshard.plan.plan import PlanError
    from autoshard.search.meshes.plan import PipelinePlan
    from autoshard.search.meshes.problem import TICK
    from autoshard.show.pipeline.page import pipeline_page
    from autoshard.solve.schedule.faults import ScheduleError
    from autoshard.solve.schedule.trace import chrome_trace

    verdicts = None if options.verification is None else read_verification(options.verification)
    try:
        plan = PipelinePlan.from_json(json.loads(text))
        html = pipeline_page(plan, verdicts)
    except (PlanError, ScheduleError) as error:
        raise CommandError(f"{options.plan!r}: {error}") from error
    return {
        "output": lambda: html,
        "trace": lambda: json.dumps(
            chrome_trace(plan.instance, plan.timeline, microseconds=1e6 * TICK)
        ),
    }


def _schedule(text: str, options: argparse.Namespace) -> Texts:
    from autoshard.show.pipeline.schedule_page import schedule_page
    from autoshard.solve.schedule.faults import ScheduleError
    from autoshard.solve.schedule.optimise.outcome_json import choice_from_json
    from autoshard.solve.schedule.trace import chrome_trace

    try:
        outcome, considered = choice_from_json(json.loads(text))
        html = schedule_page(outcome, considered)
    except ScheduleError as error:
        raise CommandError(f"{options.plan!r}: {error}") from error
    timeline = outcome.timeline
    assert timeline is not None
    return {
        "output": lambda: html,
        "trace": lambda: json.dumps(chrome_trace(outcome.instance, timeline)),
    }


def _is_sweep(text: str) -> bool:
    from autoshard.show.sweep.file import is_sweep

    return is_sweep(text)


def _is_pipeline(text: str) -> bool:
    from autoshard.search.meshes.plan import KIND

    return _kind(text) == KIND


def _is_schedule(text: str) -> bool:
    from autoshard.solve.schedule.optimise.outcome_json import KIND

    return _kind(text) == KIND


def _kind(text: str) -> Any:
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return data.get("kind") if isinstance(data, dict) else None


_KINDS: tuple[
    tuple[
        Callable[[str], bool],
        str,
        tuple[str, ...],
        Callable[[str, argparse.Namespace], Texts],
    ],
    ...,
] = (
    (_is_sweep, "a sweep", (), _sweep),
    (_is_pipeline, "a plan for several meshes", ("trace", "verification"), _pipeline),
    (_is_schedule, "a schedule", ("trace",), _schedule),
)
"""For each kind of file: its test, its name, its options beside -o, and the function for it."""


def read_verification(path: str) -> Any:
    """Return the output of `autoshard verify --json`, read from a file.

    Raises:
      CommandError: the file cannot be read, or holds something else.
    """
    from autoshard.files import FileError, read_json, typed

    try:
        data = read_json(path, "the verdicts")
        written = typed(data, WrittenVerdicts, name=repr(path))
    except FileError as error:
        what = f"{path!r} is not what `autoshard verify --json` prints"
        raise CommandError(f"{what}: {error}") from error
    return {"verdicts": [one.to_json() for one in written.verdicts]}
