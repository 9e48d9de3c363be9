"""`autoshard bench`: benchmarks, with every row measured in its own process.

The benchmarks are the scripts in the folder `benchmarks/`. The folder is beside the package in a
checkout, and inside the package when installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import autoshard
from autoshard.cli.common import CommandError
from autoshard.cli.outputs import DRAWING, MARKDOWN, PAGE, require_outputs, table
from autoshard.cli.search import find_machine
from autoshard.extras import require


def bench_command(options: argparse.Namespace) -> int:
    """Never called: the parser requires a benchmark."""
    raise CommandError(
        "name a benchmark: layers, iopddl, solvers, resolve, fidelity, habits, kernels, plans, "
        "measured, served, schedules or all"
    )


def _run(benchmark: Any, options: argparse.Namespace) -> int:
    """Run a benchmark; with `--json` its rows are printed at the end, and its table to stderr.

    Args:
      benchmark: a module, whose `run` names its rows `options.told` as soon as it has a list.
      options: of the command.
    """
    if not options.json:
        return benchmark.run(options)
    options.told = []
    with contextlib.redirect_stdout(sys.stderr):
        code = benchmark.run(options)
    # What is not a number is null; numbers of numpy are numbers.
    print(msgspec.json.encode({"rows": options.told}, enc_hook=float).decode())
    return code


def layers_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench layers`."""
    require_outputs(options, csv=table("model", "layers", "form"))
    return _run(load_benchmark("layers"), options)


def iopddl_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench iopddl`."""
    require_outputs(options, csv=table("path", "objective"))
    options.paths = contest_files(options.paths)
    return _run(load_benchmark("iopddl"), options)


def solvers_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench solvers`."""
    require_outputs(options, csv=table("problem", "solver"))
    options.problems = _problems(options.problems)
    return _run(load_benchmark("solvers"), options)


def resolve_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench resolve`."""
    require_outputs(options, csv=table("problem", "cold", "warm"))
    benchmark = load_benchmark("resolve")
    options.problems = _problems(options.problems or benchmark.default_problems())
    return _run(benchmark, options)


def habits_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench habits`."""
    require_outputs(options, csv=table("habit"), markdown=MARKDOWN)
    return _run(load_benchmark("habits"), options)


def kernels_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench kernels`."""
    return _run(load_benchmark("kernels"), options)


def fidelity_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench fidelity`."""
    require_outputs(options, csv=table("program", "machine", "plan"), svg=DRAWING)
    if options.svg is not None:
        require("matplotlib", "plots", "A picture of fidelity")
    return _run(load_benchmark("fidelity"), options)


def plans_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench plans`."""
    require_outputs(options, csv=table("program", "machine", "plan"))
    benchmark = load_benchmark("plans")
    try:
        machines = [name for name in options.machines.split(",") if name]
        options.rows = benchmark.read_rows(options.rows or benchmark.default_rows(machines))
    except ValueError as error:
        raise CommandError(str(error)) from error
    for machine in dict.fromkeys(row.machine for row in options.rows):
        find_machine(machine)
    if options.auto_sharding is not None:
        peer = load_benchmark("auto_sharding.environment")
        folder = Path(options.auto_sharding or peer.default_folder())
        try:
            peer.environment(folder)
        except peer.AutoShardingError as error:
            raise CommandError(str(error)) from error
        options.auto_sharding = str(folder)
    return _run(benchmark, options)


def measured_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench measured`."""
    from autoshard.study.measured.table import read_table

    _require_pages(options)
    if options.compiled and not options.ours:
        raise CommandError("--compiled compares our own plan; give it time by --ours SECONDS")
    options.runs = _published(options, read_table)
    return _run(load_benchmark("measured"), options)


def served_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench served`."""
    from autoshard.study.served.table import read_points

    _require_pages(options)
    options.points = _published(options, read_points)
    return _run(load_benchmark("served.points"), options)


def _require_pages(options: argparse.Namespace) -> None:
    """Refuse what a benchmark against published figures cannot write or go on with."""
    require_outputs(options, csv=table("id", "status"), markdown=MARKDOWN, svg=DRAWING)
    if options.resume and options.csv is None:
        raise CommandError("--resume needs --csv FILE, where rows are kept")


def _published(options: argparse.Namespace, read: Callable[[str], list[Any]]) -> list[Any]:
    """The rows of a table of published figures that are asked for."""
    try:
        return load_benchmark("measured").chosen(read(options.table), options.rows)
    except OSError as error:
        raise CommandError(f"cannot read {options.table!r}: {error.strerror}") from error
    except ValueError as error:  # of which TableError is one
        raise CommandError(str(error)) from error


def schedules_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench schedules`."""
    require_outputs(options, csv=table("instance", "bound"))
    benchmark = load_benchmark("schedules")
    if not options.instances and not options.large:
        raise CommandError("name a file of instances, or give --large")
    try:
        options.written = [row for path in options.instances for row in benchmark.read_rows(path)]
        for name in ("peers", "peers_by_problem"):
            path = getattr(options, name)
            setattr(options, name, [] if path is None else benchmark.read_rows(path))
    except OSError as error:
        raise CommandError(f"cannot read {error.filename!r}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    return _run(benchmark, options)


def all_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench all`."""
    require_outputs(options, csv=table("part", "figure"), output=PAGE, markdown=MARKDOWN)
    if options.time_limit is None:
        options.time_limit = 10.0 if options.quick else 60.0
    if options.compare is not None:
        from autoshard.study.figures import read_figures

        try:
            options.old = read_figures(options.compare)
        except OSError as error:
            raise CommandError(f"cannot read {options.compare!r}: {error.strerror}") from error
        except ValueError as error:
            raise CommandError(str(error)) from error
    return _run(load_benchmark("everything"), options)


def _problems(words: Sequence[str]) -> list[str]:
    """Return the named contest files and programs; any other name is an error."""
    files = contest_files([word for word in words if "@" not in word])
    programs = [word for word in words if "@" in word]
    try:
        return load_benchmark("solvers").problems([*files, *programs])
    except ValueError as error:
        raise CommandError(str(error)) from error


def contest_files(paths: Sequence[str]) -> list[str]:
    """Return the named files and the files in the named folders, sorted within each folder."""
    files, faults = [], []
    for path in paths:
        place = Path(path)
        if place.is_dir():
            inside = sorted(str(file) for file in place.iterdir() if is_contest_name(file.name))
            files += inside
            if not inside:
                faults.append(f"the folder {path!r} holds no .json or .json.gz file")
        elif place.exists():
            files.append(path)
        else:
            faults.append(f"there is no file {path!r}")
    if faults:
        raise CommandError("\n  ".join(faults))
    return files


def is_contest_name(name: str) -> bool:
    """Return whether a file of that name may be an instance of the contest."""
    return name.endswith((".json", ".json.gz")) and not name.startswith(".")


def load_benchmark(name: str) -> Any:
    """A script of the folder `benchmarks/`, as a module; ``folder.name`` for one further down."""
    package = Path(autoshard.__file__).resolve().parent
    for folder in (package / "benchmarks", package.parent / "benchmarks"):
        file = folder.joinpath(*name.split(".")).with_suffix(".py")
        if file.is_file():
            spec = importlib.util.spec_from_file_location(f"autoshard_benchmark_{name}", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # dataclasses look their module up
            spec.loader.exec_module(module)
            return module
    raise CommandError(
        f"this installation has no benchmark {name!r}: no file {name}.py in a folder benchmarks "
        "beside the package or in it; install autoshard again, or run it in a checkout"
    )
