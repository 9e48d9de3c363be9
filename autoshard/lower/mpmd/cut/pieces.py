"""Values over layers in pieces: one value a stage in place of one stacked array.

When a scan over layers is cut, its stacked operands and results (weights, gradients, what the
backward pass keeps) are wanted piece by piece along their first dimension, and so is all that is
computed from them layer by layer: casts, the optimizer, sums over everything. `in_pieces` rewrites
a graph so that such ops work on pieces, and inputs and outputs are pieces where they belong
together with those of a loop that is cut. Where an op needs the whole, the pieces are joined;
where a piece of a whole is needed, it is sliced.

Whether an op can work piece by piece is in the table of `autoshard.lower.mpmd.cut.rows`; to be
absent there costs a join.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from autoshard import compat
from autoshard.lower.mpmd.cut.flat import bound
from autoshard.lower.mpmd.cut.graph import Builder, Graph, Node
from autoshard.lower.mpmd.cut.rows import COMBINE, changed_params, row_operands
from autoshard.lower.mpmd.cut.scans import Loop, added, part_of_scan, zeros
from autoshard.lower.mpmd.cut.stages import Part

Bounds = tuple[tuple[int, int], ...]
"""Rows `start <= row < stop` of every piece, in order."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A value in pieces along its first dimension."""

    values: tuple[int, ...]
    bounds: Bounds


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """A graph in pieces; what became of the inputs and outputs that the old one had."""

    graph: Graph
    inputs: tuple[int | Pieces, ...]
    outputs: tuple[int | Pieces, ...]

    def over(self, graph: Graph) -> Rewritten:
        """The same over another graph with as many inputs and outputs, in the same order."""

        def renumbered(
            entries: Iterable[int | Pieces], values: Sequence[int]
        ) -> tuple[int | Pieces, ...]:
            left = iter(values)
            return tuple(
                next(left)
                if isinstance(one, int)
                else replace(one, values=tuple(next(left) for _ in one.values))
                for one in entries
            )

        return Rewritten(
            graph, renumbered(self.inputs, graph.inputs), renumbered(self.outputs, graph.outputs)
        )


def in_pieces(
    graph: Graph,
    *,
    scans: Mapping[int, Sequence[Part]] | None = None,
    cut: Mapping[int, Bounds] | None = None,
) -> Rewritten:
    """Rewrite `graph` for loops that are cut.

    Args:
      graph: of a step or of a microbatch.
      scans: nodes that are scans to be cut, with their parts by stage.
      cut: inputs that come in pieces, and outputs that are wanted so.
    """
    return _Rewriting(graph, scans or {}, cut or {}).run()


