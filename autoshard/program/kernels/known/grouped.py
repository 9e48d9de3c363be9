"""Products of rows that lie in groups, one matrix for each group: megablox' and its copies.

    gmm     rows `[m, k]`, matrices `[g, k, n]` (or `[g, n, k]`)  ->  `[m, n]`
    tgmm    `[k, m]`, `[m, n]`  ->  `[g, k, n]`, the gradient of the matrices

Data says how many tiles of rows there are, so that the grid says nothing of rows and groups. Yet

    rows      may be cut in tiles: of each group a part has the rows that lie in it
    groups    may be cut: the functions take the first of their groups (`group_offset`), and write
              zeros elsewhere, so that parts of a product are summed
    k, n      may be cut as of any product

What is cut is told by two operands more, which count tiles of rows and groups: their first element
says where a part starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from autoshard import compat
from autoshard.program.kernels.known.record import (
    LANES,
    Dimension,
    Form,
    Options,
    kernels_of,
    ranks_of,
    rule_of,
    shapes_of,
    summed,
    whole,
)
from autoshard.program.kernels.ruled import Said, call_with_rule
from autoshard.program.ragged import sizes_of_rows
from autoshard.program.rules.record import Rule

OFFSET = "*group_offset"


def product_forms(_: Callable[..., Any], equation: Any) -> Iterator[Form]:
    """The forms of megablox' `gmm`."""
    call, said = _operands(equation, (2, 3, 1))
    if call is None or len(call.blocks) != 3 or len(call.blocks[0].sizes) != 2:
        return
    (tm, tk), (_, tn) = call.blocks[0].sizes, call.blocks[-1].sizes
    rows, matrices = shapes_of(equation)[:2]
    result = equation.outvars[0].aval
    for transposed in (False, True):
        if matrices[1:][:: -1 if transposed else 1] == (rows[1], result.shape[-1]):
            tiling = {"tiling": (tm, tk, tn), "transpose_rhs": transposed}
            yield Form(
                said, {"preferred_element_type": result.dtype, **tiling, **mode_of(equation)}
            )


def gradient_forms(_: Callable[..., Any], equation: Any) -> Iterator[Form]:
    """The forms of megablox' `tgmm`."""
    call, said = _operands(equation, (2, 2, 1))
    if call is None or len(call.blocks) != 3 or len(call.blocks[0].sizes) != 2:
        return
    (tm, tk), (_, tn) = call.blocks[0].sizes, call.blocks[1].sizes
    result = equation.outvars[0].aval
    tiling = {"tiling": (tm, tk, tn), "num_actual_groups": result.shape[0]}
    yield Form(said, {"preferred_element_type": result.dtype, **tiling, **mode_of(equation)})


def mode_of(equation: Any) -> Options:
    """Whether a kernel is interpreted."""
    return {"interpret": kernels_of(equation)[0].params["interpret"]}


def _operands(equation: Any, own: tuple[int, ...]) -> tuple[Any, tuple[str, ...]]:
    """The only kernel of a call, none where its operands are others, and their names."""
    names = ("lhs", "rhs", "group_sizes")
    more = {own: (), (*own, 0): (OFFSET,)}.get(ranks_of(equation))
    kernels = kernels_of(equation)
    if more is None or len(kernels) != 1 or len(equation.outvars) != 1:
        return None, names
    return compat.kernel_call(kernels[0]), (*names, *more)


def product(function: Callable[..., Any], form: Form, arrays: Sequence[Any]) -> list[Any]:
    """A call of a `gmm` that may be cut by rows, groups, columns and what is contracted."""
    transposed = form.options["transpose_rhs"]
    (m, k), (groups, *sides) = arrays[0].shape, arrays[1].shape
    columns = sides[0 if transposed else 1]
    sides = {"k": summed(k, unit_of(k)), "n": Dimension(columns, unit_of(columns))}
    offset = "," * (len(arrays) - 3)
    rule = rule_of(
        f"m k, g {'n k' if transposed else 'k n'}, s{offset}, #m, g -> m n",
        m=Dimension(m, _tile(form, m)),
        g=summed(groups),
        s=whole(arrays[2].shape[0]),
        **sides,
    )

    def part(lhs: Any, rhs: Any, sizes: Any, *rest: Any) -> list[Any]:
        tiling = _tiling(form, lhs.shape[1], rhs.shape[1 if transposed else 2])
        *offset, tiles, places = rest
        sizes = sizes_of_part(sizes, tiles, tiling[0], lhs.shape[0], m)
        first = first_group(offset, places, groups)
        return [function(lhs, rhs, sizes, **{**form.options, **first, "tiling": tiling})]

    return called(part, arrays, rule, function, m // _tile(form, m), groups)


def gradient(function: Callable[..., Any], form: Form, arrays: Sequence[Any]) -> list[Any]:
    """A call of a `tgmm` that may be cut by groups, rows, columns and rows of the matrices."""
    (k, m), (_, n), groups = arrays[0].shape, arrays[1].shape, form.options["num_actual_groups"]
    offset = "," * (len(arrays) - 3)
    rule = rule_of(
        f"k m, m n, s{offset}, #m, g -> g k n",
        m=summed(m, _tile(form, m)),
        g=Dimension(groups),
        s=whole(arrays[2].shape[0]),
        k=Dimension(k, unit_of(k)),
        n=Dimension(n, unit_of(n)),
    )

    def part(lhs: Any, rhs: Any, sizes: Any, *rest: Any) -> list[Any]:
        tiling = _tiling(form, lhs.shape[0], rhs.shape[1])
        *offset, tiles, places = rest
        sizes = sizes_of_part(sizes, tiles, tiling[0], lhs.shape[1], m)
        first = first_group(offset, places, groups)
        changed = {"tiling": tiling, "num_actual_groups": places.shape[0]}
        return [function(lhs, rhs, sizes, **{**form.options, **first, **changed})]

    return called(part, arrays, rule, function, m // _tile(form, m), groups)


def _tile(form: Form, rows: int) -> int:
    """Rows of a tile; all rows where tiles do not divide them."""
    tile = form.options["tiling"][0]
    return rows if rows % tile else tile


def unit_of(size: int) -> int:
    """Of which parts of columns, and of what is contracted, are multiples: `LANES` if it is one."""
    return math.gcd(size, LANES)


def _tiling(form: Form, k: int, n: int) -> tuple[int, int, int]:
    """The tiles of a part, as large as it is at most."""
    tm, tk, tn = form.options["tiling"]
    return tm, min(tk, k), min(tn, n)


def sizes_of_part(sizes: Any, tiles: Any, tile: int, count: int, whole: int) -> Any:
    """How many rows of each group lie in a part of so many rows."""
    return sizes if count == whole else sizes_of_rows(sizes, tiles[0] * tile, count)


def first_group(offset: Sequence[Any], places: Any, whole: int) -> dict[str, Any]:
    """Where the groups of a part start, as an option."""
    terms = [*offset, *([places[0]] if places.shape[0] < whole else [])]
    return {"group_offset": sum(terms[1:], terms[0])} if terms else {}


def called(
    part: Callable[..., list[Any]],
    arrays: Sequence[Any],
    rule: Rule,
    function: Callable[..., Any],
    tiles: int,
    groups: int,
    said: Said | None = None,
) -> list[Any]:
    """A call of `part` on arrays, on numbers of tiles of rows, and on those of groups."""
    counted = [jnp.arange(count, dtype=jnp.int32) for count in (tiles, groups)]
    return call_with_rule(part, [*arrays, *counted], rule, name=function.__name__, said=said)
