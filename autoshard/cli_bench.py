"""`autoshard bench`: benchmarks, every row measured in a process of its own.

The benchmarks are the scripts of the folder `benchmarks/`, which stands beside the package in a
checkout and inside of it when installed.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from autoshard.cli_errors import CommandError
from autoshard.cli_search import require_writable


def bench_command(options: argparse.Namespace) -> int:
    """Never reached: the parser asks for a benchmark."""
    raise CommandError("name a benchmark: layers or iopddl")


def layers_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench layers`."""
    require_writable(options.csv)
    return _benchmark("layers").run(options)


def iopddl_command(options: argparse.Namespace) -> int:
    """Run `autoshard bench iopddl`."""
    require_writable(options.csv)
    missing = [path for path in options.paths if not Path(path).is_file()]
    if missing:
        raise CommandError(f"there is no file {', '.join(map(repr, missing))}")
    return _benchmark("iopddl").run(options)


def _benchmark(name: str) -> Any:
    package = Path(__file__).resolve().parent
    for folder in (package / "benchmarks", package.parent / "benchmarks"):
        file = folder / f"{name}.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location(f"autoshard_benchmark_{name}", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise CommandError(f"this installation has no benchmark {name!r}")
