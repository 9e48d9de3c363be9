"""The programs that a file may name and that run nonetheless: built-ins, and what the user named.

A plan names its program. To import that name is to run code that whoever wrote the file has
chosen, so a command takes the program from its own command line. Where that names none, the name in
the file is taken if it is a built-in, if the user has named the same program in the same folder
before, or if `--trust` says so now. What was named is remembered for folders that are the user's
own, beside the kept answers of compilers: `$XDG_CACHE_HOME/autoshard/trusted.json`, which may be
deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from autoshard.files import FileError, cache_folder, read_json, typed, write_whole
from autoshard.models.find import is_builtin, without_settings


def is_trusted(reference: str) -> bool:
    """Whether this program may run because a file names it."""
    return is_builtin(reference) or _entry(reference) in _remembered()


def remember(reference: str) -> None:
    """Keep that the user has named this program, if its folder is the user's own."""
    entry = _entry(reference)
    folder = Path(entry[0])
    if is_builtin(reference) or not _is_own(folder):
        return
    known = _remembered()
    if entry in known:
        return
    here = {one for one in known if os.path.isdir(one[0])}
    text = json.dumps(sorted({*here, entry}), indent=1)
    with contextlib.suppress(OSError):  # it is asked again then
        _place().parent.mkdir(parents=True, exist_ok=True)
        write_whole(_place(), text.encode())


def _entry(reference: str) -> tuple[str, str]:
    """Return the folder from which a reference is imported, and its name there."""
    reference = without_settings(reference)
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
    return cache_folder() / "trusted.json"


def _remembered() -> set[tuple[str, str]]:
    try:
        return set(typed(read_json(_place(), "the memory"), list[tuple[str, str]]))
    except FileError:
        return set()
