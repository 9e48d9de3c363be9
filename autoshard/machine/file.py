"""Machine files: what may stand in one, and every fault of one at once.

A machine file is TOML. Rates are in bytes/s and FLOP/s, sizes in bytes, times in seconds:

    name = "v5p"
    sources = ["https://..."]
    overlap = 0.8                   # fraction of a prefetchable collective that compute hides
    dispatch_seconds = 3e-5         # of the controller of several meshes for a program; default 0
    topology = "4x4x4"              # or `chips = 64`; only in a file that is loaded by its path
    slices = 2                      # so many of them, joined by the outermost switch; default 1
    compiler = "xla:gpu"            # or a table with `name`: `autoshard.machine.compiler.Compiler`
    [chip]                          # the fields of `autoshard.machine.Chip`
    [chip.peak_flops]               # dtype = FLOP/s
    [host]                          # optional: the fields of `autoshard.machine.host.Host`
    [[network]]                     # one table per level, innermost first
    kind = "torus"                  # or "switch"

A torus table also says which shapes the hardware comes in: `lengths` are those a dimension may
have, or every dimension is a multiple of `cube`. Rings close in all dimensions of a torus made of
whole cubes (optical switches join their faces), or in dimensions of exactly `wrap_length`, or as
`wraps` says. A switch without `size` is open: it joins as many units as the machine needs.

Every number (not the counts) may be a range, where it is not known better:

    memory_bandwidth = [2.8e12, 3.4e12]           # least and most; taken for the middle
    matmul_efficiency = [0.6, 0.75, 0.8]          # least, what it is taken for, most

Plans are made for what it is taken for; `autoshard robust` says what the ranges mean for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoshard.files import toml_of
from autoshard.files.errors import shown
from autoshard.machine.compiler import DEFAULTS, LAWS, Compiler, of_table, sets_of_flags
from autoshard.machine.host import Host
from autoshard.machine.level_rules import MOST_CHIPS, SwitchRules, TorusRules
from autoshard.near import did_you_mean
from autoshard.units import counted, with_article


class MachineError(ValueError):
    """A machine that does not exist, or whose description is faulty."""


@dataclass(frozen=True, slots=True)
class MachineFile:
    """A machine file whose every entry has been checked."""

    name: str
    sources: tuple[str, ...]
    overlap: float
    topology: str | None
    compiler: Compiler
    chip: Mapping[str, object]
    levels: tuple[TorusRules | SwitchRules, ...]
    slices: int = 1
    ranges: tuple[tuple[str, float, float], ...] = ()
    dispatch_seconds: float = 0.0
    host: Host | None = None


LEAST, MOST = 1e-30, 1e30
"""Of rates, sizes and times: beyond them prices are not numbers any more."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What a key may hold: a kind of value and, for numbers, a closed range."""

    kind: str
    least: float = 0.0
    most: float = MOST
    required: bool = True


_FRACTION = _Key("number", LEAST, 1.0)
_RATE = _Key("number", LEAST, MOST)
_SECONDS = _Key("number", 0.0, MOST)
_COUNT = _Key("integer", 1, MOST_CHIPS, required=False)
_TEXT = _Key("text", required=False)

