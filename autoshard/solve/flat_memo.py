"""The arrays of a problem, kept for the next one with the same edges and usages.

Problems of one program on meshes of equal sizes differ, as a rule, in their costs alone. What is
made of edges and usages (tables laid out, their allowed pairs, the choices without support) then
stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoshard.solve.flat import Flat, KnownRows, flatten
from autoshard.solve.problem import Edge, Problem


@dataclass(slots=True, eq=False, repr=False)
class FlatMemo:
    """Arrays of the last problem, without its memory limit and with it.

    `rows` are those of tables (`autoshard.solve.flat.flatten`); memos may share them.
    """

    rows: KnownRows = field(default_factory=dict)
    _known: dict[bool, tuple[Problem, Flat]] = field(default_factory=dict)
    _supported: tuple[Sequence[Edge], np.ndarray] | None = None

    def flat(self, problem: Problem) -> Flat:
        """The arrays of a problem that messages need (`autoshard.solve.flat.flatten`)."""
        limited = problem.limit is not None
        before, flat = self._known.get(limited, (None, None))
        if before is None or flat is None or not _is_alike(before, problem):
            flat = flatten(problem, dense=False, known=self.rows)
        else:
            flat = replace(flat, costs=np.concatenate([node.costs for node in problem.nodes]))
        self._known[limited] = problem, flat
        return flat

    def supported(self, problem: Problem, find: Callable[[], np.ndarray]) -> np.ndarray:
        """Which choices are left: what is known of a problem's edges, or else what `find` gives."""
        if self._supported is None or self._supported[0] is not problem.edges:
            self._supported = problem.edges, find().copy()
        return self._supported[1]

    def learn_supported(self, problem: Problem, alive: np.ndarray) -> None:
        """Keep which choices passes on all choices of a problem left."""
        self.supported(problem, lambda: alive)


def _is_alike(before: Problem, now: Problem) -> bool:
    """Whether two problems differ in their costs alone."""
    if before.edges is not now.edges or len(before.nodes) != len(now.nodes) or not now.nodes:
        return False
    if now.limit is not None and (before.usages is not now.usages or before.limit != now.limit):
        return False
    return all(a.costs.size == b.costs.size for a, b in zip(before.nodes, now.nodes, strict=True))
