"""What a step may save for its backward pass, by name, and what follows from a choice.

Candidates are the forward values from which the needed ones of a pair of loops come about
(`levels`): each is put on a stack in the forward pass, or computed again in the backward pass from
others. What the backward pass makes of forward values alone is a candidate, too, where it is
smaller than what it is made of: the forward pass then makes it. Weights and what else both loops
are given are there anyway; what a loop carries is saved where it is needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard import compat
from autoshard.program.flops import equation_flops
from autoshard.program.keep.levels import Level, Maker, Pair, level_of, tied
from autoshard.program.keep.names import is_part, joined, named
from autoshard.program.keep.numbering import repeatable


class KeepError(ValueError):
    """Choices that name no value of the program, or cannot be made."""


@dataclass(frozen=True, slots=True)
class Residual:
    """A forward value that the backward pass reads, or from which it computes what it reads.

    Attributes:
      name: scope and primitive of its op, numbered where several have the same; behind `backward/`
        where the forward pass does not make it; before `[0:24]` where it is of these turns alone of
        a loop that runs in parts.
      shape, dtype: of one turn of its loop.
      turns: of the loop.
      bytes: of the unsharded stack of all turns.
      primitive, scope, lines: of its op; the user's source lines, the innermost first.
      label: its `checkpoint_name`, or an empty string.
      flops: of one turn of its op, unsharded.
      reads: the names of the candidates that its op reads.
      read_bytes: of what its op reads in one turn, unsharded.
      needed: whether the backward pass itself reads it, or what it makes for derivatives alone.
      tied: whether it is made, without products, of what both loops are given alone: a weight in
        another dtype.
      saved: whether the program saves it as it is written.
      pinned: whether it must be saved if it is needed: its op may not run twice.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    turns: int
    bytes: int
    primitive: str
    scope: str
    lines: tuple[str, ...]
    label: str
    flops: float
    reads: tuple[str, ...]
    read_bytes: int
    needed: bool
    tied: bool
    saved: bool
    pinned: bool

    @property
    def line(self) -> str:
        """The user's line that makes it, or an empty string."""
        return next(iter(self.lines), "")


@dataclass(frozen=True, slots=True)
class Demand:
    """What a choice makes of one pair of loops.

    Attributes:
      stacks: numbers of what lies on stacks.
      again: what makes the other values that the backward body needs, in order.
      shared: numbers that it reads of what both loops are given.
    """

    stacks: tuple[int, ...]
    again: tuple[Maker, ...]
    shared: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """All candidates of a step, and where they are.

    `homes` has their pair and number by name, `carries` those of what forward loops carry, and
    `loops` the pairs of loops.
    """

    level: Level
    values: tuple[Residual, ...]
    homes: Mapping[str, tuple[Pair, int]]
    carries: Mapping[str, tuple[Pair, int]] = field(default_factory=dict)
    loops: Mapping[str, Pair] = field(default_factory=dict)

    def saved_as_written(self) -> frozenset[str]:
        """The names of what the program saves."""
        return frozenset(one.name for one in self.values if one.saved)

    def numbers(self, pair: Pair, saved: Collection[str]) -> frozenset[int]:
        """Which values of a pair are among the `saved` ones."""
        homes = (self.homes[name] for name in saved)
        return frozenset(number for home, number in homes if home is pair)

    def on_stacks(self, saved: Collection[str]) -> tuple[str, ...]:
        """Those of the `saved` values that the backward pass reads once they are saved."""
        self.check(saved)
        pairs = dict.fromkeys(pair for pair, _ in self.homes.values())
        stacks = {pair: demand_of(pair, self.numbers(pair, saved)).stacks for pair in pairs}
        wanted = set(saved)
        homes = self.homes.items()
        return tuple(n for n, (pair, one) in homes if n in wanted and one in stacks[pair])

    def recomputed(self, saved: Collection[str]) -> tuple[str, ...]:
        """What the backward pass computes again if these values are saved."""
        pairs = dict.fromkeys(pair for pair, _ in self.homes.values())
        demands = {pair: demand_of(pair, self.numbers(pair, saved)) for pair in pairs}
        again = {pair: {(m.again, m.place) for m in d.again} for pair, d in demands.items()}
        makers = ((name, pair, pair.makers[one]) for name, (pair, one) in self.homes.items())
        return tuple(name for name, pair, m in makers if (m.again, m.place) in again[pair])

    def stacks(self, saved: Collection[str]) -> dict[str, int]:
        """What lies on stacks of loops if these values are saved: unsharded bytes by name.

        Beside the saved values, these are what forward loops carry into their turns.
        """
        sizes = {one.name: one.bytes for one in self.values}
        found = {n: sizes[n] for n in self.on_stacks(saved) if self.homes[n][0].loops}
        for name, (pair, number) in self.carries.items():
            if number in demand_of(pair, self.numbers(pair, saved)).stacks:
                found[name] = pair.turns * _bytes(variable_of(pair, number))
        return found

    def hosted(
        self, saved: Collection[str], offloaded: Collection[str]
    ) -> dict[Pair, frozenset[int]]:
        """The numbers of `offloaded` stacks, by pair. Raises KeepError if they are not stacks."""
        known = self.stacks(saved) if offloaded else {}
        if unknown := sorted(set(offloaded) - set(known)):
            raise KeepError(
                f"no loop has stacks of {', '.join(unknown)} that could lie on the host; those "
                f"of this choice: {', '.join(known) or 'none'}"
            )
        found: dict[Pair, set[int]] = {}
        for name in offloaded:
            pair, number = self.homes.get(name) or self.carries[name]
            found.setdefault(pair, set()).add(number)
        return {pair: frozenset(numbers) for pair, numbers in found.items()}

    def check(self, saved: Collection[str]) -> None:
        """Raise KeepError if names are not those of candidates, or others must be saved."""
        unknown = sorted(set(saved) - set(self.homes))
        if unknown:
            known = ", ".join(self.homes) or "none"
            raise KeepError(
                f"no forward value that the backward pass may read is called "
                f"{', '.join(unknown)}; those of this program: {known}"
            )
        by_home = {(id(pair), number): name for name, (pair, number) in self.homes.items()}
        kept = [one for one in self.values if one.pinned and one.name not in saved]
        pinned = {one.name: one for one in kept}
        faults = []
        for pair in dict.fromkeys(pair for pair, _ in self.homes.values()):
            for maker in demand_of(pair, self.numbers(pair, saved)).again:
                numbers = [pair.forward.numbers.get(var, -1) for var in maker.equation.outvars]
                names = [by_home.get((id(pair), number), "") for number in numbers]
                faults += [pinned[name] for name in names if name in pinned]
        if faults:
            raise KeepError(
                "\n".join(
                    [
                        "these must be saved, since what makes them may not run twice:",
                        *(f"  {one.name} ({one.line or 'no source line'})" for one in faults),
                    ]
                )
            )


