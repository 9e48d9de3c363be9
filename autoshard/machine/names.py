"""Names of machines, in the words of `autoshard.machine.load` and in those of clouds and vendors.

    v5p-64, v5p-4x4x4, v5p:4x4x4   64 chips, as JAX counts devices; the torus spelled out
    v5p-128-cores                  the same 64 chips: two cores each
    v7x-64-chips                   64 chips, each of them two devices to JAX
    v5litepod-16, tpu7x-128        Google's names, where they count what JAX counts
    8xH100, 2xv6e-256              eight GPUs; two slices over the slow network
    gb200-nvl72, 2xgb200-nvl72     one rack, or two
    4xa3-megagpu-8g, dgx-h100      hosts of a machine type (`machine_types.toml`)
    4xgpu:h100:8                   nodes as SLURM describes them (`sinfo -o %G`)

On v4 and v5p, Google's `v5p-128` counts cores, two a chip, and ours counts chips: `two_meanings`
says both. Sources: https://cloud.google.com/tpu/docs/v4, /v5p, /v5e, /v6e and /tpu7x;
https://slurm.schedmd.com/gres.html.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Annotated, Any

import msgspec

from autoshard.files import toml_of
from autoshard.files.typed import typed
from autoshard.machine.level_rules import MOST_CHIPS
from autoshard.units import counted

CORES = {"v4": 2, "v5p": 2}
"""Cores of a chip that is one device to JAX, where Google's names count cores."""

DEVICES = {"v7x": 2}
"""Devices that JAX counts in one chip, where it is not one."""

_ALIASES = {"tpu7x": "v7x", "v5litepod": "v5e", "v5lite": "v5e", "v6": "v6e", "v5": "v5p"}
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
    """

    family: str
    chips: Annotated[int, msgspec.Meta(ge=1)]
    source: str
    between: Annotated[float, msgspec.Meta(gt=0)] | None = None
    chip: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Named:
    """What the name of a machine says.

    Attributes:
      family: the preset, or what stands where its name is expected.
      size: devices or a torus, as text; None where the name does not say.
      slices: so many of them, joined by the outermost switch.
      host: the machine type, if the name is of one.
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


def parse_name(text: str) -> Named:
    """What `text` says, by the grammar above; whether there is such a preset is not asked."""
    name = text.strip().lower().removeprefix("tpu-")
    times, rest = re.fullmatch(r"(?:(\d+)x)?(.*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    rest = rest.removeprefix("tpu-")
    count = count_of(times or "1")
    host = machine_types().get(rest)
    if host is not None:
        return Named(host.family, str(count * host.chips), host=host)
    if node := re.fullmatch(r"(?:gres/)?gpu:([a-z][a-z0-9_-]*)(?::(\d+))?(?:\(.*\))?", rest):
        return Named(node[1], str(count * count_of(node[2] or "1")))
    found = re.fullmatch(r"([a-z].*?)(?:[-:](\d+(?:x\d+)*)(?:-(cores|chips))?)?", rest)
    if found is None:
        return Named(text, None)
    family = _ALIASES.get(found[1], found[1])
    size = found[2]
    if size is None:
        return _without_size(family, count, given=times is not None)
    if found[3] is not None and "x" not in size:
        size = _devices(family, count_of(size), found[3])
    return Named(family, size, count)


def two_meanings(name: str) -> str | None:
    """What a name means here and what it means to Google, if that is something else.

    >>> two_meanings("v5p-64-cores")
    >>> print(two_meanings("v5p-64"))
    v5p-64 is 64 chips here, which Google calls v5p-128; Google's v5p-64 is v5p-64-cores here
    """
    found = re.fullmatch(r"(?:(\d+x))?(?:tpu-)?(v4|v5p)-(\d+)", name.strip().lower())
    if found is None:
        return None
    slices, family, size = found[1] or "", found[2], count_of(found[3])
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


def _without_size(family: str, count: int, *, given: bool) -> Named:
    """A family alone: racks say their size, and GPUs are counted by what stands before them."""
    if rack := re.fullmatch(r".*-nvl(\d+)", family):
        return Named(family, str(count * count_of(rack[1])))
    is_tpu = family in _GOOGLE
    return Named(family, str(count) if given and not is_tpu else None)


def _devices(family: str, number: int, unit: str) -> str:
    """So many cores or chips in the devices that JAX counts; as they stand where none are whole."""
    if unit == "chips":
        return str(number * DEVICES.get(family, 1))
    whole, left = divmod(number, CORES.get(family, 1))
    return f"{number}-cores" if left else str(whole)


def count_of(digits: str) -> int:
    """The number of these digits, or one that is too large for any machine."""
    return int(digits) if len(digits) < 20 else 2 * MOST_CHIPS
