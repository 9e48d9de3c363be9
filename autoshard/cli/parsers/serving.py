"""The arguments of `autoshard serving`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments
from autoshard.cli.parsers.whatif import add_sweep


def add_serving(commands: Any) -> None:
    """Add the parser of `autoshard serving`."""
    parser = command(
        commands,
        "serving",
        "serving:serving_command",
        "plan decode steps over batches, prefills, and say how large a batch fits",
        epilog="PROGRAM is a decode step with a size called batch; sweeps are as of "
        "`autoshard whatif`.",
    )
    add_sweep(parser)
    parser.add_argument(
        "--prefill",
        metavar="PROGRAM",
        help="reads prompts, with sizes batch and sequence; of a built-in X-decode it is X-prefill",
    )
    parser.add_argument(
        "--prompt", metavar="N", type=cli_arguments.count, help="tokens of a prompt"
    )
    parser.add_argument(
        "--prompts",
        metavar="N",
        type=cli_arguments.count,
        default=1,
        help="read at once (default 1)",
    )
    parser.add_argument(
        "--generate", metavar="N", type=cli_arguments.count, help="tokens that a request makes"
    )
    parser.add_argument(
        "--latency",
        metavar="S",
        type=cli_arguments.seconds,
        help="seconds that a token may take at most, as 0.05",
    )
    parser.add_argument(
        "--no-largest", action="store_true", help="do not look for the largest batch that fits"
    )
