"""Names of machines, in the words of `autoshard.machine.load` and in those of clouds and vendors.

    v5p-64, v5p-4x4x4, v5p:4x4x4   64 chips, as JAX counts devices; the torus spelled out
    v5p-128-cores                  the same 64 chips: two cores each
    v7x-64-chips                   64 chips, each of them two devices to JAX
    v5litepod-16, tpu7x-128        Google's names, where they count what JAX counts
    8xH100, 2xv6e-256              eight GPUs; two slices over the slow network
    4x8xH100, 4xH100-4             four hosts of eight GPUs each, or of four
    8xA100-40GB                    GPUs as their makers call them (`gpu_names.py`)
    gb200-nvl72, 2xgb200-nvl72     one rack, or two
    4xa3-megagpu-8g, dgx-h100      hosts of a machine type (`machine_types.toml`)
    4xgpu:h100:8, 4 gpu:h100:8     nodes as SLURM describes them (`sinfo -o "%D %G"`)

On v4 and v5p, Google's `v5p-128` counts cores, two a chip, and ours counts chips: `two_meanings`
says both. A suffix as `@recipe` (flags of the compiler) changes nothing of that. Sources:
https://cloud.google.com/tpu/docs/v4, /v5p, /v5e, /v6e and /tpu7x;
https://slurm.schedmd.com/gres.html.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from typing import Annotated, Any

import msgspec

from autoshard.files import toml_of
from autoshard.files.typed import typed
from autoshard.machine.gpu_names import gpu_of
from autoshard.machine.level_rules import MOST_CHIPS
from autoshard.units import counted

CORES = {"v4": 2, "v5p": 2}
"""Cores of a chip that is one device to JAX, where Google's names count cores."""

DEVICES = {"v7x": 2}
"""Devices that JAX counts in one chip, where it is not one."""

_ALIASES = {
    "tpu7x": "v7x",
    "ironwood": "v7x",
    "trillium": "v6e",
    "v6": "v6e",
    "v5": "v5p",
    "v5litepod": "v5e",
    "v5lite": "v5e",
}
_TPU = re.compile(r"^tpu[ _-]+")
_COUNTS = re.compile(r"(?:(\d+)x(?=\d+x))?(?:(\d+)(?:x|\s+))?(.*)", re.DOTALL)
_NODE = re.compile(r"(?:gres[/=])?gpu:([a-z][a-z0-9_-]*)(?:[:=](\d+))?(?:\(.*\))?")
_GOOGLE = {"v4": "v4", "v5p": "v5p", "v5e": "v5litepod", "v6e": "v6e", "v7x": "tpu7x"}


@dataclass(frozen=True, slots=True)
class MachineType:
    """A host of a cloud or a vendor.

    Attributes:
      family: the preset of its chips.
      chips: how many of them are in a host.
      source: where the numbers are from.
      between: bytes/s that a chip sends to another host, where the preset says something else.
      chip: fields of the chip that differ from the preset.
      joined: whether the network of chips joins several of them, to one slice or one rack.
    """

    family: str
    chips: Annotated[int, msgspec.Meta(ge=1)]
    source: str
    between: Annotated[float, msgspec.Meta(gt=0)] | None = None
    chip: Mapping[str, Any] = field(default_factory=dict)
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """What the name of a machine says.

    Attributes:
      family: the preset, or what stands where its name is expected.
      size: devices or a torus, as text; None where the name does not say.
      slices: so many of them, joined by the outermost switch.
      host: the machine type, if the name is of one, or of a chip that only such a type has.
    """

    family: str
    size: str | None
    slices: int = 1
    host: MachineType | None = None


@lru_cache(maxsize=1)
def machine_types() -> Mapping[str, MachineType]:
    """Machine types by their name in lower case."""
    file = "machine_types.toml"
    text = (resources.files("autoshard") / "machine" / file).read_text(encoding="utf-8")
    return typed(toml_of(text, file), dict[str, MachineType], name=file)


def name_and_flags(name: str) -> tuple[str, str]:
    """The name of a machine, and the flags of its compiler behind the @; a path may hold one, too.

    >>> name_and_flags("h100-64@recipe"), name_and_flags("a@b/mine.toml")
    (('h100-64', 'recipe'), ('a@b/mine.toml', ''))
    """
    plain, _, flags = name.rpartition("@")
    return (plain, flags) if plain and not flags.endswith(".toml") else (name, "")


