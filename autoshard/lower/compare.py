"""A plan's moves beside the collectives that the compiler makes.

Both are multisets of (kind, axes, local bytes); the order of axes does not matter. Shardy writes a
reduce-scatter as `all_reduce` then `all_slice`, which `normalise` joins. A plan may hold that pair
too, as a sum that is settled and a copy that is sliced from it: `compare` joins it alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autoshard.lower.collectives import KINDS, Collective
from autoshard.terminal import columns


class CollectiveLike(Protocol):
    """What `compare` needs of a planned move; `scope` and `line` are shown where present."""

    @property
    def kind(self) -> str: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def count(self) -> int: ...


def normalise(collectives: Sequence[Collective]) -> list[Collective]:
    """Join each `all_reduce` with the slices of its only use into a `reduce_scatter`.

    Slices that cover all reduced axes make the reduction a `reduce_scatter` (bytes: the local
    input); axes that were sliced but not reduced stay an `all_slice` after it. Slices that cover
    only some of the reduced axes change nothing.

        all_reduce(x), all_slice(x)        ->  reduce_scatter(x)
        all_reduce(x), all_slice(x, y)     ->  reduce_scatter(x), all_slice(y)
        all_reduce(x, y), all_slice(x)     ->  all_reduce(x, y), all_slice(x)
    """
    readers: dict[int, list[int]] = {}
    for index, one in enumerate(collectives):
        if one.operand is not None:
            readers.setdefault(one.operand, []).append(index)
    replaced: dict[int, Collective | None] = {}
    for index, one in enumerate(collectives):
        if one.kind != "all_reduce":
            continue
        chain, sliced, last = [], [], one
        while not set(one.axes) <= set(sliced):
            after = readers.get(last.result, [])
            if len(after) != 1:
                break
            following = collectives[after[0]]
            same_loop = following.count == one.count
            if following.kind != "all_slice" or not following.only_use or not same_loop:
                break
            chain.append(after[0])
            sliced.extend(following.axes)
            last = following
        if not chain or not set(one.axes) <= set(sliced):
            continue
        rest = tuple(axis for axis in sliced if axis not in one.axes)
        scattered = replace(one, kind="reduce_scatter", result=one.result if rest else last.result)
        replaced[index] = scattered
        replaced.update(dict.fromkeys(chain))
        if rest:
            replaced[chain[-1]] = replace(last, axes=rest, operand=scattered.result, only_use=True)
    result = []
    for index, one in enumerate(collectives):
        kept = replaced.get(index, one)
        if kept is not None:
            result.append(kept)
    return result


@dataclass(frozen=True, slots=True)
class Tally:
    """How often one (kind, axes, bytes) is planned and found, and where."""

    kind: str
    axes: tuple[str, ...]
    bytes: int
    planned: int
    found: int
    planned_at: tuple[str, ...] = ()
    found_at: tuple[str, ...] = ()

    @property
    def matched(self) -> int:
        return min(self.planned, self.found)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A plan's moves beside those that the compiler makes, each with its counts.

    `all_slice` moves nothing, so `slices` hold no failure. `counted_once` names loops of unknown
    trip count, whose collectives were counted once.
    """

    tallies: tuple[Tally, ...]
    slices: tuple[Tally, ...] = ()
    counted_once: tuple[str, ...] = ()

    @property
    def matched(self) -> tuple[Tally, ...]:
        """The tallies with something planned and found."""
        return tuple(tally for tally in self.tallies if tally.matched)

    @property
    def missing(self) -> tuple[Tally, ...]:
        """The tallies that are planned more often than found."""
        return tuple(tally for tally in self.tallies if tally.planned > tally.found)

    @property
    def unplanned(self) -> tuple[Tally, ...]:
        """The tallies that are found more often than planned."""
        return tuple(tally for tally in self.tallies if tally.found > tally.planned)

    @property
    def agrees(self) -> bool:
        """Whether kinds, axes, bytes and counts are all equal."""
        return not self.missing and not self.unplanned

    def __bool__(self) -> bool:
        return self.agrees

    def __str__(self) -> str:
        agreed = sum(tally.matched for tally in self.tallies)
        lacking = sum(tally.planned - tally.found for tally in self.missing)
        surplus = sum(tally.found - tally.planned for tally in self.unplanned)
        lines = [f"collectives: {agreed} as planned, {lacking} missing, {surplus} unplanned"]
        rows = [("", "kind", "axes", "local bytes", "planned", "found", "where")]
        for tally in self.tallies:
            if tally.planned == tally.found:
                verdict, where = "ok", tally.found_at
            elif tally.planned > tally.found:
                verdict, where = "missing", tally.planned_at
            else:
                verdict, where = "unplanned", tally.found_at
            rows.append(
                (
                    verdict,
                    tally.kind,
                    ",".join(tally.axes),
                    f"{tally.bytes:,}",
                    f"{tally.planned:,}",
                    f"{tally.found:,}",
                    _some(where),
                )
            )
        if len(rows) > 1:
            lines += columns(rows, right=(3, 4, 5))
        if self.slices:
            planned = sum(tally.planned for tally in self.slices)
            found = sum(tally.found for tally in self.slices)
            lines.append(f"all_slice, which moves nothing: {planned} planned, {found} found")
        lines.extend(
            f"counted once, because its trip count is unknown: {loop}; pass trip_counts"
            for loop in self.counted_once
        )
        return "\n".join(lines)


