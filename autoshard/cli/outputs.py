"""Files that commands write: no work begins that could not be kept, and nothing else is lost.

Before any work a command says which files it will write, and of which kind. A path that cannot be
written ends it there, and so does one where a file of another kind is already: only a file of the
same kind, or an empty one, is replaced without `--overwrite`. Where a file cannot be written after
all, as on a disk that is full by then, the answer is printed before the command ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from autoshard.cli.common import CommandError
from autoshard.cli.parsers.arguments import why_unwritable
from autoshard.units import with_article


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: what it is called, and whether a text is one."""

    name: str
    is_one: Callable[[str], bool]


def _with(*marks: str) -> Callable[[str], bool]:
    return lambda text: all(mark in text for mark in marks)


def _json(*kinds: str) -> Callable[[str], bool]:
    """Whether a text is one of the kinds that `autoshard.cli.kinds.files` knows."""

    def is_one(text: str) -> bool:
        from autoshard.cli.kinds.contents import contents_of
        from autoshard.cli.kinds.files import kind_of

        kind = kind_of(contents_of(text))
        return kind is not None and kind.what in kinds

    return is_one


def table(*columns: str) -> Kind:
    """Rows as CSV whose first line has all of these columns."""

    def is_one(text: str) -> bool:
        heading = text.partition("\n")[0].strip().split(",")
        return set(columns) <= {name.strip('"') for name in heading}

    return Kind("table of this command", is_one)


PLAN = Kind("plan", _json("a plan", "a plan for several meshes"))
SWEEP = Kind("sweep", _json("a sweep"))
SERVING = Kind("answer about serving", _json("an answer about serving"))
FRONTIER = Kind("front of memory and time", _json("a front of memory and time"))
RANGES = Kind("answer about ranges", _json("an answer about ranges"))
SCHEDULE = Kind("schedule", _json("a schedule"))
SOLUTION = Kind("solution", _json("a solution"))
MACHINE = Kind("machine file", _with("[chip]"))
TIMES = Kind("table of times", _with("seconds"))
OWN_FILE = Kind("file of a framework", _with("# autoshard:"))
PAGE = Kind("page of autoshard", _with("<!DOCTYPE html>", "autoshard"))
MARKDOWN = Kind("page of autoshard", _with("# ", "`autoshard bench "))
DRAWING = Kind("drawing", _with("<svg"))
TRACE = Kind("trace", _with('"traceEvents"'))
GRAPH = Kind("graph for Model Explorer", _with('"graphs"', '"nodes"'))
NODE_DATA = Kind("file of node data", _with('"results"', '"gradient"'))
RULES = Kind("file of rules", _with("logical_axis_rules"))
SHARDINGS = Kind("file of shardings", _with('"axis_names"', '"local_shape"'))


def require_outputs(options: argparse.Namespace, **kinds: Kind) -> None:
    """Reject outputs that cannot be written, that are one file, or that are something else.

    Args:
      options: of the command, with its `overwrite`.
      kinds: what is written, by the name of its option.

    Raises:
      CommandError: the message names the file, and what to do.
    """
    taken: dict[str, str] = {}
    for name, kind in kinds.items():
        path = getattr(options, name)
        require_output(path, kind, overwrite=options.overwrite)
        if path is None:
            continue
        before = taken.setdefault(os.path.realpath(path), name)
        if before != name:
            raise CommandError(
                f"{_option(before)} and {_option(name)} name one file, {path!r}; give each its own"
            )


def require_output(path: str | None, kind: Kind, *, overwrite: bool) -> None:
    """Reject an output path that cannot be written, or where something else is already.

    Raises:
      CommandError: the message names the file, and what to do.
    """
    if path is None:
        return
    if why := why_unwritable(path):
        raise CommandError(f"cannot write {path!r}: {why}")
    if overwrite or not os.path.exists(path):
        return
    with open(path, "rb") as file:
        held = file.read().decode("utf-8", errors="replace")
    if held.strip() and not kind.is_one(held):
        raise CommandError(
            f"{path!r} is there already, and is not {with_article(kind.name)}; name another "
            "file, or give --overwrite"
        )


def _option(name: str) -> str:
    return "-o" if name == "output" else f"--{name.replace('_', '-')}"


@contextlib.contextmanager
def written(texts: Mapping[str | None, Callable[[], str]], *, quiet: bool) -> Iterator[None]:
    """Write files, then print the answer in the body: also where a file could not be written.

    Args:
      texts: of each file, completely written or not at all; nothing is written for None.
      quiet: whether no message says where they went.

    Raises:
      CommandError: a file was not written; raised when the answer is printed.
    """
    failed: CommandError | None = None
    done: list[str] = []
    for path, text in texts.items():
        if path is None:
            continue
        try:
            write_file(path, text())
            done.append(path)
        except CommandError as error:
            failed = failed or error
    yield
    for path in done:
        say_written(path, quiet=quiet)
    if failed is not None:
        raise failed


def write_files(texts: Mapping[str | None, Callable[[], str]], *, quiet: bool) -> None:
    """Write the text of each file that has a path, where there is no answer to print."""
    with written(texts, quiet=quiet):
        pass


def write_file(path: str, text: str) -> None:
    """Write a text, completely or not at all, though an interrupt comes just then.

    Raises:
      CommandError: it cannot be written.
    """
    from autoshard.files import write_whole
    from autoshard.interrupts import acknowledge

    try:
        try:
            write_whole(path, text.encode())
        except KeyboardInterrupt as interrupt:  # the answer is there: it is not lost now
            acknowledge(interrupt)
            write_whole(path, text.encode())
    except OSError as error:
        raise CommandError(f"cannot write {path!r}: {error.strerror or error}") from error


def say_written(path: str, *, quiet: bool) -> None:
    """Print where a file went; of a symbolic link always, since another file was replaced."""
    if os.path.islink(path):
        print(f"autoshard: wrote {os.path.realpath(path)}, which {path} links to", file=sys.stderr)
    elif not quiet:
        print(f"autoshard: wrote {path}", file=sys.stderr)
