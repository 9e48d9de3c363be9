"""C loops, called with NumPy arrays: `function` gives one, `Record` is what it reads many of from.

    sweep = function("sweep", STRUCT, FLOATS, returns=ctypes.c_double)

An argument's kind says what array it takes (contiguous, of that type; a pointer to its entries is
handed on, so it must outlive the call), or is a type of `ctypes`. Calls let go of Python's lock.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.files import cache_folder
from autoshard.native.building import NoCompilerError, file_name, make

WORD, NUMBER, FLAG = ctypes.c_int64, ctypes.c_double, ctypes.c_bool
STRUCT, POINTER = ctypes.c_void_p, ctypes.c_void_p


def _kind(text: str) -> type:
    """What takes arrays of one type, as NumPy writes it (`dtype.str`)."""

    class Array:
        @classmethod
        def from_param(cls, array: np.ndarray) -> ctypes.c_void_p:
            if array.dtype.str != text or not array.flags.c_contiguous:
                raise TypeError(
                    f"a loop takes contiguous {text}, not {array.dtype} with strides "
                    f"{array.strides}"
                )
            return ctypes.c_void_p(array.ctypes.data)

    return Array


FLOATS, WORDS, FLAGS = _kind("<f8"), _kind("<i8"), _kind("|b1")
_KINDS = {"Floats": "<f8", "Integers": "<i8"}


class Record:
    """A dataclass of arrays and integers with what C reads of it, as `struct`.

    Fields are annotated `Integers`, `Floats` or `int`; `struct` holds pointers to the arrays and
    the integers, in order, then `counts()`. It is made anew where the record is unpickled.
    """

    __slots__ = ("struct",)
    struct: ctypes.Array

    def counts(self) -> tuple[int, ...]:
        """Sizes that C must know beside the fields."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        words = [_word(self, each.name, str(each.type)) for each in fields(self)]  # pyright: ignore
        words += self.counts()
        object.__setattr__(self, "struct", (WORD * len(words))(*words))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), tuple(getattr(self, each.name) for each in fields(self))  # pyright: ignore


def _word(record: Record, name: str, kind: str) -> int:
    """A field as C has it."""
    value = getattr(record, name)
    if kind == "int":
        return value
    if value.dtype.str != _KINDS[kind] or not value.flags.c_contiguous:
        raise TypeError(
            f"{type(record).__name__}.{name} is {value.dtype} with strides {value.strides}; loops "
            f"read contiguous {_KINDS[kind]}"
        )
    return value.ctypes.data


def function(name: str, *kinds: Any, returns: Any = None) -> Callable[..., Any]:
    """The loop of this name; its library is opened, and made where it is not there, when called."""

    @functools.cache
    def found() -> Any:
        # A type of its own: an attribute of the library is one object for all who name the loop.
        return ctypes.CFUNCTYPE(returns, *kinds)((name, _library()))

    def call(*arguments: Any) -> Any:
        return found()(*arguments)

    return call


@functools.cache
def _library() -> ctypes.CDLL:
    """The library, from where it lies; made where it is not, as near to here as can be written."""
    folders = (Path(__file__).parent, cache_folder())
    for folder in folders:
        if (folder / file_name()).exists():
            return ctypes.CDLL(str(folder / file_name()))
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            make(folder / file_name())
        except NoCompilerError:
            raise
        except OSError:
            continue  # A folder that cannot be written.
        return ctypes.CDLL(str(folder / file_name()))
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / file_name())
        return ctypes.CDLL(str(Path(folder) / file_name()))
