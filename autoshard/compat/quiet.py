"""JAX started without the words that a plugin for absent devices writes to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import util


def start_jax_quietly() -> None:
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
