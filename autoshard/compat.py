"""The only home of private parts of jax and jaxlib.

Everything else in this package uses JAX's public API. Each function here is small, so that a new
JAX release is met in this file alone. One section per concern: jaxprs, Shardy's rules, Shardy's
collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


# -- jaxprs ------------------------------------------------------------------------------------


def drop_dead_code(closed: Any) -> Any:
    """`closed` without the equations that no result depends on; its inputs all stay."""
    from jax._src.interpreters import partial_eval

    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
    return closed.replace(jaxpr=jaxpr)


def is_literal(atom: Any) -> bool:
    """Whether an operand of an equation is a literal and not a variable."""
    return hasattr(atom, "val")


def called_jaxpr(equation: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr that a call (`jit`, `checkpoint`, `custom_jvp_call`, …) runs, and its constants."""
    body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if hasattr(body, "consts"):
        return body.jaxpr, body.consts
    return body, ()


def array_facts(aval: Any) -> tuple[tuple[int, ...], str, int]:
    """(shape, dtype name, bytes per element) of an abstract value; typed PRNG keys by their data.

    Values that are not arrays (tokens, effects) count as empty scalars.
    """
    shape = tuple(int(n) for n in getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return shape, "token", 0
    return shape, str(dtype), int(dtype.itemsize)


def short_dtype(name: str) -> str:
    """`bfloat16` as `bf16`, `float32` as `f32`, `int32` as `i32`, as jaxprs print them."""
    for long, short in (
        ("bfloat", "bf"),
        ("float", "f"),
        ("uint", "u"),
        ("int", "i"),
        ("complex", "c"),
        ("bool", "bool"),
    ):
        if name.startswith(long):
            return name.replace(long, short, 1)
    return name


def source_line(equation: Any) -> str:
    """`file.py:12` of the user's line that made `equation`, or an empty string."""
    from jax._src import source_info_util

    frame = source_info_util.user_frame(equation.source_info.traceback)
    if frame is None:
        return ""
    return f"{frame.file_name.rsplit('/', 1)[-1]}:{frame.start_line}"


def user_line_of_error(error: BaseException) -> str:
    """`file.py:12` of the innermost frame of `error` outside of JAX and of this package."""
    import os
    import traceback

    here = os.path.dirname(os.path.abspath(__file__))
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = os.path.abspath(frame.filename)
        inside = path.startswith(os.path.join(here, "models"))
        library = "site-packages" in path or (path.startswith(here) and not inside)
        if not library:
            found = f"{frame.filename}:{frame.lineno}"
    return found
