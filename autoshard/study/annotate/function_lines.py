"""One line about several arrays of a function, in the place of a line each.

    layer = autoshard.laid_out(layer, {"attention/bsd,dnh->bsnh:jit bfloat16[...]": P("x"), ...})

Where a repeated block needs many lines, those about arrays that one function makes or reads become
entries of such a table; so do those that can stand nowhere, as they hold under one scope of several
(`stage_1/block_0:tanh float32[8,16]`). An array is named by the scope and the primitive of its
operation, and by its type (`autoshard.program.annotations.Key`). Only what can be named so, with
nothing else of the function that fits the same name, is taken in.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from autoshard.compat import ARGUMENT, Frame, in_checkpoint
from autoshard.program.annotations import Key
from autoshard.study.annotate.lines import Line
from autoshard.study.annotate.source_lines import Constraint, Spot, Visit

Function = tuple[str, str]
"""A function of the user's: its file and its qualified name."""
Place = tuple[Spot, Constraint]
"""An array, and what is said of it."""


def functions(spot: Spot) -> list[Function]:
    """The functions of the user that an operation stands in, with no call of JAX in between but
    that of `jax.checkpoint`. What has no name (a lambda) has no line of its own."""
    first = next(k for k, frame in enumerate(spot.frames) if frame.user)
    found = []
    for user, frames in itertools.groupby(spot.frames[first:], key=lambda frame: frame.user):
        if user:
            found += [
                (frame.file, frame.function)
                for frame in frames
                if frame.function.rpartition(".")[2].isidentifier()
            ]
        elif not in_checkpoint(tuple(frames)):
            break
    return list(dict.fromkeys(found))


