"""The arguments of `autoshard robust`."""

from __future__ import annotations

import argparse
from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments


def add_robust(commands: Any) -> None:
    """Add the parser of `autoshard robust`."""
    parser = command(
        commands,
        "robust",
        "robust:robust_command",
        "say where a plan stays best if numbers of the machine are ranges, and which to measure",
        epilog="In a machine's file a number may be [least, most], or [least, what it is taken "
        "for, most].",
    )
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        help="a built-in (see `autoshard programs`), module:function, or path/to/file.py:function",
    )
    parser.add_argument(
        "--machine",
        metavar="MACHINE",
        required=True,
        help="a TOML file with ranges, or any machine with --range or --spread",
    )
    _add_ranges(parser)
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        type=cli_arguments.fraction,
        default=0.01,
        help="a plan is better where it is cheaper by this share (default 1 %%)",
    )
    parser.add_argument("--mesh", metavar="AXES", type=cli_arguments.mesh, help="as of search")
    parser.add_argument(
        "--require",
        metavar="WORDS",
        action="append",
        default=[],
        help="as of search: what every plan must obey, whatever the machine proves to be",
    )
    parser.add_argument("--memory-limit", metavar="SIZE", type=cli_arguments.size)
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=300.0,
        help="seconds for all searches (default 300)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the plan of least regret to this file"
    )
    parser.add_argument(
        "--record", metavar="FILE", help="write the answer as JSON, for `autoshard report --robust`"
    )
    parser.add_argument("--csv", metavar="FILE", help="write a line per number")
    cli_arguments.add_overwrite(parser)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _add_ranges(parser: Any) -> None:
    """Add the options for the machine's numbers that are ranges."""
    parser.add_argument(
        "--range",
        metavar="NUMBER=A..B",
        type=_range,
        action="append",
        default=[],
        help="as chip.memory_bandwidth=2.8e12..3.4e12, network[0].link_bandwidth=..., overlap=...",
    )
    parser.add_argument(
        "--spread",
        metavar="SHARE",
        type=cli_arguments.fraction,
        default=0.0,
        help="a range of this share to both sides for every rate, time and share that has none",
    )


def _range(text: str) -> tuple[str, tuple[float, float]]:
    path, equals, values = text.partition("=")
    low, dots, high = values.partition("..")
    try:
        if equals and dots:
            return path.strip(), (float(low), float(high))
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a range; write chip.memory_bandwidth=2.8e12..3.4e12"
    )
