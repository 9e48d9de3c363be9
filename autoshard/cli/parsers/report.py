"""The arguments of `autoshard report`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments


def add_report(commands: Any) -> None:
    """Add the parser of `autoshard report`."""
    parser = command(
        commands,
        "report",
        "report:report_command",
        "write a plan, two plans side by side, a sweep or a schedule as an HTML page; a plan also "
        "in formats of other tools",
    )
    parser.add_argument(
        "plan",
        metavar="PLAN",
        help="what -o of `autoshard search`, `whatif`, `serving` or `schedule` wrote, or the "
        "CSV of `whatif`",
    )
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        nargs="?",
        help="the program of the plan, by default what the plan names; or another plan, NAME.json, "
        "to be put beside it",
    )
    cli_arguments.add_trust(parser)
    parser.add_argument(
        "--machine", metavar="MACHINE", help="the machine of the plan; default: what it names"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="one HTML file that needs no network"
    )
    parser.add_argument(
        "--verification",
        metavar="FILE",
        help="what `autoshard verify --json` printed, to be part of the page",
    )
    parser.add_argument(
        "--robust",
        metavar="FILE",
        help="what `autoshard robust --record` wrote, to be part of the page",
    )
    for option, summary in (
        ("--trace", "a trace of the step, for Perfetto or chrome://tracing"),
        ("--model-explorer", "the planned program as a graph for Model Explorer"),
        ("--node-data", "seconds of its nodes, with which Model Explorer colours them"),
        ("--rules", "logical axis rules and names of all inputs, as YAML for MaxText"),
        ("--shardings", "layouts of all inputs and outputs, as JSON for NamedSharding"),
    ):
        parser.add_argument(option, metavar="FILE", help=summary)
    cli_arguments.add_overwrite(parser)
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
