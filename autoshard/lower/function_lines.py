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
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from autoshard.annotations import Key, scope_parts
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
    for block in dict.fromkeys(block for line in lines for block in line.blocks):
        if not many(chosen):
            break
        inside: dict[Function, dict[Line, list[Place]]] = defaultdict(dict)
        for line in chosen:
            if block in line.blocks and not line.arguments:
                for place in line.places:
                    for function in functions(place[0]):
                        inside[function].setdefault(line, []).append(place)
        for function, parts in sorted(inside.items(), key=lambda one: -len(one[1])):
            table = _table(function, parts, visits) if len(parts) > 1 else None
            if table is not None:
                merged = [line for line in chosen if line not in parts] + [table]
                if as_good(merged, chosen):
                    chosen = merged
                    break
    return chosen


def _table(
    function: Function, parts: Mapping[Line, Sequence[Place]], visits: Sequence[Visit]
) -> Line | None:
    """What lines say in a function as one line; None where names do not tell its arrays apart."""
    places: dict[Spot, Constraint] = {}
    for spot, constraint in itertools.chain(*parts.values()):
        if places.setdefault(spot, constraint) != constraint:
            return None
    here = [visit for visit in visits if function in functions(visit.spot)]
    scopes = {visit.spot: scope_parts(visit.scope) for visit in here}
    if any(scope_parts(visit.scope) != scopes[visit.spot] for visit in here):
        return None  # each call of the function stands in a scope of its own
    every = zip(*scopes.values(), strict=False)
    entry = len(list(itertools.takewhile(lambda parts: len(set(parts)) == 1, every)))
    keys: dict[Key, Constraint] = {}
    for visit in here:
        if visit.spot in places:
            key = _key(visit, here, places, entry)
            if key is None or keys.setdefault(key, places[visit.spot]) != places[visit.spot]:
                return None
    file, name = function
    names = _names(parts)
    return Line(
        tuple(places.items()),
        (f"{os.path.basename(file)}, around {name.rpartition('.')[2]}",),
        tuple(names[spot] for spot in places),
        frozenset(block for line in parts for block in line.blocks),
        sum(line.weight for line in parts),
        entries=tuple((str(key), constraint) for key, constraint in keys.items()),
    )


def _key(
    visit: Visit, here: Sequence[Visit], places: Mapping[Spot, Constraint], entry: int
) -> Key | None:
    """A key of an array that fits no other of the function; None where there is none.

    `here` are the arrays of the function, and `entry` is how long the scope is that it stands in.
    """
    spot = visit.spot
    primitive = "" if spot.inlined else spot.primitive
    scope = scope_parts(visit.scope)[entry:]
    if not (scope or primitive):
        return None
    key = Key(scope, primitive, spot.read, visit.dtype, spot.shape)
    held = [one for one in here if key.holds(scope_parts(one.scope), one.spot.primitive)]
    if spot.inlined and len({(one.spot.primitive, one.scope) for one in held}) > 1:
        return None  # the scope is not that of one call alone
    typed = {
        one.spot
        for one in held
        if (one.spot.shape, one.dtype, one.spot.read) == (spot.shape, visit.dtype, spot.read)
    }
    return key if {places.get(one) for one in typed} == {places[spot]} else None


def _names(lines: Iterable[Line]) -> Mapping[Spot, str]:
    return {spot: name for line in lines for spot, name in zip(line.spots, line.names, strict=True)}
