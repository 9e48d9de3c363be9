"""The programs that may run: those that the user names, and never one for a file's word alone.

A plan names its program. To import that name is to run code that whoever wrote the file has
chosen, so a command takes the program from its own command line. Where that names none, the name in
the file is taken if it is a built-in, if the user has named the same program in the same folder
before, or if `--trust` says so now. What was named is remembered for folders that are the user's
own, beside the kept answers of compilers: `$XDG_CACHE_HOME/autoshard/trusted.json`, which may be
deleted at any time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from pathlib import Path

from autoshard.cli.common import CommandError


def program_of(options: argparse.Namespace, kept: str) -> str:
    """Return the program that a command runs: as named on its command line, or in its plan file.

    Args:
      options: `plan`, `program`, and `trust`, of the command line.
      kept: what the plan file names.

    Raises:
      CommandError: only the file names it, and nobody has said that it may run.
    """
    from autoshard.models.find import is_builtin

    if options.program is not None:
        return options.program
    if not kept:
        raise CommandError(f"{options.plan!r} names no program; give PROGRAM")
    if is_builtin(kept) or options.trust or _entry(kept) in _remembered():
        return kept
    raise CommandError(
        f"{options.plan!r} names the program {kept!r}, which is not run for a file's word alone; "
        "give PROGRAM, or --trust"
    )


def remember(reference: str) -> None:
    """Keep that the user has named this program, if its folder is the user's own."""
    from autoshard.models.find import is_builtin

    entry = _entry(reference)
    folder = Path(entry[0])
    if is_builtin(reference) or not _is_own(folder):
        return
    known = _remembered()
    if entry in known:
        return
    from autoshard.files import write_whole

    here = {one for one in known if os.path.isdir(one[0])}
    text = json.dumps(sorted({*here, entry}), indent=1)
    with contextlib.suppress(OSError):  # it is asked again then
        _place().parent.mkdir(parents=True, exist_ok=True)
        write_whole(_place(), text.encode())


def _entry(reference: str) -> tuple[str, str]:
    """Return the folder from which a reference is imported, and its name there."""
    place, _, function = reference.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).resolve()
        return str(path.parent), f"{path.name}:{function}"
    return os.getcwd(), reference


def _is_own(folder: Path) -> bool:
    """Whether only the user, and who shares a group with the user, can write files there."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o002


def _place() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "autoshard" / "trusted.json"


def _remembered() -> set[tuple[str, str]]:
    try:
        written = json.loads(_place().read_text(encoding="utf-8"))
        return {(folder, name) for folder, name in written}
    except (OSError, ValueError, TypeError):
        return set()
