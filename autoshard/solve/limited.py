"""The problem with its memory limit: dual and plans in turns, smaller levels, exact sub-problems.

problem --presolve--> level --+--> dual bound, prices ------------+
             ^                |                                   v
             +-- choices whose reduced cost exceeds the gap go <- plans by forest moves
                              |                                   ^
                              +--> exact, where it is small ------+
                              +--> exact windows, where it is not +
                              +--> a tree of splits, beside them: the bound
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autoshard.solve.backends.linear import pair_count
from autoshard.solve.branch.beside import Beside
from autoshard.solve.branch.dive import Dive
from autoshard.solve.branch.tree import Solved, Tree
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.primal import ForestSearch
from autoshard.solve.problem import Duals
from autoshard.solve.reduce.trail import InfeasibleError
from autoshard.solve.relaxed import solve_exactly
from autoshard.solve.state import OPTIMAL_GAP, DoneError, Search
from autoshard.solve.turns import Kind, Turns
from autoshard.solve.unlimited import solve_unlimited
from autoshard.solve.whole import prices_at
from autoshard.solve.windows import Windows

EXACT_PAIRS = 60_000
"""The exact solver takes over below this many pair variables."""
# A round is so many passes of the dual, and as many nodes decided again, in parts of the graph.
FIRST_ROUND = 15
PASSES_PER_ROUND = 100
WORK_PER_ROUND = 1.0
# Before the first plan: rounds of passes, until one gains less than this part of the bound.
SETTLING_ROUNDS = 20
SETTLING_PASSES = 30
SETTLED = 1e-3
# Rounds without a better plan after which the dual is rounded afresh.
STALE_ROUNDS = 4
# The softness of the ascent on a problem that is not a window of another: prices of few rows, which
# change all plans, are found sooner than with a harder one.
SOFTNESS = 1e-3
# Choices are dropped once this part of them is left; with a tree that closes this part of the gap,
# which is lost then, once fewer are.
FEWER, GROWN, REGROWN = 0.9, 0.1, 0.5
# The exact solver has the machine to itself for so many seconds; then splits go on beside it.
ALONE = 3.0
# Seconds that splits have at a time beside it.
BESIDE = 0.2


@dataclass(slots=True, eq=False)
class Limited:
    """The search on the levels of one problem; `starts` are plans of it to begin with.

    A `brief` one ends with a plan once dropping choices no longer helps.
    """

    search: Search
    starts: list[tuple[int, ...]]
    nested: bool = False
    brief: bool = False
    failed_at: float | None = None

    def run(self, duals: Duals | None) -> None:
        """Until DoneError or InfeasibleError."""
        search = self.search
        while True:
            flat, offset = search.level.flat, search.level.problem.offset
            if flat.costs.size == flat.node_count:
                search.offer(np.zeros(flat.node_count, dtype=np.int64))
                search.raise_bound(offset + float(flat.costs.sum()))
                raise InfeasibleError("the one plan left breaks a limit")
            dual = DualAscent(flat) if self.nested else DualAscent(flat, softness=SOFTNESS)
            if duals is not None:
                dual.begin_with(prices_at(duals, search.level.times), dual.messages)
            self._level(dual)
            duals = Duals(search.prices)

    def _level(self, dual: DualAscent) -> None:
        """Work on one level until enough of its choices are dropped for a smaller one."""
        search = self.search
        search.phase = "bound"
        self._settle_bound(dual)
        plans = ForestSearch(search.level.flat, dual.best_prices, dual.best_messages, search.seed)
        self._begin(plans)
        windows = Windows(search, plans, _solve_window)
        turns, tree = Turns(Kind(), Kind()), self._tree(dual)
        beside, dive = Beside(dual, tree), None if tree is None else Dive(tree)
        passes = FIRST_ROUND
        while True:
            search.phase = "search"
            with self._counted(turns.first):
                self._bound_and_plans(dual, plans, passes, dive)
            passes = min(2 * passes, PASSES_PER_ROUND)
            if np.isfinite(search.upper) and self._shrink(dual, tree):
                return
            if self.brief and search.choices is not None:
                search.limit_hit = LimitHit.BOUND
                raise DoneError
            if self._is_small() and (self.failed_at is None or search.gap < self.failed_at):
                search.phase = "exact"
                if not self._exactly(dual, plans, tree):
                    return
                self.failed_at = search.gap * 0.5
            while turns.second_is_due and not self.nested and search.choices is not None:
                search.phase = "windows"
                with self._counted(turns.second):
                    self._window_and_bound(beside, windows)
                if self._shrink(dual, tree):
                    return

    @contextlib.contextmanager
    def _counted(self, kind: Kind) -> Iterator[None]:
        """Count what a turn gains, and its seconds."""
        search, started = self.search, time.monotonic()
        before = search.objective
        yield
        gain = 0.0
        if search.objective < before < np.inf:
            gain = (before - search.objective) / max(abs(before), 1e-300)
        kind.add(gain, time.monotonic() - started)

    def _is_small(self) -> bool:
        return pair_count(self.search.level.flat) <= EXACT_PAIRS

    def _begin(self, plans: ForestSearch) -> None:
        """Begin with the plan known and the warm starts, or else by rounding the dual."""
        known = [self.search.project(plan) for plan in self.starts]
        self.starts = []
        if self.search.choices is not None:
            known.append(self.search.project(self.search.choices))
        for plan in known:
            plans.begin_with(plan)

    def _bound(self, dual: DualAscent, passes: int) -> None:
        search = self.search
        offset = search.level.problem.offset
        before = search.bound
        dual.run(search.upper - offset, search.deadline, passes)
        search.read_prices(dual.best_prices)
        value = dual.check()
        if value > dual.worst:
            raise InfeasibleError("memory: the bound exceeds what any plan costs")
        search.raise_bound(value + offset)
        if search.bound > before:
            search.tell()

    def _settle_bound(self, dual: DualAscent) -> None:
        """Passes until they gain little: plans rounded from poor prices are poor."""
        until = time.monotonic() + 0.1 * self.search.left()
        for _ in range(SETTLING_ROUNDS):
            before = dual.bound
            self._bound(dual, SETTLING_PASSES)
            if dual.bound - before < SETTLED * abs(dual.bound) or time.monotonic() > until:
                return

    def _bound_and_plans(
        self, dual: DualAscent, plans: ForestSearch, passes: int, dive: Dive | None
    ) -> None:
        """One round: plans under the present prices in a second thread, the bound in this one.

        With a tree every other round is for plans in a leaf of it.
        """
        search = self.search
        inside = None if dive is None else dive.next_round()
        plans.prices, plans.messages = dual.best_prices.copy(), dual.best_messages.copy()
        mover = plans if inside is None else inside
        work = WORK_PER_ROUND * passes * search.level.flat.node_count
        mover.stopped = False
        before = plans.best_cost
        worker = threading.Thread(target=mover.run, args=(work, search.deadline))
        worker.start()
        try:
            self._bound(dual, passes)
            worker.join()
        finally:
            mover.stopped = True
            worker.join()
            if mover.best is not None and search.offer(mover.best) and mover is inside:
                plans.begin_with(mover.best)
        if mover is plans:
            plans.stale = plans.stale + 1 if plans.best_cost == before else 0
            if plans.stale >= STALE_ROUNDS:
                plans.begin_afresh()
        search.check_done()

    def _window_and_bound(self, beside: Beside, windows: Windows) -> None:
        """A window in this thread; passes and splits in a second one until it ends."""
        search, dual, tree = self.search, beside.dual, beside.tree
        bound, _, extra = dual.appraisal()
        if tree is not None and tree.begun:
            extra = np.maximum(extra, tree.floor() - bound)
        offset = search.level.problem.offset
        if tree is not None:
            tree.cutoff = search.cutoff - offset
        arguments = search.upper - offset, search.bound - offset, search.deadline
        worker = threading.Thread(target=beside.run, args=arguments)
        worker.start()
        try:
            windows.improve(extra)
        finally:
            beside.stop()
            worker.join()
            beside.go_on()
        self._bound(dual, 1)
        self._hear(tree)

    def _tree(self, dual: DualAscent) -> Tree | None:
        """A tree of the level, where memory binds."""
        if self.nested or self.brief or not dual.flat.capacity.size:
            return None
        level = self.search.level

        def exactly(alive: np.ndarray, cutoff: float, seconds: float) -> Solved:
            kept = _kept_of(level.flat, alive)
            deadline = min(self.search.deadline, time.monotonic() + seconds)
            inner = Search(level.problem, deadline, seed=self.search.seed, kept=kept)
            inner.better_than = cutoff + level.problem.offset
            bound = _solve_part(inner) - level.problem.offset
            if inner.choices is None:
                return Solved(bound, None, False)
            is_best = inner.gap <= OPTIMAL_GAP and inner.objective <= inner.better_than
            return Solved(bound, np.array(inner.choices, dtype=np.int64), is_best)

        return Tree(dual.flat, np.inf, exactly=exactly)

    def _hear(self, tree: Tree | None) -> None:
        """Take the plans and the bound that a tree has come to."""
        if tree is None or not tree.begun:
            return
        search, offset = self.search, self.search.level.problem.offset
        while tree.met:
            search.offer(tree.met.pop())
        tree.cutoff = search.cutoff - offset
        search.raise_bound(tree.bound + offset)
        search.tell()

    def _exactly(self, dual: DualAscent, plans: ForestSearch, tree: Tree | None) -> bool:
        """The exact solver, and splits beside it once it takes long; False for a smaller level."""
        search = self.search
        alone = time.monotonic() + ALONE

        def beside() -> bool:
            if tree is None or time.monotonic() < alone or not np.isfinite(search.upper):
                return True
            offset = search.level.problem.offset
            tree.cutoff = search.cutoff - offset
            tree.run(dual, min(search.deadline, time.monotonic() + BESIDE))
            self._hear(tree)
            left = tree.floor() + offset <= search.cutoff
            return int(left.sum()) > REGROWN * left.size

        solve_exactly(search, dual, plans, beside)
        return not (tree is not None and tree.begun and self._shrink(dual, tree))

    def _shrink(self, dual: DualAscent, tree: Tree | None = None) -> bool:
        """Drop choices that cannot beat the incumbent; True when a smaller level was made."""
        search = self.search
        flat, offset = search.level.flat, search.level.problem.offset
        bound, _, extra = dual.appraisal()
        keep, most = bound + offset + extra <= search.cutoff, FEWER
        if tree is not None and tree.begun:
            keep &= tree.floor() + offset <= search.cutoff
            if tree.bound - bound > GROWN * (search.cutoff - offset - bound):
                most = REGROWN
        if keep.sum() > most * keep.size:
            return False
        search.dropped = True
        search.descend(_kept_of(flat, keep))
        search.tell()
        return True


def _kept_of(flat: Flat, keep: np.ndarray) -> dict[int, np.ndarray]:
    """The choices of each node that are marked."""
    starts = flat.node_start
    return {
        node: np.flatnonzero(keep[starts[node] : starts[node + 1]])
        for node in range(flat.node_count)
    }


def _solve_part(search: Search) -> float:
    """Look for a plan of a part of a problem, to its deadline; what none costs less than."""
    try:
        solve_unlimited(search)
        search.descend(search.kept)
        Limited(search, [], nested=True).run(Duals(search.prices))
    except InfeasibleError:
        search.bound = search.upper
    except DoneError:
        pass
    return min(search.bound, search.upper)


def _solve_window(search: Search) -> None:
    Limited(search, [], nested=True).run(None)
