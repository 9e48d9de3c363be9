"""Whether two functions compute the same, whatever calls and constants they are written with.

Both are written out as one graph in which equal ops on equal operands are one: what functions call
is laid out in place, and what no input decides is its value. Results that are one there are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.bodies import BODIES
from autoshard.program.kernels.known.constants import runs_alone
from autoshard.program.shard_maps.collectives import is_cast
from autoshard.program.vocabulary import INLINED


def compute_alike(one: Any, other: Any) -> bool:
    """Whether two closed jaxprs of the same inputs have the same results.

    True is certain; false may be said of two that compute the same in other ways.
    """
    graph = _Graph()
    return graph.results(one) == graph.results(other)


_PLACED = frozenset({"reshard", "sharding_constraint", "mesh_cast"})
"""What says where a value is, and is nothing to what it is."""


class _Graph:
    """Ops and values by what they are; a node is its number."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, int] = {}
        self._values: dict[int, Any] = {}

    def results(self, body: Any, given: Sequence[int] | None = None, depth: int = 0) -> list[int]:
        """The nodes of the results of a jaxpr.

        Args:
          body: the jaxpr, closed or open.
          given: nodes of its inputs; None for its own ones.
          depth: of how many loops it is the body.
        """
        jaxpr, consts = compat.opened(body)
        if given is None:
            given = [self._node(("input", depth, k)) for k in range(len(jaxpr.invars))]
        here = dict(zip(jaxpr.constvars, map(self._value, consts), strict=True))
        here.update(zip(jaxpr.invars, given, strict=True))

        def read(atom: Any) -> int:
            return self._value(compat.literal(atom)) if compat.is_literal(atom) else here[atom]

        for equation in jaxpr.eqns:
            results = self._computed(equation, [read(atom) for atom in equation.invars], depth)
            here.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _computed(self, equation: Any, operands: list[int], depth: int) -> list[int]:
        name = equation.primitive.name
        if name in _PLACED or is_cast(equation):
            return operands
        if name in INLINED:
            body, consts = compat.called_jaxpr(equation)
            if len(body.invars) == len(operands):
                return self.results(compat.closed(body, consts), operands, depth)
        if all(one in self._values for one in operands) and runs_alone(equation):
            made = compat.bind_equation(equation, [self._values[one] for one in operands])
            return list(map(self._value, made))
        if name in BODIES:
            op = self._loop(equation, operands, depth)
        else:
            op = name, repr(compat.written_out(equation)), tuple(operands)
        return [self._node((*op, k)) for k in range(len(equation.outvars))]

    def _loop(self, equation: Any, operands: list[int], depth: int) -> tuple[Hashable, ...]:
        """What a loop or a choice is: what it reads in every turn is as if its body had it."""
        inside, held = [], 0
        for body, given in compat.loop_bodies(equation, operands):
            held += sum(one is not None for one in given)
            own = (self._node(("input", depth + 1, k)) for k in itertools.count())
            nodes = [next(own) if one is None else one for one in given]
            inside.append(tuple(self.results(body, nodes, depth + 1)))
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            turns = params["length"], params["reverse"], compat.scan_counts(params)[1]
            return name, turns, tuple(inside), tuple(operands[held:])
        return name, tuple(inside), tuple(operands[:1] if name == "cond" else operands[held:])

    def _value(self, value: Any) -> int:
        array = np.asarray(value)
        node = self._node(("value", str(array.dtype), array.shape, array.tobytes()))
        self._values[node] = value
        return node

    def _node(self, key: Hashable) -> int:
        return self._nodes.setdefault(key, len(self._nodes))
