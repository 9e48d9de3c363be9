"""Which axes of a kernel's grid may be cut over a mesh, how far, and why others stay whole.

An axis of `G` places may be cut into parts that are multiples of `period` places long, where

    every index map    moves each block by the same number of elements whenever the axis moves on by
                       a period: by none (the array is whole on all devices), or so that the
                       G / period groups of places share the dimension evenly
    every result       is moved so, or else parts would write the same block; nobody may read those
                       that are not
    aliases            move alike
    the kernel's body  uses its place along the axis only as far as it repeats after a period
    its scratch        is written anew whenever the axis moves on

The period is 1 where blocks are walked one by one; where eight heads of queries share one head of
keys, it is 8: the map of the keys divides the place by 8.

Where that fails since a kernel asks for its place (a mask by position does), or walks along an
operand in no even way, the part may be **told** where it starts (`autoshard.compat.told_kernels`):
places are those in the whole grid then. Results must still be moved evenly, aliases alike, and
scratch be written anew. Operands that are walked evenly are cut; all others are whole on every
device.

What is found here is what the search may choose, and what lowering cuts by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.bodies import equations_in
from autoshard.program.kernels.along import Along, Axis, VariesError
from autoshard.program.kernels.carried import CarriedError, FirstStep


@dataclass(frozen=True, slots=True)
class GridCut:
    """An axis of a grid that may be cut into up to `parts` parts.

    Attributes:
      axis: its number.
      parts: into how many parts it can be cut at most; a number of parts must divide it.
      dims: (block, dimension) of the arrays that are cut with it, blocks of inputs first.
      period: places along it that share what they read.
      steps: by how many blocks each of `dims` moves in a period.
      told: whether parts have to be told where they start.
      maps: whether index maps have to be told as well.
    """

    axis: int
    parts: int
    dims: tuple[tuple[int, int], ...]
    period: int = 1
    steps: tuple[int, ...] = ()
    told: bool = False
    maps: bool = False


@dataclass(frozen=True, slots=True)
class KernelCuts:
    """How far a kernel may be cut: by which axes, and (axis, reason) of those that stay whole."""

    cuts: tuple[GridCut, ...]
    whole: tuple[tuple[int, str], ...]


class _StaysWholeError(Exception):
    """Why an axis cannot be cut."""


def kernel_cuts(equation: Any) -> KernelCuts:
    """How far an equation of `pallas_call` may be cut."""
    call = compat.kernel_call(equation)
    dropped = frozenset(k for k, var in enumerate(equation.outvars) if compat.is_dropped(var))
    cuts: list[GridCut] = []
    whole: list[tuple[int, str]] = []
    for axis, size in enumerate(call.grid):
        if size is not None and size < 2:
            continue
        try:
            cuts.append(_cut(call, axis, size, dropped, cuts))
        except _StaysWholeError as reason:
            whole.append((axis, str(reason)))
    for number, (axis, reason) in enumerate(whole):  # what needs no telling comes first
        size = call.grid[axis]
        try:
            if size is not None:
                cuts.append(_told(equation, call, axis, size, dropped, cuts))
                whole[number] = axis, ""
        except _StaysWholeError as error:
            whole[number] = axis, str(error) or reason
    found = sorted(cuts, key=lambda cut: cut.axis)
    return KernelCuts(tuple(found), tuple(one for one in whole if one[1]))


def _cut(
    call: compat.KernelCall,
    axis: int,
    size: int | None,
    dropped: frozenset[int],
    others: Sequence[GridCut],
) -> GridCut:
    """The cut of one axis. Raises _StaysWholeError."""
    if size is None:
        raise _StaysWholeError("its size is known at run time alone")
    _refuse_state(call)
    reason = None
    for period in _periods(size):
        try:
            return _cut_by(call, Axis(axis, size, period, call.ids), dropped, others)
        except _StaysWholeError as error:
            reason = reason or error
    assert reason is not None
    raise reason


def _periods(size: int) -> Iterator[int]:
    return (period for period in range(1, size // 2 + 1) if size % period == 0)


def _refuse_state(call: compat.KernelCall) -> None:
    """Refuse kernels with a state that no reference holds. Raises _StaysWholeError."""
    if not call.scalable:
        raise _StaysWholeError("the kernel runs on a mesh of cores")
    found = {one.primitive.name for one in equations_in(call.body)}
    if found & compat.RANDOM_STATE:
        raise _StaysWholeError("the kernel draws random bits, which depend on those drawn before")
    if found & compat.COPIES:
        raise _StaysWholeError(
            "the kernel copies by itself, and may await what another step has begun"
        )


def _cut_by(
    call: compat.KernelCall, axis: Axis, dropped: frozenset[int], others: Sequence[GridCut]
) -> GridCut:
    """The cut of an axis into multiples of a period. Raises _StaysWholeError."""
    taken = {place for other in others for place in other.dims}
    moved: list[dict[int, int]] = []
    for number, block in enumerate(call.blocks):
        found = _moves(call, axis, number, block)
        if len(found) > 1:
            raise _StaysWholeError(f"it walks two dimensions of {_array(call, number)} at once")
        if any((number, d) in taken for d in found):
            raise _StaysWholeError(
                f"another axis cuts the same dimension of {_array(call, number)}"
            )
        moved.append(found)
    still = [k for k in range(call.outputs) if not moved[call.inputs + k]]
    for k in still:
        if k not in dropped:
            raise _StaysWholeError(f"result {k} is made over all of it")
    for operand, result in call.aliases:
        inside = operand - call.bounds - call.scalars
        if inside < 0 or moved[inside] != moved[call.inputs + result]:
            raise _StaysWholeError(
                f"result {result} takes the place of an operand that moves otherwise"
            )
    try:
        axis.check_body(call.body, call.consts)
    except VariesError as error:
        raise _StaysWholeError(f"the kernel reads its place along it ({error})") from None
    _check_scratch(call, axis, still)
    return _found(call, axis, moved)


def _found(call: compat.KernelCall, axis: Axis, moved: Sequence[dict[int, int]]) -> GridCut:
    """The cut of an axis along which blocks move by so many elements a period."""
    dims = tuple((number, d) for number, found in enumerate(moved) for d in found)
    steps = tuple(moved[number][d] // call.blocks[number].units[d] for number, d in dims)
    parts = axis.size // axis.period
    return GridCut(axis.number, parts, dims, axis.period, steps)


def _told(
    equation: Any,
    call: compat.KernelCall,
    axis: int,
    size: int,
    dropped: frozenset[int],
    others: Sequence[GridCut],
) -> GridCut:
    """The cut of an axis of which parts are told where they start. Raises _StaysWholeError."""
    _refuse_state(call)
    reason: _StaysWholeError | None = None
    for period in _periods(size):
        along = Axis(axis, size, period, call.ids)
        try:
            cut = _told_by(call, along, dropped, others)
        except _StaysWholeError as error:
            reason = reason or error
            continue
        _check_told(equation, call, along, cut)
        return cut
    assert reason is not None
    raise reason


def _check_told(equation: Any, call: compat.KernelCall, axis: Axis, cut: GridCut) -> None:
    """Refuse a kernel that nobody can tell where a part starts. Raises _StaysWholeError."""
    if cut.maps and call.platform == "gpu":
        raise _StaysWholeError("index maps ask for their place along it, and none can be told")
    try:
        compat.check_tellable(equation.params, axis.number, axis.size)
    except compat.UntoldError as error:
        raise _StaysWholeError(f"the kernel asks for its place along it {error}") from None


def _told_by(
    call: compat.KernelCall, axis: Axis, dropped: frozenset[int], others: Sequence[GridCut]
) -> GridCut:
    """The cut of an axis into multiples of a period, of told parts. Raises _StaysWholeError."""
    taken = {place for other in others for place in other.dims}
    moved: list[dict[int, int]] = []
    for number, block in enumerate(call.blocks):
        found = {
            d: share
            for d, share in _even_moves(call, axis, number, block).items()
            if (number, d) not in taken
        }
        moved.append(found if len(found) == 1 else {})
    still = [k for k in range(call.outputs) if not moved[call.inputs + k]]
    for k in still:
        if _moves(call, axis, call.inputs + k, call.blocks[call.inputs + k]):
            raise _StaysWholeError(f"it walks two dimensions of result {k} at once")
        if k not in dropped:
            raise _StaysWholeError(f"result {k} is made over all of it")
    for k in set(range(call.outputs)) - set(still):
        if _moving(call, axis, call.inputs + k) != list(moved[call.inputs + k]):
            raise _StaysWholeError(f"it walks two dimensions of result {k} at once")
    for operand, result in call.aliases:
        inside = operand - call.bounds - call.scalars
        if inside < 0 or moved[inside] != moved[call.inputs + result]:
            raise _StaysWholeError(
                f"result {result} takes the place of an operand that moves otherwise"
            )
    _check_scratch(call, axis, still)
    cut = {number for number, found in enumerate(moved) if found}
    maps = any(not _keeps(call, axis, k) for k in range(call.inputs) if k not in cut)
    return replace(_found(call, axis, moved), told=True, maps=maps)


def _even_moves(
    call: compat.KernelCall, axis: Axis, number: int, block: compat.Block
) -> dict[int, int]:
    """By how many elements a block moves in a period, for dimensions in which it does evenly."""
    try:
        indices = axis.index_of(block.index_map)
    except VariesError:
        return {}
    found: dict[int, int] = {}
    for d, index in enumerate(indices):
        if axis.repeats(index) or not block.plain or d >= len(block.shape):
            continue
        try:
            found[d] = _share(axis, index, block, d, _array(call, number))
        except _StaysWholeError:
            continue
    return found


def _moving(call: compat.KernelCall, axis: Axis, number: int) -> list[int] | None:
    """The dimensions in which a block moves along an axis; None where scalars say."""
    try:
        indices = axis.index_of(call.blocks[number].index_map)
    except VariesError:
        return None
    return [d for d, index in enumerate(indices) if not axis.repeats(index)]


def _keeps(call: compat.KernelCall, axis: Axis, number: int) -> bool:
    """Whether a block is the same along all of an axis."""
    return _moving(call, axis, number) == []


def _moves(call: compat.KernelCall, axis: Axis, number: int, block: compat.Block) -> dict[int, int]:
    """By how many elements a block moves in a period, for the dimensions in which it does.

    Raises:
      _StaysWholeError: it moves unevenly, or beyond its share of the array.
    """
    name = _array(call, number)
    try:
        indices = axis.index_of(block.index_map)
    except VariesError:
        raise _StaysWholeError(f"scalars say which block of {name} is next") from None
    found: dict[int, int] = {}
    for d, index in enumerate(indices):
        if axis.repeats(index):
            continue
        if not block.plain or d >= len(block.shape):
            raise _StaysWholeError(f"blocks of {name} overlap, or are gathered")
        found[d] = _share(axis, index, block, d, name)
    return found


def _share(axis: Axis, index: Along, block: compat.Block, d: int, name: str) -> int:
    """The elements of a dimension that belong to one period. Raises _StaysWholeError."""
    table = index.table
    if table is None or index.rest:
        raise _StaysWholeError(f"blocks of {name} move along dimension {d} unevenly")
    start = table * block.units[d]
    steps = start[axis.period :] - start[: -axis.period]
    share = int(steps[0])
    if (steps != share).any():
        raise _StaysWholeError(f"blocks of {name} move along dimension {d} unevenly")
    if share <= 0:
        raise _StaysWholeError(f"blocks of {name} come in another order along dimension {d}")
    first = start[: axis.period]
    inside = (first >= 0).all() and (first + block.sizes[d] <= share).all()
    if not inside or share * (axis.size // axis.period) != block.shape[d]:
        raise _StaysWholeError(f"blocks do not divide dimension {d} of {name} ({block.shape[d]})")
    return share


def _check_scratch(call: compat.KernelCall, axis: Axis, still: Sequence[int]) -> None:
    """Refuse a kernel that carries its scratch along an axis. Raises _StaysWholeError."""
    first = call.scalars + len(call.blocks)
    kept = [call.scalars + call.inputs + k for k in still]
    kept += range(first, len(call.body.invars))
    if not kept or axis.number in call.parallel:
        return
    starts = np.arange(0, axis.size, axis.period)
    try:
        FirstStep(axis.number, starts, call.grid, call.ids).check(call.body, call.consts, kept)
    except CarriedError:
        raise _StaysWholeError("the kernel carries scratch along it") from None


def _array(call: compat.KernelCall, number: int) -> str:
    if number < call.inputs:
        return f"operand {call.bounds + call.scalars + number}"
    return f"result {number - call.inputs}"
