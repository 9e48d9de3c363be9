"""A command of the command line: its parser, and a handler that is imported when it runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from importlib import util
from typing import Any


def command(commands: Any, name: str, handler: str, summary: str, **options: Any) -> Any:
    """A subparser whose handler, `module:function`, is imported when the command runs."""

    def run(parsed: argparse.Namespace) -> int:
        import importlib

        _start_jax_quietly()
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


def _start_jax_quietly() -> None:
    """Import and start JAX first where a plugin for CUDA is installed.

    Its libraries write to standard error, past Python, that there is no driver; which is as it
    should be here.
    """
    if not any(util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        import jax

        with contextlib.suppress(RuntimeError):  # told to whoever needs the devices
            jax.local_devices(backend="cpu")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