def find_residuals(closed: Any) -> Residuals:
    """The candidates of a traced step, in the order of the forward pass.

    Args:
      closed: its closed jaxpr, calls and all.
    """
    level = level_of(closed)
    counts: Counter[str] = Counter()
    values: list[Residual] = []
    homes: dict[str, tuple[Pair, int]] = {}
    for pair, scope in _pairs(level, ""):
        for number, residual in _of_pair(pair, scope, counts):
            values.append(residual)
            homes[residual.name] = pair, number
    return Residuals(level, tuple(values), homes, _carries(level), _loops(level))


def _loops(level: Level) -> dict[str, Pair]:
    """The pairs of loops by the scope of the forward one, numbered where several have the same."""
    counts: Counter[str] = Counter()
    pairs = ((scope, pair) for pair, scope in _pairs(level, "") if pair.loops)
    found: dict[str, Pair] = {}
    for scope, pair in pairs:
        text = "loop" if all(map(is_part, scope.split("/"))) or not scope else ""
        found[named(scope, text, counts)] = pair
    return found


def _carries(level: Level) -> dict[str, tuple[Pair, int]]:
    """The pair and number of what forward loops carry into a turn, by name."""
    counts: Counter[str] = Counter()
    found: dict[str, tuple[Pair, int]] = {}
    for pair, scope in _pairs(level, ""):
        for number in pair.carried if pair.loops else ():
            found[named(scope, "carry", counts)] = pair, number
    return found


def demand_of(pair: Pair, saved: Collection[int]) -> Demand:
    """What lies on stacks and what is computed again if the `saved` numbers are saved."""
    shared = set(pair.shared.values())
    stacks: dict[int, None] = {}
    again: dict[tuple[bool, int], Maker] = {}
    read: set[int] = set()
    todo, seen = list(pair.needed), set(pair.needed)
    while todo:
        number = todo.pop()
        if number in shared:
            read.add(number)
        elif number in saved or number in pair.carried:
            stacks[number] = None
        elif (maker := pair.makers.get(number)) is not None:
            again[maker.again, maker.place] = maker
            todo += (fresh := [n for n in pair.operands(maker) if n not in seen])
            seen.update(fresh)
    order = sorted(again)
    return Demand(tuple(sorted(stacks)), tuple(again[key] for key in order), frozenset(read))


def _pairs(level: Level, scope: str) -> Iterator[tuple[Pair, str]]:
    """All pairs, and the scope that they are in; those of a level before those inside of it."""
    for pair in sorted(level.pairs, key=lambda one: one.start):
        yield pair, joined(scope, pair.forward.equation) if pair.loops else scope
    for place, bodies in sorted(level.inside.items()):
        for body in bodies:
            yield from _pairs(body, joined(scope, level.equations[place]))


