"""Several meshes of chips, alike or not, and the links between them.

    4 x v5p-16                  four meshes alike
    h100-8 + a100-8             two that differ; with counts, as in 2 x h100-8 + a100-16
    path/to/cluster.toml        the same with links of your own

A file names the machine of every mesh (a preset or the path of a machine file), and links: one for
all pairs, and others for single pairs. Bandwidths are bytes per second that one chip sends to
another mesh while all chips of its mesh do; latencies are seconds.

    meshes = ["h100-8", "h100-8", "a100-8"]
    [link]
    bandwidth = 4e10
    latency = 1e-5
    [[links]]
    between = [0, 2]
    bandwidth = 2e10
    latency = 2e-5

What no link says is taken from the machines: two meshes are joined by what joins several machines
of a family (the outermost network level: DCN for TPU slices, InfiniBand for hosts), at the pace of
the slower of the two; a machine file without such a level gives its own outermost one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.files import read_toml
from autoshard.files.errors import shown
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.machine.network import Level, Switch

MOST_MESHES = 1024


class ClusterError(ValueError):
    """A cluster that does not exist, or whose description is faulty; lists all faults."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins two meshes.

    Attributes:
      bandwidth: bytes/s that one chip sends, all chips of its mesh sending at once.
      latency: seconds of one message.
      source: where the figures are from.
    """

    bandwidth: float
    latency: float
    source: str = ""

    def seconds(self, size: float, chips: int) -> float:
        """Seconds in which `chips` chips together send `size` bytes."""
        return self.latency + size / (self.bandwidth * chips) if size > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Meshes and the links between them.

    Attributes:
      name: as the user wrote it.
      meshes: the machine of every mesh.
      links: from every mesh (row) to every other (column); None on the diagonal.
    """

    name: str
    meshes: tuple[Machine, ...]
    links: tuple[tuple[Link | None, ...], ...]

    @property
    def alike(self) -> bool:
        """Whether all meshes are the same machine."""
        return len(set(self.kinds)) == 1

    @property
    def kinds(self) -> tuple[int, ...]:
        """For every mesh the first mesh that is the same machine."""
        names = [machine.name for machine in self.meshes]
        return tuple(names.index(name) for name in names)

    @property
    def chips(self) -> int:
        """Chips of all meshes."""
        return sum(machine.chips for machine in self.meshes)

    def seconds(self, source: int, target: int, size: float) -> float:
        """Seconds in which `size` bytes go from one mesh to another; 0 within a mesh.

        All chips of the smaller mesh send or receive their share.
        """
        link = self.links[source][target]
        if link is None:
            return 0.0
        return link.seconds(size, min(self.meshes[source].chips, self.meshes[target].chips))

    def whole(self) -> Machine | None:
        """All meshes as one machine, where they are alike and a preset joins as many."""
        machine = self.meshes[0]
        return _joined(machine.name, len(self.meshes)) if self.alike else None

    def __str__(self) -> str:
        counts = [
            (name, len(list(run))) for name, run in itertools.groupby(m.name for m in self.meshes)
        ]
        text = " + ".join(f"{n} x {name}" if n > 1 else name for name, n in counts)
        links = {one for row in self.links for one in row if one is not None}
        described = "; ".join(
            f"{one.bandwidth / 1e9:g} GB/s a chip, {one.latency * 1e6:g} us ({one.source})"
            for one in sorted(links, key=lambda link: -link.bandwidth)
        )
        return f"{text}, joined by {described}" if described else text


def load_cluster(text: str) -> Cluster:
    """The cluster that a text or a file describes; see the module.

    Raises:
      ClusterError: the text is none of the forms, a machine does not exist, or the file is faulty;
        all faults are listed.

    >>> load_cluster("2 x h100-8 + a100-8").chips
    24
    """
    if text.strip().endswith(".toml"):
        return _read(Path(text.strip()))
    names: list[str] = []
    faults = []
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(?:(\d+)\s*(?:x\s|\*)\s*)?(\S+)\s*", part)
        count = 0 if match is None or len(match[1] or "1") > 9 else int(match[1] or 1)
        if match is None or not 1 <= count <= MOST_MESHES:
            faults.append(f"{shown(part.strip())} is not a mesh; write v5p-16, or 4 x v5p-16")
        else:
            names += [match[2]] * count
    return _cluster(text, names, None, [], faults)


