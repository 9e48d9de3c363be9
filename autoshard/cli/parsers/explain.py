"""The arguments of `autoshard explain`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments


def add_explain(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "explain",
        "explain:explain_command",
        "say why a value is laid out as it is, and what another layout costs",
    )
    cli_arguments.add_plan(parser)
    parser.add_argument(
        "value",
        metavar="VALUE",
        nargs="*",
        help="such as params.w1, or 'scope mlp:dot_general'; without one, the dearest are listed",
    )
    parser.add_argument(
        "--line",
        metavar="FILE:N",
        action="append",
        default=[],
        help="what this line of your code makes",
    )
    parser.add_argument("--against", metavar="OTHER", help="compare with this plan")
    parser.add_argument(
        "--keep",
        metavar="NAME",
        nargs="*",
        help="what it costs to save for the backward pass what is computed again there, and to "
        "compute again what is saved: for each of these values ('*ffn*'), or for the largest",
    )
    parser.add_argument(
        "--stage",
        metavar="N",
        type=int,
        action="append",
        help="of a plan for several meshes, this stage alone; may be given again",
    )
    parser.add_argument("--program", metavar="PROGRAM", help="default: what the plan names")
    parser.add_argument("--machine", metavar="MACHINE", help="default: what the plan names")
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=60.0,
        help="seconds to prepare, and for each value (default 60)",
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
