"""The line of the user's source that an equation or an error comes from."""

from __future__ import annotations

import os
import sysconfig
import traceback
from itertools import islice
from typing import Any

OWN_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
"""The files of `autoshard.compat`: what they bind is no line of the user's."""
PACKAGE_FOLDER = os.path.dirname(os.path.dirname(OWN_FOLDER))
_PYTHON = os.path.join(sysconfig.get_paths()["stdlib"], "")
_MODELS = os.path.join(PACKAGE_FOLDER, "models")


def is_own(path: str) -> bool:
    """Whether a file is of this package, and of no built-in program, which is like a user's."""
    return path.startswith(os.path.join(PACKAGE_FOLDER, "")) and not path.startswith(_MODELS)


def source_line(equation: Any) -> str:
    """`file.py:12` of the user code that an equation comes from, or an empty string."""
    from jax._src import source_info_util

    frame = source_info_util.user_frame(equation.source_info.traceback)
    if frame is None:
        return ""
    return f"{frame.file_name.rsplit('/', 1)[-1]}:{frame.start_line}"


def source_lines(equation: Any, most: int = 3) -> tuple[str, ...]:
    """The lines of user code that made an equation, the innermost first, each `file.py:12`."""
    from jax._src import source_info_util

    frames = islice(source_info_util.user_frames(equation.source_info.traceback), most)
    return tuple(f"{one.file_name.rsplit('/', 1)[-1]}:{one.start_line}" for one in frames)


def user_line_of_error(error: BaseException) -> str:
    """`file.py:12` of the innermost frame of `error` outside of Python, JAX and this package."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = os.path.abspath(frame.filename)
        theirs = "site-packages" in path or path.startswith(_PYTHON) or is_own(path)
        if not theirs:
            found = f"{frame.filename}:{frame.lineno}"
    return found