def _read(path: Path) -> Cluster:
    data = read_toml(path, "the meshes", error=ClusterError)
    faults = [
        f"{key!r} is unknown; known: meshes, link, links"
        for key in data
        if key not in ("meshes", "link", "links")
    ]
    names = data.get("meshes")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        faults.append('there is no list `meshes` of machines, such as ["h100-8", "a100-8"]')
        names = []
    usual = _link(data["link"], "link", str(path), faults) if "link" in data else None
    special: list[tuple[tuple[int, int], Link]] = []
    entries = data.get("links", [])
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        where = f"links[{number}]"
        pair = entry.get("between") if isinstance(entry, dict) else None
        good = isinstance(pair, list) and len(pair) == 2 and len(set(map(str, pair))) == 2
        if not good or not all(isinstance(m, int) and 0 <= m < len(names) for m in pair or ()):
            faults.append(
                f"{where}: between is {pair!r}; give two of the meshes 0 to {len(names) - 1}"
            )
            continue
        assert isinstance(pair, list)
        rest = {key: value for key, value in entry.items() if key != "between"}
        link = _link(rest, where, str(path), faults)
        if link is not None:
            special.append(((pair[0], pair[1]), link))
    folder = path.parent
    names = [
        str(folder / n) if n.endswith(".toml") and (folder / n).is_file() else n for n in names
    ]
    return _cluster(str(path), names, usual, special, faults)


def _link(entry: Any, where: str, source: str, faults: list[str]) -> Link | None:
    known = ("bandwidth", "latency")
    if not isinstance(entry, dict):
        faults.append(f"{where} is {entry!r}; give a table with bandwidth and latency")
        return None
    found = [
        f"{where}: {key!r} is unknown; known: {', '.join(known)}"
        for key in entry
        if key not in known
    ]
    for key in known:
        value = entry.get(key)
        number = _number(entry.get(key))
        if not number >= 0 or (key == "bandwidth" and number == 0):
            unit = "bytes/s, more than 0" if key == "bandwidth" else "seconds, 0 or more"
            found.append(f"{where}: {key} is {value!r}; give {unit}")
    faults += found
    return None if found else Link(float(entry["bandwidth"]), float(entry["latency"]), source)


def _number(value: Any) -> float:
    """The number that a TOML value is, or -1."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0


def _cluster(
    name: str,
    names: Sequence[str],
    usual: Link | None,
    special: Sequence[tuple[tuple[int, int], Link]],
    faults: list[str],
) -> Cluster:
    machines: dict[str, Machine] = {}
    for one in dict.fromkeys(names):
        try:
            machines[one] = load(one)
        except MachineError as error:
            faults.append(str(error))
    if not faults and len(names) < 2:
        faults.append("there is one mesh; for one mesh use --machine")
    if faults:
        raise ClusterError(f"the meshes {name!r}:" + "".join(f"\n  * {fault}" for fault in faults))
    meshes = tuple(machines[one] for one in names)
    own = {one: _outer_link(machine) for one, machine in machines.items()}
    pairs: Mapping[tuple[int, int], Link] = {
        **{(a, b): link for (a, b), link in special},
        **{(b, a): link for (a, b), link in special},
    }
    links = tuple(
        tuple(
            None if a == b else pairs.get((a, b)) or usual or _slower(own[names[a]], own[names[b]])
            for b in range(len(names))
        )
        for a in range(len(names))
    )
    return Cluster(name.strip(), meshes, links)


def _joined(name: str, count: int) -> Machine | None:
    """`count` machines of one name as one machine of the same family."""
    try:
        return load(f"{count}x{name}") if re.match(r"[a-z]", name) else None
    except MachineError:
        return None


def _outer_link(machine: Machine) -> Link:
    joined = _joined(machine.name, 2)
    level: Level = (joined or machine).network[-1]
    if isinstance(level, Switch):
        rate, latency = level.chip_bandwidth, level.start_seconds + level.latency_seconds
    else:
        rate, latency = level.link_bandwidth, level.hop_seconds
    return Link(rate * level.efficiency, latency, f"{level.name} of {machine.family}")


def _slower(first: Link, second: Link) -> Link:
    slow = min(first, second, key=lambda link: link.bandwidth)
    return Link(slow.bandwidth, max(first.latency, second.latency), slow.source)
