"""HiGHS as a back end says nothing on standard output, which belongs to whoever asks."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from autoshard.solve.backends.highs import _Silent
solver = _Silent()
solver.run()
print("answered", solver.getModelStatus() is not None)
"""


def test_it_is_silent_from_the_start() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout == "answered True\n"
