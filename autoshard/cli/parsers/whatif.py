"""The arguments of `autoshard whatif`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments

OBJECTIVES = ("step", "tokens-per-second", "tokens-per-dollar", "energy")


def add_whatif(commands: Any) -> None:
    """Add the command to the parsers of `autoshard`."""
    parser = command(
        commands,
        "whatif",
        "whatif:whatif_command",
        "plan a program on many clusters and at many sizes",
        epilog=(
            "chips=16..512 doubles, chips=64..256+64 goes in steps; chip (a preset without its\n"
            "size, or a machine file), chips, machine and limit are of the cluster, all other\n"
            "names are keyword arguments of the program's function. Rows are kept as they come:\n"
            "the same command again goes on where it was stopped."
        ),
    )
    add_sweep(parser)
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default="step", help="what rows are ranked by"
    )
    parser.add_argument(
        "--tokens",
        metavar="WORDS",
        help="tokens in one step: a number, or sizes of the sweep, as batch*sequence; default: the "
        "elements of the input that is called tokens",
    )
    parser.add_argument(
        "--train-tokens",
        metavar="N",
        type=cli_arguments.amount,
        help="tokens of a training run, as 15e12: how many days it takes, and what it costs",
    )
    parser.add_argument(
        "--latency",
        metavar="S",
        type=cli_arguments.seconds,
        help="rank only rows whose step takes at most so many seconds, as 0.05",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="a Dask scheduler, as tcp://host:8786, whose workers answer instead "
        "(pip install 'autoshard[dask]')",
    )


def add_sweep(parser: Any) -> None:
    """Add the arguments that all sweeps share."""
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        help="a built-in (see `autoshard programs`), module:function, or path/to/file.py:function",
    )
    parser.add_argument(
        "--sweep",
        metavar="NAME=VALUES",
        action="append",
        default=[],
        required=True,
        help="values to combine with all others; may be given more than once",
    )
    parser.add_argument(
        "--prices",
        metavar="FILE",
        help="TOML with a table per chip: chip_hour, and watts for --objective energy",
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=60.0,
        help="seconds for the search of one row (default 60)",
    )
    parser.add_argument(
        "--gap",
        metavar="SHARE",
        type=cli_arguments.fraction,
        default=0.02,
        help="stop a row when proven to be this close to the best (default 2 %%)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=cli_arguments.count,
        help="processes to share the rows among (default: as many as there are cores)",
    )
    parser.add_argument(
        "--keep",
        metavar="FOLDER",
        help="where rows and plans are kept (default: ~/.cache/autoshard/whatif)",
    )
    parser.add_argument("--no-cache", action="store_true", help="keep no rows, and look for none")
    parser.add_argument("--csv", metavar="FILE", help="write the rows to this file")
    parser.add_argument("-o", "--output", metavar="FILE", help="write rows and answers as JSON")
    cli_arguments.add_overwrite(parser)
    parser.add_argument("--json", action="store_true", help="print rows and answers as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
