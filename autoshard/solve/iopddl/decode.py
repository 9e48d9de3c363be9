"""From the bytes of a contest file to its tables of numbers.

Most of a file is the same few cost matrices, written out again for every edge. So the rows stay
text while the file is walked, and only the distinct texts are turned into numbers. What that walk
does not take (a fault, or `Infinity`, which is not JSON) goes the plain way: everything decoded,
every part of the wrong shape named.
"""

from __future__ import annotations

import gzip
import json
import math
import numbers
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from autoshard.files import where_json_ends
from autoshard.solve.iopddl.tables import Faults, Rows, Tables
from autoshard.solve.problem import Floats, Integers, ProblemError
from autoshard.units import counted

LISTS = {"nodes": ("intervals", "costs", "usages"), "edges": ("nodes", "costs")}


class _Nodes(msgspec.Struct):
    intervals: list[tuple[int, int]]
    costs: list[msgspec.Raw]
    usages: list[msgspec.Raw]


class _Edges(msgspec.Struct):
    nodes: list[tuple[int, int]]
    costs: list[msgspec.Raw]


class _Problem(msgspec.Struct):
    nodes: _Nodes
    edges: _Edges
    name: str = ""
    usage_limit: float | None = None


class _File(msgspec.Struct):
    problem: _Problem


def decode(raw: bytes, source: str) -> Tables:
    """The tables in the bytes of a file, plain or gzip'ed.

    Args:
      source: what messages call the file.

    Raises:
      ProblemError: the gzip data or the JSON text is damaged, or is of another shape.
    """
    text = _unpacked(raw, source)
    try:
        problem = msgspec.json.decode(text, type=_File).problem
        tables = Tables(
            problem.name,
            _rows_of_texts(problem.nodes.costs),
            _rows_of_texts(problem.nodes.usages),
            _number_pairs(problem.nodes.intervals),
            _number_pairs(problem.edges.nodes),
            _rows_of_texts(problem.edges.costs),
            problem.usage_limit,
        )
    except (msgspec.MsgspecError, OverflowError, RecursionError, UnicodeDecodeError):
        return from_data(_plain(text, source), source)
    _check_lengths(tables, Faults(source))
    return tables


def _unpacked(raw: bytes, source: str) -> bytes:
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except EOFError as error:
        raise ProblemError(
            f"{source} is truncated: its gzip data break off after "
            f"{counted(len(raw), 'byte', ',')}; copy or "
            "download it again"
        ) from error
    except (OSError, zlib.error) as error:
        raise ProblemError(
            f"{source} is damaged: its gzip data are inconsistent ({error}); copy or download it "
            "again"
        ) from error


