"""Lines that could be written into the user's code, with the layouts that a plan has there.

A **line** is one `with_sharding_constraint` in the user's code (`autoshard.lower.source_lines`),
for what an expression is, or for an operand before it is read. It may be written where it is
reached by one call only, or in a helper that several call. Its layouts are those in which the plan
stores the array, what is computed again of it, its cotangent, or their copies.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from autoshard.compat import Frame
from autoshard.layout import UNREDUCED, Layout, to_partition_spec
from autoshard.lower.marks import marked_values, scope_of
from autoshard.lower.source_lines import Constraint, Spot, Visit, line_of, visits, with_lines
from autoshard.plan import Plan
from autoshard.program import Program
from autoshard.targets import scope_names, shown_path

LAYOUTS = 4
"""So many layouts are tried at a spot."""
SHOWN = 4
"""So many arrays of a line are named."""


@dataclass(frozen=True, slots=True)
class Line:
    """One `with_sharding_constraint` in the user's code.

    Attributes:
      places: where it holds, and the layout there.
      where: the user's lines, the one to write it on first.
      names: of the arrays: a tree path, or the operation that makes or reads it, and its type.
      block: whether it is in a repeated block.
      weight: bytes of all arrays that it names, all repetitions.
    """

    places: tuple[tuple[Spot, Constraint], ...]
    where: tuple[str, ...] = field(compare=False)
    names: tuple[str, ...] = field(compare=False)
    block: bool = field(compare=False)
    weight: float = field(compare=False)

    @property
    def spots(self) -> tuple[Spot, ...]:
        """Where it holds."""
        return tuple(spot for spot, _ in self.places)

    @property
    def says(self) -> tuple[Constraint, ...]:
        """What it says, each once."""
        return tuple(dict.fromkeys(constraint for _, constraint in self.places))

    def __str__(self) -> str:
        first, *callers = self.where
        via = f", called at {' and '.join(callers)}" if callers else ""
        calls = []
        for constraint in self.says:
            function = "one_way_constraint" if constraint.one_way else "with_sharding_constraint"
            each = list(
                dict.fromkeys(
                    n for n, c in zip(self.names, self.places, strict=True) if c[1] == constraint
                )
            )
            more = f" and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
            calls.append(f"x = {function}(x, {constraint})  # {', '.join(each[:SHOWN])}{more}")
        return f"{first}{via}: " + f"\n{' ' * len(first)}    ".join(calls)


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """All lines that could be written, and how their spots are marked.

    Attributes:
      lines: those that name most bytes first.
      marks: for every spot its number and its layouts.
    """

    lines: tuple[Line, ...]
    marks: Mapping[Spot, tuple[int, tuple[Constraint, ...]]]

    def marked(self, fn: Callable[..., Any], mesh: Any) -> Callable[..., Any]:
        """`fn` with every constraint of every line, each under the scope of its mark."""

        def constrain(spot: Spot, array: Any) -> Any:
            number, constraints = self.marks.get(spot, (0, ()))
            for k, constraint in enumerate(constraints):
                with jax.named_scope(scope_of(number, k)):
                    array = constraint(array, mesh)
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
        for constraint in wanted.get(spot, ()):
            array = constraint(array, mesh)
        return array

    return with_lines(fn, constrain)


def sites_of(program: Program, plan: Plan, mesh: Any, fn: Callable[..., Any], *args: Any) -> Sites:
    """Every line that could be written into `fn` for a plan."""
    seen: dict[Spot, list[Visit]] = {}
    for visit in visits(fn, *args):
        if visit.last and "site-packages" not in visit.spot.user[0].file:
            seen.setdefault(visit.spot, []).append(visit)
    numbers = {spot: number for number, spot in enumerate(seen)}
    marked = marked_values(program, mesh, fn, args, numbers)
    found: dict[Spot, _Spot] = {}
    for spot, those in seen.items():
        values = [one.value for one in marked.get(numbers[spot], ())]
        layouts = _layouts(program, plan, values, read=spot.read)
        if layouts:
            first = marked[numbers[spot]][0]
            loops = first.trips > 1 or len(those) > 1
            path = shown_path(program, first.value) if first.value in program.inputs else ""
            found[spot] = _Spot(those[0], layouts, loops, first.scope, path)
    lines = sorted(
        _lines(found, plan.mesh.names, backward=any(op.backward for op in program.ops)),
        key=lambda line: -line.weight,
    )
    wanted: dict[Spot, dict[Constraint, None]] = defaultdict(dict)
    for line in lines:
        for spot, constraint in line.places:
            wanted[spot][constraint] = None
    marks = {spot: (numbers[spot], tuple(said)) for spot, said in wanted.items()}
    return Sites(tuple(lines), marks)


@dataclass(frozen=True, slots=True)
class _Spot:
    visit: Visit
    layouts: Mapping[Layout, float]
    block: bool
    scope: str
    path: str

    @property
    def rank(self) -> int:
        return len(self.visit.shape)


def _layouts(
    program: Program, plan: Plan, values: Sequence[int], *, read: bool
) -> Mapping[Layout, float]:
    """The layouts that a plan gives these values, those of most bytes first."""
    found: defaultdict[Layout, float] = defaultdict(float)
    for value in dict.fromkeys(values):
        record = program.values[value]
        size = float(record.bytes * record.trips)
        stored, copy = plan.decisions.stored[value], plan.decisions.copy[value]
        if record.free:  # computed wherever it is needed in the plan, but once in the user's code
            stored = (-1,) * len(plan.mesh.names)
        if copy is not None:
            found[copy] += size / 2
        if stored is not None and not read and UNREDUCED not in stored:
            found[stored] += size
    most = sorted(found, key=lambda layout: -found[layout])[:LAYOUTS]
    return {layout: found[layout] for layout in most}


def _lines(found: Mapping[Spot, _Spot], names: Sequence[str], *, backward: bool) -> Iterator[Line]:
    helpers: dict[Any, list[Spot]] = defaultdict(list)
    calls: dict[Any, list[Spot]] = defaultdict(list)
    for spot in found:
        helpers[_expression(spot)].append(spot)
        if spot.read:
            calls[spot.frames, spot.primitive].append(spot)
    offered: list[dict[Spot, Layout]] = []
    for spots in [*([spot] for spot in found), *helpers.values()]:
        kinds = {(found[one].rank, layout): None for one in spots for layout in found[one].layouts}
        for rank, layout in kinds:
            offered.append(
                {
                    spot: layout
                    for spot in spots
                    if found[spot].rank == rank and layout in found[spot].layouts
                }
            )
    for spots in calls.values():  # all operands of a call, as one tree
        offered.append({spot: next(iter(found[spot].layouts)) for spot in spots})
    lines = {}
    for layouts in offered:
        copies = all(spot.read for spot in layouts)
        for one_way in (False, True)[: 1 + (copies and backward)]:
            line = _line(layouts, found, helpers, names, one_way=one_way)
            lines.setdefault(line, line)
    yield from lines


def _expression(spot: Spot) -> Any:
    """The expression in the user's code, whoever called the function that it is in."""
    inside = next(k for k, frame in enumerate(spot.frames) if frame.user)
    return spot.frames[: inside + 1], spot.primitive, spot.number, spot.read


