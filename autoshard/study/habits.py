"""What is believed of compilers, held to them: which habits hold, and what each is worth.

    ask(habits)                      every probe compiled by the installed compilers
    worth(kept, names)               errors of predictions without each habit, over compiled plans

A habit is worth what predictions lose where it is denied: the mean of |log(predicted / compiled)|
over plans, without it less with it, of step seconds and of peak bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from autoshard.compiler.probes import Outcome, run_probe
from autoshard.cost.step_prices import step_prices
from autoshard.machine.compiler import PREFIXES, Compiler
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program
from autoshard.search.assemble import priced_anew
from autoshard.xla import HABITS, Habit, analyse

LEAST_WORTH = 0.005
"""A habit that buys less than this of an error is not worth its lines."""


class HabitError(ValueError):
    """Names that are no habits; the message proposes near ones."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A plan that was compiled: seconds of a step and peak bytes, as the compiler has them."""

    plan: Plan
    step_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Compiled plans of one program on one machine."""

    name: str
    program: Program
    machine: Machine
    plans: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Worth:
    """What predictions lose without a habit, as means of |log(predicted / compiled)|.

    Attributes:
      name: of the habit.
      plans: how many of its compiler's there are.
      changed: how many of them are predicted otherwise without it.
      step, peak: errors without it less errors with it.
    """

    name: str
    plans: int
    changed: int
    step: float
    peak: float

    @property
    def is_worth_it(self) -> bool:
        """Whether it buys enough of one of the errors."""
        return max(self.step, self.peak) >= LEAST_WORTH


def named(names: Sequence[str]) -> tuple[Habit, ...]:
    """The habits of these names.

    Raises:
      HabitError: some are no names of habits.
    """
    import difflib

    known = {habit.name: habit for habit in HABITS}
    lines = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            lines.append(f"there is no habit {name!r}{hint}")
    if lines:
        raise HabitError("\n  - ".join(["no habits:", *lines]))
    return tuple(known[name] for name in names)


def ask(
    habits: Iterable[Habit], *, workers: int | None = None, cache: Path | None = None
) -> Iterator[Outcome]:
    """What the installed compilers say of each, in order, as the answers come.

    Args:
      habits: with their probes.
      workers: compiles at once; by default as many as there are cores.
      cache: folder of earlier answers; by default the user's.
    """
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        yield from pool.map(lambda habit: run_probe(habit, cache=cache), habits)


def denying(machine: Machine, *names: str) -> Machine:
    """The machine with a compiler that is taken not to have these habits."""
    compiler = machine.chip.compiler
    without = compiler.without | set(names)
    return replace(machine, chip=replace(machine.chip, compiler=replace(compiler, without=without)))


def worth(groups: Sequence[Group], names: Sequence[str]) -> Iterator[Worth]:
    """What each habit buys over compiled plans of its compiler."""
    usual = {group.name: _predicted(group, group.machine) for group in groups}
    for name in names:
        ours = [group for group in groups if _is_of(name, group.machine.chip.compiler)]
        changed = 0
        lost: list[tuple[float, float]] = []
        for group in ours:
            without = _predicted(group, denying(group.machine, name))
            for kept, with_it, other in zip(group.plans, usual[group.name], without, strict=True):
                changed += with_it != other
                now, then = _errors(kept, with_it), _errors(kept, other)
                lost.append((then[0] - now[0], then[1] - now[1]))
        count = max(len(lost), 1)
        step, peak = (sum(column) / count for column in zip(*lost, strict=True)) if lost else (0, 0)
        yield Worth(name, len(lost), changed, step, peak)


def _is_of(name: str, compiler: Compiler) -> bool:
    return bool(compiler.name) and name.startswith(PREFIXES[compiler.name])


def _predicted(group: Group, machine: Machine) -> list[tuple[float, int]]:
    """Seconds and peak bytes that are predicted of the plans of a group."""
    flow = analyse(group.program, machine.chip)
    prices = {}
    found = []
    for kept in group.plans:
        sizes = kept.plan.mesh.sizes
        if sizes not in prices:
            prices[sizes] = step_prices(group.program, flow, machine, sizes)
        estimate = priced_anew(kept.plan, prices[sizes]).estimate
        found.append((estimate.expected_seconds, estimate.expected_bytes))
    return found


def _errors(kept: Kept, predicted: tuple[float, int]) -> tuple[float, float]:
    seconds, size = predicted
    return (
        abs(math.log(max(seconds, 1e-12) / kept.step_seconds)),
        abs(math.log(max(size, 1) / kept.peak_bytes)),
    )
