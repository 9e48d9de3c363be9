"""The arguments of `autoshard bench served`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments


def add_served(kinds: Any) -> None:
    """Add the benchmark."""
    served = command(
        kinds, "served", "bench:served_command", "published points of serving engines, bounded"
    )
    served.add_argument(
        "table",
        metavar="TABLE",
        help="CSV with a point a row; it needs the columns id, model, chip, chips, batch, input, "
        "output, and one of ttft_ms, tpot_ms, tokens_per_s",
    )
    served.add_argument(
        "--rows", metavar="ID,ID", help="only points with an id like one of these, as nim-*,tl9-*"
    )
    served.add_argument(
        "--ours",
        metavar="S",
        type=cli_arguments.seconds,
        default=0.0,
        help="also search for our own plan of each decode step, so many seconds (default: not)",
    )
    cli_arguments.add_pages_of_rows(served)
