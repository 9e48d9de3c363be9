"""The collectives of a `shard_map` body in five primitives of parts (`autoshard.compat.parts`).

Parts of several axes are numbered in row-major order. As in JAX, for axes (a, b) of sizes A and B:

    psum, pmax, pmin    fold over both
    all_gather          collect over b, then over a: dimensions [A, B], merged
    all_to_all          the split dimension as [A, B, n]: exchange A over a, B over b
    psum_scatter        the same exchange, then the sum of [A, B]
    ppermute            permute over both at once
    pbroadcast          permute, with one source for all

Rows whose number is known at run time alone (`ragged_all_to_all`) are sent by a primitive of their
own (`autoshard.compat.row_exchange`), which stays an op of the program.

Casts between kinds of types (`pvary`, `pcast`) are nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax

from autoshard.compat import parts
from autoshard.compat.row_exchange import send_rows

Collective = Callable[[Any, list[Any], Mapping[str, int]], Any]
"""(equation, operands, size of each mesh axis) to the result on a part."""


class CollectiveError(ValueError):
    """A collective that cannot be planned; says why."""


def run_collective(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> list[Any]:
    """The result of a collective on a part.

    Args:
      sizes: the size of each mesh axis that it may name, in the order of the mesh.

    Raises:
      CollectiveError: it cannot be said with whole arrays.
    """
    name = equation.primitive.name
    if name in _REFUSED:
        raise CollectiveError(f"{name} {_REFUSED[name]}")
    if equation.params.get("axis_index_groups") is not None:
        groups = equation.params["axis_index_groups"]
        raise CollectiveError(
            f"{name} among axis_index_groups={groups} cannot be planned: give the mesh an axis for "
            "the groups and one for the places in a group, and name the latter alone"
        )
    return [_COLLECTIVES[name](equation, operands, sizes)]


def is_collective(equation: Any) -> bool:
    """Whether an equation is for `run_collective`."""
    return equation.primitive.name in _COLLECTIVES or equation.primitive.name in _REFUSED


def is_cast(equation: Any) -> bool:
    """Whether an equation hands on what it is given, as another type."""
    return _COLLECTIVES.get(equation.primitive.name) is _nothing


def _axes_of(equation: Any) -> tuple[Any, ...]:
    params = equation.params
    axes = params["axes"] if "axes" in params else params["axis_name"]
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def _long(equation: Any, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """The mesh axes that an equation names, with their sizes; those of one part are none."""
    return [(name, sizes[name]) for name in _axes_of(equation) if sizes[name] > 1]


def _fold(kind: str) -> Collective:
    reductions = {"sum": lax.reduce_sum, "max": lax.reduce_max, "min": lax.reduce_min}

    def run(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
        (x,) = operands
        dims = [axis for axis in _axes_of(equation) if isinstance(axis, int)]
        if dims:
            x = reductions[kind](x, axes=tuple(dims))
        names = [axis for axis in _axes_of(equation) if not isinstance(axis, int)]
        long = [name for name in names if sizes[name] > 1]
        return parts.fold(x, long, kind) if long else x

    return run


def _all_gather(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    (x,) = operands
    dim = equation.params["all_gather_dimension"]
    shape = list(x.shape)
    for name, size in reversed(_long(equation, sizes)):
        x = parts.collect(x, name, size, dim)
    count = equation.params["axis_size"]
    if equation.params["tiled"]:
        shape[dim] *= count
    else:
        shape.insert(dim, count)
    return _shaped(x, shape)


def _all_to_all(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    (x,) = operands
    split, concat = equation.params["split_axis"], equation.params["concat_axis"]
    long = _long(equation, sizes)
    x = _exchanged(x, split, long)
    # Where the dimension that is split was, now [A, B, n]: [A, B] go before `concat`.
    order = list(range(x.ndim))
    sources = [order.pop(split) for _ in long]
    order[concat:concat] = sources
    shape = list(operands[0].shape)
    count = math.prod(size for _, size in long)
    shape[split] //= count
    shape[concat] *= count
    return _shaped(lax.transpose(x, order) if order != sorted(order) else x, shape)


def _reduce_scatter(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    (x,) = operands
    dim, tiled = equation.params["scatter_dimension"], equation.params["tiled"]
    long = _long(equation, sizes)
    shape = list(x.shape)
    count = math.prod(size for _, size in long)
    shape[dim : dim + 1] = [shape[dim] // count] if tiled else []
    if long:
        x = lax.reduce_sum(_exchanged(x, dim, long), axes=tuple(range(dim, dim + len(long))))
    return _shaped(x, shape)


def _exchanged(x: Any, dim: int, long: Sequence[tuple[str, int]]) -> Any:
    """`x` with `dim` as [A, B, …, n], of which all but the last tell the part that it is from."""
    counts = [size for _, size in long]
    rest = x.shape[dim] // math.prod(counts)
    x = _shaped(x, [*x.shape[:dim], *counts, rest, *x.shape[dim + 1 :]])
    for place, (name, size) in enumerate(long):
        x = parts.exchange(x, name, size, dim + place)
    return x


def _ppermute(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    axes = _axes_of(equation)
    count = math.prod(sizes[name] for name in axes)
    sources = [-1] * count
    for source, target in equation.params["perm"]:
        sources[target % count] = source % count
    long = _long(equation, sizes)
    in_mesh_order = [pair for pair in sizes.items() if pair in long]
    if long != in_mesh_order:
        raise CollectiveError(
            f"ppermute over {axes} names axes in another order than the mesh has, of which "
            f"versions of JAX think differently: name {tuple(dict(in_mesh_order))}, and number the "
            "parts in this order"
        )
    return _permuted(operands[0], long, sources)


def _ragged_all_to_all(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    long = dict(_long(equation, sizes))
    return send_rows(operands, tuple(long), tuple(long.values()))


def _pbroadcast(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    count = math.prod(sizes[name] for name in _axes_of(equation))
    sources = [equation.params["source"]] * count
    return _permuted(operands[0], _long(equation, sizes), sources)


def _permuted(x: Any, long: Sequence[tuple[str, int]], sources: Sequence[int]) -> Any:
    if not long:
        return x if list(sources) == [0] else jax.numpy.zeros_like(x)
    names, counts = zip(*long, strict=True)
    return parts.permute(x, names, counts, sources)


def _axis_index(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    index: Any = jax.numpy.zeros((), jax.numpy.int32)
    for number, (name, size) in enumerate(_long(equation, sizes)):
        along = parts.place(name, size)
        index = index * size + along if number else along
    return index


def _nothing(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    return operands[0]


def _shaped(x: Any, shape: Sequence[int]) -> Any:
    return x if x.shape == tuple(shape) else lax.reshape(x, tuple(shape))


def _pbroadcast_dynamic(equation: Any, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    x, source = operands
    for name, size in reversed(_long(equation, sizes)):
        x = parts.collect(x, name, size, 0)
    shape = operands[0].shape
    x = _shaped(x, [math.prod(x.shape) // max(math.prod(shape), 1), *shape])
    return lax.dynamic_index_in_dim(x, source, keepdims=False)


_BOTH_ENDS: Mapping[str, Collective] = {
    "psum_invariant": _fold("sum"),
    "all_gather": _all_gather,
    "all_gather_reduced": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
}
"""Those of which JAX lets one start and finish apart, too."""

_COLLECTIVES: Mapping[str, Collective] = {
    **_BOTH_ENDS,
    **{f"{name}_start": run for name, run in _BOTH_ENDS.items()},
    **dict.fromkeys(("psum", "unreduced_psum"), _fold("sum")),
    **dict.fromkeys(("pmax", "unreduced_pmax"), _fold("max")),
    **dict.fromkeys(("pmin", "unreduced_pmin"), _fold("min")),
    "all_gather_invariant": _all_gather,
    "unreduced_reduce_scatter": _reduce_scatter,
    "pbroadcast": _pbroadcast,
    "pbroadcast_dynamic": _pbroadcast_dynamic,
    "ragged_all_to_all": _ragged_all_to_all,
    "axis_index": _axis_index,
    **dict.fromkeys(
        (
            *("pvary", "preduced", "vary_unreduced_cast", "vary_unreduced_cast_p"),
            *("reduced_vary_cast", "reduced_vary_cast_p"),
            *("all_gather_done", "psum_done", "reduce_scatter_done"),
            *("all_to_all_done", "ppermute_done"),
        ),
        _nothing,
    ),
}

_REFUSED: Mapping[str, str] = dict.fromkeys(
    ("psend", "precv"), "talks to one side alone: say both by jax.lax.ppermute"
)
