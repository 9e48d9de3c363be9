"""The way back from a reduced problem to the one it was made from.

Every edit that takes away choices or nodes leaves one step, for all nodes that it touched at once.
A plan of what is left becomes a plan of the original by reading the steps backwards
(`Trail.expand`), and a plan of the original becomes one of what is left by reading them forwards
(`Trail.project`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.solve.problem import Integers
from autoshard.solve.reduce.interned import spans
from autoshard.units import counted


class InfeasibleError(Exception):
    """Raised inside the solver when a node is left without choices or memory cannot fit."""


@dataclass(frozen=True, slots=True, eq=False)
class Restrict:
    """nodes[k] kept the choices maps[starts[k] : starts[k] + sizes[k]], in ascending order."""

    nodes: Integers
    starts: Integers
    sizes: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Follow:
    """nodes[k] takes choice maps[starts[k] + choice of leaders[k]]; no leader is a follower."""

    nodes: Integers
    leaders: Integers
    starts: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """nodes[k] takes choices[k]."""

    nodes: Integers
    choices: Integers


@dataclass(frozen=True, slots=True, eq=False)
class FollowPair:
    """`node` takes choices[left[choice of u], right[choice of v]]."""

    node: int
    u: int
    v: int
    left: Integers
    right: Integers
    choices: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """`node` became part of `leader`, whose choice p stands for (of_leader[p], of_node[p]).

    The pairs stand in ascending order.
    """

    node: int
    leader: int
    of_node: Integers
    of_leader: Integers


Step = Restrict | Follow | Fixed | FollowPair | Join


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """The inverse of a reduction.

    `kept` are the original numbers of the nodes that are left, of `count` nodes; the number `count`
    itself stands for a node added to carry fixed load. `maps` are the maps that the steps name.
    """

    steps: tuple[Step, ...]
    kept: tuple[int, ...]
    count: int
    maps: Integers

    @property
    def size(self) -> int:
        return self.count + 1

    def expand(self, choices: Sequence[int]) -> tuple[int, ...]:
        """A plan of the original problem from a plan of the reduced one."""
        if len(choices) != len(self.kept):
            raise ValueError(
                f"{counted(len(choices), 'choice')} for "
                f"{counted(len(self.kept), 'node')}; give one each"
            )
        picked = np.zeros(self.size, dtype=np.int64)
        picked[list(self.kept)] = np.asarray(choices, dtype=np.int64)
        for step in reversed(self.steps):
            if isinstance(step, Restrict):
                picked[step.nodes] = self.maps[step.starts + picked[step.nodes]]
            elif isinstance(step, Follow):
                picked[step.nodes] = self.maps[step.starts + picked[step.leaders]]
            elif isinstance(step, Fixed):
                picked[step.nodes] = step.choices
            elif isinstance(step, FollowPair):
                row, column = step.left[picked[step.u]], step.right[picked[step.v]]
                picked[step.node] = step.choices[row, column]
            else:
                pair = picked[step.leader]
                picked[step.node] = step.of_node[pair]
                picked[step.leader] = step.of_leader[pair]
        return tuple(picked[: self.count].tolist())

    def project(self, choices: Sequence[int], *, exact: bool = False) -> tuple[int, ...]:
        """The reduced plan nearest to an original one; -1 where its choice was dropped.

        Of nodes that were joined, one's choice may stand for both; not with `exact`.
        """
        picked = np.zeros(self.size, dtype=np.int64)
        picked[: len(choices)] = np.asarray(choices, dtype=np.int64)
        for step in self.steps:
            if isinstance(step, Restrict):
                picked[step.nodes] = self._kept_positions(step, picked[step.nodes])
            elif isinstance(step, Join):
                alike = step.of_leader == picked[step.leader]
                pairs = np.flatnonzero(alike & (step.of_node == picked[step.node]))
                pairs = pairs if pairs.size or exact else np.flatnonzero(alike)
                picked[step.leader] = pairs[0] if pairs.size else -1
        return tuple(picked[list(self.kept)].tolist())

    def _kept_positions(self, step: Restrict, picked: Integers) -> Integers:
        """Where the picked choices went when nodes were restricted; -1 where they were dropped."""
        kept = self.maps[spans(step.starts, step.sizes)]
        owner = np.repeat(np.arange(step.nodes.size), step.sizes)
        hits = np.flatnonzero(kept == picked[owner])
        found = np.full(step.nodes.size, -1, dtype=np.int64)
        begins = np.cumsum(step.sizes) - step.sizes
        found[owner[hits]] = hits - begins[owner[hits]]
        return found
