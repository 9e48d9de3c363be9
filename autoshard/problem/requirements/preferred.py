"""Layouts that values are to have wherever they can: as many bytes of them as can be at once.

What a compiler's propagation decides is not always within the choices of a plan: a value inside of
a kernel lies as the kernel's operations let it. So the problem is first solved with the bytes of
values that lie otherwise as its only cost,

    minimise  sum_v  bytes(v) [x_v is not in the layout of v]

and what lies as wanted in the answer has no other choice from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.plan.plan import MeshShape
from autoshard.problem.build import Built
from autoshard.problem.requirements.filter_choices import narrowed
from autoshard.program.layout_pattern import LayoutPattern
from autoshard.program.strategies import Strategies
from autoshard.solve import Problem
from autoshard.solve.allowed import Allowed
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import Edge

LEAST = 10.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class OpLayouts:
    """How an op reads each operand, and writes its result before partial sums are settled; None
    where it is not said."""

    reads: tuple[LayoutPattern | None, ...]
    written: LayoutPattern | None


@dataclass(frozen=True, slots=True)
class Preferred:
    """Layouts of values by number, and of what ops read and write."""

    values: Mapping[int, LayoutPattern] = field(default_factory=dict)
    ops: Mapping[int, OpLayouts] = field(default_factory=dict)


def laid_out(built: Built, layouts: Preferred, mesh: MeshShape, *, seconds: float) -> Built:
    """The problem in which values and ops lie as they are to, but for those that cannot.

    Args:
      built: with all that must hold.
      layouts: that are preferred.
      mesh: axis names and sizes.
      seconds: for finding out which cannot, or `LEAST` where they are fewer: without an answer the
        plan would be of another question. What is found in that time stands.
    """
    # Of constraints alone the compiler makes an all-reduce, and a slice of it.
    settled = {n: ~built.op_strategies[number].in_steps for number, n in built.op_node.items()}
    built = narrowed(built, settled)
    wanted: dict[int, NDArray[np.bool_]] = {}
    weight: dict[int, float] = {}

    def want(node: int, inside: NDArray[np.bool_], value: int) -> None:
        if inside.any():
            wanted.setdefault(node, inside)
            weight[node] = weight.get(node, 0.0) + built.prices.program.values[value].bytes

    for value, pattern in layouts.values.items():
        number = int(built.classes.value_class[value])
        if number in built.value_node:
            choices = built.value_choices[number]
            inside = pattern.mask(choices.table.dimensions, mesh.names, mesh.sizes)
            want(built.value_node[number], inside[choices.stored], value)
    for op, one in layouts.ops.items():
        number = int(built.classes.op_class[op])
        if number in built.op_node:
            inside = _as_read(built.op_strategies[number], one, mesh)
            want(built.op_node[number], inside, built.prices.program.ops[op].outputs[0])
    outcome = solve(
        _counting(built.problem, wanted, weight), time_limit=max(seconds, LEAST), gap=0.0
    )
    if outcome.solution is None:
        return built  # the search says why
    chosen = outcome.solution.choices
    kept = {node: inside for node, inside in wanted.items() if inside[chosen[node]]}
    return narrowed(built, kept)


def _as_read(strategies: Strategies, layouts: OpLayouts, mesh: MeshShape) -> NDArray[np.bool_]:
    """The strategies of an op that read and write so."""
    pairs = zip(strategies.reads, layouts.reads, strict=True)
    found = np.ones(len(strategies), dtype=bool)
    for one, pattern in (*pairs, (strategies.written[0], layouts.written)):
        if pattern is not None:
            found &= pattern.mask(one, mesh.names, mesh.sizes)
    return found


def _counting(
    problem: Problem, wanted: Mapping[int, NDArray[np.bool_]], weight: Mapping[int, float]
) -> Problem:
    """The same choices, whose only cost is what lies otherwise; memory is left to the search."""
    total = sum(weight.values()) or 1.0
    nodes = tuple(
        replace(node, costs=np.where(wanted[number], 0.0, weight[number] / total))
        if number in wanted
        else replace(node, costs=np.zeros(node.costs.size))
        for number, node in enumerate(problem.nodes)
    )
    tables: dict[int, NDArray[np.float64]] = {}

    def barred(edge: Edge) -> Edge:
        if isinstance(edge.costs, Allowed):
            return edge
        if id(edge.costs) not in tables:
            tables[id(edge.costs)] = np.where(np.isinf(edge.costs), np.inf, 0.0)
        return replace(edge, costs=tables[id(edge.costs)])

    return Problem(nodes, tuple(map(barred, problem.edges)), (), None, 0.0)
