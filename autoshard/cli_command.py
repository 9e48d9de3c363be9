"""A command of the command line: its parser, and a handler that is imported when it runs."""

from __future__ import annotations

import argparse
from typing import Any

from autoshard.quiet import start_jax_quietly


def command(commands: Any, name: str, handler: str, summary: str, **options: Any) -> Any:
    """A subparser whose handler, `module:function`, is imported when the command runs."""

    def run(parsed: argparse.Namespace) -> int:
        import importlib

        start_jax_quietly()
        module, function = handler.split(":")
        return getattr(importlib.import_module(f"autoshard.{module}"), function)(parsed)

    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    parser.set_defaults(command=name, run=run)
    return parser
