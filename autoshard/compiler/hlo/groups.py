"""Which devices take part in a collective: replica groups and permutes, in every notation of HLO.

    {{0,4},{1,5},{2,6},{3,7}}     listed
    [4,2]<=[2,4]T(1,0)            0 to 7 in the shape 2x4, transposed, cut into 4 groups of 2
    mesh['a'=2,'b'=4] {'a'}       the axes of a mesh; `'b':(2)2` is a part of one, and
                                  `device_ids=(...)` are its devices where they are out of order
    {}                            all devices in one group
    {{0,1},{1,0}}                 the sources and targets of a permute

JAX makes one replica of as many partitions as the mesh has devices, so that a partition's number, a
"flattened id" and a device's place in the mesh are one and the same.
"""

from __future__ import annotations

import functools
import itertools
import math
import re

import numpy as np

Groups = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))?\s*\{([^}]*)\}\s*$")
_TILED = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_MESH_AXIS = re.compile(r"'?([^',=]+)'?=(\d+)")
_AXIS_REFERENCE = re.compile(r"'?([^',:]+)'?(?::\((\d+)\)(\d+))?")
_LISTED = re.compile(r"\{\s*(\{[\d,\s]*\}[,\s]*)*\}")
_NUMBER = re.compile(r"-?\d+")


@functools.lru_cache(maxsize=4096)
def parse_groups(text: str, devices: int) -> Groups:
    """The groups that `text` spells for a program of `devices` partitions (memoised).

    Raises:
      ValueError: the notation is none of the module's.

    >>> parse_groups("[2,2]<=[2,2]T(1,0)", 4)
    ((0, 2), (1, 3))
    >>> parse_groups("mesh['a'=2,'b'=2] {'b'}", 4)
    ((0, 1), (2, 3))
    """
    text = text.strip()
    if text in ("", "{}"):
        return (tuple(range(devices)),)
    mesh = _MESH.fullmatch(text)
    if mesh:
        return _mesh_groups(mesh[1], mesh[2], mesh[3])
    iota = _IOTA.fullmatch(text)
    if iota:
        ids = _iota(iota[2], iota[3]).reshape(_integers(iota[1]))
        return _as_groups(ids.reshape(ids.shape[0], -1))
    if _LISTED.fullmatch(text):
        listed = re.findall(r"\{([\d,\s]*)\}", text[1:-1])
        return tuple(_integers(group) for group in listed)
    raise ValueError(
        f"replica groups {text[:80]!r} are in no known notation: neither lists of devices, nor an "
        "iota, nor mesh axes; give the text of a compiled module"
    )


def parse_pairs(text: str) -> Pairs:
    """The (source, target) pairs of a permute: `{{0,1},{1,0}}`.

    Raises:
      ValueError: a source has no target.
    """
    numbers = _integers(text)
    if len(numbers) % 2:
        raise ValueError(
            f"source and target pairs {text[:80]!r} hold {len(numbers)} devices, an odd number; "
            "give one target for each source"
        )
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def ring_length(pairs: Pairs) -> int | None:
    """The length of a permute's cycles, where all devices lie on cycles of one length above 1."""
    following = dict(pairs)
    if len(following) != len(pairs) or set(following) != set(following.values()):
        return None
    lengths: set[int] = set()
    left = set(following)
    while left:
        here = next(iter(left))
        length = 0
        while here in left:
            left.remove(here)
            here, length = following[here], length + 1
        lengths.add(length)
    return lengths.pop() if len(lengths) == 1 and 1 not in lengths else None


def joined(pairs: Pairs) -> Groups:
    """The sets of devices that a permute joins, whatever its order."""
    parent: dict[int, int] = {}

    def find(device: int) -> int:
        while parent.setdefault(device, device) != device:
            device = parent[device]
        return device

    for source, target in pairs:
        parent[find(source)] = find(target)
    groups: dict[int, list[int]] = {}
    for device in sorted(parent):
        groups.setdefault(find(device), []).append(device)
    return tuple(map(tuple, groups.values()))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBER.findall(text))


def _iota(shape: str, order: str | None) -> np.ndarray:
    sizes = _integers(shape)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose(_integers(order)) if order else ids


def _as_groups(ids: np.ndarray) -> Groups:
    return tuple(tuple(int(device) for device in row) for row in ids)


def _mesh_groups(axes: str, device_ids: str | None, used: str) -> Groups:
    sizes = {name.strip(): int(size) for name, size in _MESH_AXIS.findall(axes)}
    references: list[tuple[str, int, int]] = []  # (axis, product of the sizes before, size)
    for name, before, size in _AXIS_REFERENCE.findall(used):
        axis = name.strip()
        references.append((axis, int(before or 1), int(size or sizes[axis])))
    parts: list[tuple[str, int, int]] = []
    for name, size in sizes.items():
        cuts = {1, size}
        for axis, before, part in references:
            if axis == name:
                cuts |= {before, before * part}
        parts.extend((name, low, high // low) for low, high in itertools.pairwise(sorted(cuts)))
    shape = [size for _, _, size in parts]
    ids = np.arange(math.prod(shape))
    if device_ids:
        tiled = _TILED.search(device_ids)  # `[2,4]T(1,0)`, else a list
        ids = _iota(tiled[1], tiled[2]) if tiled else np.array(_integers(device_ids))
    grouped = [
        number
        for axis, before, part in references
        for number, (name, low, _) in enumerate(parts)
        if name == axis and before <= low < before * part
    ]
    order = [number for number in range(len(parts)) if number not in grouped] + grouped
    members = math.prod(shape[number] for number in grouped)
    turned = ids.reshape(shape).transpose(order) if shape else ids
    return _as_groups(turned.reshape(-1, members))
