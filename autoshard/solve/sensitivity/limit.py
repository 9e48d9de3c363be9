"""What memory is worth: the price of a byte, and what a change of the limit really gains.

With prices p >= 0 on the memory rows and duals of everything else, relaxation at the limit M proves

    B(M')  =  B  -  p (M' - M),         p = the sum of the prices,

of every limit M' at once: the prices and the duals stay feasible, and only the capacity of the rows
that they price moves. So the cheapest plan at M' costs at least B(M'). Where they are the best at
M, B(M') touches the relaxed value

    R(M')  =  the largest bound that any prices and duals prove

at M' = M. R is convex and falls with the limit (a maximum of such lines), so -p is a subgradient of
R: a byte more saves at most p there, and a byte less costs at least p (Geoffrion, Lagrangean
relaxation for integer programming, https://doi.org/10.1007/BFb0120690). That is to first order, and
of the relaxed value: the cost of the cheapest plan falls in steps, as plans begin to fit.
`limit_gain` solves again, and says what that step is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from autoshard.solve.backends.exact import Verdict, solve_linear
from autoshard.solve.backends.linear import linear_model, pair_count, with_memory
from autoshard.solve.flat import flatten, row_times
from autoshard.solve.problem import Outcome, Problem, ProblemError, Report, Status, relative_gap
from autoshard.solve.reduce.presolve import InfeasibleError, presolve
from autoshard.solve.relaxed import broken_rows
from autoshard.solve.sensitivity.nearby import Pins, solve_again
from autoshard.solve.whole import ascent_of, tightened

GIVEN_PAIRS = 20_000
"""Up to so many pairs of groups the linear program is that of the problem as given."""
LINEAR_PAIRS = 400_000
"""Above this many pairs after presolve the linear program is left out."""
COMPARED_CHOICES = 150_000
"""Above this many choices they are not compared with each other."""
CLOSE = 1e-6
"""Messages that prove a plan to within this gap are not improved upon."""
LIFT = 1e-9
"""What rounding may add to the bound of a linear program, relatively."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPrice:
    """The price of a byte at a limit, and the bound that it belongs to.

    `bound` is what relaxation proves at `limit`; `prices` are those of the memory rows by time;
    `objective` is the cost of the plan known at the limit. Nothing is proven of limits above
    `highest`. Costs are in the units of the problem.
    """

    limit: float
    objective: float
    bound: float
    prices: tuple[tuple[int, float], ...]
    highest: float = np.inf

    @property
    def per_byte(self) -> float:
        """What a byte more saves at most, to first order and in relaxation."""
        return sum(price for _, price in self.prices)

    def bound_at(self, limit: float) -> float:
        """What no plan at another limit (bytes) costs less than; -inf above `highest`."""
        if limit > self.highest:
            return -np.inf
        return self.bound - self.per_byte * (limit - self.limit) if self.prices else self.bound

    def most_saved(self, extra_bytes: float) -> float:
        """What so many more bytes can save at most, of the cost of the plan known."""
        return max(0.0, self.objective - self.bound_at(self.limit + extra_bytes))

    def __str__(self) -> str:
        if not self.prices:
            return f"a byte more than {self.limit:.9g} saves nothing, in relaxation"
        rows = ", ".join(f"{price:.3g} at time {when}" for when, price in self.prices)
        return (
            f"a byte more than {self.limit:.9g} saves at most {self.per_byte:.6g} in relaxation "
            f"({rows}); bound {self.bound:.9g}, plan {self.objective:.9g}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class LimitGain:
    """What the cheapest plan saves when the limit grows by `extra_bytes`; these may be negative.

    The saving is proven to lie between `least` and `most`; both are -inf where no plan keeps the
    lower limit.
    """

    extra_bytes: float
    least: float
    most: float
    before: Report
    after: Outcome

    @property
    def proven(self) -> bool:
        """Whether the saving is known exactly (both plans are proven optimal)."""
        known = self.after.status in (Status.OPTIMAL, Status.INFEASIBLE)
        return known and self.before.status is Status.OPTIMAL

    def __str__(self) -> str:
        more = f"{abs(self.extra_bytes):.9g} bytes {'more' if self.extra_bytes >= 0 else 'less'}"
        if self.after.status is Status.INFEASIBLE:
            return f"with {more} no plan keeps the limit"
        if self.proven:
            return f"{more} save {self.least:.6g}"
        return f"{more} save between {self.least:.6g} and {self.most:.6g}"


def memory_price(
    problem: Problem,
    outcome: Outcome,
    *,
    pins: Pins | None = None,
    above: float = 0.05,
    time_limit: float = 10.0,
) -> MemoryPrice:
    """The price of a byte at the limit of a problem that was solved.

    From the messages of the outcome, where they prove its plan; else from the linear program, of
    the problem as given where it is small, of what presolve leaves where it is not; else from
    messages made now.

    Args:
      pins: those under which the problem was solved.
      above: presolve is made for a limit that is higher by this part, and `highest` is that limit.
        Rows of memory that cannot be broken there have no price.
      time_limit: seconds.

    Raises:
      ProblemError: the problem has no limit, or no plan keeps it.
    """
    if problem.limit is None:
        raise ProblemError("the problem has no memory limit, so a byte has no price; give a limit")
    if outcome.status is Status.INFEASIBLE:
        raise ProblemError(f"no plan keeps the limit of {problem.limit:.17g} bytes; raise it")
    stop = time.monotonic() + time_limit
    objective = outcome.report.objective
    found = [_from_messages(problem, outcome, pins)]
    if relative_gap(objective, found[0].bound) > CLOSE:
        found.append(_from_linear_program(problem, outcome, pins or {}, above, 0.7 * time_limit))
    if outcome.duals.messages is None and all(
        relative_gap(objective, price.bound) > CLOSE for price in found
    ):
        better = tightened(problem, outcome, time_limit=max(stop - time.monotonic(), 0.0))
        found.append(_from_messages(problem, better, pins))
    return max(found, key=lambda price: price.bound)


def _from_messages(problem: Problem, outcome: Outcome, pins: Pins | None) -> MemoryPrice:
    """What the duals of an outcome prove."""
    assert problem.limit is not None
    nothing = MemoryPrice(problem.limit, outcome.report.objective, -np.inf, ())
    if outcome.duals.messages is None:
        return nothing
    kept = {node: np.unique(np.asarray(own, np.int64)) for node, own in (pins or {}).items()}
    ascent, times = ascent_of(problem, outcome.duals, kept)
    bound = ascent.check() + problem.offset
    return replace(nothing, bound=bound, prices=_priced(times, ascent.best_prices))


def _from_linear_program(
    problem: Problem, outcome: Outcome, pins: Pins, above: float, time_limit: float
) -> MemoryPrice:
    """What a linear program proves, with the memory rows that it breaks."""
    assert problem.limit is not None
    stop = time.monotonic() + time_limit
    found = MemoryPrice(problem.limit, outcome.report.objective, -np.inf, ())
    reduced = problem
    pairs = sum(edge.table.size for edge in problem.edges)
    count = sum(node.costs.size for node in problem.nodes)
    if pins or pairs > GIVEN_PAIRS or count > GIVEN_PAIRS:
        found = replace(found, highest=problem.limit * (1 + above))
        raised = replace(problem, limit=found.highest)
        try:
            reduced, _ = presolve(raised, pins, dominance=count < COMPARED_CHOICES)
        except InfeasibleError as error:
            raise ProblemError(f"no plan keeps the limit: {error}") from None
        reduced = replace(reduced, limit=None if reduced.limit is None else problem.limit)
    if not reduced.nodes:
        return replace(found, bound=reduced.offset)
    flat, times = flatten(reduced), row_times(reduced)
    if pair_count(flat) > LINEAR_PAIRS:
        return found
    model, rows = linear_model(flat), np.zeros(0, dtype=np.int64)
    while (left := stop - time.monotonic()) > 0:
        result = solve_linear(with_memory(model, flat, rows), relax=True, time_limit=left)
        if result.verdict is not Verdict.OPTIMAL or result.row_duals is None:
            return found
        bound = result.bound - LIFT * abs(result.bound) + reduced.offset
        if bound > found.bound:
            prices = np.zeros(times.size)
            scale = 1.0 / np.maximum(np.abs(flat.capacity[rows]), 1.0)
            prices[rows] = np.maximum(0.0, -result.row_duals[model.lower.size :]) * scale
            found = replace(found, bound=bound, prices=_priced(times, prices))
        new = broken_rows(flat, result.values) if result.values is not None else rows[:0]
        if np.isin(new, rows).all():
            return found
        rows = np.union1d(rows, new)
    return found


def _priced(times: np.ndarray, prices: np.ndarray) -> tuple[tuple[int, float], ...]:
    pairs = zip(times.tolist(), prices.tolist(), strict=True)
    return tuple((when, price) for when, price in pairs if price > 0)


def limit_gain(
    problem: Problem,
    outcome: Outcome,
    extra_bytes: float,
    *,
    pins: Pins | None = None,
    time_limit: float = 60.0,
    gap: float = 0.0,
    seed: int = 0,
) -> LimitGain:
    """What the cheapest plan saves when the limit grows by some bytes, by solving again.

    With v the cheapest plan's cost at the limit M, the saving is v(M) - v(M + extra).

    Args:
      extra_bytes: may be negative; the limit stays at least 0.
      pins: those under which the problem was solved; they stay.
      time_limit, gap, seed: as in `solve`.

    Raises:
      ProblemError: the problem has no limit, or no plan was found for it.
    """
    if problem.limit is None:
        raise ProblemError("the problem has no memory limit, so no byte more; give a limit")
    if outcome.solution is None:
        raise ProblemError(
            f"no plan is known at the limit of {problem.limit:.17g} bytes, so nothing is saved by "
            "more; solve the problem first, or raise its limit"
        )
    after = replace(problem, limit=max(problem.limit + extra_bytes, 0.0))
    again = solve_again(
        problem,
        outcome,
        after,
        pins_before=pins,
        pins=pins,
        time_limit=time_limit,
        gap=gap,
        seed=seed,
    )
    before = outcome.report
    least = before.bound - again.report.objective
    most = before.objective - again.report.bound
    if again.status is Status.INFEASIBLE:
        least = most = -np.inf
    elif extra_bytes >= 0:
        least = max(least, 0.0)
    else:
        most = min(most, 0.0)
    return LimitGain(extra_bytes, least, most, before, again)
