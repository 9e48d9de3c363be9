"""`autoshard calibrate`: fits a machine file to times from a table, a compiler or local devices.

With `--device`, a child process (`python -m autoshard.study.calibrate.child`) measures the times;
it may use the accelerators of this host.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.cli.common import CommandError
from autoshard.cli.outputs import MACHINE, TIMES, require_outputs, say_written, write_file
from autoshard.cli.progress import ProgressLine
from autoshard.cli.search import find_machine
from autoshard.units import counted, format_percent

if TYPE_CHECKING:
    import pandas as pd

    from autoshard.machine.machine import Machine
    from autoshard.study.calibrate import Fit
    from autoshard.study.calibrate.device import Devices


def calibrate_command(options: argparse.Namespace) -> int:
    """Run `autoshard calibrate`."""
    from autoshard.compiler.target import CompileError
    from autoshard.study.calibrate import TableError, fit, read_table
    from autoshard.study.calibrate.device import UnmeasuredError

    _check(options)
    try:
        if options.device:
            devices, table = _measure(options)
            if options.times is not None:
                _write(options.times, table.to_csv(index=False), options)
            machine, notes, base = _start(options, devices, table)
            source = options.times or "times taken by `autoshard calibrate --device`"
        elif options.compiled:
            machine, notes, base = find_machine(options.machine), {}, options.machine
            table = _compile(options, machine)
            if options.times is not None:
                _write(options.times, table.to_csv(index=False), options)
            source = "XLA's own times of collectives"
        else:
            table = read_table(options.table)
            machine, notes, base = find_machine(options.machine), {}, options.machine
            source = Path(options.table).name
        found = fit(table, machine, source=source + _dates(table))
    except (TableError, UnmeasuredError, CompileError) as error:
        raise CommandError(str(error)) from error
    if options.json:
        print(json.dumps(found.report.to_json()))
    else:
        print(found.report)
    if options.output is not None:
        _write(options.output, _toml(found, notes, base), options)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Reject impossible options before anything is measured."""
    if options.device + options.compiled + (options.table is not None) != 1:
        raise CommandError(
            "give a table of times, or --device to measure one here, or --compiled to ask the "
            "machine's compiler"
        )
    if not options.device and options.machine is None:
        raise CommandError("times are fitted to a machine; name it with --machine")
    if options.times is not None and options.table is not None:
        raise CommandError(
            "--table is where --device and --compiled write their times; there is neither"
        )
    require_outputs(options, output=MACHINE, times=TIMES)


def _compile(options: argparse.Namespace, machine: Machine) -> pd.DataFrame:
    """Return the compiler's times of collectives within a host."""
    import pandas as pd

    from autoshard.study.calibrate.compiled_rows import compiled_rows

    rows = []
    with ProgressLine(quiet=options.quiet) as line:
        line.show("compiling", group="start")
        for row in compiled_rows(machine):
            rows.append(row)
            words = f"{row['collective']} among {row['group_size']}"
            line.show(f"read {len(rows)} times, last of {words}", group=words)
    return pd.DataFrame(rows)


def _measure(options: argparse.Namespace) -> tuple[Devices, pd.DataFrame]:
    """Return the local devices and their times."""
    import pandas as pd

    from autoshard.study.calibrate.device import Devices

    asked = {
        "largest_bytes": options.largest,
        "runs": options.runs,
        "kinds": options.kinds,
        "dtypes": options.dtypes,
    }
    environment = {key: cell for key, cell in os.environ.items() if key != "JAX_PLATFORMS"}
    if options.platform is not None:
        environment["JAX_PLATFORMS"] = options.platform
    answers: list[dict[str, Any]] = []
    lost: list[str] = []
    with ProgressLine(quiet=options.quiet) as line, tempfile.TemporaryFile("w+") as complaints:
        line.show("starting the devices", group="start")
        child = subprocess.Popen(
            [sys.executable, "-m", "autoshard.study.calibrate.child", json.dumps(asked)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        try:
            assert child.stdout is not None
            for text in child.stdout:
                if not text.startswith("{"):  # runtime log output
                    continue
                answer = json.loads(text)
                if "warning" in answer:
                    lost.append(answer["warning"])
                    continue
                answers.append(answer)
                kind = answers[-1]["kind"]
                line.show(f"measured {len(answers) - 1} times, last of {kind}", group=kind)
            code = child.wait()
        finally:
            child.kill()
            child.wait()
        complaints.seek(0)
        last = complaints.read().strip().split("\n")[-1]
    for warning in lost:
        print(f"autoshard: warning: {warning}", file=sys.stderr)
    if code != 0:
        raise CommandError(f"the devices cannot be measured: {last or f'exit code {code}'}")
    if len(answers) < 2:
        raise CommandError("nothing could be timed; allow larger arrays, or more --kinds")
    return Devices(**answers[0]), pd.DataFrame(answers[1:]).convert_dtypes()


def _start(
    options: argparse.Namespace, devices: Devices, table: pd.DataFrame
) -> tuple[Machine, dict[str, str], str | None]:
    """Return the machine that a fit to measured times starts from, comments, and its own name."""
    from autoshard.study.calibrate.device import machine_of
    from autoshard.study.calibrate.table import rows

    name = options.machine or devices.preset
    if name is not None:
        return find_machine(name), {}, name
    return *machine_of(devices, rows(table)), None


def _toml(found: Fit, notes: dict[str, str], base: str | None) -> str:
    from autoshard.study.calibrate.machine_toml import file_of, machine_toml

    machine, notes = found.machine, dict(notes)
    for entry in found.report.parameters:
        if entry.fitted:
            off = f"median error {format_percent(entry.errors_after.median)}"
            notes[entry.name] = f"fitted to {counted(entry.rows, 'row')}, {off}"
        elif base is None:
            notes.setdefault(entry.name, f"not fitted, {entry.note.removeprefix('stays: ')}")
    text = None if base is None else file_of(base, machine)
    return machine_toml(machine, name=_name(machine.name), notes=notes, base=text)


def _name(name: str) -> str:
    return name if name.endswith("-fitted") else f"{name}-fitted"


def _dates(table: pd.DataFrame) -> str:
    """Return the days on which rows were measured, as ` (2026-01-31)`, if the table has them."""
    if "date" not in table:
        return ""
    days = sorted({str(day) for day in table["date"].dropna() if str(day).strip()})
    if not days:
        return ""
    return f" ({days[0]})" if len(days) == 1 else f" ({days[0]} to {days[-1]})"


def _write(path: str, text: str, options: argparse.Namespace) -> None:
    target = Path(path)
    if target.is_file() and target.read_bytes() == text.encode():
        return
    write_file(path, text)
    say_written(path, quiet=options.quiet)
