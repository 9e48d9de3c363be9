"""Lines that could be written into the user's code, with the layouts that a plan has there.

The layouts of a line (`autoshard.study.annotate.lines`) are those in which the plan stores the
array, what is computed again of it, its cotangent, or copies. Where code is passed under several
scopes, and the plan has another layout under each, what it has is known by scope too; but no line
can stand there then: only one about a function tells them apart.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard.compat import ARGUMENT, REMAT, Frame
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program
from autoshard.study.annotate.lines import Line, block_of, name_of
from autoshard.study.annotate.marks import marked_values, scope_of
from autoshard.study.annotate.planned_spots import NOTHING, PlannedSpots, origin
from autoshard.study.annotate.source_lines import (
    Constraint,
    Spot,
    Visit,
    line_of,
    visits,
    with_lines,
)


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """All lines that could be written, and how their spots are marked.

    Attributes:
      lines: those that name most bytes first.
      planned: for every spot the line that says what is planned there.
      scoped: the same, with a line for each scope where it is not planned alike; empty where it is
        everywhere.
      marks: for every spot its number and its layouts.
      visits: all arrays that user code makes or reads.
    """

    lines: tuple[Line, ...]
    planned: tuple[Line, ...]
    scoped: tuple[Line, ...]
    marks: Mapping[Spot, tuple[int, tuple[Constraint, ...]]]
    visits: tuple[Visit, ...]

    def marked(self, fn: Callable[..., Any], mesh: Any) -> Callable[..., Any]:
        """`fn` with every constraint of every line, each under the scope of its mark."""

        def constrain(spot: Spot, array: Any) -> Any:
            said = [
                (constraint, scope_of(number, k))
                for number, constraints in _at(spot, self.marks)
                for k, constraint in enumerate(constraints)
            ]
            for constraint, scope in sorted(said, key=lambda one: one[0].apart):
                array = constraint(array, mesh, scope)
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
        said = itertools.chain(*_at(spot, wanted))
        for constraint in sorted(said, key=lambda one: one.apart):
            array = constraint(array, mesh)
        return array

    return with_lines(fn, constrain)


def _at(spot: Spot, known: Mapping[Spot, Any]) -> list[Any]:
    """What is known of an array at a spot: under whichever scope, and under its own."""
    return [known[one] for one in dict.fromkeys((spot.anywhere, spot)) if one in known]


def sites_of(program: Program, plan: Plan, mesh: Any, fn: Callable[..., Any], *args: Any) -> Sites:
    """Every line that could be written into `fn` for a plan."""
    visited = tuple(visits(fn, *args))
    passes: Counter[Any] = Counter()
    seen: dict[Spot, dict[Spot, Visit]] = {}  # with the spots under each scope
    for visit in visited:
        if visit.last and "site-packages" not in visit.spot.user[0].file:
            seen[visit.spot] = {}
            passes[_place(visit.spot)] += 1
    for visit in visited:
        if visit.spot in seen:
            seen[visit.spot].setdefault(visit.scoped, visit)
    every = [scoped for those in seen.values() for scoped in those]
    numbers = {scoped: number for number, scoped in enumerate(every)}
    marked = marked_values(program, mesh, fn, args, numbers)
    planned = PlannedSpots(program, plan)

    def known(spot: Spot, those: Mapping[Spot, Visit]) -> _Spot | None:
        here = itertools.chain(*(marked.get(numbers[one], ()) for one in those))
        here = sorted(here, key=lambda one: one.order)
        constraints = planned.constraints(here, spot) if here else {}
        if not constraints:
            return None
        loops = here[0].trips > 1 or passes[_place(spot)] > 1
        value = next((one.value for one in here if not one.cotangent), here[0].value)
        path, entry = origin(program, value)
        inside = spot.read and spot.primitive not in REMAT  # what it computes again reads these
        entry = entry if inside and loops else None
        visit = next(iter(those.values()))
        return _Spot(visit, constraints, loops, here[0].scope, path, entry)

    found: dict[Spot, _Spot] = {}
    scoped: dict[Spot, dict[Spot, _Spot]] = {}
    for spot, those in seen.items():
        if (one := known(spot, those)) is not None:
            found[spot] = one
        parts = {at: known(at, {at: visit}) for at, visit in those.items()}
        if len({one and one.planned for one in parts.values()}) > 1:
            scoped[spot] = {at: one for at, one in parts.items() if one is not None}
    lines = sorted(_lines(found), key=lambda line: -line.weight)
    alone = {line.places[0]: line for line in lines if len(line.places) == 1}
    as_planned = {spot: alone[spot, known.planned] for spot, known in found.items()}
    told: list[Line] = []
    for spot in seen:
        if spot in scoped:
            told += [_alone(at, scoped[spot]) for at in scoped[spot]]
        elif spot in found:
            told.append(as_planned[spot])
    wanted: dict[Spot, dict[Constraint, None]] = defaultdict(dict)
    for line in (*lines, *told):
        for spot, constraint in line.places:
            wanted[spot][constraint] = None
    marks = {spot: (number, tuple(said)) for number, (spot, said) in enumerate(wanted.items())}
    return Sites(
        tuple(lines), tuple(as_planned.values()), tuple(told if scoped else ()), marks, visited
    )


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

    def name(self, spot: Spot) -> str:
        return name_of(spot, self.visit.dtype, self.scope, self.path)


def _alone(spot: Spot, found: Mapping[Spot, _Spot]) -> Line:
    """What is planned at a spot under one scope."""
    return _made({spot: found[spot].planned}, found, (line_of(spot.user[0]),))


def _lines(found: Mapping[Spot, _Spot]) -> Iterator[Line]:
    helpers: dict[Any, list[Spot]] = defaultdict(list)
    calls: dict[Any, list[Spot]] = defaultdict(list)
    blocks: dict[int, list[Spot]] = defaultdict(list)
    for spot, known in found.items():
        helpers[_expression(spot)].append(spot)
        if spot.read or spot.primitive == ARGUMENT:
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
    if spot.primitive == ARGUMENT:
        where = [_at_top(spot.user[0].file, spot.user[0].function)]
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
    return _at_top(*shared[-1])


def _at_top(file: str, function: str) -> str:
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
        tuple(found[one].name(one) for one in said),
        frozenset(block_of(found[one].scope) for one in said if found[one].block),
        sum(found[one].constraints.get(constraint, 0.0) for one, constraint in said.items()),
        by_shape,
    )


def _caller(user: Sequence[Frame], others: Sequence[Sequence[Frame]]) -> str:
    """The innermost line that tells a call from the others."""
    depth = next(
        (k for k in range(1, len(user)) if all(o[: k + 1] != user[: k + 1] for o in others)), 0
    )
    return line_of(user[depth])
