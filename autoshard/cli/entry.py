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
    return run()
