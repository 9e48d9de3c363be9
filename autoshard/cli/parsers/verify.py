"""The arguments of `autoshard verify`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments
from autoshard.cli.parsers.arguments import MACHINE, PROGRAM


def add_verify(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "verify",
        "verify:verify_command",
        "hold a plan to the compiler and to the unsharded program",
        epilog=(
            "types        every value and op has its type, and the collectives lead between them\n"
            "price        the independent evaluator prices the plan as the file says\n"
            "collectives  Shardy makes exactly the planned ones, with no device\n"
            "numbers      on fake CPU devices the step computes what it does unsharded, where the\n"
            "             mesh has at most 16 devices and the program is small enough\n"
            "explicit     with --explicit: the step that is written out for one device calls the\n"
            "             planned collectives, and computes the same\n"
            "compiled     with --compile: no collective but the planned ones right after\n"
            "             partitioning, and the peak as predicted; the devices need not be there\n"
            "of a plan for several meshes:\n"
            "order        the simulator prices the order as the file says, within the memory\n"
            "numbers      as above; --trace keeps what every program and transfer took"
        ),
    )
    cli_arguments.add_plan(parser)
    parser.add_argument(
        "program", metavar="PROGRAM", nargs="?", help=f"{PROGRAM}; default: what the plan names"
    )
    parser.add_argument(
        "--machine", metavar="MACHINE", help=f"{MACHINE}; default: what the plan names"
    )
    parser.add_argument(
        "--explicit",
        action="store_true",
        help="verify the shard_map in which every collective is written out, too",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="of a plan for several meshes: write the run on fake devices as a Chrome trace",
    )
    cli_arguments.add_overwrite(parser)
    _add_long(parser)
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")


def _add_long(parser: Any) -> None:
    """Add the options of the judges that take long: the step on fake devices, and the compiler."""
    parser.add_argument(
        "--numbers-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=300.0,
        help="seconds for the step on fake devices (default 300)",
    )
    parser.add_argument(
        "--compile",
        choices=("tpu", "gpu", "cpu"),
        help="compile the plan with this compiler too (extras: autoshard[tpu], autoshard[gpu])",
    )
    for what, share, noun in (("memory", 20, "peak"), ("step", 50, "step")):
        parser.add_argument(
            f"--{what}-tolerance",
            metavar="SHARE",
            type=cli_arguments.fraction,
            default=share / 100,
            help=f"how far the compiled {noun} may be from the predicted one (default {share} %%)",
        )
    parser.add_argument(
        "--compile-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=1800.0,
        help="seconds for the compiler (default 1800)",
    )
    parser.add_argument("--no-cache", action="store_true", help="compile again, and keep no answer")