def _of_pair(pair: Pair, scope: str, counts: Counter[str]) -> Iterator[tuple[int, Residual]]:
    """The candidates of a pair with their numbers, in the order of the forward body."""
    front = pair.forward
    found = [
        (front.numbers[var], place, var)
        for place, equation in pair.steps()
        for var in equation.outvars
    ]
    reached = _reached(pair)
    makers = pair.makers
    mine = {n: (place, var) for n, place, var in reversed(found) if n in reached}
    mine = {n: one for n, one in mine.items() if makers[n].place == one[0] and not makers[n].again}
    on_stack = set(pair.backward.given) & set(pair.stacks.values())
    labels, constants = _labels(pair), pair.forward.body.closed.jaxpr.constvars
    given = tied(
        [*pair.weights, *(front.numbers[v] for v in constants)], pair.steps(), front.numbers
    )
    later = _smaller(pair, reached)
    needed = _needed(pair, later)
    names: dict[int, str] = {}
    places = [(number, place, var, front, "") for number, place, var in found]
    places += [(number, place, var, pair.backward, "backward/") for number, place, var in later]
    mine |= {number: (place, var) for number, place, var in later}
    for number, place, var, side, mark in places:
        if number not in mine or number in names or mine[number][1] is not var:
            continue
        equation = side.body.equations[place]
        inner, primitive = joined(scope, equation), equation.primitive.name
        names[number] = named(inner, primitive, counts, mark)
        turns = pair.turns
        shape, dtype, _ = compat.array_facts(var.aval)
        read = [n for n in _candidates_read(pair, makers[number], names) if n != number]
        yield (
            number,
            Residual(
                name=names[number],
                shape=shape,
                dtype=dtype,
                turns=turns,
                bytes=turns * _bytes(var),
                primitive=primitive,
                scope=inner,
                lines=compat.source_lines(equation),
                label=labels.get(number, ""),
                flops=equation_flops(equation),
                reads=tuple(dict.fromkeys(names[n] for n in read)),
                read_bytes=sum(map(_bytes, equation.invars)),
                needed=number in needed,
                tied=number in given,
                saved=number in on_stack,
                pinned=not repeatable(equation),
            ),
        )


def _smaller(pair: Pair, reached: set[int]) -> list[tuple[int, int, Any]]:
    """Number, place and variable of what only the backward body makes, if it is worth a stack.

    It is if it is smaller than what it is made of, as a slice, a sum or a comparison is, and if
    that depends on a turn: a mask of weights is there anyway.
    """
    back = pair.backward
    fixed = {*pair.shared.values(), *(back.numbers[v] for v in back.body.closed.jaxpr.constvars)}
    found: list[tuple[int, int, Any]] = []
    for place in sorted(pair.primal):
        equation = back.body.equations[place]
        read = [atom for atom in equation.invars if not compat.is_literal(atom)]
        if fixed.issuperset(back.numbers[atom] for atom in read):
            fixed.update(back.numbers[var] for var in equation.outvars)
            continue
        largest = max(map(_bytes, read), default=0)
        for var in equation.outvars:
            number = back.numbers[var]
            maker = pair.makers.get(number)
            if number in reached and maker is not None and maker.again and _bytes(var) < largest:
                found.append((number, place, var))
    return found


def _candidates_read(pair: Pair, maker: Maker, names: Collection[int]) -> Iterator[int]:
    """The candidates that an op reads, or of which the backward body makes what it reads."""
    todo, seen = list(pair.operands(maker)), set[int]()
    while todo:
        number = todo.pop(0)
        if number in seen:
            continue
        seen.add(number)
        made = pair.makers.get(number)
        if number in names:
            yield number
        elif made is not None and made.again:
            todo += pair.operands(made)


def variable_of(pair: Pair, number: int) -> Any:
    """A variable of a number; of the forward body if that has one."""
    sides = (pair.forward, pair.backward)
    return next(v for side in sides for v, n in side.numbers.items() if n == number)


def _bytes(atom: Any) -> int:
    shape, _, itemsize = compat.array_facts(atom.aval)
    return math.prod(shape) * itemsize


def _labels(pair: Pair) -> dict[int, str]:
    """The `checkpoint_name` of forward values, by number."""
    front = pair.forward
    labels: dict[int, str] = {}
    for _, equation in pair.steps():
        if equation.primitive.name == "name" and not compat.is_literal(equation.invars[0]):
            for atom in (*equation.invars, *equation.outvars):
                labels.setdefault(front.numbers[atom], str(equation.params["name"]))
    return labels


def _needed(pair: Pair, later: Iterable[tuple[int, int, Any]]) -> set[int]:
    """The numbers that the backward pass reads, or of which it makes what is not a candidate."""
    candidates = {number for number, _, _ in later}
    needed: set[int] = set()
    todo: Sequence[int] = list(pair.needed)
    while todo:
        number = todo.pop()
        if number in needed:
            continue
        needed.add(number)
        maker = pair.makers.get(number)
        if maker is not None and maker.again and number not in candidates:
            todo.extend(pair.operands(maker))
    return needed


def _reached(pair: Pair) -> set[int]:
    """The numbers of which the needed ones are made, and that depend on what a loop is given."""
    stop = {*pair.shared.values(), *pair.carried}
    reached: set[int] = set()
    todo: Sequence[int] = list(pair.needed)
    while todo:
        number = todo.pop()
        if number in reached or number in stop or number not in pair.makers:
            continue
        reached.add(number)
        todo.extend(pair.operands(pair.makers[number]))
    return reached
