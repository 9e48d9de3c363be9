"""The C loops as one shared library: what it is made of, where it lies, how it is made.

The loops that take most of a search's time are C files beside the modules that call them. They need
no headers of Python and know no types of it, so one library suits every Python of a machine. A
wheel holds it; in a checkout, and wherever it is missing, the first call makes it (in about three
seconds) and keeps it beside this file, or in the user's cache folder where that cannot be written.

This module needs the standard library alone: the build of a wheel runs it before anything is
installed (`.ci/hatch_build.py`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SOURCES = (
    "cost/paths.c",
    "solve/branch/squeeze.c",
    "solve/forest.c",
    "solve/messages.c",
    "solve/reduce/reduce.c",
    "solve/schedule/optimise/anneal.c",
    "solve/schedule/optimise/words.c",
)
HEADERS = ("solve/flat.h", "solve/schedule/optimise/words.h")
FLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-shared",
    # Sums in any order, no -0.0 and no traps; infinities are what they are.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-freciprocal-math",
)
COMPILERS = ("cc", "gcc", "clang")
SECONDS = 300
"""What a compiler may take."""


class NoCompilerError(OSError):
    """The loops have to be made, and nothing here can."""


@functools.cache
def file_name() -> str:
    """The library's, which says what it is made of and for which machine."""
    digest = hashlib.blake2b(repr((FLAGS, platform.machine(), sys.platform)).encode())
    for source in (*SOURCES, *HEADERS):
        digest.update((PACKAGE / source).read_bytes())
    return f"loops-{digest.hexdigest()[:16]}.so"


def compiler() -> list[str]:
    """The command of a C compiler: `CC`, one on the path, or that of the package `ziglang`."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NoCompilerError(
        "autoshard's loops are C and not yet made for this machine, and there is no C compiler: "
        f"none of {', '.join(COMPILERS)} is on the path and CC is not set. Install one "
        "(apt install gcc), or pip install ziglang, which has one."
    )


def make(file: Path) -> None:
    """Compile the library into a file, whole or not at all, however many do so at once."""
    command = [*compiler(), *FLAGS, *(str(PACKAGE / source) for source in SOURCES)]
    handle, name = tempfile.mkstemp(suffix=".so", dir=file.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [*command, "-o", name, "-lm"], capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode:
            raise NoCompilerError(
                f"{shlex.join(command[:1])} cannot make autoshard's loops:\n{done.stderr.strip()}\n"
                "Name another C compiler in CC, or pip install ziglang, which has one."
            )
        os.chmod(name, 0o755)
        os.replace(name, file)
    finally:
        Path(name).unlink(missing_ok=True)
