"""The environment in which XLA's own auto-sharder still runs: the last releases that have it.

    python = environment(folder)      # made once, with venv and pip; later it is only looked up

The folder holds `environment`, and `plans` (see `asked.py`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = (
    "jax==0.5.3",
    "jaxlib==0.5.3",
    "libtpu==0.0.11",
    "optax==0.2.4",
    "chex<0.1.90",
)
"""The last releases in which the pass was seen to work, and what goes with them."""

MARK = "autoshard-requirements.txt"


class AutoShardingError(ValueError):
    """There is no plan of the auto-sharder: says why, and the repair."""


def default_folder() -> Path:
    """Where the environment and the plans are, unless another place is named."""
    from autoshard.compiler import cache

    return cache.default_folder().parent / "auto-sharding"


def environment(folder: Path) -> Path:
    """The interpreter of the environment in `folder / "environment"`, which is made if need be.

    Raises:
      AutoShardingError: it cannot be made; the message has the installer's words and the repair.
    """
    place = folder / "environment"
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    wanted = "\n".join(REQUIREMENTS)
    mark = place / MARK
    if mark.is_file() and mark.read_text() == wanted:
        return python
    if place.is_dir() and any(place.iterdir()) and not (place / "pyvenv.cfg").is_file():
        raise AutoShardingError(
            f"{place} is not a Python environment, but holds files; name another folder, or empty "
            "it"
        )
    print(f"autoshard: installing {', '.join(REQUIREMENTS)} into {place}", file=sys.stderr)
    _must([sys.executable, "-m", "venv", "--clear", str(place)], place)
    _must([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS], place)
    mark.write_text(wanted)
    return python


def _must(command: list[str], place: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        said = (errors or lines or [f"exit code {done.returncode}"])[-1]
        raise AutoShardingError(
            f"the environment of XLA's auto-sharder cannot be made in {place}: {said}. It needs "
            f"a package index once, for {', '.join(REQUIREMENTS)}; or name with --auto-sharding a "
            "folder in which it has been made"
        )
