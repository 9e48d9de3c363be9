"""What a step does around its microbatches, with the loop itself left out.

The outer graph has the loop's results among its inputs and the loop's operands among its outputs:

    inputs     the step's own, for every sum over microbatches one total per stage that adds to it
               (a tied weight has several; they are added up once a step), and for every result of
               all microbatches one stack per stage that makes rows of it (joined once a step)
    outputs    the step's own, what the microbatches share or take their part of, and what the
               totals start from

Stacked weights of layers that are in several stages are pieces, and so is their optimizer state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from autoshard.lower.mpmd.cut.fragments import Cut, Source
from autoshard.lower.mpmd.cut.graph import Builder, Graph, Node, needed
from autoshard.lower.mpmd.cut.loop import MicrobatchedStep
from autoshard.lower.mpmd.cut.pieces import Bounds, Pieces, in_pieces
from autoshard.lower.mpmd.cut.scans import added, zeros


@dataclass(frozen=True, slots=True)
class Total:
    """A sum over microbatches: of what one stage makes, onto the outer value `initial`."""

    value: int
    source: Source
    initial: int


@dataclass(frozen=True, slots=True)
class Stack:
    """A result of every microbatch, stacked: of what one stage makes."""

    value: int
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Outer:
    """See the module.

    Attributes:
      graph: values and nodes in order; the nodes numbered in `early` come before the loop.
      early: nodes that the loop needs.
      inputs, outputs: of the step, whole or in pieces.
      operands: for every value that microbatches share or take a part of, its outer value.
      totals, stacks: what the loop returns.
    """

    graph: Graph
    early: frozenset[int]
    inputs: tuple[int | Pieces, ...]
    outputs: tuple[int | Pieces, ...]
    operands: Mapping[int, int]
    totals: tuple[Total, ...]
    stacks: tuple[Stack, ...]


def outer_of(step: MicrobatchedStep, cut: Cut) -> Outer:
    """The outer graph of a step whose microbatch was cut."""
    top = step.top
    results = [result.value for result in step.results]
    initials = [result.initial for result in step.results if result.initial is not None]
    operands = [operand.value for operand in step.operands]
    plain = Graph(
        top.avals,
        (*step.before, *step.after),
        (*top.inputs, *results),
        (*top.outputs, *operands, *initials),
    )
    rewritten = in_pieces(plain, cut=_bounds(step, cut))
    graph = rewritten.graph
    count = len(top.inputs)
    made = dict(zip(step.results, rewritten.inputs[count:], strict=True))
    ends = rewritten.outputs[len(top.outputs) :]
    wanted, starts = ends[: len(operands)], iter(ends[len(operands) :])
    builder = Builder(graph.avals)
    outer: dict[int, int] = {}
    for entry, value in zip(cut.inputs, wanted, strict=True):
        outer.update(zip(_values(entry), _values(value), strict=True))
    totals: list[Total] = []
    stacks: list[Stack] = []
    head: list[Node] = []
    tail: list[Node] = []
    for result in step.results:
        parts = cut.outputs[result.output].parts
        values = _values(made[result])
        if result.initial is None:
            (value,) = values
            sources = [source for (source,) in parts]
            stacks += _stacks(builder, value, sources, cut.graph, step.microbatches, tail)
            continue
        for value, part, initial in zip(values, parts, _values(next(starts)), strict=True):
            totals += _totals(builder, value, part, initial, head, tail)
    once = _renumbered(builder, cut.invariant, outer, cut.graph)
    first = needed(graph.nodes, [v for entry in ends for v in _values(entry)])
    before = [node for node, early in zip(graph.nodes, first, strict=True) if early]
    after = [node for node, early in zip(graph.nodes, first, strict=True) if not early]
    early = (*before, *head, *once)
    inputs = tuple(v for entry in rewritten.inputs[:count] for v in _values(entry))
    outputs = rewritten.outputs[: len(top.outputs)]
    return Outer(
        graph=Graph(
            tuple(builder.avals),
            (*early, *tail, *after),
            (*inputs, *(one.value for one in (*totals, *stacks))),
            tuple(v for entry in outputs for v in _values(entry)),
        ),
        early=frozenset(range(len(early))),
        inputs=rewritten.inputs[:count],
        outputs=outputs,
        operands=outer,
        totals=tuple(totals),
        stacks=tuple(stacks),
    )


def _bounds(step: MicrobatchedStep, cut: Cut) -> dict[int, Bounds]:
    """Where the values of the step are cut that the loop reads, or returns, in pieces."""
    bounds: dict[int, Bounds] = {}
    for operand, entry in zip(step.operands, cut.inputs, strict=True):
        if isinstance(entry, Pieces):
            bounds[operand.value] = entry.bounds
    for result in step.results:
        pieces = cut.outputs[result.output].pieces
        if pieces is not None and result.initial is not None:
            bounds[result.value] = bounds[result.initial] = pieces
    return bounds


def _values(entry: int | Pieces) -> tuple[int, ...]:
    return (entry,) if isinstance(entry, int) else entry.values


def _totals(
    builder: Builder,
    value: int,
    sources: tuple[Source, ...],
    initial: int,
    head: list[Node],
    tail: list[Node],
) -> list[Total]:
    """The totals that add up to `value`; nodes for zeros go to `head`, for additions to `tail`."""
    if len(sources) == 1:
        return [Total(value, sources[0], initial)]
    like = Node("add_any", (), (), list, "")
    result = []
    total = None
    for k, source in enumerate(sources):
        part = builder.value(builder.avals[value])
        start = initial if k == 0 else zeros(builder, builder.avals[value], like)
        result.append(Total(part, source, start))
        if total is not None:
            part = added(builder, total, part, like)
        total = part
    *nodes, last = builder.nodes
    builder.nodes.clear()
    head += [node for node in nodes if node.name == "zeros"]
    tail += [node for node in nodes if node.name != "zeros"]
    tail.append(replace(last, outputs=(value,)))
    return result


def _stacks(
    builder: Builder,
    value: int,
    sources: Sequence[Source],
    inner: Graph,
    microbatches: int,
    tail: list[Node],
) -> list[Stack]:
    """The stacks that `value` consists of, one a piece; `tail` gets the node that joins them.

    Pieces are rows of what a microbatch makes, so they are the second dimension of the stack.
    """
    if len(sources) == 1:
        return [Stack(value, sources[0])]
    avals = [inner.avals[source.value] for source in sources]
    shapes = [jax.ShapeDtypeStruct((microbatches, *aval.shape), aval.dtype) for aval in avals]
    parts = [builder.value(shape) for shape in shapes]
    like = Node("concatenate", (), (), list, "")
    join = lambda *arrays: [jax.lax.concatenate(arrays, 1)]  # noqa: E731
    builder.call("concatenate", join, parts, ("microbatches", len(parts)), like)
    tail.append(replace(builder.nodes.pop(), outputs=(value,)))
    return [Stack(part, source) for part, source in zip(parts, sources, strict=True)]


def _renumbered(
    builder: Builder, nodes: tuple[Node, ...], outer: dict[int, int], inner: Graph
) -> list[Node]:
    """Nodes of the microbatch's graph on values of the outer one; `outer` learns their results."""
    result: list[Any] = []
    for node in nodes:
        outputs = tuple(builder.value(inner.avals[value]) for value in node.outputs)
        inputs = tuple(outer[value] for value in node.inputs)
        outer.update(zip(node.outputs, outputs, strict=True))
        result.append(replace(node, inputs=inputs, outputs=outputs))
    return result
