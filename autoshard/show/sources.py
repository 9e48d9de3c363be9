"""Where the figures of a machine come from: its file, entry by entry, with what is said of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoshard.files import read_text
from autoshard.machine.file import MachineError
from autoshard.machine.load import load, preset_text
from autoshard.machine.names import name_and_flags, parse_name

_ENTRY = re.compile(r"""^\s*([\w."-]+)\s*=\s*((?:"[^"]*"|\[[^\]]*\]|[^#\[])*?)\s*(?:#\s*(.*))?$""")
_HEADING = re.compile(r"^\s*\[+\s*([^\]]+?)\s*\]+")


@dataclass(frozen=True, slots=True)
class Figure:
    """An entry of a machine file: its table, key and value, and the comments at it."""

    table: str
    key: str
    value: str
    source: str


def machine_text(name: str) -> str:
    """The file of a machine that `autoshard.load_machine` knows by this name or path.

    Flags of its compiler (`@recipe`) are in no file.

    Raises:
      MachineError: there is none.
    """
    load(name)
    plain, _ = name_and_flags(name)
    if plain.endswith(".toml"):
        return read_text(plain, "the machine", error=MachineError)
    return preset_text(parse_name(plain))


def figures(text: str) -> tuple[Figure, ...]:
    """The entries of a machine file, in order; comments above an entry or a table are its own."""
    found: list[Figure] = []
    table, above, closing = "", "", False
    for line in text.splitlines():
        if closing:  # the rest of a list that takes several lines
            last = found.pop()
            found.append(Figure(last.table, last.key, f"{last.value} {line.strip()}", last.source))
            closing = not line.strip().endswith("]")
            continue
        stripped = line.strip()
        if not stripped:
            above = ""
        elif stripped.startswith("#"):
            above = f"{above} {stripped.lstrip('# ')}".strip()
        elif heading := _HEADING.match(line):
            table = heading[1]
        elif (key := stripped.partition("=")[0].strip()) and "=" in stripped:
            entry = _ENTRY.match(line)
            closing = entry is None and stripped.endswith("[")
            value = entry[2] if entry else stripped.partition("=")[2].strip()
            said = " ".join(part for part in (above, entry[3] if entry else "") if part)
            found.append(Figure(table, key, value.strip(), said))
            above = ""
    return tuple(found)
