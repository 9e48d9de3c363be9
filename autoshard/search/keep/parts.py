"""A loop in two parts, of which the last turns save more than the first.

Where the next value is too large to be saved in all turns of a loop, memory is left over. At the
price of a byte at which the stacks fit (`proposals.around`), a smaller and a larger choice are
equally good: the one fits, the other does not. So the last turns of a loop save what the larger one
saves, as many of them as there is room for, and the first turns what the smaller one does. The last
turns' backward pass comes first, so that what they save is alive for the shortest time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from autoshard.machine.compiler import Compiler
from autoshard.program.keep import Residuals, find_residuals
from autoshard.program.keep.levels import Level, Pair
from autoshard.program.keep.names import turns_index
from autoshard.program.rewritten import loops_in_parts
from autoshard.program.trace import Program, TraceError
from autoshard.search.keep.priced import Rates, cost_of
from autoshard.search.keep.proposals import Proposal, around

LEAST = 1 / 8
"""Of the bytes of a turn's stacks, what a turn adds to the peak at the least."""


@dataclass(frozen=True, slots=True)
class Division:
    """A loop whose turns from `start` on save `more`, and those before `less`.

    Attributes:
      loop: its name, in `Residuals.loops`.
      turns: of the loop.
      start: the first turn of the second part.
      less, more: names of what each part saves, of all loops.
      mine: names of values of the loop.
      turn_bytes: per device, of what a turn saves more in the second part.
      seconds: that a turn takes less there.
      away: names of stacks on the host, in both parts.
      prefetch: whether these move a turn late there, and come a turn early.
    """

    loop: str
    turns: int
    start: int
    less: frozenset[str]
    more: frozenset[str]
    mine: frozenset[str]
    turn_bytes: float
    seconds: float
    away: frozenset[str] = frozenset()
    prefetch: bool = False

    @property
    def gain(self) -> float:
        """Seconds of a step less than where all turns save `less`."""
        return (self.turns - self.start) * self.seconds

    @property
    def saved(self) -> Iterator[str]:
        """The names of what is saved, in the step with the loop in two parts."""
        yield from self._in_parts(self.less, self.more)

    def _in_parts(self, less: frozenset[str], more: frozenset[str]) -> Iterator[str]:
        for begin, end, names in (0, self.start, less), (self.start, self.turns, more):
            yield from (name + turns_index(begin, end) for name in names & self.mine)
        yield from less - self.mine

    def applied(self, step: Program) -> tuple[Program, Proposal] | None:
        """The step with the loop in two parts, and the choice of what it saves.

        None where that cannot be: the loop has others in it that are told apart by their place, or
        what is in it has other names then.
        """
        try:
            cut = loops_in_parts(step, {self.loop: [self.start]})
        except TraceError:
            return None
        saved, last = frozenset(self.saved), self.turns - self.start
        title = f"more in the last {last} of the {self.turns} turns of {self.loop}"
        residuals = find_residuals(cut.written)
        if not saved <= set(residuals.homes):
            return None
        stacks = frozenset(residuals.stacks(saved))
        away = stacks.intersection(self._in_parts(self.away, self.away))
        return cut, Proposal(title, saved, away, self.prefetch)

    def beginning(self, tried: Mapping[int, float | None], limit: float) -> Division | None:
        """This with another turn to begin the second part, the next to try; None if there is none.

        Args:
          tried: bytes per device that plans need, by that turn: None where there is no plan, and of
            the plan in which all turns save `less` by the number of turns.
          limit: bytes per device.
        """
        known = sorted((turn, size) for turn, size in tried.items() if size is not None)
        (first, size), *others = known
        turn_bytes = self.turn_bytes
        if others:  # stacks need not all be there at the peak
            later, smaller = others[0]
            turn_bytes = max((size - smaller) / (later - first), LEAST * turn_bytes)
        too_many = max((turn for turn in tried if turn < first and tried[turn] is None), default=0)
        start = first - int((limit - size) // turn_bytes)
        if start <= too_many:
            start = (too_many + first + 1) // 2
        return replace(self, start=max(start, 1)) if too_many < start < first else None


def divided(
    residuals: Residuals,
    rates: Rates,
    compiler: Compiler,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Division | None:
    """The best division of one loop at the prices of a plan; None where there is none.

    For XLA:TPU there is none. Llama-3-8B on v5p-8, of which 16 of 32 layers save one product more,
    was to take 0.13 s less, and took 0.03 s more: 6.043 -> 6.076 s, JAX 0.12.0.1. Products took
    0.16 s less, and copies that no line of the step makes 0.13 s more. XLA:GPU keeps what is
    predicted (2.676 -> 2.641 s on h100-8).

    Args:
      residuals: the candidates of the step, which has no loop in parts.
      rates: what they cost in the plan.
      compiler: of the machine.
      options: of the trace that the plan is of: they say what lies on the host.
    """
    if compiler.name == "xla:tpu":
        return None
    less, more = around(residuals, rates.save, rates.again, rates.bytes, rates.free_bytes)
    if more is None:
        return None
    less, more = (frozenset(residuals.on_stacks(one)) for one in (less, more))
    free = rates.free_bytes - sum(rates.bytes[name] for name in less)
    found: list[Division] = []
    for loop, pair in residuals.loops.items():
        own = frozenset(name for name, (home, _) in residuals.homes.items() if home is pair)
        both = (less - own) | (more & own)
        extra = sum(rates.bytes[name] for name in more & own)
        extra -= sum(rates.bytes[name] for name in less & own)
        gain = cost_of(residuals, rates, less) - cost_of(residuals, rates, both)
        if extra <= 0.0 or gain <= 0.0:
            continue
        last = min(int(free // (extra / pair.turns)), pair.turns - 1)
        if last < 1:
            continue
        inner = {pair, *_inside(pair)}
        mine = frozenset(name for name, (home, _) in residuals.homes.items() if home in inner)
        one = Division(
            loop, pair.turns, pair.turns - last, less, both, mine, extra / pair.turns,
            gain / pair.turns, away=frozenset(options.get("offloaded", ())),
            prefetch=options.get("prefetch", False),
        )  # fmt: skip
        found.append(one)
    return max(found, key=lambda one: one.gain, default=None)


def _inside(pair: Pair) -> Iterator[Pair]:
    """The pairs in the bodies of the loops of a pair, and in the bodies in them."""
    todo: list[Level] = [pair.forward.body, pair.backward.body]
    while todo:
        level = todo.pop()
        yield from level.pairs
        todo += [body for bodies in level.inside.values() for body in bodies]
