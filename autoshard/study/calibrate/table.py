"""Tables of times: read from a file or given as a frame, every fault named at once.

    kind,m,n,k,dtype,bytes,collective,group_size,seconds
    matmul,4096,4096,4096,bfloat16,,,,0.00019
    elementwise,,,,,1073741824,,,0.00036
    collective,,,,,1073741824,all_gather,8,0.0026

or JSON lines, one object a row, without the empty cells. `autoshard.study.calibrate.columns` says
what the columns of each kind of row are.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 and the 8-bit floats by it)
import numpy as np
import pandas as pd

from autoshard.files import FileError, json_of, read_text
from autoshard.near import did_you_mean
from autoshard.study.calibrate.columns import COLUMNS, FREE, ROW_KINDS, SHORTEST, Column
from autoshard.units import counted


class TableError(ValueError):
    """A table of times that cannot be used; every fault is named with its row and column."""


@dataclass(frozen=True, slots=True)
class Row:
    """One timing, checked: its kind, its cells by column, and where it stands."""

    kind: str
    cells: Mapping[str, Any]
    where: str

    @property
    def seconds(self) -> float:
        """What was measured."""
        if self.kind == "step":
            return self.cells["compute_seconds"] + self.cells["exposed_seconds"]
        return self.cells["seconds"]


def read_table(path: str | Path) -> pd.DataFrame:
    """Return the table in a CSV or JSON-lines file, indexed by the line that each row stands on.

    The cells are not checked yet: `rows` does it.

    Raises:
      TableError: the file cannot be read, is empty, or is neither.
    """
    text = read_text(path, "the table", error=TableError)
    table = _json_lines(text, str(path)) if text.lstrip().startswith("{") else _csv(text, str(path))
    if table.empty:
        raise TableError(
            f"the table {str(path)!r} has no rows; give one with a kind and seconds in each"
        )
    table.attrs["path"] = str(path)
    return table


def rows(table: pd.DataFrame) -> tuple[Row, ...]:
    """Return the checked rows of a table.

    Args:
      table: numbers may be numbers or their text; an empty cell is None, nan or "".

    Raises:
      TableError: with every fault, by row and column.
    """
    faults = [_unknown_column(str(name)) for name in table if name not in _KNOWN]
    if "kind" not in table:
        faults.insert(0, f"column kind is missing; write {_any_of(ROW_KINDS)} in each row")
    if faults:
        raise TableError(message(faults, table))
    label = str(table.index.name or "row")
    found = []
    for position, cells in zip(table.index, table.to_dict("records"), strict=True):
        given = {str(name): cell for name, cell in cells.items() if not _empty(cell)}
        row, complaints = _row(given, f"{label} {position}")
        faults += complaints
        if row is not None:
            found.append(row)
    if faults:
        raise TableError(message(faults, table))
    return tuple(found)


def message(faults: list[str], table: pd.DataFrame) -> str:
    """Every fault on a line, under their number, with the file of the table if it has one."""
    path = table.attrs.get("path")
    name = "the table" if path is None else f"the table {path!r}"
    return f"{name} has {counted(len(faults), 'fault')}:\n" + "\n".join(
        f"  * {fault}" for fault in faults
    )


def _csv(text: str, name: str) -> pd.DataFrame:
    if why := _not_csv(text):
        raise TableError(f"{name!r} is not a table: {why}; give CSV, or JSON lines")
    table = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, skip_blank_lines=False)
    table.columns = [str(column).strip() for column in table.columns]
    table.index = pd.RangeIndex(2, len(table) + 2, name="line")
    blank = (table.apply(lambda column: column.str.strip()) == "").all(axis=1)
    return table.loc[~blank]


def _not_csv(text: str) -> str:
    """Why a text is not a table; empty where it is one."""
    if not text.strip():
        return "it is empty"
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        heading = next(reader)
        for cells in reader:
            if len(cells) > len(heading):
                return (
                    f"its heading has {counted(len(heading), 'cell')}, and line {reader.line_num} "
                    f"has {len(cells)}"
                )
    except csv.Error:
        return f"a quotation that line {reader.line_num} begins does not end as it should"
    return ""


def _json_lines(text: str, name: str) -> pd.DataFrame:
    records, lines, faults = [], [], []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json_of(line, f"line {number}")
        except FileError as error:
            faults.append(str(error))
            continue
        if not isinstance(record, dict):
            faults.append(f"line {number} is not an object; write {{column: value, ...}}")
            continue
        records.append(record)
        lines.append(number)
    table = pd.DataFrame(records, index=pd.Index(lines, name="line"), dtype=object)
    if faults:
        table.attrs["path"] = name
        raise TableError(message(faults, table))
    return table


def _row(given: dict[str, Any], where: str) -> tuple[Row | None, list[str]]:
    kind = str(given.pop("kind", "")).strip()
    if kind not in ROW_KINDS:
        hint = did_you_mean(kind, ROW_KINDS) or f"write {_any_of(ROW_KINDS)}"
        return None, [f"{where}, column kind: {kind!r} is not a kind of row; {hint}"]
    columns = ROW_KINDS[kind]
    cells: dict[str, Any] = {}
    faults = []
    for name, cell in given.items():
        if name in FREE:
            continue
        if name not in (*columns.required, *columns.optional):
            faults.append(f"{where}, column {name}: {kind} rows have none; leave it empty")
            continue
        value = _value(cell, COLUMNS[name])
        if value is None:
            faults.append(f"{where}, column {name}: {cell!r}; write {COLUMNS[name].wanted}")
        else:
            cells[name] = value
    faults += [
        f"{where}, column {name} is empty; write {COLUMNS[name].wanted}"
        for name in columns.required
        if name not in given
    ]
    if not faults:
        faults = [f"{where}, {fault}" for fault in _contradictions(kind, cells)]
    return (None, faults) if faults else (Row(kind, cells, where), [])


def _contradictions(kind: str, cells: Mapping[str, Any]) -> list[str]:
    """What is wrong with cells that are right one by one."""
    if kind in ("elementwise", "memory") and cells["bytes"] == 0:
        return ["column bytes: 0; a row that moves nothing is of kind launch"]
    if kind == "step":
        whole = cells["collective_seconds"]
        found = [
            f"column {name}: {cells[name]:g} is more than the {whole:g} of collective_seconds"
            for name in ("exposed_seconds", "hideable_seconds")
            if cells.get(name, 0.0) > whole * (1 + 1e-9)
        ]
        if cells["compute_seconds"] + cells["exposed_seconds"] == 0:
            found.append("columns compute_seconds and exposed_seconds: a step takes some time")
        return found
    if kind != "collective":
        return []
    by_mesh, by_group = {"mesh", "axes"} & set(cells), {"group_size", "level"} & set(cells)
    if by_mesh and by_group:
        return ["columns mesh and group_size: give the mesh and axes, or the group, not both"]
    if not by_mesh and "group_size" not in cells:
        return ["column group_size is empty; give it, or mesh and axes"]
    if len(by_mesh) == 1:
        missing = "axes" if "mesh" in cells else "mesh"
        return [f"column {missing} is empty; write {COLUMNS[missing].wanted}"]
    if by_mesh:
        strange = [axis for axis in cells["axes"] if axis not in cells["mesh"]]
        if strange:
            known = ", ".join(cells["mesh"])
            return [f"column axes: no axis {', '.join(strange)} in the mesh of {known}"]
    return []


def _value(cell: Any, column: Column) -> Any:
    """The cell as its column has it, or None."""
    content = column.content
    if content == "mesh":
        return _mesh(cell)
    if content == "axes":
        names = cell if isinstance(cell, list | tuple) else re.split(r"[,\s]+", str(cell).strip())
        return tuple(names) if names and all(isinstance(n, str) and n for n in names) else None
    if content == "dtype":
        return _dtype(str(cell).strip())
    if content == "word":
        word = str(cell).strip()
        return word if not column.words or word in column.words else None
    return _number(cell, content)


def _dtype(name: str) -> str | None:
    if not re.fullmatch(r"[a-z]\w{1,31}", name):  # numpy reads structures and codes, too
        return None
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        return None
    return dtype.name if dtype.itemsize and dtype.kind not in "OSUMm" else None


def _number(cell: Any, content: str) -> float | int | None:
    if isinstance(cell, bool):
        return None
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number):
        return None
    if content == "count":
        return int(number) if number >= 1 and number == int(number) else None
    return number if number >= (SHORTEST if content == "seconds" else 0.0) else None


def _mesh(cell: Any) -> dict[str, int] | None:
    if isinstance(cell, Mapping):
        pairs = list(cell.items())
    else:
        parts = re.split(r"[,\s]+", str(cell).strip())
        matches = [re.fullmatch(r"(\w+)=(\d+)", part) for part in parts]
        if not all(matches):
            return None
        pairs = [(match[1], int(match[2])) for match in matches if match]
    right = all(isinstance(size, Integral) and int(size) >= 1 for _, size in pairs)
    sizes = {str(axis): int(size) for axis, size in pairs} if right else {}
    return sizes if sizes and len(sizes) == len(pairs) else None


_KNOWN = ("kind", *COLUMNS, *FREE)


def _unknown_column(name: str) -> str:
    hint = did_you_mean(name, _KNOWN) or f"known: kind, {', '.join((*COLUMNS, *FREE))}"
    return f"column {name} is not known; {hint}"


def _any_of(names: Mapping[str, Any]) -> str:
    return "one of " + ", ".join(names)


def _empty(cell: Any) -> bool:
    if cell is None or cell is pd.NA or (isinstance(cell, str) and not cell.strip()):
        return True
    return isinstance(cell, float) and math.isnan(cell)
