"""How a worker process starts, before it imports JAX."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading

from autoshard.compat.quiet import start_jax_quietly


def begin() -> None:
    """Plan on the CPU, without words on absent devices; end when the parent ends, not before."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start_jax_quietly()


def _end_with_parent() -> None:
    """End this process when the parent is gone, however that ended; nobody else would."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
