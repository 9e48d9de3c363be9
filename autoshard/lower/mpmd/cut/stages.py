"""Which repeated blocks make a stage: so many each, as even as can be, or by name.

A stage is a run of consecutive blocks (`autoshard.lower.mpmd.cut.blocks`). What stands outside of
all blocks (embedding, loss, ...) is placed by `autoshard.lower.mpmd.cut.inference`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.lower.mpmd.cut.blocks import Block, find_blocks, layer_scans, path_of
from autoshard.lower.mpmd.cut.graph import Graph
from autoshard.near import hint
from autoshard.units import counted

_ITERATIONS = re.compile(r"^(.*)\[(\d+)(?::(\d+))?\]$")
Part = tuple[int, int, int]
"""Iterations `start <= i < stop` of a scan in a stage: (stage, start, stop)."""


class StageError(ValueError):
    """Stages that the program does not have."""


@dataclass(frozen=True, slots=True)
class Stages:
    """What is known of the stages of a graph.

    Attributes:
      names: for every stage the names of its blocks.
      labels: the stage of nodes that belong to one.
      scans: for every scan that is cut its parts, by stage.
    """

    names: tuple[tuple[str, ...], ...]
    labels: Mapping[int, int]
    scans: Mapping[int, tuple[Part, ...]]

    def __len__(self) -> int:
        return len(self.names)


def counted_stages(graph: Graph, counts: Sequence[int]) -> Stages:
    """Cut the blocks into stages of so many blocks each.

    Raises:
      StageError: a stage has no block, or all together are not those of the program.
    """
    blocks = find_blocks(graph)
    if sum(counts) != len(blocks) or min(counts, default=0) < 1:
        raise StageError(
            f"stages of {', '.join(map(str, counts))} blocks were asked for, but the program has "
            f"{counted(len(blocks), 'repeated block')}: give every stage one or more, "
            f"{len(blocks)} in all"
        )
    stops = list(itertools.accumulate(counts))
    runs = list(zip([0, *stops], stops, strict=False))
    return _of_blocks(graph, blocks, runs)


def even_stages(graph: Graph, count: int, speeds: Sequence[float] | None = None) -> Stages:
    """Cut the blocks into `count` stages, the dearest of which is as cheap as possible.

    Stages are compared by forward FLOP over their speed; what stands before the first block counts
    for the first stage, all else outside of the blocks for the last.

    Args:
      count: how many stages.
      speeds: of every stage, in any unit; by default all are alike.

    Raises:
      StageError: there are fewer blocks than stages, or not as many speeds as stages.
    """
    speeds = (1.0,) * count if speeds is None else tuple(speeds)
    if len(speeds) != count or not all(speed > 0 for speed in speeds):
        raise StageError(
            f"speeds {speeds} are not one positive number for each of {counted(count, 'stage')}"
        )
    blocks = find_blocks(graph)
    if count < 1 or count > len(blocks):
        found = ", ".join(block.name for block in blocks) or "none"
        raise StageError(
            f"{count} stages were asked for, but the program has "
            f"{counted(len(blocks), 'repeated block')} "
            f"({found}): ask for {'1 to ' if len(blocks) > 1 else ''}{max(len(blocks), 1)} stages, "
            "or name the scopes of every stage"
        )
    inside = {number for block in blocks for number in (*block.nodes, *block.scans)}
    first = min(inside, default=0)
    outside = [
        (number < first, node.flops)
        for number, node in enumerate(graph.nodes)
        if number not in inside and not node.backward
    ]
    costs = [block.flops for block in blocks]  # forward
    costs[0] += sum(flops for early, flops in outside if early)
    costs[-1] += sum(flops for early, flops in outside if not early)
    return _of_blocks(graph, blocks, _balanced(costs, speeds))


def named_stages(graph: Graph, stages: Sequence[Sequence[str]]) -> Stages:
    """Stages by the scopes that belong to each: `[("embed", "layers[0:2]"), ("layers[2:4]",)]`.

    A name is a scope, or several with `/` between them, anywhere in a node's path; with iterations
    in brackets it is a scan. Where no scope is called so, it is a block that bears no scope, as
    `find_blocks` calls it: `scan[0:2]`, `block 0`.

    Raises:
      StageError: no node bears a name, or a scan is only partly covered; all faults are listed.
    """
    paths = [path_of(node) for node in graph.nodes]
    groups = layer_scans(graph, paths)
    blocks = {block.name: block for block in find_blocks(graph)}
    labels: dict[int, int] = {}
    parts: dict[int, list[Part]] = {}
    faults, bare = [], False
    for stage, names in enumerate(stages):
        for name in names:
            matched = _ITERATIONS.match(name)
            scope = tuple((matched[1] if matched else name).split("/"))
            found = [number for number, path in enumerate(paths) if _contains(path, scope)]
            if matched:
                start = int(matched[2])
                stop = int(matched[3]) if matched[3] else start + 1
                scans = [n for group in groups if group[0] in found for n in group]
                if not scans and f"{matched[1]}[{start}]" in blocks:
                    scans = list(blocks[f"{matched[1]}[{start}]"].scans)
                for number in scans:
                    parts.setdefault(number, []).append((stage, start, stop))
                found = scans
            else:
                if not found and name in blocks:
                    found, bare = list(blocks[name].nodes), True
                labels.update(dict.fromkeys(found, stage))
            if not found:
                faults.append(f"{name!r} (stage {stage}) is borne by no op{_near(scope, paths)}")
    for group in groups:
        if group[0] in parts:
            length = graph.nodes[group[0]].equation.params["length"]
            covered = [i for _, start, stop in parts[group[0]] for i in range(start, stop)]
            if covered != list(range(length)):
                name = "/".join(paths[group[0]]) or "scan"
                faults.append(
                    f"the stages hold iterations {covered} of {name}, which has "
                    f"{length}: every one must be in one stage, in order"
                )
    if faults:
        raise StageError(
            "the stages do not fit the program:" + "".join(f"\n  * {f}" for f in faults)
        )
    for number in parts:
        labels.pop(number, None)
    names = tuple(tuple(names) for names in stages)
    labels = _with_backward(graph, labels) if bare else labels
    return Stages(names, labels, {number: tuple(found) for number, found in parts.items()})


def _of_blocks(graph: Graph, blocks: Sequence[Block], runs: Sequence[tuple[int, int]]) -> Stages:
    stages = _stages([blocks[i:j] for i, j in runs])
    inside = {number for block in blocks for number in (*block.nodes, *block.scans)}
    if any(graph.nodes[number].backward for number in inside):
        return stages
    return Stages(stages.names, _with_backward(graph, stages.labels), stages.scans)


def _stages(groups: Sequence[Sequence[Block]]) -> Stages:
    labels: dict[int, int] = {}
    parts: dict[int, list[Part]] = {}
    for stage, blocks in enumerate(groups):
        for block in blocks:
            labels.update(dict.fromkeys(block.nodes, stage))
            for number in block.scans:
                found = parts.setdefault(number, [])
                if found and found[-1][0] == stage:
                    found[-1] = (stage, found[-1][1], block.iteration + 1)
                else:
                    found.append((stage, block.iteration, block.iteration + 1))
    names = tuple(tuple(block.name for block in blocks) for blocks in groups)
    return Stages(names, labels, {number: tuple(found) for number, found in parts.items()})


def _with_backward(graph: Graph, labels: Mapping[int, int]) -> dict[int, int]:
    """Labels of forward nodes, and those of backward nodes that follow from them.

    The gradient comes through the stages from the last to the first. So an op of the backward pass
    belongs to the earliest stage of which it reads something: what the forward pass kept (the last
    stage that made or read it), a weight that one stage alone reads, or a gradient.
    """
    result = dict(labels)
    of: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    for number, node in enumerate(graph.nodes):
        if number in labels:
            of.update(dict.fromkeys(node.outputs, labels[number]))
            for value in node.inputs:
                readers.setdefault(value, set()).add(labels[number])
    of = {value: max({stage} | readers.get(value, set())) for value, stage in of.items()}
    of |= {v: min(readers[v]) for v in graph.inputs if len(readers.get(v, ())) == 1}
    for number, node in enumerate(graph.nodes):
        found = [of[value] for value in node.inputs if value in of]
        if node.backward and found:
            result[number] = min(found)
            of.update(dict.fromkeys(node.outputs, result[number]))
    return result


def _balanced(costs: Sequence[float], speeds: Sequence[float]) -> list[tuple[int, int]]:
    """Cut `costs` into one run for each of `speeds`, the dearest as cheap as possible.

    dearest[k, j] = min over i < j of max(dearest[k - 1, i], sum(costs[i:j]) / speeds[k - 1]), for k
    runs of the first j costs; of equal cuts that with the longer earlier runs.
    """
    count = len(speeds)
    total = [0.0, *itertools.accumulate(costs)]
    dearest = {(0, 0): 0.0}
    begin: dict[tuple[int, int], int] = {}
    for k in range(1, count + 1):
        for j in range(k, len(costs) + 1):
            dearest[k, j], last = min(
                (max(dearest[k - 1, i], (total[j] - total[i]) / speeds[k - 1]), -i)
                for i in range(k - 1, j)
                if (k - 1, i) in dearest
            )
            begin[k, j] = -last
    runs, stop = [], len(costs)
    for k in range(count, 0, -1):
        runs.append((begin[k, stop], stop))
        stop = begin[k, stop]
    return runs[::-1]


def _contains(path: tuple[str, ...], scope: tuple[str, ...]) -> bool:
    return any(path[k : k + len(scope)] == scope for k in range(len(path) - len(scope) + 1))


def _near(scope: tuple[str, ...], paths: Sequence[tuple[str, ...]]) -> str:
    known = sorted({"/".join(path[: k + 1]) for path in set(paths) for k in range(len(path))})
    return hint("/".join(scope), known)