_MACHINE = {
    "name": _Key("text"),
    "sources": _Key("list of texts", required=False),
    "overlap": _Key("number", 0.0, 1.0),
    "dispatch_seconds": _Key("number", required=False),
    "chips": _COUNT,
    "topology": _TEXT,
    "slices": _COUNT,
    "compiler": _Key("table", required=False),
    "chip": _Key("table"),
    "host": _Key("table", required=False),
    "network": _Key("list of tables"),
}
_CHIP = {
    "name": _Key("text"),
    "peak_flops": _Key("table of rates"),
    "vector_flops": _RATE,
    "memory_bytes": _RATE,
    "memory_bandwidth": _RATE,
    "reserve_bytes": _SECONDS,
    "launch_seconds": _RATE,
    "matmul_efficiency": _FRACTION,
    "memory_efficiency": _FRACTION,
    "exponential_flops": _Key("number", required=False),
    "transaction_bytes": _Key("number", required=False),
    "sm_bandwidth": _Key("number", required=False),
    "vector_memory_bytes": _Key("number", required=False),
    "pad_tile_seconds": _Key("number", required=False),
    "lanes": _COUNT,
    "sublanes": _COUNT,
    "matrix_side": _COUNT,
}
_COMPILER = {
    "name": _Key("text"),
    "hides_collectives": _Key("boolean", required=False),
    "heap_overhead": _Key("number", required=False),
    "workspace_bytes": _Key("number", required=False),
    "release": _Key("text", required=False),
    "flags": _Key("text", required=False),
}
_HOST = {
    "name": _TEXT,
    "chips": _Key("integer", 1, MOST_CHIPS),
    "memory_bytes": _RATE,
    "to_bandwidth": _RATE,
    "from_bandwidth": _RATE,
    "shared_by": _COUNT,
    "efficiency": _FRACTION,
    "latency_seconds": _SECONDS,
}
_OF_COMPILERS = {
    "library_products": 'say `compiler = "xla:gpu"` instead',
    **dict.fromkeys(set(_COMPILER) - {"name"}, "it stands in the table [compiler]"),
}
"""What `[chip]` once said of compilers."""
_TORUS = {
    "kind": _Key("text"),
    "name": _TEXT,
    "rank": _Key("integer", 1, 4),
    "link_bandwidth": _RATE,
    "hop_seconds": _SECONDS,
    "efficiency": _FRACTION,
    "lengths": _Key("list of integers", 1, MOST_CHIPS, required=False),
    "cube": _COUNT,
    "wrap_length": _COUNT,
    "wraps": _Key("list of booleans", required=False),
    "maximum_chips": _COUNT,
}
_SWITCH = {
    "kind": _Key("text"),
    "name": _TEXT,
    "size": _COUNT,
    "chip_bandwidth": _RATE,
    "pair_bandwidth": _Key("number", LEAST, required=False),
    "pipelined": _Key("number", 0.0, 1.0, required=False),
    "latency_seconds": _SECONDS,
    "start_seconds": _Key("number", required=False),
    "reduces": _Key("boolean", required=False),
    "efficiency": _FRACTION,
}
_LEVELS = {"torus": _TORUS, "switch": _SWITCH}
KEYS = {
    "the file": _MACHINE,
    "[chip]": _CHIP,
    "[compiler]": _COMPILER,
    "[host]": _HOST,
    "[[network]] of kind torus": _TORUS,
    "[[network]] of kind switch": _SWITCH,
}
"""Every key, by the table in which it stands; `[chip.peak_flops]` has dtypes for keys."""


def read(toml: str, *, where: str) -> MachineFile:
    """Return the checked content of a machine file.

    Args:
      toml: its text.
      where: what to call it in an error.

    Raises:
      MachineError: it is not TOML, or has unknown, missing or impossible entries; all are listed.
    """
    content = toml_of(toml, where, error=MachineError)
    faults = _Faults(where)
    if isinstance(content.get("compiler"), str):
        content["compiler"] = {"name": content["compiler"]}
    faults.check_table(content, _MACHINE, "")
    faults.check_compiler(content.get("compiler"))
    chip = content.get("chip")
    if isinstance(chip, dict):
        faults.check_table(chip, _CHIP, "chip.")
    if isinstance(content.get("host"), dict):
        faults.check_table(content["host"], _HOST, "host.")
    network = content.get("network")
    tables = network if isinstance(network, list) else []
    if not tables:
        faults.found.append("network: no level; write at least one [[network]] table")
    for index, table in enumerate(tables):
        faults.check_level(table, index, last=index == len(tables) - 1)
    if "chips" in content and "topology" in content:
        faults.found.append("chips and topology are both given; keep one")
    faults.raise_if_any()
    ranges: list[tuple[str, float, float]] = []
    content = _settled(content, _MACHINE, "", ranges)
    compiler = _settled(content.get("compiler", {}), _COMPILER, "compiler.", ranges)
    chip = _settled(content["chip"], _CHIP, "chip.", ranges)
    host = _settled(content.get("host", {}), _HOST, "host.", ranges)
    tables = [
        _settled(table, _LEVELS[table["kind"]], f"network[{index}].", ranges)
        for index, table in enumerate(content["network"])
    ]
    return MachineFile(
        name=content["name"],
        sources=tuple(content.get("sources", ())),
        overlap=float(content["overlap"]),
        topology=content.get("topology") or (str(content["chips"]) if "chips" in content else None),
        compiler=of_table(compiler) if compiler else LAWS,
        chip=chip,
        levels=tuple(map(_rules, tables)),
        slices=content.get("slices", 1),
        ranges=tuple(ranges),
        dispatch_seconds=float(content.get("dispatch_seconds", 0.0)),
        host=Host(**host) if host else None,
    )


def _settled(
    table: Mapping[str, Any],
    keys: Mapping[str, _Key],
    at: str,
    ranges: list[tuple[str, float, float]],
) -> dict[str, Any]:
    """A table with what its ranges are taken for in their place; they are added to `ranges`."""
    found = dict(table)
    for name, value in table.items():
        kind = keys[name].kind if name in keys else "number"  # dtypes are not keys
        if kind == "table of rates":
            found[name] = _settled(value, {}, f"{at}{name}.", ranges)
        elif kind == "number" and isinstance(value, list):
            low, high = float(value[0]), float(value[-1])
            found[name] = float(value[1]) if len(value) == 3 else (low + high) / 2
            ranges.append((at + name, low, high))
    return found


