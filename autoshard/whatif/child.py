"""How a worker process starts, before it imports JAX."""

from __future__ import annotations

import os
import signal

from autoshard.quiet import start_jax_quietly


def begin() -> None:
    """Plan on the CPU, say nothing of absent devices, and leave interrupts to the parent."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_jax_quietly()
