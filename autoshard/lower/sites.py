"""Lines that could be written into the user's code, with the layouts that a plan has there.

A **line** is one `with_sharding_constraint` in the user's code (`autoshard.lower.source_lines`),
for what an expression is, or for an operand before it is read. It may be written where it is
reached by one call only, or in a helper that several call. Where arrays of several shapes pass it
may say something else of each: `with_sharding_constraint(x, LAYOUTS[x.shape])`. Its layouts are
those in which the plan stores the array, what is computed again of it, its cotangent, or copies.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.compat import Frame
from autoshard.lower.inlined import REMAT
from autoshard.lower.marks import marked_values, scope_of
from autoshard.lower.planned_spots import NOTHING, PlannedSpots, origin
from autoshard.lower.source_lines import Constraint, Spot, Visit, line_of, visits, with_lines
from autoshard.plan import Plan
from autoshard.program import Program
from autoshard.targets import scope_names

SHOWN = 4
"""So many arrays of a line are named."""


@dataclass(frozen=True, slots=True)
class Line:
    """One `with_sharding_constraint` in the user's code.

    Attributes:
      places: where it holds, and the layout there.
      where: the user's lines, the one to write it on first.
      names: of the arrays: a tree path, or the operation that makes or reads it, and its type.
      blocks: the repeated blocks that it is in, by scope: `layers`, `layer_*`.
      weight: bytes of all arrays that it names, all repetitions.
      by_shape: whether it says something else, or nothing, of arrays of other shapes there.
      arguments: whether it is about all arguments of a block.
      entries: what it says by key, where it is about a function (`autoshard.annotations.laid_out`).
      strict: whether each of them holds in every call of the function.
    """

    places: tuple[tuple[Spot, Constraint], ...]
    where: tuple[str, ...] = field(compare=False)
    names: tuple[str, ...] = field(compare=False)
    blocks: frozenset[str] = field(compare=False)
    weight: float = field(compare=False)
    by_shape: bool = field(default=False, compare=False)
    arguments: bool = field(default=False, compare=False)
    entries: tuple[tuple[str, Constraint], ...] = field(default=(), compare=False)
    strict: bool = field(default=True, compare=False)

    @property
    def block(self) -> bool:
        """Whether it is in a repeated block."""
        return bool(self.blocks)

    @property
    def spots(self) -> tuple[Spot, ...]:
        """Where it holds."""
        return tuple(spot for spot, _ in self.places)

    @property
    def says(self) -> tuple[Constraint, ...]:
        """What it says, each once."""
        return tuple(dict.fromkeys(constraint for _, constraint in self.places))

    @property
    def inward(self) -> bool:
        """Whether it can only be said of a function, as an entry: no line can stand there."""
        places = () if self.entries else self.places
        return any(spot.within or constraint.apart for spot, constraint in places)

    @property
    def table(self) -> bool:
        """Whether it says something else of arrays of other shapes in the same place."""
        places = {(spot.number, spot.read) for spot in self.spots}
        return self.by_shape and len(self.says) > 1 and len(places) == 1

    def __str__(self) -> str:
        if self.entries:
            return self._as_entries()
        first, *callers = self.where
        via = f", called at {' and '.join(callers)}" if callers else ""
        via += ", by x.shape" if self.by_shape else ""
        calls = []
        for constraint in self.says:
            each = list(
                dict.fromkeys(
                    n for n, c in zip(self.names, self.places, strict=True) if c[1] == constraint
                )
            )
            more = f" and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
            calls.append(f"x = {constraint}  # {', '.join(each[:SHOWN])}{more}")
        return f"{first}{via}: " + f"\n{' ' * len(first)}    ".join(calls)

    def _as_entries(self) -> str:
        (where,) = self.where
        name = where.rpartition(" ")[2]
        entries = [f"    {key!r}: {constraint.entry}," for key, constraint in self.entries]
        head = f"{where}: {name} = autoshard.laid_out({name}, {{"
        return "\n".join([head, *entries, "})" if self.strict else "}, strict=False)"])


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """All lines that could be written, and how their spots are marked.

    Attributes:
      lines: those that name most bytes first.
      planned: for every spot the line that says what is planned there.
      marks: for every spot its number and its layouts.
      visits: all arrays that user code makes or reads.
    """

    lines: tuple[Line, ...]
    planned: tuple[Line, ...]
    marks: Mapping[Spot, tuple[int, tuple[Constraint, ...]]]
    visits: tuple[Visit, ...]

    def marked(self, fn: Callable[..., Any], mesh: Any) -> Callable[..., Any]:
        """`fn` with every constraint of every line, each under the scope of its mark."""

        def constrain(spot: Spot, array: Any) -> Any:
            number, constraints = self.marks.get(spot, (0, ()))
            for k, constraint in sorted(enumerate(constraints), key=lambda one: one[1].apart):
                array = constraint(array, mesh, scope_of(number, k))
            return array

        return with_lines(fn, constrain)

    def marks_of(self, lines: Sequence[Line]) -> frozenset[tuple[int, int]]:
        """The marks of some lines."""
        found = set()
        for line in lines:
            for spot, constraint in line.places:
                number, constraints = self.marks[spot]
                found.add((number, constraints.index(constraint)))
        return frozenset(found)


def written(fn: Callable[..., Any], lines: Sequence[Line], mesh: Any) -> Callable[..., Any]:
    """`fn` with these lines written into it."""
    wanted: dict[Spot, list[Constraint]] = defaultdict(list)
    for line in lines:
        for spot, constraint in line.places:
            wanted[spot].append(constraint)

    def constrain(spot: Spot, array: Any) -> Any:
        for constraint in sorted(wanted.get(spot, ()), key=lambda one: one.apart):
            array = constraint(array, mesh)
        return array

    return with_lines(fn, constrain)


def sites_of(program: Program, plan: Plan, mesh: Any, fn: Callable[..., Any], *args: Any) -> Sites:
    """Every line that could be written into `fn` for a plan."""
    seen: dict[Spot, list[Visit]] = {}
    visited = tuple(visits(fn, *args))
    for visit in visited:
        if visit.last and "site-packages" not in visit.spot.user[0].file:
            seen.setdefault(visit.spot, []).append(visit)
    numbers = {spot: number for number, spot in enumerate(seen)}
    passes: Counter[Any] = Counter()
    for spot, those in seen.items():
        passes[_place(spot)] += len(those)
    marked = marked_values(program, mesh, fn, args, numbers)
    planned = PlannedSpots(program, plan)
    found: dict[Spot, _Spot] = {}
    for spot, those in seen.items():
        here = marked.get(numbers[spot], [])
        constraints = planned.constraints(here, spot) if here else {}
        if constraints:
            loops = here[0].trips > 1 or passes[_place(spot)] > 1
            value = next((one.value for one in here if not one.cotangent), here[0].value)
            path, entry = origin(program, value)
            inside = spot.read and spot.primitive not in REMAT  # what it computes again reads these
            entry = entry if inside and loops else None
            found[spot] = _Spot(those[0], constraints, loops, here[0].scope, path, entry)
    lines = sorted(_lines(found), key=lambda line: -line.weight)
    wanted: dict[Spot, dict[Constraint, None]] = defaultdict(dict)
    for line in lines:
        for spot, constraint in line.places:
            wanted[spot][constraint] = None
    marks = {spot: (numbers[spot], tuple(said)) for spot, said in wanted.items()}
    alone = {line.places[0]: line for line in lines if len(line.places) == 1}
    as_planned = tuple(alone[spot, known.planned] for spot, known in found.items())
    return Sites(tuple(lines), as_planned, marks, visited)


@dataclass(frozen=True, slots=True)
class _Spot:
    visit: Visit
    constraints: Mapping[Constraint, float]  # as planned first, with the bytes that it is about
    block: bool
    scope: str
    path: str
    entry: int | None  # the block that has it as an argument

    @property
    def planned(self) -> Constraint:
        return next(iter(self.constraints))


def _lines(found: Mapping[Spot, _Spot]) -> Iterator[Line]:
    helpers: dict[Any, list[Spot]] = defaultdict(list)
    calls: dict[Any, list[Spot]] = defaultdict(list)
    blocks: dict[int, list[Spot]] = defaultdict(list)
    for spot, known in found.items():
        helpers[_expression(spot)].append(spot)
        if spot.read:
            calls[spot.frames, spot.primitive].append(spot)
        if known.entry is not None:
            blocks[known.entry].append(spot)
    offered: list[dict[Spot, Constraint]] = []
    for spots in [*([spot] for spot in found), *helpers.values()]:
        kinds = {said: None for one in spots for said in found[one].constraints}
        offered += [
            {spot: said for spot in spots if said in found[spot].constraints} for said in kinds
        ]
    for spots in calls.values():  # all operands of a call, as one tree
        offered += _trees(spots, found)
    for spots in helpers.values():  # arrays of several shapes, as a table
        offered += _tables(spots, found)
    lines = {}
    for said in offered:
        if said:
            line = _made(said, found, _where(said, helpers), by_shape=_by_shape(said, helpers))
            lines.setdefault(line, line)
    for spots in blocks.values():  # all arguments of a block
        for said in _trees(spots, found):
            if len(said) > 1 and (top := _top(said)):
                line = replace(_made(said, found, (top,)), arguments=True)
                lines.setdefault(line, line)
    yield from lines


def _trees(spots: Sequence[Spot], found: Mapping[Spot, _Spot]) -> Iterator[dict[Spot, Constraint]]:
    """What could be said at several spots at once."""
    planned = {spot: found[spot].planned for spot in spots}
    for said in (
        planned,
        {spot: Constraint(one.spec, one.spec) for spot, one in planned.items()},
        {spot: Constraint(one.spec, None) for spot, one in planned.items()},
    ):
        yield {spot: one for spot, one in said.items() if one != NOTHING}


def _tables(spots: Sequence[Spot], found: Mapping[Spot, _Spot]) -> Iterator[dict[Spot, Constraint]]:
    """What could be said of arrays of each shape, where several pass."""
    if len({spot.shape for spot in spots}) < 2:
        return
    for said in _trees(spots, found):
        sizes: Any = defaultdict(lambda: defaultdict(float))  # bytes by shape and constraint
        for spot, one in said.items():
            sizes[spot.shape][one] += found[spot].constraints.get(one, 0.0)
        most = {shape: max(ones, key=lambda one: ones[one]) for shape, ones in sizes.items()}
        yield {spot: one for spot, one in said.items() if one == most[spot.shape]}


def _place(spot: Spot) -> Any:
    """The spot, of arrays of whatever shape."""
    return spot.frames, spot.primitive, spot.number, spot.read


def _expression(spot: Spot) -> Any:
    """The expression in the user's code, whoever called the function that it is in."""
    inside = next(k for k, frame in enumerate(spot.frames) if frame.user)
    return spot.frames[: inside + 1], spot.primitive, spot.number, spot.read


