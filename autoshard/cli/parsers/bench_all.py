"""The arguments of `autoshard bench all`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments

PARTS = ("search", "iopddl", "plans", "fidelity", "habits", "schedules")


def add_all(kinds: Any) -> None:
    """Add the command to the benchmarks."""
    parser = command(
        kinds,
        "all",
        "bench:all_command",
        "all of these, each figure beside its peer and target",
        epilog="with --compare the exit code is 5 if a figure got worse: seconds by more than\n"
        "25 %%, others by more than 0.5 %%".replace("%%", "%"),
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few rows of each, in about five minutes"
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        help="seconds for each row (default 60, with --quick 10)",
    )
    parser.add_argument(
        "--parts",
        metavar="NAME,NAME,...",
        type=cli_arguments.some_of(*PARTS),
        default=",".join(PARTS),
        help=f"default: {','.join(PARTS)}",
    )
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="with iopddl/*.json.gz, pipeline/instances.json and pipeline/best_by_instance.json",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the figures to this file")
    parser.add_argument("-o", "--output", metavar="FILE", help="write them as an HTML page")
    parser.add_argument("--markdown", metavar="FILE", help="write them as Markdown")
    cli_arguments.add_overwrite(parser)
    parser.add_argument("--compare", metavar="OLD.csv", help="show what got worse since then")
