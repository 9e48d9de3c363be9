"""Pytrees of layouts, folded for reading.

[0]['layers'][0]['wq']   f32[64@x, 64]             [0]['layers'][*]['wk', 'wq']   f32[64@x, 64]
[0]['layers'][0]['wk']   f32[64@x, 64]     ->      [0]['layers'][*]['scale']      f32[64]
[0]['layers'][0]['scale'] f32[64]                  [1].mu                         as input [0]
[0]['layers'][1]['wq']   ... (and so on)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_KEY = re.compile(r"\[(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]]*)\]|\.[^.\[]+|[^.\[]+")
FEWEST_ALIKE = 2
"""A subtree of fewer lines than this is printed again rather than referred to."""
LONGEST_KEYS = 40
"""Characters of the keys that share a line."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array: how its layout reads, and the bytes that one device holds."""

    text: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the folded tree: `copies` equal things that hold `bytes` together."""

    path: str
    text: str
    bytes: float
    copies: int = 1


Lines = list[Line]
Tree = dict[str, "Tree | Leaf"]


def fold(leaves: Mapping[str, Leaf], seen: dict[object, str], *, origin: str) -> Lines:
    """The folded lines of a tree of `leaves` by tree path.

    `seen` remembers subtrees from call to call: one that was met before is one line, which
    names the first with its `origin`.
    """
    root: Tree = {}
    for path, leaf in leaves.items():
        keys = _KEY.findall(path) or [path]
        here = root
        for key in keys[:-1]:
            below = here.setdefault(key, {})
            if isinstance(below, Leaf):  # a leaf and a subtree of one name: no tree of JAX
                below = here[key] = {"": below}
            here = below
        here[keys[-1]] = leaf
    return _lines(root, "", seen, origin, weight=1)


def _shape(tree: Tree | Leaf) -> object:
    """A hashable value, equal for trees that read the same."""
    if isinstance(tree, Leaf):
        return tree.text
    return tuple((key, _shape(below)) for key, below in tree.items())


def _bytes(tree: Tree | Leaf) -> float:
    return tree.bytes if isinstance(tree, Leaf) else sum(_bytes(below) for below in tree.values())


def _count(tree: Tree | Leaf) -> int:
    return 1 if isinstance(tree, Leaf) else sum(_count(below) for below in tree.values())


def _lines(tree: Tree, prefix: str, seen: dict[object, str], origin: str, weight: int) -> Lines:
    lines: Lines = []
    for key, copies, below in _groups(tree, top=not prefix):
        path, times = prefix + key, weight * copies
        if isinstance(below, Leaf):
            lines.append(Line(path, below.text, below.bytes * times, times))
            continue
        shape = _shape(below)
        if _count(below) >= FEWEST_ALIKE and shape in seen:
            lines.append(Line(path, f"as {seen[shape]}", _bytes(below) * times, times))
            continue
        seen.setdefault(shape, f"{origin} {path}")
        lines.extend(_lines(below, path, seen, origin, times))
    return lines


def _groups(tree: Tree, *, top: bool) -> list[tuple[str, int, Tree | Leaf]]:
    """Children with equal ones together, as (key, how many, subtree)."""
    if not top and all(re.fullmatch(r"\[\d+\]", key) for key in tree):
        return _runs(tree)
    groups: dict[object, list[str]] = {}
    for key, below in tree.items():
        named = isinstance(below, Leaf) and key.startswith("['")
        groups.setdefault(below.text if named else ("", key), []).append(key)  # type: ignore[union-attr]
    return [
        (keys[0] if len(keys) == 1 else f"[{', '.join(key[1:-1] for key in keys)}]",
         len(keys), tree[keys[0]])
        for group in groups.values()
        for keys in _chunks(group)
    ]  # fmt: skip


def _chunks(keys: list[str]) -> list[list[str]]:
    """Keys that share a line, in lines of a bounded length."""
    chunks: list[list[str]] = [[]]
    for key in keys:
        if chunks[-1] and sum(map(len, chunks[-1])) + len(key) > LONGEST_KEYS:
            chunks.append([])
        chunks[-1].append(key)
    return chunks


def _runs(tree: Tree) -> list[tuple[str, int, Tree | Leaf]]:
    runs: list[tuple[object, list[str]]] = []
    for key, below in tree.items():
        shape = _shape(below)
        if runs and runs[-1][0] == shape:
            runs[-1][1].append(key)
        else:
            runs.append((shape, [key]))
    result = []
    for _, keys in runs:
        first, last = keys[0][1:-1], keys[-1][1:-1]
        name = keys[0] if len(keys) == 1 else f"[{first}:{int(last) + 1}]"
        if len(keys) == len(tree) > 1:
            name = "[*]"
        result.append((name, len(keys), tree[keys[0]]))
    return result
