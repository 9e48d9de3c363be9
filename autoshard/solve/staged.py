"""Solve first without the memory limit, then only what is left with it.

The problem without its limit is a relaxation, so its bound holds; its linear relaxation is nearly
always integral on real programs, and its nodes can be eliminated freely. In stages, each of which
may end the search:

    1  message passing on the whole relaxation gives a first bound L
    2  with a plan of cost U known (a warm start), choices whose reduced cost exceeds U - L go
    3  presolve, then the linear program by simplex: a bound, and nearly always the optimum itself
    4  where that optimum breaks the limit: the general search on the remaining choices

Choices dropped in stage 2 cannot be in a plan cheaper than U, with or without the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.evaluate import evaluate
from autoshard.solve.exact import Verdict, solve_linear
from autoshard.solve.flat import Flat, flatten
from autoshard.solve.linear import linear_model
from autoshard.solve.pipeline import OPTIMAL_GAP, solve
from autoshard.solve.presolve import presolve
from autoshard.solve.problem import (
    Outcome,
    Problem,
    Progress,
    Report,
    Solution,
    Status,
    relative_gap,
)
from autoshard.solve.workspace import InfeasibleError

PRESOLVE_CHOICES = 150_000
"""Above this many choices presolve waits until reduced costs have dropped most of them."""
LINEAR_PAIRS = 400_000
"""Above this many allowed pairs the linear program is left out."""
LIFT = 2e-9
"""Slack for rounding when choices are dropped or an optimum is claimed, relative."""


class _DoneError(Exception):
    """The wanted gap is reached, or nothing is left to do."""


@dataclass(slots=True)
class _State:
    """The best plan and bound so far."""

    problem: Problem
    gap: float
    started: float
    deadline: float
    progress: Callable[[Progress], None] | None
    objective: float = np.inf
    bound: float = -np.inf
    choices: tuple[int, ...] | None = None
    kept: dict[int, np.ndarray] = field(default_factory=dict)
    prices: tuple[tuple[int, float], ...] = ()

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def tell(self, phase: str, nodes: int) -> None:
        if self.progress is not None:
            seconds = time.monotonic() - self.started
            gap = relative_gap(self.objective, self.bound)
            self.progress(Progress(phase, self.objective, self.bound, gap, seconds, nodes))

    def offer(self, choices: Sequence[int]) -> bool:
        found = evaluate(self.problem, choices)
        if found.violations:
            return False
        if found.objective < self.objective:
            self.objective = found.objective
            self.choices = tuple(int(choice) for choice in choices)
        return True

    def raise_bound(self, bound: float) -> None:
        self.bound = max(self.bound, min(bound, self.objective))
        if self.choices is None:
            return
        if relative_gap(self.objective, self.bound) <= max(self.gap, OPTIMAL_GAP):
            raise _DoneError


def solve_staged(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    gap: float = 0.0,
    warm_start: Sequence[Sequence[int]] = (),
    progress: Callable[[Progress], None] | None = None,
    pins: Mapping[int, Sequence[int] | np.ndarray] | None = None,
    known_bound: float = -np.inf,
) -> Outcome:
    """The cheapest plan of a problem, with a proven bound; arguments as for `solve`.

    `known_bound` is a bound on the objective that the caller can prove by other means.
    """
    started = time.monotonic()
    state = _State(problem, gap, started, started + time_limit, progress)
    state.kept = {node: np.asarray(chosen, dtype=np.int64) for node, chosen in (pins or {}).items()}
    for plan in warm_start:
        if all(plan[node] in chosen for node, chosen in state.kept.items()):
            state.offer(plan)
    limit_hit: str | None = None
    try:
        if np.isfinite(state.objective):
            state.tell("warm start", len(problem.nodes))
        state.raise_bound(known_bound)
        relaxed = replace(problem, limit=None)
        _prune(state, relaxed)
        _linear(state, relaxed)
        outcome = solve(
            problem,
            time_limit=max(state.left(), 0.1),
            gap=gap,
            warm_start=[state.choices] if state.choices else [],
            progress=_shifted(state),
            pins={node: chosen.tolist() for node, chosen in state.kept.items()},
        )
        state.prices = outcome.report.prices
        limit_hit = outcome.report.limit_hit
        if outcome.solution is not None:
            state.offer(outcome.solution.choices)
        elif state.choices is None and outcome.status is Status.INFEASIBLE:
            return _outcome(state, Status.INFEASIBLE, None)
        if outcome.report.bound > state.bound:
            state.raise_bound(outcome.report.bound)
    except InfeasibleError:
        if state.choices is None:
            return _outcome(state, Status.INFEASIBLE, None)
        state.bound = state.objective
    except _DoneError:
        pass
    except KeyboardInterrupt:
        limit_hit = "interrupted"
    status = Status.UNKNOWN if state.choices is None else Status.FEASIBLE
    if state.choices is not None and relative_gap(state.objective, state.bound) <= OPTIMAL_GAP:
        status = Status.OPTIMAL
    if status is Status.FEASIBLE and limit_hit is None:
        limit_hit = "gap"
    return _outcome(state, status, None if status is Status.OPTIMAL else limit_hit)


def _outcome(state: _State, status: Status, limit_hit: str | None) -> Outcome:
    solution = None if state.choices is None else Solution(state.choices)
    seconds = time.monotonic() - state.started
    gap = relative_gap(state.objective, state.bound)
    report = Report(status, state.objective, state.bound, gap, seconds, limit_hit, state.prices)
    return Outcome(status, solution, report)


def _shifted(state: _State) -> Callable[[Progress], None]:
    """News of the general search, with the better bound that is known already."""

    def tell(news: Progress) -> None:
        bound = max(news.bound, state.bound)
        objective = min(news.objective, state.objective)
        seconds = time.monotonic() - state.started
        gap = relative_gap(objective, bound)
        if state.progress is not None:
            state.progress(Progress(news.phase, objective, bound, gap, seconds, news.nodes_left))

    return tell


def _restricted(problem: Problem, kept: Mapping[int, np.ndarray]) -> Problem:
    """The problem with nodes cut down to some of their choices (usages are dropped)."""
    nodes = list(problem.nodes)
    for node, chosen in kept.items():
        nodes[node] = replace(nodes[node], costs=nodes[node].costs[chosen])
    edges = [
        replace(
            edge,
            left=edge.left[kept[edge.u]] if edge.u in kept else edge.left,
            right=edge.right[kept[edge.v]] if edge.v in kept else edge.right,
        )
        if edge.u in kept or edge.v in kept
        else edge
        for edge in problem.edges
    ]
    return Problem(tuple(nodes), tuple(edges), (), None, problem.offset)


def _prune(state: _State, relaxed: Problem) -> None:
    """Stages 1 and 2: bound the relaxation by messages, drop choices by their reduced cost."""
    if sum(node.costs.size for node in relaxed.nodes) < PRESOLVE_CHOICES:
        return  # presolve and the linear program are quicker than that
    small = _restricted(relaxed, state.kept)
    flat = flatten(small)
    dual = DualAscent(flat)
    upper = state.objective - relaxed.offset
    deadline = min(state.deadline, time.monotonic() + max(1.0, 0.3 * state.left()))
    before = -np.inf
    while time.monotonic() < deadline:
        dual.run(upper, deadline, 20)
        if dual.bound <= before + 1e-6 * abs(before):
            break
        before = dual.bound
    bound, _, extra = dual.appraisal()
    state.raise_bound(bound + relaxed.offset)
    state.tell("bound", len(relaxed.nodes))
    if not np.isfinite(state.objective):
        return
    keep = bound + relaxed.offset + extra <= state.objective * (1 + LIFT)
    for node in range(len(small.nodes)):
        chosen = np.flatnonzero(keep[flat.node_start[node] : flat.node_start[node + 1]])
        if not len(chosen):
            raise InfeasibleError("nothing is cheaper than the plan known")
        own = state.kept.get(node)
        state.kept[node] = chosen if own is None else own[chosen]


def _linear(state: _State, relaxed: Problem) -> None:
    """Stage 3: presolve, and the linear relaxation of what is left."""
    if (
        sum(len(state.kept.get(k, n.costs)) for k, n in enumerate(relaxed.nodes))
        > 4 * PRESOLVE_CHOICES
    ):
        return
    small = _restricted(relaxed, state.kept)
    # Comparing choices pays where there are few of them.
    dominance = sum(node.costs.size for node in small.nodes) < PRESOLVE_CHOICES
    reduced, trail = presolve(small, dominance=dominance)
    state.tell("presolve", len(reduced.nodes))

    def offer(picked: Sequence[int]) -> bool:
        plan = list(trail.expand(picked))
        for node, chosen in state.kept.items():
            plan[node] = int(chosen[plan[node]])
        return state.offer(plan)

    if not reduced.nodes:
        fits = offer(())
        state.raise_bound(reduced.offset)
        if not fits:
            return
        raise _DoneError
    flat = flatten(reduced)
    if int(np.isfinite(flat.tables).sum()) > LINEAR_PAIRS:
        return
    model = linear_model(flat)
    for relax in (True, False):
        result = solve_linear(model, relax=relax, time_limit=max(state.left(), 0.1))
        if result.verdict is Verdict.INFEASIBLE:
            raise InfeasibleError("the linear program has no solution")
        picked = None if result.values is None else _picked(flat, result.values)
        fits = picked is not None and offer(picked)
        bound = result.bound + reduced.offset
        if np.isfinite(bound):
            state.raise_bound(bound - LIFT * abs(bound))
        state.tell("linear program" if relax else "integer program", len(reduced.nodes))
        if result.verdict is not Verdict.OPTIMAL:
            return
        if result.values is not None and (not relax or _is_integral(flat, result.values)):
            if fits:
                state.raise_bound(min(state.objective, bound))
            return


def _picked(flat: Flat, values: np.ndarray) -> list[int]:
    starts = flat.node_start
    return [
        int(values[starts[k] : starts[k + 1]].argmax()) if starts[k + 1] > starts[k] else 0
        for k in range(flat.node_count)
    ]


def _is_integral(flat: Flat, values: np.ndarray) -> bool:
    starts = flat.node_start[:-1]
    return bool((np.maximum.reduceat(values[: flat.costs.size], starts) > 1 - 1e-6).all())