def parse_name(text: str) -> Named:
    """What `text` says, by the grammar above; whether there is such a preset is not asked."""
    name = name_and_flags(text.strip().lower())[0]
    hosts, times, rest = _COUNTS.fullmatch(name).groups()  # type: ignore[union-attr]
    rest = _TPU.sub("", rest)
    count = count_of(times or "1")
    if hosts is not None:
        gpu = _gpu(rest)
        return Named(text, None) if gpu is None else _hosts(gpu, count_of(hosts), count)
    host = machine_types().get(rest)
    if host is not None:
        return _hosts(Named(host.family, None, host=host), count, host.chips)
    if node := _NODE.fullmatch(rest):
        return _hosts(_gpu(node[1]) or Named(node[1], None), count, count_of(node[2] or "1"))
    found = re.fullmatch(r"([a-z].*?)(?:[-:](\d+(?:x\d+)*)(?:-(cores|chips))?)?", rest)
    if found is None:
        return Named(text, None)
    family, size = _ALIASES.get(found[1], found[1]), found[2]
    named = _gpu(family) or Named(family, None)
    if size is None and (rack := re.fullmatch(r".*-nvl(\d+)", found[1])):
        return replace(named, size=str(count * count_of(rack[1])))
    if size is None:
        counted_before = times is not None and named.family not in _GOOGLE
        return replace(named, size=str(count) if counted_before else None)
    if found[3] is not None and "x" not in size:
        size = _devices(family, count_of(size), found[3])
    return replace(named, size=size, slices=count)


def two_meanings(name: str) -> str | None:
    """What a name means here and what it means to Google, if that is something else.

    >>> two_meanings("v5p-64-cores")
    >>> print(two_meanings("v5p-64"))
    v5p-64 is 64 chips here, which Google calls v5p-128; Google's v5p-64 is v5p-64-cores here
    """
    name = name_and_flags(name)[0]
    found = re.fullmatch(r"(?:(\d+x))?(?:tpu[ _-]+)?(v\d\w*)-(\d+)", name.strip().lower())
    family = "" if found is None else _ALIASES.get(found[2], found[2])
    if found is None or family not in CORES:
        return None
    slices, size = found[1] or "", count_of(found[3])
    google = f"{slices}{family}-{CORES[family] * size}"
    return (
        f"{name} is {counted(size, 'chip')}{' a slice' if slices else ''} here, which Google "
        f"calls {google}; "
        f"Google's {name} is {slices}{family}-{size}-cores here"
    )


def google_name(family: str, chips: int) -> str:
    """What Google calls so many devices of a preset; an empty text where it is not a TPU."""
    if family not in _GOOGLE:
        return ""
    return f"{_GOOGLE[family]}-{CORES.get(family, 1) * chips}"


def _gpu(word: str) -> Named | None:
    """A GPU by what others call it, without a number of them."""
    found = gpu_of(word)
    if found is None:
        return None
    family, gigabytes = found
    if gigabytes is None:
        return Named(family, None)
    size = gigabytes * 2**30
    alike = (one for one in machine_types().values() if one.family == family)
    host = next(one for one in alike if one.chip.get("memory_bytes") == size)
    return Named(family, None, host=replace(host, chips=1, between=None))


def _hosts(of: Named, hosts: int, chips: int) -> Named:
    """So many hosts of so many chips: slices of their own, or all in one torus or rack."""
    joined = of.host.joined if of.host is not None else "-nvl" in of.family
    size, slices = (hosts * chips, 1) if joined else (chips, hosts)
    return replace(of, size=str(size), slices=slices)


def _devices(family: str, number: int, unit: str) -> str:
    """So many cores or chips in the devices that JAX counts; as they stand where none are whole."""
    if unit == "chips":
        return str(number * DEVICES.get(family, 1))
    whole, left = divmod(number, CORES.get(family, 1))
    return f"{number}-cores" if left else str(whole)


def count_of(digits: str) -> int:
    """The number of these digits, or one that is too large for any machine."""
    return int(digits) if len(digits) < 20 else 2 * MOST_CHIPS
