"""From the graph of one microbatch to fragments: see `autoshard.lower.mpmd.cut.fragments`.

The steps, each from one immutable graph to the next:

    1  nodes get the stage of their scope; loops over layers are cut into one per stage, which saves
       what is chosen (`autoshard.lower.mpmd.cut.saving`)
    2  a gradient that is a sum over several uses of a weight becomes an output for each use
    3  all other ops get their stages by inference
    4  what every microbatch computes alike, and several fragments read, is moved out
    5  loops of the backward pass are taken apart into B and W; nodes are dealt out
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard import compat
from autoshard.lower.mpmd.cut.deal import Deal
from autoshard.lower.mpmd.cut.flat import graph_of, inner_equations
from autoshard.lower.mpmd.cut.fragments import Cut, Output
from autoshard.lower.mpmd.cut.graph import Graph, Node, needed
from autoshard.lower.mpmd.cut.inference import FLOPS_PER_BYTE, Question, forbid, free_nodes, infer
from autoshard.lower.mpmd.cut.pieces import Rewritten, in_pieces
from autoshard.lower.mpmd.cut.saving import Choice, Saves, Staged
from autoshard.lower.mpmd.cut.stages import Stages, counted_stages, even_stages, named_stages
from autoshard.program.vocabulary import ADDITIONS


def cut_microbatch(
    micro: Graph,
    stages: int | Sequence[int] | Sequence[Sequence[str]],
    *,
    summed: Sequence[bool],
    shared: Sequence[bool],
    speeds: Sequence[float] | None = None,
    infer_transfers: bool = True,
    flops_per_byte: float = FLOPS_PER_BYTE,
    saved: Callable[[Staged], Choice] | None = None,
    body: Any = None,
    opened: dict[Hashable, Opened] | None = None,
) -> Cut:
    """Cut the graph of one microbatch into the fragments of its stages.

    Args:
      micro: loss, gradients and auxiliary values of one microbatch.
      stages: how many stages, made of the blocks that are found; or for every stage how many
        blocks it has, or the scopes that belong to it (see
        `autoshard.lower.mpmd.cut.blocks.named_stages`).
      summed: for every output whether it is summed over microbatches.
      shared: for every input whether it is the same for every microbatch.
      speeds: of every stage, where `stages` is a number; faster ones get more blocks.
      infer_transfers: whether ops that nobody named may need values of other stages.
      flops_per_byte: FLOP in the time in which a byte crosses between meshes.
      saved: says what each stage saves for its backward pass; by default as the program does.
      body: the microbatch as a closed jaxpr, by which what is saved of unrolled layers is known.
      opened: what cuts of the same microbatch into counts of blocks found that may save anything;
        this one adds what it finds.

    Raises:
      StageError: more stages than blocks, or a scope that no op bears.
      PlacementError: stages against the order of data, or a transfer that is forbidden.
    """
    found, rewritten, saves = _saving(micro, stages, speeds, saved, body, opened)
    makers, readers = rewritten.graph.makers(), rewritten.graph.readers()
    outputs = [
        [
            _terms(rewritten.graph, part, makers, readers) if add else [part]
            for part in ((one,) if isinstance(one, int) else one.values)
        ]
        for one, add in zip(rewritten.outputs, summed, strict=True)
    ]
    terms = [term for parts in outputs for part in parts for term in part]
    graph = _living(replace(rewritten.graph, outputs=tuple(terms)))
    late = _backward(graph)
    fixed = {n: node.stage for n, node in enumerate(graph.nodes) if node.stage is not None}
    question = Question(
        graph,
        len(found),
        fixed,
        _read_by(graph, fixed),
        backward=late,
        flops_per_byte=flops_per_byte,
    )
    places = infer(question)
    if not infer_transfers:
        forbid(graph, places, fixed, "stage")
    flat = [one if isinstance(one, int) else one.values for one in rewritten.inputs]
    once = {
        value
        for values, same in zip(flat, shared, strict=True)
        for value in ((values,) if isinstance(values, int) else values)
        if same
    }
    invariant, lifted = _invariant(graph, places, late, once)
    hand = Deal(graph, len(found), places, late, lifted)
    results = tuple(
        Output(
            tuple(hand.summed_by_stage(part) for part in parts),
            None if isinstance(one, int) else one.bounds,
        )
        for parts, one in zip(outputs, rewritten.outputs, strict=True)
    )
    ends = [source for one in results for part in one.parts for source in part]
    fragments = hand.fragments(ends)
    whole = hand.builder.graph(graph.inputs, [source.value for source in ends])
    return Cut(whole, found, fragments, rewritten.inputs, results, invariant, saves)


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A microbatch in stages that may save anything.

    Attributes:
      stages: the stages.
      rewritten: the graph with the stages of its nodes, and a loop for each stage.
      staged: what each stage may save.
    """

    stages: Stages
    rewritten: Rewritten
    staged: Staged

    @classmethod
    def of(
        cls,
        micro: Graph,
        stages: int | Sequence[int] | Sequence[Sequence[str]],
        speeds: Sequence[float] | None,
        body: Any,
    ) -> Opened:
        """Arguments are those of `cut_microbatch`."""
        found = _stages_of(micro, stages, speeds)
        if body is not None:
            micro, found = _with_checkpoints(micro, found, body, stages, speeds)
        rewritten = _in_stages(micro, found)
        return cls(found, rewritten, Staged.of(rewritten.graph, len(found)))


