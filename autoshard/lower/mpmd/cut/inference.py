"""Where ops live that no stage and no mesh was given: the rules of Shardy:MPMD, with prices.

    use set      every place that an op's results are needed in, directly or not
    source set   every place where all that the op reads is there without a new transfer

An op is computed everywhere it is used (cloned), or in one place from which its results are sent
to the others, whichever moves fewer bytes; computing again costs its FLOP, converted to bytes by
`flops_per_byte`. An op that nothing placed uses is computed where most of what it reads is.

Places are stages inside of the microbatch loop, and meshes outside of it. Stages run in an order:
stage `s` of `S` is passed at position `s` in the forward pass and at `2 S - 1 - s` in the backward
pass, and an op can read what is of its own position or an earlier one.

Reference: the RFC of Shardy:MPMD, section "Mesh inference".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.lower.mpmd.cut.graph import Graph, Node
from autoshard.program.vocabulary import FREE_PRIMITIVES

FLOPS_PER_BYTE = 5000.0
"""FLOP in the time in which a byte crosses between meshes: TPU v5p, 459 TFLOP/s and 90 GB/s a link
(https://cloud.google.com/tpu/docs/v5p)."""

Places = frozenset[int]


class PlacementError(ValueError):
    """Ops that cannot be placed as asked."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be placed.

    Attributes:
      graph: nodes and values.
      places: how many places there are.
      fixed: the place of nodes that have one.
      sources: for inputs, where they are; an input without an entry can be had everywhere.
      wanted: for outputs, where they are needed.
      backward: nodes of the backward pass, if places are stages; None if places have no order.
      flops_per_byte: price of computing again.
    """

    graph: Graph
    places: int
    fixed: Mapping[int, int]
    sources: Mapping[int, Places] = field(default_factory=dict)
    wanted: Mapping[int, Places] = field(default_factory=dict)
    backward: Collection[int] | None = None
    flops_per_byte: float = FLOPS_PER_BYTE


def free_nodes(graph: Graph) -> frozenset[int]:
    """Nodes of constants alone, which cost nothing to have in every place."""
    known: set[int] = set()
    result = set()
    for number, node in enumerate(graph.nodes):
        cheap = node.name in FREE_PRIMITIVES or node.name in ("constant", "zeros")
        if cheap and known.issuperset(node.inputs):
            known.update(node.outputs)
            result.add(number)
    return frozenset(result)


def infer(question: Question) -> tuple[tuple[int, ...], ...]:
    """For every node the places that it is computed in; free nodes have none of their own.

    Raises:
      PlacementError: a node that was given a place reads what is made later; all are listed.
    """
    return _Inference(question).run()


class _Inference:
    def __init__(self, question: Question) -> None:
        self.ask = question
        self.graph = question.graph
        self.free = free_nodes(question.graph)
        everywhere = frozenset(range(question.places))
        self.source: dict[int, Places] = {
            value: question.sources.get(value, everywhere) for value in self.graph.inputs
        }
        self.everywhere = everywhere
        self.earliest: list[int] = []

    def position(self, number: int, place: int) -> int:
        """When a node is passed in a place."""
        if self.ask.backward is None:
            return 0
        return 2 * self.ask.places - 1 - place if number in self.ask.backward else place

    def run(self) -> tuple[tuple[int, ...], ...]:
        self._forward()
        places: list[tuple[int, ...]] = [()] * len(self.graph.nodes)
        needed: dict[int, set[int]] = {v: set(p) for v, p in self.ask.wanted.items()}
        latest: dict[int, int] = {}
        for number in reversed(range(len(self.graph.nodes))):
            node = self.graph.nodes[number]
            if number in self.free:
                continue
            uses = {place for value in node.outputs for place in needed.get(value, ())}
            last = min((latest[v] for v in node.outputs if v in latest), default=None)
            if number in self.ask.fixed:
                places[number] = (self.ask.fixed[number],)
            else:
                places[number] = self._choose(number, frozenset(uses), last, needed)
            when = min(self.position(number, place) for place in places[number])
            for value in node.inputs:
                needed.setdefault(value, set()).update(places[number])
                latest[value] = min(latest.get(value, when), when)
        self._check(places)
        return tuple(places)

    def _forward(self) -> None:
        """Source sets, and the first position at which every node has what it reads."""
        ready: dict[int, int] = {}
        turn = 0 if self.ask.backward is None else self.ask.places
        for number, node in enumerate(self.graph.nodes):
            if number in self.ask.fixed:
                source = frozenset((self.ask.fixed[number],))
                when = self.position(number, self.ask.fixed[number])
            else:
                source = self.everywhere.intersection(*(self.source[v] for v in node.inputs))
                late = self.ask.backward is not None and number in self.ask.backward
                when = max((ready.get(v, 0) for v in node.inputs), default=0)
                when = max(when, turn if late and number not in self.free else 0)
            self.earliest.append(when)
            self.source.update(dict.fromkeys(node.outputs, source))
            ready.update(dict.fromkeys(node.outputs, when))

    def _choose(
        self, number: int, uses: Places, last: int | None, needed: Mapping[int, set[int]]
    ) -> tuple[int, ...]:
        node, graph = self.graph.nodes[number], self.graph
        able = [
            place
            for place in range(self.ask.places)
            if self.earliest[number] <= self.position(number, place)
        ]

        def fetched(place: int) -> int:
            """Bytes that are sent to `place` for the node alone."""
            return sum(
                graph.bytes(value)
                for value in dict.fromkeys(node.inputs)
                if place not in self.source[value] and place not in needed.get(value, ())
            )

        size = sum(graph.bytes(value) for value in node.outputs if value in needed)
        ordered = self.ask.backward is not None
        in_time = [p for p in able if last is None or self.position(number, p) <= last]
        options: list[tuple[float, int, tuple[int, ...]]] = []
        for place in in_time or able:
            sent = size * len(uses - {place})
            options.append((fetched(place) + sent, self.position(number, place), (place,)))
        if uses and uses.issubset(able):
            again = node.flops * (len(uses) - 1) / self.ask.flops_per_byte
            cost = sum(map(fetched, uses)) + again
            first = min(self.position(number, place) for place in uses)
            options.append((cost, first - (0 if ordered else 1), tuple(sorted(uses))))
        if not options:
            # No place comes late enough: `_check` names what is in the wrong order.
            return tuple(sorted(uses)) or (0,)
        return min(options)[2]

    def _check(self, places: Sequence[tuple[int, ...]]) -> None:
        faults = order_faults(self.graph, places, self.position)
        if faults:
            raise PlacementError(
                "stages must follow each other in the order in which data flows, but:"
                + "".join(f"\n  * {fault}" for fault in faults)
                + "\nMove these scopes to other stages."
            )


def order_faults(
    graph: Graph, places: Sequence[tuple[int, ...]], position: Callable[[int, int], int]
) -> list[str]:
    """Every node that reads what is only made at a later position."""
    makers = graph.makers()
    faults = []
    for number, node in enumerate(graph.nodes):
        for value in dict.fromkeys(node.inputs):
            maker = makers.get(value)
            if maker is None or not places[maker] or not places[number]:
                continue
            made = min((position(maker, place), place) for place in places[maker])
            for place in places[number]:
                if made[0] > position(number, place):
                    faults.append(
                        f"{node} is in stage {place} and reads {graph.describe(value)} of "
                        f"{graph.nodes[maker]}, which stage {made[1]} makes later"
                    )
    return faults


def inferred_transfers(
    graph: Graph,
    places: Sequence[tuple[int, ...]],
    named: Collection[int],
) -> list[tuple[int, int, Node]]:
    """Transfers that are there only because of ops that nobody named: (value, place, reader).

    Between a named op and a named op that reads its result a transfer is asked for; what is
    sent to the same place for them does not count for others.
    """
    makers = graph.makers()
    asked: set[tuple[int, int]] = set()
    found: dict[tuple[int, int], Node] = {}
    for number, node in enumerate(graph.nodes):
        for value in node.inputs:
            maker = makers.get(value)
            if maker is None or not places[maker]:
                continue
            for place in places[number]:
                if place not in places[maker]:
                    if number in named and maker in named:
                        asked.add((value, place))
                    else:
                        found.setdefault((value, place), node)
    return [
        (value, place, node)
        for (value, place), node in found.items()
        if (value, place) not in asked
    ]


def forbid(
    graph: Graph, places: Sequence[tuple[int, ...]], named: Collection[int], what: str
) -> None:
    """Refuse transfers that nobody asked for.

    Raises:
      PlacementError: one is needed; all are listed with the line of the op that needs it.
    """
    faults = [
        f"{node} needs {graph.describe(value)} in {what} {place}"
        for value, place, node in inferred_transfers(graph, places, named)
    ]
    if faults:
        raise PlacementError(
            "transfers are forbidden but for those between named scopes, and these ops need "
            "others:"
            + "".join(f"\n  * {fault}" for fault in faults)
            + "\nPut the scope of each into a stage, or allow transfers to be inferred."
        )
