"""Parses values on the command line: sizes, meshes, fractions, and output files."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoshard.units import parse_size

PROGRAM = "a built-in (see `autoshard programs`), module:function, or path/to/file.py:function"
AXES = ("x", "y", "z")
"""As a search calls axes that have no name: `autoshard.search.one_shape.AXIS_NAMES`."""
MACHINE = "a preset with its size, such as v5p-64 (see `autoshard machines`), or a TOML file"


def size(text: str) -> float:
    """Return the bytes of `60GiB`, `80e9` or `512 MB`."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def mesh(text: str) -> dict[str, int | tuple[int, ...]]:
    """Return the axes of `data=2,model=4`, major to minor; `model=2*4` is split into parts.

    `2x4` is `x=2,y=4`: axes are called as the search calls them.
    """
    axes: dict[str, int | tuple[int, ...]] = {}
    sizes = re.fullmatch(r"\s*\d+\s*(?:x\s*\d+\s*)*", text) and text.split("x")
    if sizes and len(sizes) > len(AXES):
        raise argparse.ArgumentTypeError(
            f"{text!r} has more than {len(AXES)} axes; name them, as data=2,model=4,..."
        )
    if sizes:
        text = ",".join(f"{name}={size}" for name, size in zip(AXES, sizes, strict=False))
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+(?:\*\d+)*)\s*", part)
        sizes = tuple(map(int, match[2].split("*"))) if match else ()
        if match is None or min(sizes) < 1:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r} is not a mesh axis; write names and sizes such as "
                "data=2,model=4, or 2x4"
            )
        if match[1] in axes:
            raise argparse.ArgumentTypeError(
                f"the mesh axis {match[1]!r} is given twice; name each once"
            )
        axes[match[1]] = sizes[0] if len(sizes) == 1 else sizes
    return axes


def fraction(text: str) -> float:
    """A fraction: `1%` or `0.01`."""
    try:
        number = float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write 1% or 0.01") from error
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 % to 99 %; write 1% or 0.01")
    return number


def seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        number = float(text.strip().removesuffix("s"))
    except ValueError as error:
        said = f"{text!r} is not a number of seconds; write 60"
        raise argparse.ArgumentTypeError(said) from error
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be more than 0 and less than 1e9 seconds; write 60"
        )
    return number


def amount(text: str) -> float:
    """A positive number, as 15e12."""
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; write 15e12") from error
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be more than 0 and finite; write 15e12")
    return number


def contest_seconds(text: str) -> float | None:
    """A positive number of seconds, or None for `contest`."""
    if text.strip() == "contest":
        return None
    try:
        return seconds(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or contest") from error


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, with commas between them."""
    return tuple(count(part) for part in text.split(","))


def add_plan(parser: Any) -> None:
    """Add `PLAN` and `--trust`."""
    parser.add_argument("plan", metavar="PLAN", help="a file that `autoshard search -o` wrote")
    add_trust(parser)


def add_trust(parser: Any) -> None:
    """Add `--trust`."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the program that the file names, and remember it; without, that is done for "
        "built-ins and for what you have named yourself in the same folder",
    )


def add_overwrite(parser: Any) -> None:
    """Add `--overwrite`."""
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace files of another kind, too; those of the kind that is written are replaced",
    )


def add_pages_of_rows(parser: Any) -> None:
    """Add what benchmarks against published figures write, and `--resume`."""
    parser.add_argument("--csv", metavar="FILE", help="also write the rows to this file")
    add_overwrite(parser)
    parser.add_argument("--markdown", metavar="FILE", help="also write a page of all figures")
    parser.add_argument(
        "--svg", metavar="FILE", help="also write a plot of predicted over measured seconds"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows that are in the file of --csv"
    )


def add_meshes(parser: argparse.ArgumentParser, where: Any) -> None:
    """Add the options of `autoshard search` for several meshes; `--meshes` goes into `where`."""
    where.add_argument(
        "--meshes",
        metavar="MESHES",
        help="pipeline stages on several meshes: '4 x v5p-16', 'h100-8 + a100-8', or a TOML file",
    )
    parser.add_argument(
        "--stages",
        metavar="N,...",
        type=counts,
        help="with --meshes: numbers of stages to choose from; default 1, 2 and 4 for each mesh",
    )
    parser.add_argument(
        "--microbatches",
        metavar="N,...",
        type=counts,
        help="with --meshes: numbers of microbatches to choose from; default 8,16,32",
    )
    parser.add_argument("--svg", metavar="FILE", help="with --meshes: draw the schedule")
    parser.add_argument(
        "--trace", metavar="FILE", help="with --meshes: write a trace for Perfetto or Chrome"
    )


def count(text: str) -> int:
    """A whole number from 1 on."""
    return _whole_from(1, text)


def whole(text: str) -> int:
    """A whole number from 0 on."""
    return _whole_from(0, text)


def _whole_from(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number; write 4") from error
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least {least}; write 4")
    return number


def numbers(text: str) -> tuple[float, ...]:
    """Positive numbers with commas between them."""
    try:
        found = tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} are not numbers; write 0.5,1.5") from error
    if not found or not all(0 < number < float("inf") for number in found):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be finite numbers above 0, such as 0.5,1.5"
        )
    return found


def some_of(*names: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of a comma-separated list of some of the names, in any letter case."""
    known = {name.lower(): name for name in names}

    def read(text: str) -> tuple[str, ...]:
        words = [word.strip().lower() for word in text.split(",") if word.strip()]
        strange = [word for word in words if word not in known]
        if strange or not words:
            raise argparse.ArgumentTypeError(
                f"{', '.join(map(repr, strange)) or 'nothing'} is none of {', '.join(names)}"
            )
        return tuple(known[word] for word in dict.fromkeys(words))

    return read


def why_unwritable(path: str) -> str:
    """Return why a file cannot be written at `path`, or an empty string if it can."""
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        return "it is a folder"
    if target.exists() and not target.is_file():
        return "it is not a regular file"
    if target.exists() and not os.access(target, os.W_OK):
        return "it may not be written"
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r}"
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{target.name}."):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__
