"""The work of one microbatch in fragments: one per stage and kind.

    F    forward: results for the next stage, and what the backward pass needs (residuals)
    B    gradient of the stage's input, for the stage before
    W    gradients of the stage's weights: all of the backward pass that no other stage waits for
    BW   both in one program

B and W repeat nothing: W is handed what it reads of B. The first stage passes no gradient on; its
B is what more than one weight gradient depends on.

A fragment's memory follows from the liveness of its values: what stays alive between F, B and W of
a microbatch are the residuals, explicit values with bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoshard.lower.mpmd.cut.graph import Graph, Node
from autoshard.lower.mpmd.cut.pieces import Bounds, Pieces
from autoshard.lower.mpmd.cut.saving import Saves
from autoshard.lower.mpmd.cut.stages import Stages
from autoshard.solve.schedule.task import Kind

SHARED = -1
"""Stage of what no stage makes: inputs of the microbatch, and values computed once a step."""

Key = tuple[int, Kind]
"""A stage and a kind: which fragment."""


@dataclass(frozen=True, slots=True)
class Source:
    """A value that a fragment reads, and the stage whose fragment made it (or `SHARED`)."""

    value: int
    stage: int


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """The nodes of one stage and kind; what it reads and what others read of it.

    A fragment without nodes has nothing to do.
    """

    stage: int
    kind: Kind
    nodes: tuple[Node, ...]
    inputs: tuple[Source, ...]
    outputs: tuple[int, ...]

    @property
    def flops(self) -> float:
        """FLOP on whole arrays."""
        return sum(node.flops for node in self.nodes)

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}"


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a microbatch: for every piece of it the values that add up to the piece.

    `parts` has one entry where the output is whole, and `pieces` is None.
    """

    parts: tuple[tuple[Source, ...], ...]
    pieces: Bounds | None


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A microbatch in fragments.

    Attributes:
      graph: the values; its nodes are those of the fragments F and BW.
      stages: what the stages hold.
      fragments: by stage and kind; a stage's backward pass is there as B and W and as BW.
      inputs: for every input of the microbatch its value, or its pieces by stage.
      outputs: for every output what adds up to it.
      invariant: nodes that are the same for every microbatch and that several fragments read: they
        are computed once a step, from inputs that all microbatches share.
      saves: what the stages save for their backward passes, where that was chosen.
    """

    graph: Graph
    stages: Stages
    fragments: Mapping[Key, Fragment]
    inputs: tuple[int | Pieces, ...]
    outputs: tuple[Output, ...]
    invariant: tuple[Node, ...]
    saves: Saves | None = None

    def kept(self, stage: int) -> tuple[int, ...]:
        """Values that a microbatch keeps on a stage's mesh from F to the backward pass.

        They are what F makes, or was sent, and the backward pass reads again.
        """
        forward = self.fragments[stage, "F"]
        seen = {*forward.outputs, *(one.value for one in forward.inputs)}
        read = self.fragments[stage, "BW"].inputs
        return tuple(one.value for one in read if one.stage != SHARED and one.value in seen)

    def handed(self, stage: int) -> tuple[int, ...]:
        """Values that a microbatch keeps on a stage's mesh from B to W."""
        first, second = self.fragments[stage, "B"], self.fragments[stage, "W"]
        seen = {*first.outputs, *(one.value for one in first.inputs)}
        return tuple(
            one.value for one in second.inputs if one.stage != SHARED and one.value in seen
        )

    def bytes(self, values: Iterable[int]) -> int:
        """Bytes of whole values together."""
        return sum(map(self.graph.bytes, values))

    def peak_bytes(self, stage: int, kind: Kind) -> int:
        """Most bytes of whole values alive at once in a fragment, what it reads included.

        In program order, without fusion; what the fragment reads stays until it ends.
        """
        fragment = self.fragments[stage, kind]
        last = {v: n for n, node in enumerate(fragment.nodes) for v in node.inputs}
        kept = {one.value for one in fragment.inputs} | set(fragment.outputs)
        alive = sum(self.graph.bytes(one.value) for one in fragment.inputs)
        peak = alive
        for number, node in enumerate(fragment.nodes):
            alive += sum(map(self.graph.bytes, node.outputs))
            peak = max(peak, alive)
            dead = {v for v in (*node.inputs, *node.outputs) if last.get(v, number) == number}
            alive -= sum(self.graph.bytes(v) for v in dead if v not in kept)
        return peak

    def __str__(self) -> str:
        lines = []
        for stage, names in enumerate(self.stages.names):
            fragments = [self.fragments[stage, kind] for kind in ("F", "B", "W")]
            costs = ", ".join(f"{one.kind} {one.flops:.3g} FLOP" for one in fragments)
            held, handed = self.bytes(self.kept(stage)), self.bytes(self.handed(stage))
            lines.append(
                f"stage {stage} ({', '.join(names)}): {costs}; "
                f"kept from F {held} bytes, from B {handed} bytes"
            )
        return "\n".join(lines)
