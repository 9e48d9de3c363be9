"""The arguments of `autoshard frontier`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments
from autoshard.cli.parsers.arguments import MACHINE, PROGRAM


def add_frontier(commands: Any) -> None:
    """Add the parser of `autoshard frontier`."""
    parser = command(
        commands,
        "frontier",
        "whatif:frontier_command",
        "plan within less and less memory: what a step takes, and what one more GiB is worth",
    )
    parser.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    parser.add_argument("--machine", metavar="MACHINE", required=True, help=MACHINE)
    parser.add_argument(
        "--mesh",
        metavar="AXES",
        type=cli_arguments.mesh,
        help="fix the mesh, as data=2,model=4; without it, mesh shapes are searched",
    )
    parser.add_argument(
        "--points",
        metavar="N",
        type=cli_arguments.count,
        default=6,
        help="how many memory limits at most (default 6)",
    )
    add_rewrites(parser, remat="search")
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=cli_arguments.size,
        help="the largest per device, as 60GiB; default: what the chip has, less a reserve",
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=300.0,
        help="seconds for all searches together (default 300)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plans to this file")
    cli_arguments.add_overwrite(parser)
    parser.add_argument("--json", action="store_true", help="print the plans as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_rewrites(parser: Any, *, remat: str) -> None:
    """Add the options for how a search may rewrite the step; `remat` is the default of one."""
    parser.add_argument(
        "--remat",
        choices=("respect", "search", "offload"),
        default=remat,
        help="what is saved for the backward pass and computed again there: as the program says, "
        "the best of several choices, or the best of them and of some whose stacks wait in the "
        f"memory of the host (default {remat})",
    )
    parser.add_argument(
        "--accumulate",
        metavar="N,...",
        type=cli_arguments.counts,
        default=(1,),
        help="numbers of microbatches to choose from: the step works on so many equal parts of its "
        "batch, one after another (default 1)",
    )