def _where(
    said: Mapping[Spot, Constraint], helpers: Mapping[Any, Sequence[Spot]]
) -> tuple[str, ...]:
    """The line to write it on, and who calls the function that it is in, where that matters."""
    spot = next(iter(said))
    where = [line_of(spot.user[0])]
    others = [other for other in helpers[_expression(spot)] if other not in said]
    frames = [other.user for other in others if other.shape in {one.shape for one in said}]
    if frames:
        where += [_caller(one.user, frames) for one in said]
    return tuple(dict.fromkeys(where))


def _by_shape(said: Mapping[Spot, Constraint], helpers: Mapping[Any, Sequence[Spot]]) -> bool:
    """Whether one has to look at `x.shape` to know what the line says."""
    shapes: dict[Any, dict[tuple[int, ...], Constraint]] = defaultdict(dict)
    for spot, one in said.items():
        shapes[_expression(spot)][spot.shape] = one
    return any(
        len(set(ones.values())) > 1 or any(spot.shape not in ones for spot in helpers[where])
        for where, ones in shapes.items()
    )


def _top(spots: Iterable[Spot]) -> str:
    """The innermost function that all these spots are in."""
    calls = [[(frame.file, frame.function) for frame in reversed(one.user)] for one in spots]
    shared = [names[0] for names in zip(*calls, strict=False) if len(set(names)) == 1]
    if not shared:
        return ""
    file, function = shared[-1]
    return f"{os.path.basename(file)}, at the top of {function.rpartition('.')[2]}"


