"""A jaxpr as a graph: calls are inlined, loops and branches stay whole.

Calls are `jit`, `checkpoint` and functions with derivative rules; `scan`, `while` and `cond` are
one node each. A checkpointed function that was differentiated becomes its body behind an
optimization barrier, as in JAX's own lowering: what it computes again is not merged with what was
computed before. Where that is asked for, it stays whole, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from autoshard import compat
from autoshard.lower.mpmd.cut.graph import Apply, Builder, Graph, Node
from autoshard.program.flops import equation_flops
from autoshard.program.vocabulary import INLINED

_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}


def graph_of(
    closed: Any, *, keep: Collection[str] = (), whole: Callable[[Any], bool] | None = None
) -> Graph:
    """The graph of a closed jaxpr.

    Args:
      keep: the names of calls that stay whole.
      whole: whether a differentiated `jax.checkpoint` does, by its equation; by default none do.
    """
    walk = _Walk(keep, whole or (lambda equation: False))
    inputs = [walk.builder.value(var.aval) for var in closed.jaxpr.invars]
    outputs = walk.body(closed.jaxpr, closed.consts, inputs, "", "")
    return walk.builder.graph(inputs, [walk.made(atom) for atom in outputs])


@dataclass(frozen=True, slots=True)
class _Constant:
    """A literal or a closed-over constant: an operand that is not a value."""

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
    def __init__(self, keep: Collection[str], whole: Callable[[Any], bool]) -> None:
        self.keep, self.whole = keep, whole
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
        again = name in compat.REMAT and equation.params["differentiated"]
        stays = equation.params.get("name") in self.keep or (again and self.whole(equation))
        if name in INLINED and not stays:
            body, consts = compat.called_jaxpr(equation)
            if again:
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


def inner_equations(equation: Any) -> Iterator[Any]:
    """The equations of the bodies of an equation, and of theirs."""
    name, params = equation.primitive.name, equation.params
    bodies = [body for field in _BODIES.get(name, ()) for body in _closed(params[field])]
    if name in INLINED:
        bodies.append(compat.called_jaxpr(equation)[0])
    for body in bodies:
        for inner in body.eqns:
            yield inner
            yield from inner_equations(inner)


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