def _line(
    layouts: Mapping[Spot, Layout],
    found: Mapping[Spot, _Spot],
    helpers: Mapping[Any, Sequence[Spot]],
    names: Sequence[str],
    *,
    one_way: bool,
) -> Line:
    spot = next(iter(layouts))
    places = tuple(
        (one, Constraint(to_partition_spec(layout, names, found[one].rank), one_way))
        for one, layout in layouts.items()
    )
    where = [line_of(spot.user[0])]
    others = [other.user for other in helpers[_expression(spot)] if other not in layouts]
    if others:  # who calls the function that the line is in
        where += [_caller(one.user, others) for one in layouts]
    return Line(
        places,
        tuple(dict.fromkeys(where)),
        tuple(_name(one, found[one]) for one in layouts),
        any(found[one].block for one in layouts),
        sum(found[one].layouts[layout] for one, layout in layouts.items()),
    )


def _caller(user: Sequence[Frame], others: Sequence[Sequence[Frame]]) -> str:
    """The innermost line that tells a call from the others."""
    depth = next(
        (k for k in range(1, len(user)) if all(o[: k + 1] != user[: k + 1] for o in others)), 0
    )
    return line_of(user[depth])


def _name(spot: Spot, known: _Spot) -> str:
    scope = "/".join(re.sub(r"\d+", "*", name) for name in scope_names(known.scope))
    made = f"{spot.primitive} in {scope or 'the step'}"
    name = known.path or (f"operand {spot.number} of {made}" if spot.read else made)
    return f"{name}, {known.visit.dtype}[{', '.join(map(str, known.visit.shape))}]"
