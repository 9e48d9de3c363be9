"""Products of rows that lie in groups: tokamax', of both kinds, and MaxText's copies of the second.

    gmm, gmm_v2      rows `[m, k]`, matrices `[g, k, n]` (or `[g, n, k]`)  ->  `[m, n]`
    tgmm             `[k, m]`, `[m, n]`  ->  `[g, k, n]`, the gradient of the matrices
    tgmm_v2          `[m, k]`, `[m, n]`  ->  `[g, k, n]`

They may be cut as megablox' (`autoshard.program.kernels.known.grouped`). Operands may be quantised:
scales lie along all elements of a dimension, or along blocks of what is contracted, which are not
cut apart then. What is not a sum of parts stays whole: what is contracted where an activation or an
offset follows, groups and what is contracted where the result starts from an array (`partial_sum`).

The second kind runs on a mesh of cores, which nothing but a TPU can: on CPU it is computed in plain
JAX (`autoshard.program.kernels.known.ragged_plain`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.program.kernels.known.grouped import called, first_group, sizes_of_part, unit_of
from autoshard.program.kernels.known.ragged_plain import plain_gradient, plain_product
from autoshard.program.kernels.known.record import (
    Dimension,
    Form,
    Options,
    rule_of,
    summed,
    whole,
)
from autoshard.program.kernels.known.surroundings import Surroundings
from autoshard.program.kernels.ruled import Said

ROWS = 32
"""Rows of a tile of a TPU's registers, of the narrowest type: parts of rows are multiples of it."""
LEFT_BLOCK = 512
"""Contracted elements that share a scale where `gmm_v2` quantises rows itself
(`quant_block_size` in tokamax' `make_gmm_configs`)."""

Arrays = Mapping[str, Any]


