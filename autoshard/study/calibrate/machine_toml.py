"""Machines as files of the presets' form.

    text = machine_toml(machine, notes={"chip.launch_seconds": "fitted to 12 rows of times.csv"})

With the file that the machine was loaded from, everything that the machine does not decide (shapes
that the hardware comes in, outer network levels, comments) is kept as it stands there.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.machine.compiler import DEFAULTS, Compiler
from autoshard.machine.file import MachineError
from autoshard.machine.load import parse
from autoshard.machine.machine import Machine
from autoshard.machine.names import name_and_flags
from autoshard.machine.network import Level, Switch, Torus

_NUMBER_WITH_COMMENT = re.compile(r'^[A-Za-z_]\w*\s*=[^#"\'\[{]*#\s*(.*\S)\s*$')


def file_of(name: str, machine: Machine) -> str:
    """Return the text of the file that `machine` was loaded from by `name`."""
    plain = name_and_flags(name)[0]
    if plain.endswith(".toml"):
        return Path(plain).read_text(encoding="utf-8")
    folder = resources.files("autoshard") / "machine" / "presets"
    return (folder / f"{machine.family}.toml").read_text(encoding="utf-8")


def machine_toml(
    machine: Machine,
    *,
    name: str,
    notes: Mapping[str, str] | None = None,
    base: str | None = None,
) -> str:
    """Return a machine file that loads as `machine`, under another name.

    Args:
      machine: what the file says.
      name: what the machine in the file is called.
      notes: comments by path, such as ``chip.launch_seconds`` or ``network[0].efficiency``.
      base: text of the file that the machine came from.

    Raises:
      MachineError: the machine's levels are not those of the base, or no file can say them (a
        torus inside of another), or what its products reach by their size.
    """
    if machine.chip.product_shares or machine.chip.kernel_share is not None:
        raise MachineError(
            f"{machine.name} has no machine file: none says what products reach by their size, "
            "or in kernels; "
            "make one of the machine before `as_measured`"
        )
    content = _of_machine(machine) if base is None else _of_base(machine, tomllib.loads(base))
    content |= {"name": name, "sources": list(machine.sources)}
    for extent in _extents(machine):
        text = _text({**content, **extent}, machine, notes or {}, base or "")
        with contextlib.suppress(MachineError):
            if parse(text, where=name).network == machine.network:
                return text
    raise MachineError(
        f"{machine.name} has no machine file: no number of chips and slices gives "
        + ", then ".join(map(str, machine.network))
    )


def _text(content: Mapping[str, Any], machine: Machine, notes: Mapping[str, str], base: str) -> str:
    """The file of some content, with its comments."""
    comments = _Comments(base)
    positions = _positions(machine, content["network"])
    for path, note in notes.items():
        comments.replace(_moved(path, positions), note)
    lines = []
    for key in ("name", "sources", "overlap", "dispatch_seconds", "chips", "topology", "slices"):
        if key in content:
            lines += comments.entry(key, content[key])
    compiler = content.get("compiler", {})
    if isinstance(compiler, str):
        lines += comments.entry("compiler", compiler)
    elif compiler:
        lines += ["", *comments.above.get("compiler", ()), "[compiler]"]
        for key, cell in compiler.items():
            lines += comments.entry(f"compiler.{key}", cell)
    chip = dict(content["chip"])
    lines += ["", "[chip]"]
    peaks = chip.pop("peak_flops")
    for key, cell in chip.items():
        lines += comments.entry(f"chip.{key}", cell)
    lines += ["", *comments.above.get("chip.peak_flops", ()), "[chip.peak_flops]"]
    for key, cell in peaks.items():
        lines += comments.entry(f"chip.peak_flops.{key}", cell)
    if host := content.get("host"):
        lines += ["", *comments.above.get("host", ()), "[host]"]
        for key, cell in host.items():
            lines += comments.entry(f"host.{key}", cell)
    for index, table in enumerate(content["network"]):
        lines += ["", *comments.above.get(f"network[{index}]", ()), "[[network]]"]
        for key, cell in table.items():
            lines += comments.entry(f"network[{index}].{key}", cell)
    return "\n".join(lines) + "\n"


def _of_machine(machine: Machine) -> dict[str, Any]:
    """The content of a file that spells the machine out."""
    chip: dict[str, Any] = {
        field.name: getattr(machine.chip, field.name)
        for field in fields(machine.chip)
        if field.name not in ("compiler", "product_shares", "kernel_share")
        and (field.name != "matrix_side" or machine.chip.matrix_side)
    }
    chip["peak_flops"] = dict(machine.chip.peak_flops)
    network = [_table(level) for level in machine.network]
    if any(level["kind"] == "torus" for level in network[:-1]):
        network[-1].pop("size", None)  # open: it joins the slices
    return {
        "overlap": machine.overlap,
        "dispatch_seconds": machine.dispatch_seconds,
        **_of_compiler(machine.chip.compiler),
        **({"host": asdict(machine.host)} if machine.host else {}),
        "chip": chip,
        "network": network,
    }


def _of_compiler(compiler: Compiler) -> dict[str, Any]:
    """The entry of the compiler, if one is known: its name, and what differs from its defaults."""
    if not compiler.name:
        return {}
    usual = DEFAULTS[compiler.name]
    return {
        "compiler": {
            field.name: getattr(compiler, field.name)
            for field in fields(compiler)
            if field.name == "name"
            or (
                field.name != "without"
                and getattr(compiler, field.name) != getattr(usual, field.name)
            )
        }
    }


def _of_base(machine: Machine, content: dict[str, Any]) -> dict[str, Any]:
    """The base's content with the machine's numbers in it."""
    content = {key: cell for key, cell in content.items() if key not in _EXTENT}
    chip = dict(content["chip"])
    for key in chip:
        now = getattr(machine.chip, key)
        chip[key] = dict(now) if key == "peak_flops" else now
    network = [dict(table) for table in content["network"]]
    for index, level in zip(_positions(machine, network), machine.network, strict=True):
        told = _RATES & (network[index].keys() | _table(level).keys())
        network[index] |= {key: getattr(level, key) for key in sorted(told)}
    told, compiler = machine.chip.compiler, content.get("compiler", {})
    if isinstance(compiler, dict) and compiler:
        content["compiler"] = {key: getattr(told, key) for key in compiler}
    if told.flags != "default":
        named = content["compiler"] if isinstance(content["compiler"], dict) else {}
        content["compiler"] = {"name": told.name, **named, "flags": told.flags}
    if machine.host:
        content["host"] = {key: getattr(machine.host, key) for key in content["host"]}
    return {
        **content,
        "overlap": machine.overlap,
        "dispatch_seconds": machine.dispatch_seconds,
        "chip": chip,
        "network": network,
    }


_EXTENT = ("chips", "topology", "slices")
_OPTIONAL = {
    "pair_bandwidth": math.inf,
    "pipelined": 1.0,
    "start_seconds": 0.0,
    "reduces": False,
}
_RATES = frozenset(
    {
        "chip_bandwidth",
        "pair_bandwidth",
        "latency_seconds",
        "start_seconds",
        "link_bandwidth",
        "hop_seconds",
        "efficiency",
    }
)


def _extents(machine: Machine) -> Iterator[dict[str, Any]]:
    """How many chips there may be, in the words of a machine file."""
    outermost = machine.network[-1].chips
    tori = [level for level in machine.network if isinstance(level, Torus)]
    for slices in (1, outermost):
        several = {"slices": slices} if slices > 1 else {}
        yield {"chips": machine.chips // slices, **several}
        for torus in tori:
            yield {"topology": "x".join(map(str, torus.dimensions)), **several}


def _table(level: Level) -> dict[str, Any]:
    entries = {field.name: getattr(level, field.name) for field in fields(level)}
    if isinstance(level, Switch):
        for optional, default in _OPTIONAL.items():
            if entries[optional] == default:
                del entries[optional]
        return {"kind": "switch", "name": entries.pop("name"), **entries}
    del entries["dimensions"]
    rank = len(level.dimensions)
    return {"kind": "torus", "name": entries.pop("name"), "rank": rank, **entries}


def _positions(machine: Machine, tables: list[dict[str, Any]]) -> list[int]:
    """The table of each level of the machine, which may leave out some of the file's."""
    positions: list[int] = []
    for level in machine.network:
        kind = "torus" if isinstance(level, Torus) else "switch"
        start = positions[-1] + 1 if positions else 0
        found = [
            index
            for index, table in enumerate(tables[start:], start)
            if table["kind"] == kind and table.get("name", kind) == level.name
        ]
        if not found:
            raise MachineError(
                f"{machine.name}: its file has no network level {level.name!r}; fit to the machine "
                "that the file makes"
            )
        positions.append(found[0])
    return positions


