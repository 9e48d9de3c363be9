"""The arguments of `autoshard calibrate`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments

KINDS = ("launch", "matmul", "elementwise", "compute", "attention", "collective", "step")
DTYPES = ("bfloat16", "float32", "float16")


def add_calibrate(commands: Any) -> None:
    """Add the command to the parsers of `autoshard`."""
    parser = command(
        commands,
        "calibrate",
        "calibrate:calibrate_command",
        "fit a machine to times, from a table, its compiler, or measured here",
        epilog=(
            "A table is CSV or JSON lines; `autoshard.study.calibrate.columns` says what it holds."
        ),
    )
    parser.add_argument(
        "table",
        metavar="TABLE",
        nargs="?",
        help="a file of times; without it, give --device or --compiled",
    )
    parser.add_argument(
        "--machine",
        metavar="MACHINE",
        help="where the fit starts: a preset with its size, such as h100-64, or a TOML file; with "
        "--device by default the preset of the devices, or what was measured",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the machine to this file")
    cli_arguments.add_overwrite(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument(
        "--table",
        dest="times",
        metavar="FILE",
        help="write the times of --device or --compiled to this CSV file",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="the times that XLA:GPU has of collectives within a host of the machine, by which it "
        "schedules; needs no devices",
    )
    _add_device(parser)


def _add_device(parser: Any) -> None:
    """Add the options for what to measure on devices."""
    device = parser.add_argument_group("times of the devices that are there")
    device.add_argument("--device", action="store_true", help="measure them")
    device.add_argument(
        "--platform", choices=("cpu", "gpu", "tpu"), help="which devices (default: JAX's choice)"
    )
    device.add_argument(
        "--kinds",
        metavar="KIND,...",
        type=cli_arguments.some_of(*KINDS),
        default=",".join(KINDS),
        help=f"what to time (default {','.join(KINDS)})",
    )
    device.add_argument(
        "--dtypes",
        metavar="DTYPE,...",
        type=cli_arguments.some_of(*DTYPES),
        default=",".join(DTYPES),
        help=f"of matmuls and attention (default {','.join(DTYPES)})",
    )
    device.add_argument(
        "--largest",
        metavar="SIZE",
        type=cli_arguments.size,
        help="largest array on a device (default: 1/32 of its memory)",
    )
    device.add_argument(
        "--runs",
        metavar="N",
        type=cli_arguments.count,
        default=5,
        help="runs of 20 ms over which medians are taken (default 5)",
    )