def product(function: Callable[..., Any], form: Form, arrays: Sequence[Any]) -> list[Any]:
    """A call of `gmm` or `gmm_v2` that may be cut by rows, groups, columns, what is contracted."""
    options, given = form.options, _by_name(form, arrays)
    on_cores = "tiling" not in options
    left, right = given["lhs"], given["rhs"]
    (m, k), groups = left.shape, right.shape[0]
    backwards = options.get("transpose_rhs", False)
    columns = right.shape[1 if backwards else 2]
    gated = options.get("fuse_act") is not None
    unit = _row_unit(options, m)
    block = _block(given, k, axes={"lhs.scale": 1, "rhs.scale": 2 if backwards else 1})
    packed = right.shape[2 if backwards else 1] != k
    followed = gated or options.get("activation") or {"rhs_bias", "partial_sum"} & set(given)
    contracted = whole(k)
    if block is not None and not packed and not followed:
        least = LEFT_BLOCK if options.get("maybe_quantize_lhs") else 1
        contracted = summed(k, _unit(k, block, least), block)
    sides = "n k" if backwards else "k two n" if gated else "k n"
    dimensions = {
        "m": Dimension(m, unit),
        "g": whole(groups) if "partial_sum" in given else summed(groups),
        "k": contracted,
        "n": _columns(columns // 2 if gated else columns),
    }
    kind = _Call(function, form, m, groups, unit)

    def part(*arrays: Any) -> list[Any]:
        *operands, tiles, places = arrays
        here = _ungated(_by_name(form, operands)) if gated else _by_name(form, operands)
        left, right = here["lhs"], here["rhs"]
        sizes = left.shape[1], right.shape[1 if backwards else 2]
        more = kind.told(here, tiles, places, left.shape[0], sizes)
        if on_cores and places.shape[0] < groups:
            more["zero_initialize"] = True
        return kind.run(here, more, plain_product)

    split = _gated(given) if gated else given
    rule = _rule(form, split, _named(sides, gated=gated), dimensions, "m n")
    flat = [split[_key(one)] for one in form.operands]
    return called(part, flat, rule, function, m // unit, groups, _work(options, left, right, m))


def _named(sides: str, *, gated: bool) -> dict[str, str]:
    """The dimensions of the operands of a product; `sides` are those of a matrix."""
    columns = "two n" if gated else "n"
    return {
        "lhs": "m k",
        "lhs.qvalue": "m k",
        "lhs.scale": "m k",
        "lhs_scale": "1 1",
        "rhs": f"g {sides}",
        "rhs.qvalue": f"g {sides}",
        "rhs.scale": f"g {sides}",
        "rhs_scale": f"g k 1 {columns}",
        "rhs_bias": f"g 1 {columns}",
        "partial_sum": "m n",
    }


def gradient(function: Callable[..., Any], form: Form, arrays: Sequence[Any]) -> list[Any]:
    """A call of `tgmm` or `tgmm_v2` that may be cut by groups, rows, and both sides."""
    options, given = form.options, _by_name(form, arrays)
    left, right, groups = given["lhs"], given["rhs"], options["num_actual_groups"]
    on_cores = "tiling" not in options
    k, m = left.shape[::-1] if on_cores else left.shape
    unit = _row_unit(options, m)
    added = options.get("activation") is None and "partial_sum" not in given
    text = {
        "lhs": "m k" if on_cores else "k m",
        "lhs.qvalue": "k m",
        "lhs.scale": "k m",
        "rhs": "m n",
        "rhs.qvalue": "m n",
        "rhs.scale": "m n",
        "rhs_scale": "1 1 n",
        "partial_sum": "g k n",
    }
    dimensions = {
        "m": summed(m, unit) if added else whole(m),
        "g": Dimension(groups),
        "k": _columns(k),
        "n": _columns(right.shape[1]),
    }
    kind = _Call(function, form, m, groups, unit)

    def part(*arrays: Any) -> list[Any]:
        *operands, tiles, places = arrays
        here = _by_name(form, operands)
        rows = here["rhs"].shape[0]
        sizes = here["lhs"].shape[1 if on_cores else 0], here["rhs"].shape[1]
        more = kind.told(here, tiles, places, rows, sizes)
        more["num_actual_groups"] = places.shape[0]
        return kind.run(here, more, plain_gradient)

    rule = _rule(form, given, text, dimensions, "g k n")
    work = Said(2.0 * m * k * right.shape[1], dtype=str(left.dtype))
    return called(part, arrays, rule, function, m // unit if added else m, groups, work)


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """How parts of a call are called.

    Attributes:
      function, form: of the call.
      rows, groups: of the whole.
      unit: of which parts of rows are multiples.
      again: what it was traced under.
    """

    function: Callable[..., Any]
    form: Form
    rows: int
    groups: int
    unit: int
    again: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "again", Surroundings.of(self.function))

    def told(
        self, here: Arrays, tiles: Any, places: Any, rows: int, sides: tuple[int, int]
    ) -> dict[str, Any]:
        """What a part is told that the whole is not: sizes of groups, the first one, tiles."""
        sizes = here["group_sizes"]
        if rows < self.rows:
            sizes = sizes_of_part(sizes.astype(jnp.int32), tiles, self.unit, rows, self.rows)
        offset = here.get("group_offset")
        starts = [] if offset is None else [offset.reshape(())]
        first = first_group(starts, places, self.groups)
        options = self.form.options
        if "tiling" in options:
            tm, tk, tn = options["tiling"]
            tiling = {"tiling": (tm, *map(min, (tk, tn), sides))}
        else:
            first = {name: one[None] for name, one in first.items()}
            tiling = _smaller_tiles(options, sides)
        return {"group_sizes": sizes, **first, **tiling}

    def run(self, here: Arrays, more: dict[str, Any], plain: Callable[..., Any]) -> list[Any]:
        """Call the function on the parts; one on a mesh of cores in plain JAX on CPU."""
        moved = {name: one for name, one in more.items() if isinstance(one, jax.Array)}
        static = {name: one for name, one in more.items() if name not in moved}
        moved = {**here, **moved}

        def call(*arrays: Any) -> Any:
            given = dict(zip(moved, arrays, strict=True))
            operands = [given[_key(one)] for one in self.form.operands]
            told = {**{name: given[name] for name in more if name in given}, **static}

            def kernel() -> Any:
                return self.form.call(self.function, operands, **told)

            if "tiling" in self.form.options:
                return kernel()
            known = {**self.form.options, **given, **static}
            return lax.platform_dependent(cpu=lambda: plain(self.function, known), default=kernel)

        return [self.again.run(call, list(moved.values()))]


def _smaller_tiles(options: Options, sides: tuple[int, int]) -> dict[str, Any]:
    """Tiles of a part that are no larger than it; none where the function chooses them."""
    tiles = options.get("tile_info")
    if tiles is None:
        return {}
    k, n = sides
    small = {"tile_k": min(tiles.tile_k, k), "tile_n": min(tiles.tile_n, n)}
    return {"tile_info": dataclasses.replace(tiles, **small)}


def _row_unit(options: Options, rows: int) -> int:
    """Of which parts of rows are multiples: a tile, or all rows where tiles do not divide them."""
    if "tiling" in options:
        tile = options["tiling"][0]
        return rows if rows % tile else tile
    return math.gcd(rows, ROWS)


def _columns(size: int) -> Dimension:
    return Dimension(size, unit_of(size))


def _unit(size: int, block: int, least: int) -> int:
    """Of which parts of what is contracted are multiples: of whole blocks, and of registers."""
    unit = math.lcm(unit_of(size), block, least)
    return unit if size % unit == 0 else size


def _block(given: Arrays, size: int, axes: Mapping[str, int]) -> int | None:
    """How many contracted elements share a scale; None where operands differ in it."""
    found = {size // given[one].shape[axis] for one, axis in axes.items() if one in given}
    if "rhs_scale" in given:
        found.add(size // given["rhs_scale"].shape[1])
    found -= {size}  # one scale for all
    return None if len(found) > 1 else found.pop() if found else 1


def _rule(
    form: Form, given: Arrays, text: Mapping[str, str], sizes: Mapping[str, Dimension], result: str
) -> Any:
    """The rule of a call, by the names of the dimensions of each operand.

    Dimensions of an operand that are shorter than their name says hold one element for each block.
    """
    named = {**sizes, "two": whole(2)}
    tensors = []
    for place, name in enumerate(form.operands):
        shape = given[_key(name)].shape
        # Of sizes of groups, and where they begin, nothing is cut.
        labels = text[name[1:]].split() if name[1:] in text else ["whole"] * len(shape)
        tokens = [_token(*one, named) for one in zip(labels, shape, strict=True)]
        for axis, size in enumerate(shape):
            if not tokens[axis]:
                tokens[axis] = f"whole{place}_{axis}"
                named[tokens[axis]] = whole(size)
        tensors.append(" ".join(tokens))
    return rule_of(f"{', '.join(tensors)}, #m, g -> {result}", **named)


def _token(label: str, size: int, named: Mapping[str, Dimension]) -> str:
    """How a rule names a dimension of so many elements; nothing where it stays whole."""
    one = named.get(label)
    if one is not None and size == one.size:
        return label
    if one is not None and one.block > 1 and size == one.size // one.block:
        return f"%{label}"
    return ""


def _key(name: str) -> str:
    """The name under which an operand is kept: quantised values under that of plain ones."""
    return name.removeprefix("*").removesuffix(".qvalue")


def _by_name(form: Form, arrays: Sequence[Any]) -> dict[str, Any]:
    return {_key(name): array for name, array in zip(form.operands, arrays, strict=True)}


_GATED = "rhs", "rhs.scale", "rhs_scale", "rhs_bias"
"""Operands with columns of gates before those of values."""


def _gated(given: Arrays) -> dict[str, Any]:
    """With gates and values along a dimension of their own, so that both may be cut."""
    return {
        name: one.reshape(*one.shape[:-1], 2, -1) if name in _GATED else one
        for name, one in given.items()
    }


def _ungated(given: Arrays) -> dict[str, Any]:
    return {
        name: one.reshape(*one.shape[:-2], -1) if name in _GATED else one
        for name, one in given.items()
    }


def _work(options: Options, left: Any, right: Any, rows: int) -> Said:
    """Two FLOP for each row, contracted element and column, whatever the groups are."""
    columns = right.shape[1 if options.get("transpose_rhs") else 2]
    dtype = options.get("lhs_quant_dtype") or left.dtype
    return Said(2.0 * rows * left.shape[1] * columns, dtype=str(dtype))
