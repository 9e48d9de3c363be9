"""The repeated blocks of a program, of which stages are made (`autoshard.lower.mpmd.cut.stages`).

Blocks are found without annotation, in the forward pass of one microbatch:

    layer_0, layer_1, ...     scopes that differ in a trailing number (Flax modules,
                              `jax.named_scope`); the outermost such scopes
    layers[0], layers[1], ... the iterations of a scan with a carry
    block 0, block 1, ...     where there is neither: the copies of the longest repeated run of ops
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard import compat
from autoshard.lower.mpmd.cut.graph import Graph, Node
from autoshard.program.repeats import longest_run

_TRANSFORMS = re.compile(r"\b(?:jvp|transpose|vmap|remat|checkpoint)\(|\)")
_IGNORED = frozenset({"", "rematted_computation", "checkpoint", "remat"})
_NUMBERED = re.compile(r"^(.*?)(\d+)$")


@dataclass(frozen=True, slots=True)
class Block:
    """One repeated block: nodes of `nodes`, and iteration `iteration` of each of `scans`."""

    name: str
    flops: float
    nodes: tuple[int, ...] = ()
    scans: tuple[int, ...] = ()
    iteration: int = 0


def path_of(node: Node) -> tuple[str, ...]:
    """The scopes of a node from the outermost, without the marks of transformations."""
    parts = _TRANSFORMS.sub("", node.scope).split("/")
    return tuple(part for part in parts if part not in _IGNORED)


def find_blocks(graph: Graph) -> tuple[Block, ...]:
    """The blocks of a graph of one microbatch, in program order."""
    paths = [path_of(node) for node in graph.nodes]
    prefixes: dict[tuple[str, ...], list[int]] = {}
    for number, prefix in enumerate(_block_of(paths)):
        if prefix is not None:
            prefixes.setdefault(prefix, []).append(number)
    blocks = [
        (min(numbers), [Block("/".join(prefix), _forward_flops(graph, numbers), tuple(numbers))])
        for prefix, numbers in prefixes.items()
    ]
    inside = {number for numbers in prefixes.values() for number in numbers}
    for scans in layer_scans(graph, paths):
        if inside.isdisjoint(scans):
            first = graph.nodes[scans[0]]
            length = first.equation.params["length"]
            name, flops = "/".join(paths[scans[0]]) or "scan", first.flops / length
            iterations = [Block(f"{name}[{k}]", flops, (), scans, k) for k in range(length)]
            blocks.append((scans[0], iterations))
    if not blocks:
        return tuple(_repeated(graph))
    return tuple(block for _, several in sorted(blocks, key=lambda b: b[0]) for block in several)


def _block_of(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...] | None]:
    """For every path its outermost scope with siblings that differ in a trailing number alone."""
    families: dict[tuple[tuple[str, ...], str], set[str]] = {}
    split: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for path in set(paths):
        found = [(k, match[1]) for k, part in enumerate(path) if (match := _NUMBERED.match(part))]
        split[path] = found
        for k, stem in found:
            families.setdefault((path[:k], stem), set()).add(path[k])
    return [
        next((path[: k + 1] for k, stem in split[path] if len(families[path[:k], stem]) > 1), None)
        for path in paths
    ]


def _forward_flops(graph: Graph, numbers: Sequence[int]) -> float:
    return sum(graph.nodes[n].flops for n in numbers if not graph.nodes[n].backward)


def layer_scans(graph: Graph, paths: Sequence[tuple[str, ...]]) -> list[tuple[int, ...]]:
    """Scans over layers, each with the scans of its backward pass.

    They have the same scope and length. Where several loops have, the first in the forward pass
    belongs to the last in the backward pass.
    """
    groups: dict[object, tuple[list[int], list[int]]] = {}
    for number, node in enumerate(graph.nodes):
        if node.name != "scan" or not compat.scan_counts(node.equation.params)[1]:
            continue
        if node.equation.params["length"] > 1:
            key = paths[number], node.equation.params["length"]
            groups.setdefault(key, ([], []))[node.backward].append(number)
    result = []
    for forward, backward in groups.values():
        each = max(1, len(backward) // max(len(forward), 1))
        last = list(reversed(backward))
        for k, number in enumerate(forward):
            stop = None if k == len(forward) - 1 else (k + 1) * each
            result.append((number, *sorted(last[k * each : stop])))
    return sorted(result)


def _repeated(graph: Graph) -> Iterator[Block]:
    forward = [n for n, node in enumerate(graph.nodes) if not node.backward]
    seen: dict[object, int] = {}
    tokens = []
    for number in forward:
        node = graph.nodes[number]
        types = tuple(str(graph.avals[v]) for v in (*node.inputs, *node.outputs))
        tokens.append(seen.setdefault((node.key, types), len(seen)))
    found = longest_run(tokens, shortest=2, fewest=2)
    if found is None:
        return
    start, period, copies = found
    for copy in range(copies):
        numbers = tuple(forward[start + copy * period : start + (copy + 1) * period])
        yield Block(f"block {copy}", _forward_flops(graph, numbers), numbers)
