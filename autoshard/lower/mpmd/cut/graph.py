"""A program as a flat list of nodes that can be taken apart and put together in another way.

Every node is a function of arrays, so that a part of a graph is run by calling its nodes in order,
under any `jax.jit` (`autoshard.lower.mpmd.cut.flat.graph_of` makes a graph of a jaxpr):

    graph = graph_of(jax.make_jaxpr(fn)(*args))
    results = run(graph.nodes, dict(zip(graph.inputs, args)), graph.outputs)

Nodes with equal `key`s compute the same function; that is how equal programs are found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from autoshard import compat
from autoshard.program.layout import short_dtype

Apply = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation: `apply(*arrays of inputs)` gives the arrays of `outputs`.

    Attributes:
      name: the primitive.
      inputs, outputs: numbers of values; literals are inside of `apply`.
      key: equal for nodes that compute the same function of their inputs.
      scope, line: the name stack and the user's source line.
      flops: FLOP on whole arrays, all iterations counted.
      equation: the equation that the node stands for, if it is one.
      literals: its operands that are constants, None for those that are `inputs`.
      stage: the pipeline stage that it is known to belong to, or None.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    apply: Apply
    key: Hashable
    scope: str = ""
    line: str = ""
    flops: float = 0.0
    equation: Any = None
    literals: tuple[Any, ...] = ()
    stage: int | None = None

    @property
    def backward(self) -> bool:
        """Whether the node says of itself that it is of the backward pass."""
        return "transpose(" in self.scope or "rematted_computation" in self.scope

    def __str__(self) -> str:
        return f"{self.name} at {self.scope or '(top)'} ({self.line or 'no source line'})"


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in program order over values with abstract arrays `avals`."""

    avals: tuple[jax.ShapeDtypeStruct, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def bytes(self, value: int) -> int:
        """Bytes of a whole value."""
        return bytes_of(self.avals[value])

    def readers(self) -> dict[int, list[int]]:
        """For every value that is read, the numbers of the nodes that do."""
        result: dict[int, list[int]] = {}
        for number, node in enumerate(self.nodes):
            for value in dict.fromkeys(node.inputs):
                result.setdefault(value, []).append(number)
        return result

    def makers(self) -> dict[int, int]:
        """For every value that a node makes, the number of that node."""
        return {value: n for n, node in enumerate(self.nodes) for value in node.outputs}

    def describe(self, value: int) -> str:
        """The type of a value, as in `f32[8,4]`."""
        aval = self.avals[value]
        return f"{short_dtype(str(aval.dtype))}[{','.join(map(str, aval.shape))}]"


class Builder:
    """Values and nodes of a graph in the making."""

    def __init__(
        self, avals: Sequence[jax.ShapeDtypeStruct] = (), nodes: Sequence[Node] = ()
    ) -> None:
        self.avals = list(avals)
        self.nodes = list(nodes)

    def value(self, aval: Any) -> int:
        """A new value of this type."""
        self.avals.append(compat.shape_struct(aval))
        return len(self.avals) - 1

    def add(self, node: Node) -> tuple[int, ...]:
        """Append a node whose results have their numbers already."""
        self.nodes.append(node)
        return node.outputs

    def call(
        self, name: str, apply: Apply, inputs: Sequence[int], key: Hashable, like: Node
    ) -> tuple[int, ...]:
        """A new node that calls `apply`, in the scope and stage of the node `like`."""
        results = jax.eval_shape(lambda *a: list(apply(*a)), *(self.avals[i] for i in inputs))
        outputs = tuple(self.value(aval) for aval in results)
        flops = float(sum(math.prod(aval.shape) for aval in results))
        return self.add(
            replace(
                like,
                name=name,
                inputs=tuple(inputs),
                outputs=outputs,
                apply=apply,
                key=(name, key),
                flops=flops,
                equation=None,
                literals=(),
            )
        )

    def graph(self, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
        """What was built."""
        return Graph(tuple(self.avals), tuple(self.nodes), tuple(inputs), tuple(outputs))


def bytes_of(aval: Any) -> int:
    """Bytes of an abstract array."""
    shape, _, itemsize = compat.array_facts(aval)
    return math.prod(shape) * itemsize


def run(nodes: Iterable[Node], known: Mapping[int, Any], outputs: Sequence[int]) -> list[Any]:
    """The arrays of `outputs`, from the `known` arrays by the nodes in order."""
    arrays = dict(known)
    for node in nodes:
        results = node.apply(*(arrays[value] for value in node.inputs))
        arrays.update(zip(node.outputs, results, strict=True))
    return [arrays[value] for value in outputs]


def needed(nodes: Sequence[Node], outputs: Iterable[int]) -> list[bool]:
    """For every node, whether one of `outputs` depends on it."""
    wanted, keep = set(outputs), [False] * len(nodes)
    for number in reversed(range(len(nodes))):
        if not wanted.isdisjoint(nodes[number].outputs):
            keep[number] = True
            wanted.update(nodes[number].inputs)
    return keep