def in_functions(
    lines: Sequence[Line],
    visits: Sequence[Visit],
    many: Callable[[Sequence[Line]], bool],
    as_good: Callable[[Sequence[Line], Sequence[Line]], bool],
) -> list[Line]:
    """With one line about a function in the place of several, until there are few enough.

    Where lines about several functions would make them few enough, it is the innermost of these.

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
        while True:
            here = [line for line in chosen if _is_in(line, block) and not line.arguments]
            if not (block and many(chosen)) and not any(line.inward for line in here):
                break
            tables = [_with(line, taken, chosen) for line, taken in _tables(here, visits)]
            for merged in sorted(
                tables, key=lambda some: len(some) if not block or many(some) else 0
            ):
                if as_good(merged, chosen):
                    chosen = merged
                    break
            else:
                break
    for where in dict.fromkeys(line.where for line in chosen if line.entries):
        rest = [line for line in chosen if not line.arguments]  # of other blocks, too
        for line, taken in _tables(rest, visits):
            merged = _with(line, taken, chosen)
            if line.where == where and len(taken) > 1 and as_good(merged, chosen):
                chosen = merged
    return chosen


def _tables(lines: Sequence[Line], visits: Sequence[Visit]) -> Iterator[tuple[Line, list[Line]]]:
    """One line in the place of several, or of one that cannot be: of inner functions first."""
    inside: dict[Function, dict[Line, list[Place]]] = defaultdict(dict)
    depth: Counter[Function] = Counter()
    for line in lines:
        for place in line.places:
            for calls, function in enumerate(functions(place[0])):
                inside[function].setdefault(line, []).append(place)
                depth[function] = max(depth[function], calls)
    for function, parts in sorted(inside.items(), key=lambda one: depth[one[0]]):
        table = _table(function, parts, visits)
        if table is not None and (len(table[1]) > 1 or table[1][0].inward):
            yield table


def _with(line: Line, taken: Sequence[Line], chosen: Sequence[Line]) -> list[Line]:
    """A line in the place of others that are chosen."""
    return [one for one in chosen if one not in taken] + [line]


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
    arrays = _Arrays(function, here)
    taken = dict(parts)
    while True:
        said: dict[Spot, Constraint] = {}
        for spot, constraint in itertools.chain(*taken.values()):
            for scoped in arrays.at[spot]:
                if said.setdefault(scoped, constraint) != constraint:
                    return None
        keys = {scoped: arrays.key(scoped, said) for scoped in said}
        nameless = [
            line
            for line, places in taken.items()
            if any(keys[one] is None for spot, _ in places for one in arrays.at[spot])
        ]
        if not nameless:
            break
        for line in nameless:
            del taken[line]
    if not taken:
        return None
    entries = {keys[one.scoped]: said[one.scoped] for one in here if one.scoped in said}
    visited = Counter(arrays.inner(one) for one in here)
    file, name = function
    names = _names(taken)
    places = dict(itertools.chain(*taken.values()))
    line = Line(
        tuple(places.items()),
        (f"{os.path.basename(file)}, around {name.rpartition('.')[2]}",),
        tuple(names[spot] for spot in places),
        frozenset(block for line in taken for block in line.blocks),
        sum(line.weight for line in taken),
        entries=tuple((str(key), constraint) for key, constraint in entries.items()),
        strict=len({visited[arrays.inner(one)] for one in here if one.scoped in said}) == 1,
    )
    return line, list(taken)


def _outside(spot: Spot, function: Function) -> tuple[Frame, ...]:
    """The calls that lead to a function."""
    at = max(k for k, one in enumerate(spot.frames) if (one.file, one.function) == function)
    return spot.frames[at + 1 :]


def _repeated(scope: Sequence[str]) -> tuple[str, ...]:
    """The parts of a scope, with the numbers of repetitions left open."""
    return tuple(re.sub(r"\d+", "*", part) for part in scope)


class _Arrays:
    """The arrays that are given to, made and read in a function, over all its calls.

    Attributes:
      function, here: it and they.
      entry: how long the scope is in which it is called, numbered by its calls perhaps.
      at: by spot, under whichever scope or under one, the spots with the scopes of its arrays.
    """

    def __init__(self, function: Function, here: Sequence[Visit]) -> None:
        self.function, self.here = function, here
        every = zip(*(_repeated(visit.scope) for visit in here), strict=False)
        self.entry = len(list(itertools.takewhile(lambda parts: len(set(parts)) == 1, every)))
        self.first = {visit.scoped: visit for visit in reversed(here)}
        self.at: dict[Spot, dict[Spot, None]] = defaultdict(dict)
        for visit in here:
            for spot in (visit.spot, visit.scoped):
                self.at[spot][visit.scoped] = None

    def scope(self, visit: Visit) -> tuple[str, ...]:
        """In which it is, from where the function is called."""
        return visit.scope[self.entry :]

    def inner(self, visit: Visit) -> Spot:
        """Where it is in the function, in whichever call."""
        return replace(visit.spot, scope=self.scope(visit))

    def key(self, spot: Spot, said: Mapping[Spot, Constraint]) -> Key | None:
        """A key of an array that fits no other of the function; None where there is none.

        One that stands for others too of which the same is said is preferred, by the last parts of
        the scope, so many of them as do. Where others fit of which something else is said, it is
        told from them by its number.
        """
        visit = self.first[spot]
        if not self._has(spot):
            return None
        primitive = "" if spot.inlined else spot.primitive
        scope = self.scope(visit)
        best: tuple[int, Key | None] = 0, None
        for start in range(len(scope) + 1 if primitive else 1):
            if not (scope[start:] or primitive):
                continue
            key = Key(scope[start:], primitive, spot.read, visit.dtype, spot.shape)
            fitting = self._fitting(key, spot)
            if {said.get(one.scoped) for one in fitting} == {said[spot]}:
                best = max(best, (len(fitting), key), key=lambda one: one[0])
        return best[1] or self._numbered(visit, primitive, said)

    def _has(self, spot: Spot) -> bool:
        """Whether it is of the function: an argument may be of one that is called in it."""
        top = spot.frames[0]
        return spot.primitive != ARGUMENT or (top.file, top.function) == self.function

    def _fitting(self, key: Key, spot: Spot) -> list[Visit]:
        """The arrays that a key fits; none where it is not a key of a call alone."""
        own = [one for one in self.here if self._has(one.spot)]
        held = [one for one in own if key.holds(self.scope(one), one.spot.primitive)]
        if spot.inlined and len({(one.spot.primitive, self.scope(one)) for one in held}) > 1:
            return []  # the scope is not that of one call alone
        kind = key.shape, key.dtype, key.read
        return [one for one in held if (one.spot.shape, one.dtype, one.spot.read) == kind]

    def _numbered(
        self, visit: Visit, primitive: str, said: Mapping[Spot, Constraint]
    ) -> Key | None:
        scope, own = self.scope(visit), self.inner(visit)
        key = Key(scope, primitive, own.read, visit.dtype, own.shape)
        named = primitive and (scope or primitive == ARGUMENT)
        fitting = self._fitting(key, own) if named else []
        arrays = [self.inner(one) for one in fitting]
        order, calls = list(dict.fromkeys(arrays)), arrays.count(own)
        same = {one.scoped for one in fitting if self.inner(one) == own}
        if (
            arrays != order * calls
            or len(same) != calls
            or {said.get(one) for one in same} != {said[visit.scoped]}
        ):
            return None
        return replace(key, number=order.index(own) + 1)


def _names(lines: Iterable[Line]) -> Mapping[Spot, str]:
    return {spot: name for line in lines for spot, name in zip(line.spots, line.names, strict=True)}
