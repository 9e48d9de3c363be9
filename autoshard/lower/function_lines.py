"""One line about several arrays of a function, in the place of a line each.

    layer = autoshard.laid_out(layer, {"attention/bsd,dnh->bsnh:jit bfloat16[...]": P("x"), ...})

Where a repeated block needs many lines, those about arrays that one function makes or reads become
entries of such a table. An array is named by the scope and the primitive of its operation, and by
its type (`autoshard.annotations.Key`). Only what can be named so, with nothing else of the function
that fits the same name, is taken in.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from autoshard.annotations import Key, scope_parts
from autoshard.compat import Frame
from autoshard.lower.sites import Line
from autoshard.lower.source_lines import Constraint, Spot, Visit

Function = tuple[str, str]
"""A function of the user's: its file and its qualified name."""
Place = tuple[Spot, Constraint]
"""An array, and what is said of it."""


def functions(spot: Spot) -> list[Function]:
    """The functions of the user that an operation stands in, without a call of JAX in between."""
    first = next(k for k, frame in enumerate(spot.frames) if frame.user)
    found = []
    for frame in spot.frames[first:]:
        if not frame.user:
            break
        found.append((frame.file, frame.function))
    return list(dict.fromkeys(found))


def in_functions(
    lines: Sequence[Line],
    visits: Sequence[Visit],
    many: Callable[[Sequence[Line]], bool],
    as_good: Callable[[Sequence[Line], Sequence[Line]], bool],
) -> list[Line]:
    """With one line about a function in the place of several, until there are few enough.

    Args:
      lines: of which none can be left out.
      visits: all arrays that user code makes or reads.
      many: whether these are too many lines still.
      as_good: whether the first lines do as well as the second. Of a line that is about arrays
        outside of the function too, only what is about arrays in it is taken in.
    """
    chosen = list(lines)
    blocks = dict.fromkeys(block for line in lines for block in line.blocks)
    for block in (*blocks, None):
        here = [line for line in chosen if _is_in(line, block) and not line.arguments]
        if not (many(chosen) if block else False) and not any(line.inward for line in here):
            continue
        inside: dict[Function, dict[Line, list[Place]]] = defaultdict(dict)
        for line in here:
            for place in line.places:
                for function in functions(place[0]):
                    inside[function].setdefault(line, []).append(place)
        for function, parts in sorted(inside.items(), key=lambda one: -len(one[1])):
            table = _table(function, parts, visits)
            if table is not None:
                line, taken = table
                merged = [one for one in chosen if one not in taken] + [line]
                if (len(taken) > 1 or line.inward) and as_good(merged, chosen):
                    chosen = merged
                    break
    return chosen


def _is_in(line: Line, block: str | None) -> bool:
    """Whether it is in a block, or, without one, in none."""
    return block in line.blocks if block else not line.blocks


def _table(
    function: Function, parts: Mapping[Line, Sequence[Place]], visits: Sequence[Visit]
) -> tuple[Line, list[Line]] | None:
    """What lines say in a function as one line, and which of them; None where it can be of none."""
    here = [visit for visit in visits if function in functions(visit.spot)]
    if len({_outside(visit.spot, function) for visit in here}) > 1:
        return None  # it is called in several places, each in a scope of its own
    scopes = {visit.spot: _repeated(visit.scope) for visit in here}
    if any(_repeated(visit.scope) != scopes[visit.spot] for visit in here):
        return None
    every = zip(*scopes.values(), strict=False)
    entry = len(list(itertools.takewhile(lambda parts: len(set(parts)) == 1, every)))
    known = {visit.spot: visit for visit in here}
    taken = dict(parts)
    while True:
        places: dict[Spot, Constraint] = {}
        for spot, constraint in itertools.chain(*taken.values()):
            if places.setdefault(spot, constraint) != constraint:
                return None
        keys = {spot: _key(known[spot], here, places, entry) for spot in places}
        nameless = [line for line in taken if any(keys[spot] is None for spot, _ in taken[line])]
        if not nameless:
            break
        for line in nameless:
            del taken[line]
    if not taken:
        return None
    said = {keys[visit.spot]: places[visit.spot] for visit in here if visit.spot in places}
    visited = Counter(visit.spot for visit in here)
    file, name = function
    names = _names(taken)
    line = Line(
        tuple(places.items()),
        (f"{os.path.basename(file)}, around {name.rpartition('.')[2]}",),
        tuple(names[spot] for spot in places),
        frozenset(block for line in taken for block in line.blocks),
        sum(line.weight for line in taken),
        entries=tuple((str(key), constraint) for key, constraint in said.items()),
        strict=len({visited[spot] for spot in places}) == 1,
    )
    return line, list(taken)


def _outside(spot: Spot, function: Function) -> tuple[Frame, ...]:
    """The calls that lead to a function."""
    at = max(k for k, one in enumerate(spot.frames) if (one.file, one.function) == function)
    return spot.frames[at + 1 :]


def _repeated(scope: str) -> tuple[str, ...]:
    """The parts of a scope, with the numbers of repetitions left open."""
    return tuple(re.sub(r"\d+", "*", part) for part in scope_parts(scope))


def _key(
    visit: Visit, here: Sequence[Visit], places: Mapping[Spot, Constraint], entry: int
) -> Key | None:
    """A key of an array that fits no other of the function; None where there is none.

    `here` are the arrays of the function, and `entry` is how long the scope is that it stands in.
    Where others fit of which something else is said, it is told from them by its number.
    """
    spot = visit.spot
    primitive = "" if spot.inlined else spot.primitive
    scope = scope_parts(visit.scope)[entry:]
    if not (scope or primitive) or scope != _repeated(visit.scope)[entry:]:
        return None
    key = Key(scope, primitive, spot.read, visit.dtype, spot.shape)
    held = [one for one in here if key.holds(scope_parts(one.scope), one.spot.primitive)]
    if spot.inlined and len({(one.spot.primitive, one.scope) for one in held}) > 1:
        return None  # the scope is not that of one call alone
    typed = [
        one
        for one in held
        if (one.spot.shape, one.dtype, one.spot.read) == (spot.shape, visit.dtype, spot.read)
    ]
    spots = [one.spot for one in typed]
    if {places.get(one) for one in spots} == {places[spot]}:
        return key
    order, calls = list(dict.fromkeys(spots)), spots.count(spot)
    repeated = {one.scope for one in typed if one.spot == spot}
    if not (scope and primitive) or spots != order * calls or len(repeated) != calls:
        return None
    return replace(key, number=order.index(spot) + 1)


def _names(lines: Iterable[Line]) -> Mapping[Spot, str]:
    return {spot: name for line in lines for spot, name in zip(line.spots, line.names, strict=True)}