def _plain(text: bytes, source: str) -> Any:
    """Everything decoded by the plain reader, which also takes `NaN` and `Infinity`."""
    if not text.strip():
        raise ProblemError(f"{source} is empty; copy or download it again")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(error.doc.rstrip())
        if text.lstrip()[:1] == b"{" and (at_end or text.rstrip()[-1:] != b"}"):
            raise ProblemError(
                f"{source} is truncated: its JSON breaks off after "
                f"{counted(len(text), 'byte', ',')}; copy or "
                "download it again"
            ) from error
        raise ProblemError(
            f"{source} is not JSON {where_json_ends(error)}; copy or download it again"
        ) from error
    except UnicodeDecodeError as error:
        raise ProblemError(
            f"{source} is neither JSON nor gzip'ed JSON: byte {error.start + 1} is of no text; "
            "copy or download it again"
        ) from error
    except (ValueError, RecursionError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else "has endless digits"
        raise ProblemError(
            f"{source} is not a problem: its JSON {what}; copy or download it again"
        ) from error


def _rows_of_texts(texts: list[msgspec.Raw]) -> Rows:
    numbering: dict[bytes, int] = {}
    which = [numbering.setdefault(bytes(text), len(numbering)) for text in texts]
    decoder = msgspec.json.Decoder(list[float])
    distinct = tuple(np.array(decoder.decode(text), dtype=np.float64) for text in numbering)
    return Rows(distinct, np.array(which, dtype=np.int64))


def _number_pairs(pairs: list[tuple[int, int]]) -> Integers:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def from_data(data: Any, source: str) -> Tables:
    """The tables in a decoded file: mappings, lists and numbers.

    Raises:
      ProblemError: names every part that is missing or of the wrong shape.
    """
    faults = Faults(source)
    problem = _mapping(data, "the file", faults)
    if "problem" in problem:
        problem = _mapping(problem["problem"], "problem", faults)
    lists = {} if faults.count else _lists(problem, faults)
    name = problem.get("name", "")
    if not isinstance(name, str):
        faults.add(f"name is {_shown(name)}; give a string")
    limit = problem.get("usage_limit")
    if limit is not None and not _is_number(limit):
        faults.add(f"usage_limit is {_shown(limit)}; give a number, or leave it out for no limit")
    faults.complain()
    tables = Tables(
        name,
        _rows(lists, "nodes.costs", faults),
        _rows(lists, "nodes.usages", faults),
        _pairs(lists, "nodes.intervals", "[start, stop]", faults),
        _pairs(lists, "edges.nodes", "the numbers of two nodes", faults),
        _rows(lists, "edges.costs", faults),
        None if limit is None else _float(limit),
    )
    _check_lengths(tables, faults)
    return tables


def _mapping(value: Any, path: str, faults: Faults) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    faults.add(f"{path} holds {_shown(value)}; give an object with the keys nodes and edges")
    return {}


def _lists(problem: Mapping[str, Any], faults: Faults) -> dict[str, list[Any]]:
    """The five lists of a file by their paths."""
    lists = {}
    for group, keys in LISTS.items():
        place = problem.get(group)
        if not isinstance(place, Mapping):
            wrong = f"is {_shown(place)}" if group in problem else "is missing"
            faults.add(f"{group} {wrong}; give an object of lists, empty ones for no {group}")
            continue
        for key in keys:
            value = place.get(key)
            if isinstance(value, list | tuple | np.ndarray):
                lists[f"{group}.{key}"] = list(value)
                continue
            wrong = f"is {_shown(value)}" if key in place else "is missing"
            faults.add(f"{group}.{key} {wrong}; give a list with one entry per {group[:-1]}")
    return lists


def _rows(lists: Mapping[str, list[Any]], path: str, faults: Faults) -> Rows:
    numbering: dict[bytes, int] = {}
    distinct: list[Floats] = []
    which = []
    for position, value in enumerate(lists[path]):
        row = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(row, list | tuple):
            faults.add(f"{path}[{position}] is {_shown(row)}; give a list of numbers")
            row = []
        strange = [at for at, number in enumerate(row) if not _is_number(number)]
        if strange:
            which.append(-1)
            faults.add_all(
                strange,
                lambda at, position=position, row=row: (
                    f"{path}[{position}][{at}] is {_shown(row[at])}; give a number"
                ),
            )
            continue
        array = np.array([_float(number) for number in row], dtype=np.float64)
        label = numbering.setdefault(array.tobytes(), len(distinct))
        if label == len(distinct):
            distinct.append(array)
        which.append(label)
    return Rows(tuple(distinct), np.array(which, dtype=np.int64))


def _pairs(lists: Mapping[str, list[Any]], path: str, wanted: str, faults: Faults) -> Integers:
    kept = []
    for position, value in enumerate(lists[path]):
        pair = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_whole, pair)):
            kept.append((int(pair[0]), int(pair[1])))
        else:
            kept.append((0, 0))
            faults.add(f"{path}[{position}] is {_shown(value)}; give {wanted} as whole numbers")
    return _number_pairs(kept)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and abs(value) < 2**63 and value == int(value)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple) and len(value) > 4:
        return f"a list of {len(value):,}"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_lengths(tables: Tables, faults: Faults) -> None:
    """One entry per node and per edge, or there is no telling what belongs together."""
    nodes = {
        "nodes.costs": len(tables.costs),
        "nodes.usages": len(tables.usages),
        "nodes.intervals": len(tables.intervals),
    }
    edges = {"edges.nodes": len(tables.ends), "edges.costs": len(tables.pairs)}
    for kind, lengths in (("node", nodes), ("edge", edges)):
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{path} {length:,}" for path, length in lengths.items())
            faults.add(f"lists of different lengths: {listed}; give one entry per {kind}")
    faults.complain()