def _moved(path: str, positions: list[int]) -> str:
    """A path of the machine as a path of the file."""
    match = re.fullmatch(r"network\[(\d+)\](.*)", path)
    return f"network[{positions[int(match[1])]}]{match[2]}" if match else path


class _Comments:
    """The comments of a file: those above an entry or a table, and those behind a number."""

    def __init__(self, text: str) -> None:
        self.above: dict[str, list[str]] = {}
        self.behind: dict[str, str] = {}
        prefix, levels, block = "", -1, []
        for line in text.splitlines():
            if line.startswith("#"):
                block.append(line.rstrip())
                continue
            header = re.match(r"^(\[\[?)\s*([\w.]+)\s*\]", line)
            key = re.match(r"^([A-Za-z_]\w*)\s*=", line)
            if header:
                levels += header[1] == "[["
                path = f"network[{levels}]" if header[1] == "[[" else header[2]
                prefix = f"{path}."
            else:
                path = prefix + key[1] if key else ""
            if block and path:
                self.above[path] = block
            block = []
            behind = _NUMBER_WITH_COMMENT.match(line)
            if behind:
                self.behind[path] = behind[1]

    def replace(self, path: str, note: str) -> None:
        """Let `note` be all that is said of an entry."""
        self.above.pop(path, None)
        self.behind[path] = note

    def entry(self, path: str, cell: Any) -> list[str]:
        """The lines of one entry, its comments with it."""
        text = f"{path.rpartition('.')[2]} = {_value(cell)}"
        note = self.behind.get(path)
        return [*self.above.get(path, ()), text if note is None else f"{text:<31} # {note}"]


def _value(cell: Any) -> str:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, str):
        # What JSON escapes, TOML escapes alike; DEL is the one character that only TOML forbids.
        return json.dumps(cell, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(cell, list | tuple):
        if any(isinstance(item, str) for item in cell):
            return "[\n" + "".join(f"    {_value(item)},\n" for item in cell) + "]"
        return "[" + ", ".join(map(_value, cell)) + "]"
    return repr(int(cell)) if isinstance(cell, int) else _float(float(cell))


def _float(number: float) -> str:
    """A float in the fewest characters that are read back as it, such as `4.59e14`."""
    plain = repr(number)
    powers = np.format_float_scientific(number, trim="-", exp_digits=1).replace("e+", "e")
    return powers if len(powers) < len(plain) or "e" in plain else plain
