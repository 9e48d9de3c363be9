"""One number at a time: over which of its values the plan stays the best.

The plan in question is the one for the machine as it is taken. It **stays best** where no plan is
cheaper by more than a tolerance. Numbers that matter little are searched together, where all of
them are at their best. Else the ends of the number's range are searched; where a known plan is
cheaper there, the value at which it begins to be is found on the evaluator's prices, and searched
too, which may bring a plan that takes over earlier. So each side of the range ends with a proof (a
bound at the very value) or with a plan that refutes it. Between what is taken and such a value,
`autoshard.study.robust.scenarios` bounds how much cheaper others are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import root_scalar

from autoshard.study.robust.plans import Plans
from autoshard.study.robust.scenarios import Axis

RESOLVED = 1e-6
"""The cost at which another plan takes over is found to this part of it."""
TOGETHER = 0.4
"""A plan gains at most this part of the tolerance where numbers are searched together: the search
may leave half of it."""
SEARCHES = 6
"""At most so many searches on one side of a range."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is known from the value that is taken to one end of the range.

    Attributes:
      end: the end of the range.
      proven: up to here the plan stays best, by what is proven there; what is taken, if nothing is.
      within: between what is taken and `proven`, no plan is cheaper by a larger share than this.
      lost: from here on another plan is cheaper by the tolerance; None where none is known.
      successor: the number of that plan.
      saved: the share of its step that the best plan known saves at the end of the range.
      most_saved: no plan saves more there.
    """

    end: float
    proven: float
    within: float
    lost: float | None
    successor: int | None
    saved: float
    most_saved: float


@dataclass(frozen=True, slots=True)
class Line:
    """A number, and both sides of its range."""

    axis: Axis
    low: Side
    high: Side

    @property
    def decides(self) -> bool:
        """Whether another plan is better somewhere in the range."""
        return self.low.lost is not None or self.high.lost is not None

    @property
    def proven(self) -> bool:
        """Whether the plan is proven to stay best in all of it."""
        return self.low.proven == self.low.end and self.high.proven == self.high.end

    @property
    def saved(self) -> float:
        """The share of a step that knowing the number would save at most, of what is known."""
        return max(self.low.saved, self.high.saved)


def line(plans: Plans, axis: int, plan: int, tolerance: float) -> Line:
    """Both sides of the range of one number.

    Args:
      plans: what is known; grows.
      axis: which number of the box.
      plan: the plan in question, found for the machine as it is taken.
      tolerance: share by which another plan must be cheaper to count as better.
    """
    one = plans.box.axes[axis]
    low, high = (_side(plans, axis, plan, tolerance, end) for end in (one.low, one.high))
    return Line(one, low, high)


def search_together(plans: Plans, plan: int, tolerance: float) -> None:
    """Search where several numbers that matter little are at their best at once.

    No plan is quicker where one of them is at its best alone: so one search answers for all of
    them, as long as the plan itself gains little there. Where it gains more, a search for every
    number says more. Arguments are those of `line`.
    """
    box = plans.box
    own = plans.seconds(box.taken, plan)

    def at_best(group: list[int]) -> tuple[float, ...]:
        return tuple(
            axis.fast if k in group else axis.taken for k, axis in enumerate(plans.box.axes)
        )

    def gains(group: list[int]) -> float:
        return 1 - plans.seconds(at_best(group), plan) / own if own > 0 else 0.0

    gained = {k: gains([k]) for k, axis in enumerate(box.axes) if axis.fast < axis.taken}
    group: list[int] = []
    for k in sorted(gained, key=gained.__getitem__):
        if gains([*group, k]) > TOGETHER * tolerance:
            break
        group.append(k)
    if len(group) > 1 and plans.may_search():
        plans.heard("numbers that matter little, together")
        plans.solve(at_best(group))


def _side(plans: Plans, axis: int, plan: int, tolerance: float, end: float) -> Side:
    one = plans.box.axes[axis]
    number = one.number
    taken = number.value
    if end == taken:
        return Side(end, end, 0.0, None, None, 0.0, 0.0)
    far = number.cost(end)
    point = plans.box.along(axis, far)
    proven, lost, successor = one.taken, None, None
    within = _behind(plans, plans.box.taken, plan)
    tried = far
    for _ in range(SEARCHES):
        where = plans.box.along(axis, tried)
        # On a slower machine no plan is quicker than the best was: often that is proof enough.
        if where not in plans.bounds and _behind(plans, where, plan) > tolerance:
            if not plans.may_search():
                break
            plans.solve(where)
        found = _taking_over(plans, axis, plan, tolerance, one.taken, far)
        if found is not None:
            lost, successor = found
        behind = _behind(plans, where, plan)
        if (lost is None or not _beyond(tried, lost, one.taken)) and behind <= 2 * tolerance:
            proven = tried
            sag = one.sag(min(tried, one.taken), max(tried, one.taken))
            # Two bounds: by how far prices sag, and by what neither price can leave.
            slow, fast = max(tried, one.taken), min(tried, one.taken)
            above = plans.seconds(plans.box.along(axis, slow), plan)
            least = plans.least(plans.box.along(axis, fast))
            apart = above / least - 1 if least > 0 else math.inf
            within = min((1 + max(within, behind)) * (1 + sag) - 1, apart)
            break
        # Where no plan refutes it, nothing has proven it either: nearer by.
        tried = _between(one.taken, tried) if lost is None else lost
    best = plans.most(point)
    own = plans.seconds(point, plan)
    return Side(
        end=end,
        proven=end if proven == far else number.at_cost(proven),
        within=within,
        lost=None if lost is None else number.at_cost(lost),
        successor=successor,
        saved=1 - best / own if own > 0 else 0.0,
        most_saved=max(1 - plans.least(point) / own, 0.0) if own > 0 else 0.0,
    )


def _behind(plans: Plans, point: tuple[float, ...], plan: int) -> float:
    """By what share of the bound a plan lies above it."""
    least = plans.least(point)
    return plans.seconds(point, plan) / least - 1 if least > 0 else math.inf


def _beyond(cost: float, other: float, start: float) -> bool:
    """Whether a cost is further from the start than another one."""
    return abs(cost - start) > abs(other - start)


def _between(start: float, far: float) -> float:
    return math.sqrt(start * far) if start > 0 and far > 0 else (start + far) / 2


def _taking_over(
    plans: Plans, axis: int, plan: int, tolerance: float, start: float, far: float
) -> tuple[float, int] | None:
    """The first cost at which a known plan is cheaper by the tolerance, and that plan."""

    def excess(cost: float, other: int) -> float:
        point = plans.box.along(axis, cost)
        return plans.seconds(point, plan) - (1 + tolerance) * plans.seconds(point, other)

    found: tuple[float, int] | None = None
    for other in range(len(plans.known)):
        bad = far if found is None else found[0]
        if other == plan or excess(bad, other) <= 0:
            continue
        if excess(start, other) >= 0:  # rounding: it is as good as what is taken
            return start, other
        root = root_scalar(excess, args=(other,), bracket=(start, bad), rtol=RESOLVED)
        found = float(root.root), other
    return found
