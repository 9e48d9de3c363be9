"""A plan's moves beside the collectives right after partitioning.

Both are multisets of (kind, axes, bytes). The partitioner may write a move otherwise and mean the
same, or less, which counts as the move:

    all_gather(x, y)                                  all_gather(x), all_gather(y), in any order
    all_reduce, reduce_scatter, all_to_all (x, y)     likewise
    all_reduce(x)                                     reduce_scatter(x), where a shard is all that
                                                      is read of the sum

What is left over was not planned ("involuntary"); what is planned and not made is missing, which
is not a fault: equal reshards are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from autoshard.compiler.hlo.axes import AxisSet, FineMesh
from autoshard.compiler.hlo.collectives import HloCollective
from autoshard.lower.collectives import KINDS
from autoshard.lower.compare import Comparison, Tally
from autoshard.plan.plan import MeshShape, Move

_Key = tuple[str, AxisSet, int]

_SHRINKING = ("all_gather", "reduce_scatter")
"""Kinds of which each part moves fewer bytes than the one after or before it."""


def compare_moves(
    moves: Sequence[Move], found: Sequence[HloCollective], mesh: MeshShape
) -> Comparison:
    """The plan's moves and the partitioner's collectives, tallied by kind, axes and bytes.

    Args:
      moves: of the plan; `all_slice` moves nothing and is left out.
      found: as `autoshard.compiler.hlo.collectives` lists them.
      mesh: of the plan.
    """
    fine = FineMesh(mesh)
    planned: Counter[_Key] = Counter()
    made: Counter[_Key] = Counter()
    for move in moves:
        if move.kind != "all_slice" and move.count:
            planned[move.kind, fine.of_names(move.axes), move.bytes] += move.count
    for one in found:
        made[one.kind, fine.of_printed(one.axes), one.bytes] += one.count
    _join_parts(planned, made, fine)
    planned_at = _places(((m.kind, fine.of_names(m.axes), m.bytes), m.scope, m.line) for m in moves)
    made_at = _places(((f.kind, fine.of_printed(f.axes), f.bytes), f.scope, f.line) for f in found)
    keys = sorted(
        (key for key in planned | made if planned[key] or made[key]),
        key=lambda key: (_order(key[0]), -key[2], fine.printed(key[1])),
    )
    tallies = (
        Tally(
            kind,
            fine.printed(axes),
            size,
            planned[kind, axes, size],
            made[kind, axes, size],
            planned_at.get((kind, axes, size), ()),
            made_at.get((kind, axes, size), ()),
        )
        for kind, axes, size in keys
    )
    unknown = dict.fromkeys(loop for one in found for loop in one.counted_once)
    return Comparison(tuple(tallies), (), tuple(unknown))


def _join_parts(planned: Counter[_Key], made: Counter[_Key], fine: FineMesh) -> None:
    """Count what is made instead of a planned move as that move."""
    for key in sorted(planned, key=lambda key: -len(key[1])):
        while planned[key] > made[key]:
            parts = _parts(key, planned, made, fine)
            if not parts:
                break
            times = min([planned[key] - made[key], *(made[p] - planned[p] for p in parts)])
            for part in parts:
                made[part] -= times
            made[key] += times


def _parts(
    key: _Key, planned: Counter[_Key], made: Counter[_Key], fine: FineMesh
) -> list[_Key] | None:
    """Unplanned collectives that together do what `key` says, or None."""
    kind, axes, size = key
    kinds = ("all_reduce", "reduce_scatter") if kind == "all_reduce" else (kind,)
    for candidate in made:
        other, part, bytes_ = candidate
        if other not in kinds or bytes_ != size or not part <= axes or candidate == key:
            continue
        if not part or made[candidate] <= planned[candidate]:
            continue
        if part == axes:
            return [candidate]
        left = {size // fine.size(part)} if other in _SHRINKING else {size}
        if kind == "all_reduce":
            left.add(size)
        for rest_size in left:
            rest: _Key = (kind, axes - part, rest_size)
            if rest != candidate and made[rest] > planned[rest]:
                return [candidate, rest]
            deeper = _parts(rest, planned, made, fine)
            if deeper is not None and candidate not in deeper:
                return [candidate, *deeper]
    return None


def _places(
    rows: Iterable[tuple[_Key, str, str]],
) -> dict[_Key, tuple[str, ...]]:
    found: dict[_Key, dict[str, None]] = {}
    for key, scope, line in rows:
        text = " ".join(part for part in (scope, line) if part)
        if text:
            found.setdefault(key, {})[text] = None
    return {key: tuple(texts) for key, texts in found.items()}


def _order(kind: str) -> tuple[int, str]:
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), kind)
