"""A jaxpr as a flat list of nodes that can be taken apart and put together in another way.

Calls (`jit`, `checkpoint`, functions with derivative rules) are inlined; `scan`, `while` and `cond`
stay whole. Every node is a function of arrays, so that a part of a graph is run by calling its
nodes in order, under any `jax.jit`:

    graph = graph_of(jax.make_jaxpr(fn)(*args))
    results = run(graph.nodes, dict(zip(graph.inputs, args)), graph.outputs)

Nodes with equal `key`s compute the same function; that is how equal programs are found.

A checkpointed function that was differentiated becomes its body behind an optimization barrier, as
in JAX's own lowering: what it computes again is not merged with what was computed before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from autoshard import compat
from autoshard.cost.flops import equation_flops
from autoshard.flatten import INLINED
from autoshard.layout import short_dtype

Apply = Callable[..., Sequence[Any]]

_REMAT = frozenset({"remat", "remat2", "checkpoint"})
_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}


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


def graph_of(closed: Any, *, keep: Collection[str] = ()) -> Graph:
    """The graph of a closed jaxpr; calls whose name is in `keep` stay whole."""
    walk = _Walk(keep)
    inputs = [walk.builder.value(var.aval) for var in closed.jaxpr.invars]
    outputs = walk.body(closed.jaxpr, closed.consts, inputs, "", "")
    return walk.builder.graph(inputs, [walk.made(atom) for atom in outputs])


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


@dataclass(frozen=True, slots=True)
class _Constant:
    """A literal or a closed-over constant: an operand that is no value."""

    array: Any
    aval: Any

    @property
    def key(self) -> Hashable:
        if np.ndim(self.array) == 0 and not compat.is_tracer(self.array):
            try:
                return str(self.aval.dtype), np.asarray(self.array).item()
            except (TypeError, ValueError):
                pass
        return id(self.array)


class _Walk:
    def __init__(self, keep: Collection[str]) -> None:
        self.keep = keep
        self.builder = Builder()

    def made(self, atom: int | _Constant) -> int:
        """A value for an atom: a constant gets a node."""
        if isinstance(atom, int):
            return atom
        output = self.builder.value(jax.typeof(atom.array))
        array = atom.array
        self.builder.add(Node("constant", (), (output,), lambda: [array], ("constant", atom.key)))
        return output

    def body(
        self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], scope: str, line: str
    ) -> list[Any]:
        environment: dict[Any, Any] = {
            var: _Constant(constant, var.aval)
            for var, constant in zip(jaxpr.constvars, consts, strict=True)
        }
        environment.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Any:
            return _Constant(atom.val, atom.aval) if compat.is_literal(atom) else environment[atom]

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            results = self.equation(equation, operands, scope, line)
            environment.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(
        self, equation: Any, operands: Sequence[Any], scope: str, line: str
    ) -> Sequence[Any]:
        name = equation.primitive.name
        stack = str(equation.source_info.name_stack)
        scope = "/".join(part for part in (scope, stack) if part)
        line = compat.source_line(equation) or line
        if name in INLINED and equation.params.get("name") not in self.keep:
            body, consts = compat.called_jaxpr(equation)
            if name in _REMAT and equation.params["differentiated"]:
                operands = self.barrier(operands, scope, line)
            return self.body(body, consts, operands, scope, line)
        if name == "scan":  # its operands have places that count
            operands = [self.made(operand) for operand in operands]
        outputs = tuple(self.builder.value(var.aval) for var in equation.outvars)
        inputs = tuple(operand for operand in operands if isinstance(operand, int))
        constants = [None if isinstance(operand, int) else operand for operand in operands]
        literals = tuple(None if one is None else one.array for one in constants)
        keys = tuple(None if one is None else one.key for one in constants)
        self.builder.add(
            Node(
                name,
                inputs,
                outputs,
                bound(equation, literals),
                (name, keys, params_key(equation.params)),
                scope,
                line,
                flops_of(equation),
                equation,
                literals,
            )
        )
        return outputs

    def barrier(self, operands: Sequence[Any], scope: str, line: str) -> list[Any]:
        """Operands behind an optimization barrier; constants need none."""
        values = [operand for operand in operands if isinstance(operand, int)]
        if not values:
            return list(operands)
        like = Node("optimization_barrier", (), (), _barred, "", scope, line)
        barred = iter(self.builder.call("optimization_barrier", _barred, values, "", like))
        return [next(barred) if isinstance(operand, int) else operand for operand in operands]


def _barred(*arrays: Any) -> list[Any]:
    return list(jax.lax.optimization_barrier(tuple(arrays)))


def bound(equation: Any, literals: Sequence[Any], **changed: Any) -> Apply:
    """`equation` as a function of its operands that are None in `literals`."""

    def apply(*arrays: Any) -> list[Any]:
        given = iter(arrays)
        operands = [next(given) if literal is None else literal for literal in literals]
        with compat.equation_context(equation):
            return compat.bind_equation(equation, operands, **changed)

    return apply


def params_key(params: Mapping[str, Any]) -> Hashable:
    """Equal for equal parameters of an equation; jaxprs by what they say."""
    return tuple((name, _key(value)) for name, value in sorted(params.items()))


def _key(value: Any) -> Hashable:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return str(value), tuple(map(id, getattr(value, "consts", ())))
    if type(value) in (tuple, list):
        return tuple(_key(one) for one in value)
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), value.tobytes()
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def flops_of(equation: Any) -> float:
    """FLOP of an equation, bodies of loops as often as they run, the dearest branch of a `cond`."""
    name, params = equation.primitive.name, equation.params
    if name in _BODIES or name in INLINED:
        fields = _BODIES.get(name)
        bodies = (
            [compat.called_jaxpr(equation)[0]]
            if fields is None
            else [body for field in fields for body in _closed(params[field])]
        )
        costs = [sum(map(flops_of, body.eqns)) for body in bodies]
        return max(costs, default=0.0) if name == "cond" else params.get("length", 1) * sum(costs)
    return equation_flops(equation)


def _closed(value: Any) -> list[Any]:
    return [one.jaxpr for one in (value if isinstance(value, tuple | list) else (value,))]
