"""The arguments of `autoshard schedule`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments


def add_schedule(commands: Any) -> None:
    parser = command(
        commands,
        "schedule",
        "schedule:schedule_command",
        "find the best order of a pipeline's tasks",
        epilog="The file is JSON: p meshes, m microbatches, times F, B, W by stage, comm,\n"
        "placement, mem_F, mem_B, mem_W by stage (see autoshard.solve.schedule.instance_json).\n"
        "Of several files, the same work placed in different ways, the best is chosen.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a schedule problem")
    parser.add_argument(
        "--memory-limit",
        metavar="LIMIT",
        help="of a mesh: 1f1b (what 1F1B takes), 2x (twice that), none, or a number; by default "
        "what the file says",
    )
    parser.add_argument(
        "--objective",
        choices=("makespan", "span"),
        default="makespan",
        help="the end of the last task (default), or the longest time that a mesh is occupied",
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=60.0,
        help="seconds (default 60)",
    )
    parser.add_argument(
        "--gap",
        metavar="SHARE",
        type=cli_arguments.fraction,
        default=0.0,
        help="stop when proven to be this close to the best (default: proven optimal)",
    )
    parser.add_argument(
        "--threads", metavar="N", type=cli_arguments.count, help="default: all cores"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0)
    parser.add_argument(
        "--columns", metavar="N", type=cli_arguments.count, default=100, help="of the drawing"
    )
    parser.add_argument("--json", action="store_true", help="print the schedule as JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the schedule as JSON")
    parser.add_argument("--svg", metavar="FILE", help="draw it")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto or Chrome")
    cli_arguments.add_overwrite(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
