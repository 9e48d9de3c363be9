"""The arguments of `autoshard bench measured`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments


def add_measured(kinds: Any) -> None:
    """Add the benchmark."""
    measured = command(
        kinds, "measured", "bench:measured_command", "published runs on real machines, predicted"
    )
    measured.add_argument(
        "table",
        metavar="TABLE",
        help="CSV with a run a row; it needs the columns id, model, chip and chips",
    )
    measured.add_argument(
        "--rows", metavar="ID,ID", help="only runs with an id like one of these, as lf-*,mt-v5e-*"
    )
    measured.add_argument(
        "--ours",
        metavar="S",
        type=cli_arguments.seconds,
        default=0.0,
        help="also search for our own plan of each, so many seconds (default: not)",
    )
    measured.add_argument(
        "--compiled",
        metavar="S",
        type=cli_arguments.seconds,
        default=0.0,
        help="with --ours: also compile the run's own configuration and our plan, without "
        "devices, so many seconds for each (default: not)",
    )
    measured.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=300.0,
        help="seconds for each row, beside those of --ours and --compiled (default 300)",
    )
    cli_arguments.add_pages_of_rows(measured)
