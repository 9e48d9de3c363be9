"""Large-neighbourhood search with exact sub-solves: plans over small sets of choices of all nodes.

Where memory binds, good plans differ from the incumbent in many places at once: what one tensor
gives up another may use. A window keeps, at every node, the incumbent's choice and those whose
reduced cost is small (a tiny part of the gap) or which plans met lately took; in a random region of
the graph it keeps far more.
What is left presolves to a few thousand pairs and is solved to optimality with its memory rows.
The size of windows follows the time that they take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.kernels import grow_region
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.primal import ForestSearch
from autoshard.solve.reduce.trail import InfeasibleError
from autoshard.solve.state import DoneError, Search

ENTRIES = 20_000
"""Table entries between kept choices that the first window may have."""
FEWEST, MOST = 1_000, 1_000_000
"""Windows are not made smaller or larger than this."""
GROWS, FALLS = 2.0, 0.6
"""How windows grow when they are solved quickly, and fall when they are not."""
QUICK = 0.15
"""A window is quick when it takes at most this part of the time that it may take."""
PATIENCE, MOST_SHARE = 5.0, 0.15
"""The first windows may take so many seconds; none more than this part of the time left."""
POOL = 12
"""So many plans met lately lend their choices to every window."""
NOISE = 1.0
"""The spread of the logarithm of the weights by which nodes' reduced costs count."""
STALE = 6
"""After so many windows without a better plan they may take half as long again."""
SMALLEST = 8
"""Nodes of the smallest region; sizes are drawn between it and half the graph, log-uniformly."""
ROUNDS = 3
"""One window in so many has no region."""


@dataclass(slots=True, eq=False)
class Windows:
    """Windows about the incumbent of the current level of a search.

    `solve` works on a search that has been reduced, until DoneError or InfeasibleError.
    """

    search: Search
    plans: ForestSearch
    solve: Callable[[Search], None]
    entries: float = ENTRIES
    _count: int = 0
    _pool: list[np.ndarray] = field(default_factory=list)
    _stale: int = 0
    _patience: float = PATIENCE
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.search.seed)

    def improve(self, extra: np.ndarray) -> None:
        """Solve one window; the search learns of a better plan.

        `extra` is by how much a plan with each choice must exceed the bound.
        """
        search = self.search
        flat = search.level.flat
        best = search.objective
        picked = self._incumbent(extra)
        self._pool = [*self._pool, picked, self.plans.picked.copy()][-POOL:]
        # Every so often there is no region: the choices of least reduced cost, wherever they are.
        inside = np.zeros(flat.node_count, dtype=np.bool_)
        if self._count % ROUNDS:
            inside[self._region()] = True
        self._count += 1
        kept = self._window(extra, picked, inside)
        if kept is None:
            return
        seconds = min(self._patience, MOST_SHARE * search.left())
        taken, done = self._solve(kept, picked, seconds)
        if not done:
            self.entries = max(FEWEST, FALLS * self.entries)
        elif taken < QUICK * seconds:
            self.entries = min(MOST, GROWS * self.entries)
        self._stale = 0 if search.objective < best else self._stale + 1
        if self._stale >= STALE:
            self._patience, self._stale = 1.5 * self._patience, 0
        if search.objective < best:
            self.plans.begin_with(search.project(search.choices or ()))
        search.check_done()

    def _incumbent(self, extra: np.ndarray) -> np.ndarray:
        """The incumbent at this level; where its choice was dropped, the cheapest that is left."""
        flat = self.search.level.flat
        picked = self.search.project(self.search.choices or ())
        for node in np.flatnonzero(picked < 0):
            start, stop = flat.span(int(node))
            picked[node] = int(extra[start:stop].argmin())
        return picked

    def _region(self) -> np.ndarray:
        flat = self.search.level.flat
        count = flat.node_count
        most = max(count // 2, SMALLEST + 1)
        size = min(int(SMALLEST * (most / SMALLEST) ** self._random.random()) + 1, count)
        turns = self._random.integers(count, size=count)
        order = np.zeros(count, dtype=np.int64)
        got = grow_region(flat, turns, size, np.zeros(count, dtype=np.bool_), order)
        return order[:got]

    def _window(
        self, extra: np.ndarray, picked: np.ndarray, inside: np.ndarray
    ) -> dict[int, np.ndarray] | None:
        """The choices of least reduced cost, as many as the size of windows allows.

        Reduced costs count by random weights, and far less inside the region.
        """
        flat = self.search.level.flat
        sizes = np.diff(flat.node_start)
        owner = np.repeat(np.arange(flat.node_count), sizes)
        weight = self._random.lognormal(sigma=NOISE, size=flat.node_count)
        weight[inside] *= 10.0 ** self._random.uniform(-3.0, -0.5)
        rank = extra * weight[owner]
        for plan in self._pool:
            rank[flat.node_start[:-1] + plan] = 0.0
        rank[flat.node_start[:-1] + picked] = -1.0
        order = np.sort(rank)
        low, high = 0, order.size
        while high - low > 1:
            middle = (low + high) // 2
            counts = np.bincount(owner[rank <= order[middle]], minlength=flat.node_count)
            several = (counts[flat.u] > 1) & (counts[flat.v] > 1)
            entries = float((counts[flat.u] * counts[flat.v])[several].sum())
            low, high = (middle, high) if entries <= self.entries else (low, middle)
        keep = rank <= order[low]
        if keep.sum() <= flat.node_count:
            return None
        return {
            node: np.flatnonzero(keep[flat.node_start[node] : flat.node_start[node + 1]])
            for node in range(flat.node_count)
        }

    def _solve(
        self, kept: dict[int, np.ndarray], picked: np.ndarray, seconds: float
    ) -> tuple[float, bool]:
        """Solve one window; returns the seconds taken, and whether it was solved to its end."""
        search = self.search
        started = time.monotonic()
        deadline = min(search.deadline, started + seconds)
        inner = Search(search.level.problem, deadline, seed=int(self._random.integers(2**31)))
        inner.offer_original(picked.tolist())
        done = True
        try:
            inner.descend(kept)
            self.solve(inner)
        except InfeasibleError:
            pass
        except DoneError:
            done = inner.limit_hit is not LimitHit.TIME
        if inner.choices is not None:
            search.offer(inner.choices)
        return time.monotonic() - started, done