class _Rewriting:
    def __init__(
        self, graph: Graph, scans: Mapping[int, Sequence[Part]], cut: Mapping[int, Bounds]
    ) -> None:
        self.graph = graph
        self.scans = scans
        self.cut = cut
        self.builder = Builder()
        self.rows = [
            None if number in scans else row_operands(graph, node)
            for number, node in enumerate(graph.nodes)
        ]
        self.bounds = self._spread(cut)
        self.now: dict[int, int | Pieces] = {}
        self.joined: dict[int, int] = {}

    def _spread(self, cut: Mapping[int, Bounds]) -> dict[int, Bounds]:
        """The bounds of every value that belongs together with one that is cut."""
        leader = list(range(len(self.graph.avals)))

        def find(value: int) -> int:
            while leader[value] != value:
                leader[value] = leader[leader[value]]
                value = leader[value]
            return value

        for found in self.rows:
            if found is not None:
                members = [*found[0], *found[1]]
                for value in members[1:]:
                    leader[find(value)] = find(members[0])
        edges: dict[int, set[int]] = {}
        seeds = dict(cut)
        for number, parts in self.scans.items():
            loop, node = Loop.of(self.graph.nodes[number]), self.graph.nodes[number]
            bounds = tuple((start, stop) for _, start, stop in parts)
            for value in (*node.inputs[loop.first_slice :], *node.outputs[loop.carries :]):
                edges.setdefault(find(value), set()).update(*bounds)
        for value, bounds in seeds.items():
            edges.setdefault(find(value), set()).update(*bounds)
        result = {}
        for value in range(len(leader)):
            if find(value) in edges:
                points = sorted(edges[find(value)])
                result[value] = tuple(itertools.pairwise(points))
        return result

    def run(self) -> Rewritten:
        for value in self.graph.inputs:
            self.now[value] = self._input(value)
        inputs = [self.now[value] for value in self.graph.inputs]
        for number, node in enumerate(self.graph.nodes):
            if number in self.scans:
                self._cut(node, self.scans[number])
            elif not self._by_rows(node, self.rows[number]):
                self._whole(node)
        outputs = [self._output(value) for value in self.graph.outputs]
        graph = self.builder.graph(_flat(inputs), _flat(outputs))
        return Rewritten(graph, tuple(inputs), tuple(outputs))

    def _output(self, value: int) -> int | Pieces:
        found = self.now[value]
        wanted = self.cut.get(value)
        if wanted is None or (isinstance(found, Pieces) and found.bounds == wanted):
            return found
        like = self.graph.nodes[0]
        return Pieces(tuple(self._piece(value, a, b, like) for a, b in wanted), wanted)

    def _input(self, value: int) -> int | Pieces:
        aval = self.graph.avals[value]
        if value not in self.bounds:
            return self.builder.value(aval)
        bounds = self.bounds[value]
        return Pieces(tuple(self.builder.value(_of_rows(aval, b - a)) for a, b in bounds), bounds)

    def _read(self, value: int, like: Node) -> int:
        """A value as a whole."""
        found = self.now[value]
        if isinstance(found, int):
            return found
        if value not in self.joined:
            self.joined[value] = self._join(found.values, like)
        return self.joined[value]

    def _join(self, values: Sequence[int], like: Node) -> int:
        if len(values) == 1:
            return values[0]
        apply = lambda *arrays: [jax.lax.concatenate(arrays, 0)]  # noqa: E731
        return self.builder.call("concatenate", apply, values, len(values), _unplaced(like))[0]

    def _piece(self, value: int, start: int, stop: int, like: Node) -> int:
        """Rows `start <= row < stop` of a value."""
        found = self.now[value]
        if isinstance(found, Pieces):
            pairs = zip(found.values, found.bounds, strict=True)
            inside = [(v, a, b) for v, (a, b) in pairs if start <= a and b <= stop]
            if inside and inside[0][1] == start and inside[-1][2] == stop:
                return self._join([v for v, _, _ in inside], like)
        whole = self._read(value, like)
        apply = lambda array: [jax.lax.slice_in_dim(array, start, stop)]  # noqa: E731
        return self.builder.call("slice", apply, (whole,), (start, stop), _unplaced(like))[0]

    def _whole(self, node: Node) -> None:
        inputs = tuple(self._read(value, node) for value in node.inputs)
        outputs = tuple(self.builder.value(self.graph.avals[value]) for value in node.outputs)
        self.builder.add(replace(node, inputs=inputs, outputs=outputs))
        self.now.update(zip(node.outputs, outputs, strict=True))

    def _by_rows(self, node: Node, found: tuple[list[int], list[int]] | None) -> bool:
        """Add the node once per piece, if it works by rows and its rows are in pieces."""
        if found is None or (*found[0], *found[1])[0] not in self.bounds:
            return False
        carriers, results = found
        bounds = self.bounds[(*carriers, *results)[0]]
        made: list[tuple[int, ...]] = []
        for start, stop in bounds:
            inputs = tuple(
                self._piece(v, start, stop, node) if v in carriers else self._read(v, node)
                for v in node.inputs
            )
            avals = [self.graph.avals[v] for v in node.outputs]
            if results:
                avals = [_of_rows(aval, stop - start) for aval in avals]
            outputs = tuple(map(self.builder.value, avals))
            changed = changed_params(node, stop - start)
            share = (stop - start) / (bounds[-1][1] - bounds[0][0])
            made.append(
                self.builder.add(
                    replace(
                        node,
                        inputs=inputs,
                        outputs=outputs,
                        apply=bound(node.equation, node.literals, **changed),
                        key=(node.key, tuple(changed.items())),
                        flops=node.flops * share,
                    )
                )
            )
        if results:
            for k, value in enumerate(node.outputs):
                self.now[value] = Pieces(tuple(one[k] for one in made), bounds)
            return True
        total = made[0][0]
        combine = COMBINE[node.name]
        for (part,) in made[1:]:
            (total,) = self.builder.call(
                _NAMES.get(node.name, node.name),
                lambda a, b: [combine(a, b)],
                (total, part),
                "",
                _unplaced(node),
            )
        self.now[node.outputs[0]] = total
        return True

    def _cut(self, node: Node, parts: Sequence[Part]) -> None:
        """One scan per part; the carry goes from one to the next, sums start anew in each."""
        loop = Loop.of(node)
        sums = loop.sums()
        constants = [self._read(v, node) for v in node.inputs[: loop.constants]]
        carry = [self._read(v, node) for v in node.inputs[loop.constants : loop.first_slice]]
        totals = {k: carry[k] for k in sums}
        stacked: dict[tuple[int, int], tuple[int, ...]] = {}
        for stage, start, stop in sorted(parts, key=lambda p: p[1], reverse=loop.reverse):
            slices = [self._piece(v, start, stop, node) for v in node.inputs[loop.first_slice :]]
            for k in sums:
                carry[k] = zeros(self.builder, self.builder.avals[totals[k]], node)
            inputs = (*constants, *carry, *slices)
            outputs = part_of_scan(self.builder, node, inputs, stop - start, stage)
            carry = list(outputs[: loop.carries])
            for k in sums:
                totals[k] = added(self.builder, totals[k], carry[k], node)
            stacked[start, stop] = outputs[loop.carries :]
        for k, value in enumerate(node.outputs[: loop.carries]):
            self.now[value] = totals.get(k, carry[k])
        bounds = tuple(sorted(stacked))
        for k, value in enumerate(node.outputs[loop.carries :]):
            self.now[value] = Pieces(tuple(stacked[b][k] for b in bounds), bounds)


_NAMES = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min"}


def _flat(entries: Iterable[int | Pieces]) -> list[int]:
    return [v for one in entries for v in ((one,) if isinstance(one, int) else one.values)]


def _of_rows(aval: Any, rows: int) -> Any:
    return compat.shape_struct(aval, (rows, *aval.shape[1:]))


def _unplaced(node: Node) -> Node:
    return replace(node, stage=None)
