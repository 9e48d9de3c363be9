"""The line of the user's source that an equation or an error comes from."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

OWN_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
"""The files of `autoshard.compat`: what they bind is not a line of the user's."""
PACKAGE_FOLDER = os.path.dirname(os.path.dirname(OWN_FOLDER))
_PYTHON = os.path.join(sysconfig.get_paths()["stdlib"], "")
_MODELS = os.path.join(PACKAGE_FOLDER, "models")


def is_own(path: str) -> bool:
    """Whether a file is of this package, and of no built-in program, which is like a user's."""
    return path.startswith(os.path.join(PACKAGE_FOLDER, "")) and not path.startswith(_MODELS)


@cache
def is_installed(path: str) -> bool:
    """Whether a file is of Python or of an installed package, of a built-in program excepted."""
    inside = any(f"{os.sep}{name}{os.sep}" in path for name in ("site-packages", "dist-packages"))
    return (inside or path.startswith(_PYTHON)) and not path.startswith(_MODELS)


def users_line(frames: Iterable[tuple[str, int]]) -> str:
    """`file.py:12` of the line of the user's code that frames (file, line) lead to, or nothing.

    That is the innermost outside of installed packages; where all are of such (a program that is
    installed itself), the innermost. Frames of this package come before it where an operation is
    written anew, and behind it where the program is traced: nothing is looked for behind them.

    Args:
      frames: innermost first.
    """
    first = ""
    for path, number in frames:
        if is_own(path):
            if first:
                break
            continue
        line = f"{path.rsplit('/', 1)[-1]}:{number}"
        if not is_installed(path):
            return line
        first = first or line
    return first


def source_line(equation: Any) -> str:
    """`file.py:12` of the user code that an equation comes from, or an empty string."""
    return _line_of(equation.source_info.traceback)


@lru_cache(maxsize=64)
def _line_of(made_at: Any) -> str:
    from jax._src import source_info_util

    frames = source_info_util.user_frames(made_at)
    return users_line((frame.file_name, frame.start_line) for frame in frames)


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
        if not (is_installed(path) or is_own(path)):
            found = f"{frame.filename}:{frame.lineno}"
    return found


def library_line_of_error(error: BaseException) -> str:
    """`folder/file.py:12` of the innermost frame outside of Python's own, JAX and this package."""
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        parts = Path(os.path.abspath(frame.filename)).parts
        if "site-packages" in parts and not is_own(frame.filename):
            inside = parts[parts.index("site-packages") + 1 :]
            if inside[0] not in ("jax", "jaxlib"):
                found = f"{'/'.join(inside)}:{frame.lineno}"
    return found


def called_function(equation: Any) -> tuple[str, str]:
    """The name of the function that an equation of `jax.jit` calls, and its file; or nothing."""
    name, body = equation.params.get("name"), equation.params.get("jaxpr")
    info = getattr(getattr(body, "jaxpr", None), "debug_info", None)
    if equation.primitive.name not in ("jit", "pjit") or info is None:
        return "", ""
    return str(name), info.func_filename or ""
