"""A built problem with fewer choices: what is forbidden is absent, not dear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoshard.problem.build import Built
from autoshard.problem.value_choices import ValueChoices
from autoshard.program.strategies import Strategies


def narrowed(built: Built, masks: Mapping[int, NDArray[np.bool_]]) -> Built:
    """The built problem with only some of the choices of its nodes.

    Args:
      built: the whole problem.
      masks: by node, which of its choices stay; at least one of each.
    """
    problem = built.problem
    left = {n: np.flatnonzero(m) for n, m in masks.items() if not m.all()}
    if not left:
        return built
    nodes = tuple(
        replace(node, costs=node.costs[left[n]]) if n in left else node
        for n, node in enumerate(problem.nodes)
    )
    edges = tuple(edge.among(left) for edge in problem.edges)
    usages = tuple(
        replace(usage, amounts=usage.amounts[left[usage.node]]) if usage.node in left else usage
        for usage in problem.usages
    )
    choices = {
        number: _rows_of_choices(built.value_choices[number], left[node])
        if node in left
        else built.value_choices[number]
        for number, node in built.value_node.items()
    }
    strategies = dict(built.op_strategies)
    for number, node in built.op_node.items():
        if node in left:
            strategies[number] = _rows_of_strategies(strategies[number], left[node])
    return replace(
        built,
        problem=replace(problem, nodes=nodes, edges=edges, usages=usages),
        value_choices=choices,
        op_strategies=strategies,
    )


def _rows_of_choices(choices: ValueChoices, rows: NDArray[np.int64]) -> ValueChoices:
    return replace(
        choices, stored=choices.stored[rows], copy=choices.copy[rows], mode=choices.mode[rows]
    )


def _rows_of_strategies(strategies: Strategies, rows: NDArray[np.int64]) -> Strategies:
    return Strategies(
        strategies.assignment[rows],
        tuple(read[rows] for read in strategies.reads),
        tuple(one[rows] for one in strategies.written),
        tuple(one[rows] for one in strategies.stored),
        strategies.reduced[rows],
        strategies.scattered[rows],
        strategies.shards[rows],
    )