def _made(
    said: Mapping[Spot, Constraint],
    found: Mapping[Spot, _Spot],
    where: tuple[str, ...],
    *,
    by_shape: bool = False,
) -> Line:
    return Line(
        tuple(said.items()),
        where,
        tuple(_name(one, found[one]) for one in said),
        frozenset(_block(found[one].scope) for one in said if found[one].block),
        sum(found[one].constraints.get(constraint, 0.0) for one, constraint in said.items()),
        by_shape,
    )


def _caller(user: Sequence[Frame], others: Sequence[Sequence[Frame]]) -> str:
    """The innermost line that tells a call from the others."""
    depth = next(
        (k for k in range(1, len(user)) if all(o[: k + 1] != user[: k + 1] for o in others)), 0
    )
    return line_of(user[depth])


def _names(scope: str) -> list[str]:
    return [re.sub(r"\d+", "*", name) for name in scope_names(scope)]


def _block(scope: str) -> str:
    """The scope of a repeated block, of one in it."""
    names = _names(scope)
    numbered = [k for k, name in enumerate(names) if "*" in name]
    return "/".join(names[: max(numbered, default=0) + 1])


def _name(spot: Spot, known: _Spot) -> str:
    scope = "/".join(_names(known.scope))
    made = f"{spot.primitive} in {scope or 'the step'}"
    name = known.path or (f"operand {spot.number} of {made}" if spot.read else made)
    return f"{name}, {known.visit.dtype}[{', '.join(map(str, spot.shape))}]"
