"""`autoshard report`: a plan as one HTML file, and in the formats of tools that display it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.cli_errors import CommandError
from autoshard.cli_search import find_machine, find_program, load_plan, require_writable

if TYPE_CHECKING:
    from autoshard.display.profile import Profile
    from autoshard.plan import Plan


def report_command(options: argparse.Namespace) -> int:
    """Run `autoshard report`."""
    from autoshard.display.page import Material, page
    from autoshard.whole_file import write_whole

    outputs = [options.output]
    if not any(outputs):
        raise CommandError("nothing to write: name a file with -o")
    for path in outputs:
        require_writable(path)
    plan = load_plan(options.plan)
    verdicts = None if options.verification is None else _verification(options.verification)
    found, missing = _profile(plan, options)
    for why in missing:
        print(f"autoshard: warning: left out: {why}", file=sys.stderr)
    material = Material(plan, found, _machine_text(options, plan), verdicts, missing)
    texts: dict[str | None, Callable[[], str]] = {options.output: lambda: page(material)}
    for path, text in texts.items():
        if path is None:
            continue
        try:
            write_whole(path, text().encode())
        except OSError as error:
            raise CommandError(f"cannot write {path!r}: {error.strerror or error}") from error
        print(f"autoshard: wrote {path}", file=sys.stderr)
    return 0


def _profile(plan: Plan, options: argparse.Namespace) -> tuple[Profile | None, tuple[str, ...]]:
    """The plan op by op, or why there is none; what the user named must be there."""
    from autoshard.display.profile import profile
    from autoshard.plan import PlanError

    parts: list[Any] = []
    for named, kept, find, repair in (
        (options.program, plan.program, find_program, "give PROGRAM"),
        (options.machine, plan.machine, find_machine, "give --machine"),
    ):
        try:
            parts.append(find(named or kept))
        except CommandError as error:
            if named is not None:
                raise
            first = str(error).splitlines()[0]
            return None, (f"memory over time, compute and sensitivity: {first}; {repair}",)
    (_, program), machine = parts
    try:
        return profile(plan, program, machine), ()
    except PlanError as error:
        raise CommandError(str(error)) from error


def _machine_text(options: argparse.Namespace, plan: Plan) -> str | None:
    from autoshard.display.sources import machine_text
    from autoshard.machine import MachineError

    try:
        return machine_text(options.machine or plan.machine)
    except MachineError:
        return None  # the warning about the profile has said so


def _verification(path: str) -> Any:
    try:
        read = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = read["verdicts"]
        if all({"judge", "agrees", "text"} <= row.keys() for row in rows):
            return read
    except OSError as error:
        raise CommandError(f"cannot read {path!r}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise CommandError(f"{path!r} is not what `autoshard verify --json` prints")