def _rules(table: Mapping[str, object]) -> TorusRules | SwitchRules:
    entries = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in table.items()
        if key != "kind"
    }
    return (TorusRules if table["kind"] == "torus" else SwitchRules)(**entries)  # type: ignore[arg-type]


@dataclass(slots=True)
class _Faults:
    """Collects every fault of a file, so that one error can name them all."""

    where: str
    found: list[str] = field(default_factory=list)

    def check_level(self, table: object, index: int, *, last: bool) -> None:
        prefix = f"network[{index}]."
        kind = table.get("kind") if isinstance(table, dict) else None
        if not isinstance(table, dict) or kind not in _LEVELS:
            self.found.append(f"{prefix}kind is {kind!r}; write 'torus' or 'switch'")
            return
        self.check_table(table, _LEVELS[kind], prefix)
        if kind == "switch" and "size" not in table and not last:
            self.found.append(f"{prefix}size is missing; only the outermost switch may be open")
        wraps, rank = table.get("wraps"), table.get("rank")
        if isinstance(wraps, list) and len(wraps) != rank:
            self.found.append(f"{prefix}wraps has {counted(len(wraps), 'entry')} for rank {rank}")

    def check_compiler(self, table: object) -> None:
        if not isinstance(table, dict):
            return
        self.check_table(table, _COMPILER, "compiler.")
        name = table.get("name")
        if isinstance(name, str) and name not in DEFAULTS:
            self.found.append(f"compiler is {name!r}; known: {', '.join(DEFAULTS)}")
            return
        flags = table.get("flags", "default")
        if isinstance(name, str) and isinstance(flags, str) and flags not in sets_of_flags(name):
            known = ", ".join(sets_of_flags(name))
            self.found.append(f"compiler.flags is {flags!r}; {name} has {known}")

    def check_table(self, table: Mapping[str, object], keys: Mapping[str, _Key], at: str) -> None:
        for name in table:
            if name not in keys:
                hint = did_you_mean(name, keys) or f"known: {', '.join(keys)}"
                if at == "chip.":
                    hint = _OF_COMPILERS.get(name, hint)
                self.found.append(f"{at}{name} is not a key; {hint}")
        for name, key in keys.items():
            if name in table:
                self.check_value(table[name], key, at + name)
            elif key.required:
                self.found.append(f"{at}{name} is missing; write {with_article(key.kind)}")

    def check_value(self, value: object, key: _Key, at: str) -> None:
        if key.kind.startswith("list of "):
            if not isinstance(value, list):
                self.found.append(f"{at} is {value!r}; write {with_article(key.kind)}")
                return
            single = key.kind.removeprefix("list of ").removesuffix("s")
            for index, item in enumerate(value):
                self.check_value(item, _Key(single, key.least, key.most), f"{at}[{index}]")
        elif key.kind == "table of rates":
            if not isinstance(value, dict) or not value:
                self.found.append(f"{at} is {value!r}; write a table of dtype = FLOP/s")
                return
            for name, rate in value.items():
                self.check_value(rate, _RATE, f"{at}.{name}")
        elif key.kind == "number" and isinstance(value, list):
            if len(value) not in (2, 3):
                self.found.append(
                    f"{at} is {value!r}; write [least, most], or what it is taken for between them"
                )
                return
            before = len(self.found)
            for index, item in enumerate(value):
                self.check_value(item, key, f"{at}[{index}]")
            if len(self.found) == before and sorted(value) != value:
                self.found.append(f"{at} is {value!r}; write the least first, and the most last")
        elif not isinstance(value, _TYPES[key.kind]) or (
            isinstance(value, bool) and key.kind != "boolean"
        ):
            self.found.append(f"{at} is {shown(value)}; write {with_article(key.kind)}")
        elif isinstance(value, int | float) and not key.least <= value <= key.most:
            self.found.append(f"{at} is {value}; it must be {_range(key, value)}")

    def raise_if_any(self) -> None:
        if self.found:
            count = counted(len(self.found), "fault")
            raise MachineError(
                f"{self.where} has {count}:\n" + "\n".join(f"  * {fault}" for fault in self.found)
            )


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "text": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "table": dict,
}


def _range(key: _Key, value: float) -> str:
    if key.most in (MOST, MOST_CHIPS):
        if value > key.most:
            return f"at most {key.most:g}"
        return "positive" if key.least == LEAST else f"at least {key.least:g}"
    return f"{'above 0' if key.least == LEAST else f'from {key.least:g}'} to {key.most:g}"