def _saving(
    micro: Graph,
    stages: int | Sequence[int] | Sequence[Sequence[str]],
    speeds: Sequence[float] | None,
    saved: Callable[[Staged], Choice] | None,
    body: Any,
    known: dict[Hashable, Opened] | None,
) -> tuple[Stages, Rewritten, Saves | None]:
    """The stages, the graph in which each saves what is chosen, and that choice."""
    if saved is None:
        found = _stages_of(micro, stages, speeds)
        return found, _in_stages(micro, found), None
    key = tuple(stages) if not isinstance(stages, int) and speeds is None else None
    one = None if known is None or key is None else known.get(key)
    if one is None:
        one = Opened.of(micro, stages, speeds, body)
        if known is not None and key is not None and all(isinstance(k, int) for k in key):
            known[key] = one
    chosen = saved(one.staged)
    rewritten = one.rewritten.over(one.staged.saving(chosen))
    return one.stages, rewritten, Saves(one.staged, chosen)


def _in_stages(micro: Graph, stages: Stages) -> Rewritten:
    """The graph with the stages of its nodes, and a loop for each stage."""
    nodes = (replace(one, stage=stages.labels.get(k)) for k, one in enumerate(micro.nodes))
    return in_pieces(replace(micro, nodes=tuple(nodes)), scans=stages.scans)


def _with_checkpoints(
    micro: Graph,
    found: Stages,
    body: Any,
    stages: int | Sequence[int] | Sequence[Sequence[str]],
    speeds: Sequence[float] | None,
) -> tuple[Graph, Stages]:
    """The microbatch with unrolled layers under `jax.checkpoint` whole, and its stages.

    What they save can be chosen then. A checkpoint with a loop in it that is cut stays open.
    """
    cut = {id(micro.nodes[number].equation) for number in found.scans}

    def whole(equation: Any) -> bool:
        return cut.isdisjoint(map(id, inner_equations(equation)))

    graph = graph_of(body, whole=whole)
    if not any(node.name in compat.REMAT for node in graph.nodes):
        return micro, found
    again = _stages_of(graph, stages, speeds)
    return (graph, again) if again.names == found.names else (micro, found)


def _stages_of(
    micro: Graph,
    stages: int | Sequence[int] | Sequence[Sequence[str]],
    speeds: Sequence[float] | None,
) -> Stages:
    """The stages that are asked for, by number, by blocks or by scopes."""
    if isinstance(stages, int):
        return even_stages(micro, stages, speeds)
    if counts := [one for one in stages if isinstance(one, int)]:
        return counted_stages(micro, counts)
    return named_stages(micro, [one for one in stages if not isinstance(one, int)])


def _terms(
    graph: Graph, output: int, makers: Mapping[int, int], readers: Mapping[int, Sequence[int]]
) -> list[int]:
    """The values whose sum an output is, as far as that sum is all that they are for."""
    terms, pending = [], [output]
    while pending:
        value = pending.pop()
        maker = graph.nodes[makers[value]] if value in makers else None
        uses = len(readers.get(value, ())) + graph.outputs.count(value)
        if maker is not None and maker.name in ADDITIONS and uses == 1 and len(maker.inputs) == 2:
            pending += reversed(maker.inputs)
        else:
            terms.append(value)
    return terms


def _living(graph: Graph) -> Graph:
    """Without the nodes that no output needs."""
    keep = needed(graph.nodes, graph.outputs)
    return replace(graph, nodes=tuple(n for n, k in zip(graph.nodes, keep, strict=True) if k))


def _backward(graph: Graph) -> frozenset[int]:
    """Nodes of the backward pass: those that say so, and those that depend on them."""
    free = free_nodes(graph)
    values: set[int] = set()
    late = set()
    for number, node in enumerate(graph.nodes):
        if number not in free and (node.backward or not values.isdisjoint(node.inputs)):
            late.add(number)
            values.update(node.outputs)
    return frozenset(late)


def _read_by(graph: Graph, fixed: Mapping[int, int]) -> dict[int, frozenset[int]]:
    """For inputs that nodes with a stage read, these stages."""
    inputs = set(graph.inputs)
    result: dict[int, frozenset[int]] = {}
    for number, stage in fixed.items():
        for value in inputs.intersection(graph.nodes[number].inputs):
            result[value] = result.get(value, frozenset()) | {stage}
    return result


def _invariant(
    graph: Graph,
    places: Sequence[tuple[int, ...]],
    late: Collection[int],
    shared: Collection[int],
) -> tuple[tuple[Node, ...], frozenset[int]]:
    """What depends on `shared` inputs alone and is read by several fragments.

    Returns the nodes that compute it, and the values that are read.
    """
    free = free_nodes(graph)
    known = set(shared)
    candidates = []
    for number, node in enumerate(graph.nodes):
        if known.issuperset(node.inputs):
            known.update(node.outputs)
            if number not in free:
                candidates.append(number)
    groups: dict[int, set[tuple[int, bool]]] = {}
    for number, node in enumerate(graph.nodes):
        if number not in candidates:
            for value in node.inputs:
                groups.setdefault(value, set()).update((p, number in late) for p in places[number])
    lifted = {
        value
        for number in candidates
        for value in graph.nodes[number].outputs
        if len(groups.get(value, ())) > 1
    }
    keep = needed(graph.nodes, lifted)
    nodes = tuple(node for node, kept in zip(graph.nodes, keep, strict=True) if kept)
    return nodes, frozenset(lifted)
