"""Where `autoshard` begins: what it needs is imported so that Ctrl-C ends it cleanly by then."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, and return its exit code; see `autoshard.cli.main`."""
    try:
        from autoshard.cli.main import main as run
    except KeyboardInterrupt:
        print("autoshard: interrupted before it had begun", file=sys.stderr)
        return 130
    code = run()
    _end_beside_solvers(code)
    return code


def _end_beside_solvers(code: int) -> None:
    """End the process where a solver still runs: C++ would abort one that ends as usual."""
    import os
    import threading

    from autoshard.interrupts import LEFT_RUNNING

    if any(one.name == LEFT_RUNNING for one in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
