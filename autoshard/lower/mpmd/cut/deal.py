"""Nodes with their stages, dealt out to fragments: what each computes, reads and leaves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from autoshard.lower.mpmd.cut.fragments import SHARED, Fragment, Key, Source
from autoshard.lower.mpmd.cut.graph import Builder, Graph, Node, needed
from autoshard.lower.mpmd.cut.inference import free_nodes
from autoshard.lower.mpmd.cut.scans import added, split_backward
from autoshard.solve.schedule.task import Kind

_LATER: dict[Kind, tuple[Kind, ...]] = {"F": ("B", "W", "BW"), "B": ("W",), "W": (), "BW": ()}
"""Fragments of the same stage that may read what a kind makes."""


class Deal:
    """One deal of a graph's nodes.

    Args:
      graph: of a microbatch, with nodes in all stages.
      stages: how many there are.
      places: for every node its stages; free nodes are copied to where they are read.
      late: the nodes of the backward pass.
      lifted: values that are computed outside of the loop.
    """

    def __init__(
        self,
        graph: Graph,
        stages: int,
        places: Sequence[tuple[int, ...]],
        late: Collection[int],
        lifted: Collection[int],
    ) -> None:
        self.stages = stages
        self.lifted = frozenset(lifted)
        self.inputs = frozenset(graph.inputs) | self.lifted
        free = free_nodes(graph)
        self.free = {v: n for n in sorted(free) for v in graph.nodes[n].outputs}
        self.nodes = graph.nodes
        self.builder = Builder(graph.avals, graph.nodes)
        self.forward: list[list[Node]] = [[] for _ in range(stages)]
        self.fused: list[list[Node]] = [[] for _ in range(stages)]
        self.apart: list[list[Node]] = [[] for _ in range(stages)]
        computed = [
            number
            for number, node in enumerate(graph.nodes)
            if number not in free and self.lifted.isdisjoint(node.outputs)
        ]
        alive = needed([graph.nodes[n] for n in computed], graph.outputs)
        for number in (n for n, keep in zip(computed, alive, strict=True) if keep):
            node = graph.nodes[number]
            halves = self._halves(node) if number in late else []
            for stage in places[number]:
                if number in late:
                    self.fused[stage].append(node)
                    self.apart[stage] += halves
                else:
                    self.forward[stage].append(node)

    def _halves(self, node: Node) -> list[Node]:
        if node.name == "scan":
            before = len(self.builder.nodes)
            if split_backward(self.builder, node):
                return self.builder.nodes[before:]
        return [node]

    def makers(self, value: int) -> list[tuple[int, bool]]:
        """Where a value is computed, the earliest first: stages, and whether in the backward."""
        first = [
            (stage, False)
            for stage in range(self.stages)
            if any(value in node.outputs for node in self.forward[stage])
        ]
        return first + [
            (stage, True)
            for stage in reversed(range(self.stages))
            if any(value in node.outputs for node in self.fused[stage])
        ]

    def summed_by_stage(self, terms: Sequence[int]) -> tuple[Source, ...]:
        """The terms of a sum, those of one stage added up there."""
        groups: dict[tuple[int, bool], list[int]] = {}
        for term in terms:
            where = self.makers(term)
            groups.setdefault(where[0] if where else (0, False), []).append(term)
        result = []
        for (stage, late), members in groups.items():
            total = members[0]
            for term in members[1:]:
                total = added(self.builder, total, term, self.builder.nodes[0])
                node = replace(self.builder.nodes[-1], scope="", line="")
                for nodes in [self.fused, self.apart] if late else [self.forward]:
                    nodes[stage].append(node)
            result.append(Source(total, stage))
        return tuple(result)

    def fragments(self, ends: Iterable[Source]) -> dict[Key, Fragment]:
        """The fragments, which leave the values `ends` among others."""
        wanted: list[set[int]] = [set() for _ in range(self.stages)]
        for end in ends:
            wanted[end.stage].add(end.value)
        nodes: dict[Key, list[Node]] = {}
        for stage in range(self.stages):
            nodes[stage, "F"] = self.forward[stage]
            nodes[stage, "BW"] = self.fused[stage]
            nodes[stage, "B"], nodes[stage, "W"] = self._b_and_w(stage, wanted[stage])
        made = {key: {v for node in some for v in node.outputs} for key, some in nodes.items()}
        where = self._where(made)
        reads = {key: self._reads(key, some, made[key], where) for key, some in nodes.items()}
        result = {}
        for key, some in nodes.items():
            stage, kind = key
            outside = wanted[stage] & made[key]
            if kind == "F":  # inputs and constants, too, can be what a microbatch returns
                late = made[stage, "BW"]
                outside |= {v for v in wanted[stage] if v not in late}
            for (other, reader), sources in reads.items():
                if other != stage or reader in _LATER[kind]:
                    outside |= {s.value for s in sources if s.stage == stage} & made[key]
            result[key] = self._fragment(key, some, reads[key], outside)
        return result

    def _b_and_w(self, stage: int, wanted: Collection[int]) -> tuple[list[Node], list[Node]]:
        nodes = self.apart[stage]
        made = {value for node in nodes for value in node.outputs}
        outgoing = {
            value
            for other in range(self.stages)
            if other != stage
            for node in self.fused[other]
            for value in node.inputs
            if value in made
        }
        first = needed(nodes, outgoing) if outgoing else _shared_by_two(nodes, wanted)
        b = [node for node, early in zip(nodes, first, strict=True) if early]
        w = [node for node, early in zip(nodes, first, strict=True) if not early]
        return b, w

    def _where(self, made: dict[Key, set[int]]) -> dict[int, list[int]]:
        """For every value the stages that make it, the earliest first."""
        result: dict[int, list[int]] = {}
        forward: list[Key] = [(stage, "F") for stage in range(self.stages)]
        backward: list[Key] = [
            (stage, kind) for stage in reversed(range(self.stages)) for kind in ("BW", "B", "W")
        ]
        for key in forward + backward:
            for value in made[key]:
                stages = result.setdefault(value, [])
                if key[0] not in stages:
                    stages.append(key[0])
        return result

    def _reads(
        self, key: Key, nodes: Sequence[Node], made: Collection[int], where: dict[int, list[int]]
    ) -> tuple[Source, ...]:
        """What the nodes read that is neither made among them nor free."""
        result: dict[int, Source] = {}
        for node in nodes:
            for value in node.inputs:
                if value in made or value in self.free:
                    continue
                stages = [SHARED] if value in self.inputs else where[value]
                result[value] = Source(value, key[0] if key[0] in stages else stages[0])
        return tuple(result.values())

    def _fragment(
        self, key: Key, nodes: Sequence[Node], reads: Sequence[Source], outputs: Collection[int]
    ) -> Fragment:
        copied: set[int] = set()
        pending = [v for node in nodes for v in node.inputs if v in self.free]
        pending += [v for v in outputs if v in self.free]
        while pending:
            number = self.free[pending.pop()]
            if number not in copied:
                copied.add(number)
                pending += self.nodes[number].inputs
        constants = [self.nodes[number] for number in sorted(copied)]
        passed = [Source(v, SHARED) for v in sorted(outputs) if v in self.inputs]
        known = {source.value for source in reads}
        inputs = (*reads, *(one for one in passed if one.value not in known))
        return Fragment(*key, (*constants, *nodes), inputs, tuple(sorted(outputs)))


def _shared_by_two(nodes: Sequence[Node], ends: Collection[int]) -> list[bool]:
    """For every node, whether it and what depends on it make `ends` in two nodes or more."""
    reach: dict[int, frozenset[int]] = {}
    result = [False] * len(nodes)
    for number in reversed(range(len(nodes))):
        node = nodes[number]
        makers = frozenset().union(*(reach.get(value, ()) for value in node.outputs))
        if not set(ends).isdisjoint(node.outputs):
            makers |= {number}
        result[number] = len(makers) > 1
        for value in node.inputs:
            reach[value] = reach.get(value, frozenset()) | makers
    return result