def _some(places: tuple[str, ...], most: int = 2) -> str:
    more = len(places) - most
    return "; ".join(places[:most]) + (f"; and {more} more" if more > 0 else "")


def compare(planned: Iterable[CollectiveLike], found: Sequence[Collective]) -> Comparison:
    """A plan's moves against those that were found, as multisets of (kind, axes, bytes).

    Args:
        planned: the plan's moves; the order of their axes does not matter.
        found: what `explicit_collectives` returned, `normalise`d here. Those of no bytes move
            nothing: they are of arrays of no elements, and compilers drop them.
    """
    moves = tuple(one for one in normalise(found) if one.bytes)
    planned = tuple(planned)
    left, left_at = _multiset(planned)
    right, right_at = _multiset(moves)
    _join_planned(planned, moves, left, left_at)
    tallies = [
        Tally(kind, axes, size, left[key], right[key], left_at.get(key, ()), right_at.get(key, ()))
        for key in sorted(left | right, key=lambda key: (KINDS.index(key[0]), -key[2], key[1]))
        for kind, axes, size in (key,)
    ]
    return Comparison(
        tuple(tally for tally in tallies if tally.kind != "all_slice"),
        tuple(tally for tally in tallies if tally.kind == "all_slice"),
        tuple(dict.fromkeys(loop for move in moves for loop in move.counted_once)),
    )


_AXES = re.compile(r"@(\((?:[^()]|\([^()]*\))*\)|\"?\w+\"?(?::\(\d+\)\d+)?)")
_Key = tuple[str, tuple[str, ...], int]


def _key(one: CollectiveLike) -> _Key:
    return one.kind, tuple(sorted(one.axes)), one.bytes


def _join_planned(
    moves: Sequence[CollectiveLike],
    found: Sequence[Collective],
    planned: Counter[_Key],
    places: dict[_Key, tuple[str, ...]],
) -> None:
    """Count a planned `all_reduce` whose result is then sliced as the `reduce_scatter` it is.

    The two belong together where the type that the one leaves is the type that the other takes, as
    a `Move` writes them: `f32[8]{unreduced=x} -> f32[8]` and `f32[8] -> f32[8@x]`.
    """
    lacking: Counter[tuple[_Key, str]] = Counter()
    for one in found:
        if one.kind == "reduce_scatter":
            dims = ", ".join(map(str, one.shape))
            lacking[_key(one), f"{one.dtype}[{dims}]"] += one.count
    slices: dict[str, list[CollectiveLike]] = {}
    for move in moves:
        if move.kind == "reduce_scatter":
            lacking[_key(move), _shape_of(_types(move)[0])] -= move.count
        if move.kind == "all_slice":
            slices.setdefault(_types(move)[0], []).append(move)
    for move in sorted(moves, key=lambda move: -move.count):
        kind, axes, size = reduction = _key(move)
        if kind != "all_reduce":
            continue
        scatter, after = ("reduce_scatter", axes, size), _types(move)[1]
        fitting = [
            piece
            for piece in slices.get(after, [])
            if set(axes) <= set(piece.axes) and piece.count == move.count
        ]
        if fitting and lacking[scatter, _shape_of(after)] >= move.count:
            slices[after].remove(fitting[0])
            lacking[scatter, _shape_of(after)] -= move.count
            planned[reduction] -= move.count
            planned[scatter] += move.count
            places.setdefault(scatter, places.get(reduction, ()))


def _shape_of(text: str) -> str:
    """A type without its axes: `f32[8@(x,y), 4]{unreduced=z}` is `f32[8, 4]`."""
    return _AXES.sub("", text.partition("{")[0])


def _types(move: CollectiveLike) -> tuple[str, str]:
    before, _, after = getattr(move, "value", "").partition(" -> ")
    return before, after


def _multiset(
    collectives: Iterable[CollectiveLike],
) -> tuple[Counter[_Key], dict[_Key, tuple[str, ...]]]:
    counts: Counter[_Key] = Counter()
    places: dict[_Key, dict[str, None]] = {}
    for one in collectives:
        if one.count == 0:
            continue
        key = _key(one)
        counts[key] += one.count
        parts = (getattr(one, "scope", ""), getattr(one, "line", ""))
        text = " ".join(part for part in parts if part)
        if text:
            places.setdefault(key, {})[text] = None
    return counts, {key: tuple(texts) for key, texts in places.items()}
