"""What a habit is worth: what predictions lose without it, over plans that were compiled.

A prediction's error is |log(predicted / compiled)| of the seconds of a step and of its peak bytes,
and |predicted - compiled| / max(predicted, compiled) of the bytes that a device sends. A **group**
is a program on a machine and a mesh; its errors are means over its plans. What a habit **buys** is
the most that the error of steps, or of peaks, grows in any group where the habit is denied. A habit
that only convolutions follow so buys what convolutional networks lose, however many other programs
there are.

Three kinds of habits are not judged by that. One decides which collectives a plan has, or their
bytes: what runs would not be what was planned without it. Without one of another kind peaks are
said too small, so that plans would be said to fit that do not: log(compiled / predicted), where it
is positive, grows as much in some group, whatever other plans of the group gain. The third is asked
about in no plan.

A rule asks `Compiler.has`, which is listened to, so that few predictions are made anew:

    asked about nowhere                        nothing changes
    asked about by `analyse` alone             plans are priced anew if the facts are not the same
    asked about where a plan is priced         that plan is priced anew
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoshard.compiler.verdict import planned_wire_bytes
from autoshard.cost.step_prices import step_prices
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan
from autoshard.program.facts import Facts
from autoshard.program.trace import Program
from autoshard.search.assemble import priced_anew
from autoshard.xla import Habit, analyse

LEAST_WORTH = 0.005
"""A habit that buys less than this of an error is not worth its lines."""

TOGETHER = "all of these together"
"""The name of the effect of denying several habits at once."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A plan that was compiled, and what the compiler says of it.

    Attributes:
      plan: as it was priced then.
      step_seconds: of the compiled step.
      peak_bytes: on a device.
      wire_bytes: that a device sends in a step.
    """

    plan: Plan
    step_seconds: float
    peak_bytes: int
    wire_bytes: float


@dataclass(frozen=True, slots=True)
class Group:
    """Compiled plans of one program on one machine and mesh."""

    name: str
    program: Program
    machine: Machine
    plans: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """What the predictions of a group lose without a habit.

    Attributes:
      habit: its name, or `TOGETHER`.
      group: the name of the group.
      plans: how many it has.
      asked: whether a rule asks about the habit.
      changed: how many plans are predicted otherwise without it.
      moved: how many have other collectives without it, or other bytes on the wire.
      step, peak, wire: mean errors without it less those with it.
      short: likewise, of how much peaks are said too small.
    """

    habit: str
    group: str
    plans: int
    asked: bool = False
    changed: int = 0
    moved: int = 0
    step: float = 0.0
    peak: float = 0.0
    wire: float = 0.0
    short: float = 0.0

    @property
    def buys(self) -> float:
        """The larger of what the errors of steps and peaks lose."""
        return max(self.step, self.peak)


@dataclass(frozen=True, slots=True)
class Worth:
    """What a habit is worth over all groups.

    Attributes:
      habit: its name, or `TOGETHER`.
      plans: how many a rule could ask about: those of its compiler, on its chips.
      asked: whether a rule asks in any of them.
      changed: how many are predicted otherwise without it.
      moved: how many have other collectives without it, or other bytes on the wire.
      step, peak, wire: errors without it less those with it, as means over all of these plans.
      buys: the most that the error of steps or peaks of one group grows without it.
      group: which group that is; empty where none grows.
      short: the most that peaks of one group are said too small without it.
    """

    habit: str
    plans: int
    asked: bool
    changed: int
    moved: int
    step: float
    peak: float
    wire: float
    buys: float
    group: str
    short: float = 0.0

    @property
    def verdict(self) -> str:
        """``yes``, ``no``, or what it is not judged by.

        ``collectives``, ``memory`` or ``no plan asks``: see the module docstring.
        """
        if not self.asked:
            return "no plan asks"
        if self.moved:
            return "collectives"
        if self.buys >= LEAST_WORTH:
            return "yes"
        return "memory" if self.short >= LEAST_WORTH else "no"


def worth(habit: str, effects: Sequence[Effect]) -> Worth:
    """What a habit is worth, from its effects in all groups.

    Args:
      habit: its name, or `TOGETHER`.
      effects: of any habits; those of others are left out.
    """
    ours = [effect for effect in effects if effect.habit == habit]
    plans = sum(effect.plans for effect in ours)
    means = (
        sum(getattr(effect, error) * effect.plans for effect in ours) / max(plans, 1)
        for error in ("step", "peak", "wire")
    )
    best = max(ours, key=lambda effect: effect.buys, default=Effect(habit, "", 0))
    return Worth(
        habit,
        plans,
        any(effect.asked for effect in ours),
        sum(effect.changed for effect in ours),
        sum(effect.moved for effect in ours),
        *means,
        buys=max(best.buys, 0.0),
        group=best.group if best.buys > 0 else "",
        short=max((effect.short for effect in ours), default=0.0),
    )


def effects(group: Group, habits: Sequence[Habit]) -> Iterator[Effect]:
    """What the predictions of a group lose without each habit, and at last without all of them.

    Habits of other compilers, releases and chips are left out, and where fewer than two are left,
    so is the last effect.
    """
    chip = group.machine.chip
    ours = [
        habit.name
        for habit in habits
        if chip.compiler.has(habit.name) and (not habit.chips or chip.name in habit.chips)
    ]
    usual = _Usual(group)
    for name in ours:
        yield _effect(group, usual, name, frozenset({name}))
    if len(ours) > 1:
        yield _effect(group, usual, TOGETHER, frozenset(ours))


def denying(machine: Machine, *names: str) -> Machine:
    """The machine with a compiler that is taken not to have these habits."""
    return _asked(machine, machine.chip.compiler.without | set(names))


@dataclass(frozen=True, slots=True)
class _Prediction:
    """What is predicted of a plan; `moves` tells collectives apart."""

    seconds: float
    size: int
    wire: float
    moves: tuple[object, ...]


class _Listening(frozenset[str]):
    """The habits that are denied anyway; it hears which ones are asked about."""

    heard: set[str]

    def __new__(cls, denied: frozenset[str]) -> _Listening:
        made = super().__new__(cls, denied)
        made.heard = set()
        return made

    def __contains__(self, name: object) -> bool:
        self.heard.add(str(name))
        return super().__contains__(name)

    def isdisjoint(self, other: object) -> bool:
        """Whether none of the others is denied."""
        self.heard.update(other)  # pyright: ignore[reportArgumentType]
        return super().isdisjoint(other)  # pyright: ignore[reportArgumentType]


class _Usual:
    """Facts and predictions of a group with all that its compiler has, and who asks about what."""

    def __init__(self, group: Group) -> None:
        listening = _Listening(group.machine.chip.compiler.without)
        machine = _asked(group.machine, listening)
        self.facts = analyse(group.program, machine.chip, anew=True)
        self.asked_early = frozenset(listening.heard)
        self.predictions: list[_Prediction] = []
        self.asked_late: list[frozenset[str]] = []
        for kept in group.plans:
            listening.heard.clear()
            # Prices of its own: those that another plan has asked for are not asked for again.
            self.predictions += _predicted(group, machine, self.facts, [kept])
            self.asked_late.append(frozenset(listening.heard))

    @property
    def asked(self) -> frozenset[str]:
        """What a rule asks about in any plan."""
        return self.asked_early.union(*self.asked_late)

    def without(self, group: Group, denied: frozenset[str]) -> list[_Prediction]:
        """Predictions without some habits."""
        machine, facts = denying(group.machine, *denied), self.facts
        if denied & self.asked_early:
            facts = analyse(group.program, machine.chip)
        same = replace(facts, chip=None) == replace(self.facts, chip=None)
        again = [not (same and denied.isdisjoint(asked)) for asked in self.asked_late]
        plans = [kept for kept, anew in zip(group.plans, again, strict=True) if anew]
        found = iter(_predicted(group, machine, replace(facts, chip=machine.chip), plans))
        return [
            next(found) if anew else usual
            for usual, anew in zip(self.predictions, again, strict=True)
        ]


def _effect(group: Group, usual: _Usual, habit: str, denied: frozenset[str]) -> Effect:
    nothing = Effect(habit, group.name, len(group.plans))
    if denied.isdisjoint(usual.asked):
        return nothing
    changed, moved, lost = 0, 0, []
    others = usual.without(group, denied)
    for kept, with_it, without in zip(group.plans, usual.predictions, others, strict=True):
        changed += with_it != without
        moved += with_it.moves != without.moves
        pairs = zip(_errors(kept, with_it), _errors(kept, without), strict=True)
        lost.append([then - now for now, then in pairs])
    means = (sum(column) / len(lost) for column in zip(*lost, strict=True))
    grown = dict(zip(("step", "peak", "wire", "short"), means, strict=True))
    return replace(nothing, asked=True, changed=changed, moved=moved, **grown)


def _predicted(
    group: Group, machine: Machine, facts: Facts, plans: Sequence[Kept]
) -> list[_Prediction]:
    prices = {}
    found = []
    for kept in plans:
        sizes = kept.plan.mesh.sizes
        if sizes not in prices:
            prices[sizes] = step_prices(group.program, facts, machine, sizes)
        plan = priced_anew(kept.plan, prices[sizes])
        moves = ((m.kind, m.axes, m.bytes, m.sent_bytes, m.count) for m in plan.moves)
        found.append(
            _Prediction(
                plan.estimate.expected_seconds,
                plan.estimate.expected_bytes,
                sum(size for _, size in planned_wire_bytes(plan)),
                (*moves, *plan.reshards),
            )
        )
    return found


def _errors(kept: Kept, predicted: _Prediction) -> tuple[float, float, float, float]:
    """Of the step, the peak and the wire, and how much the peak is said too small."""
    sent = max(kept.wire_bytes, predicted.wire)
    peak = math.log(max(predicted.size, 1) / kept.peak_bytes)
    return (
        abs(math.log(max(predicted.seconds, 1e-12) / kept.step_seconds)),
        abs(peak),
        abs(predicted.wire - kept.wire_bytes) / sent if sent else 0.0,
        max(-peak, 0.0),
    )


def _asked(machine: Machine, without: frozenset[str]) -> Machine:
    """The machine with a compiler that asks these whether a habit is denied."""
    compiler = replace(machine.chip.compiler, without=without)
    return replace(machine, chip=replace(machine.chip, compiler=compiler))
