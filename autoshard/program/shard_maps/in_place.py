"""A user's `jax.shard_map`, with its body on all parts at once in place of it.

A dimension that the in_specs cut over a mesh axis of n parts is reshaped to [n, rest]; the body is
batched over these dimensions; out_specs say where they are put back:

    shard_map(f, in_specs=P("x"), out_specs=P())        x has 4 parts
      a:f32[8,3]  ->  f32[4,2,3]  ->  f of every part, psum = a sum over the 4  ->  f32[3]

What is left are ordinary ops on whole arrays. Where a plan cuts the dimensions of the parts, it
makes the collectives that the user wrote by hand, or better ones; any other mesh can run it, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.compat import parts
from autoshard.program.bodies import all_equations, call_in_place, replaced
from autoshard.program.shard_maps.body import run_body
from autoshard.program.shard_maps.collectives import CollectiveError


def run_shard_maps(closed: Any) -> Any:
    """A closed jaxpr with ordinary ops in place of each `shard_map`.

    Raises:
      CollectiveError: one of them holds what cannot be planned.
    """
    jaxpr = replaced(closed.jaxpr, _on_all_parts)
    return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)


def shard_maps_in(closed: Any) -> list[Any]:
    """The equations of `shard_map` in a closed jaxpr, but for those inside of one."""
    return [one for one in all_equations(closed.jaxpr) if one.primitive.name == "shard_map"]


def _on_all_parts(equation: Any) -> Any:
    if equation.primitive.name != "shard_map":
        return equation
    with compat.no_mesh():
        return call_in_place(equation, lambda one, operands: _run(one, operands, {}))


def _run(equation: Any, operands: Sequence[Any], around: Mapping[str, int]) -> list[Any]:
    """The results of a `shard_map` on whole arrays.

    Args:
      around: the sizes of the mesh axes of the bodies that it stands in.
    """
    call = compat.mapped_call(equation)
    _check_specs(equation, call, around)
    sizes = {name: n for name, n in call.sizes.items() if name in around or name in call.axes}
    long = {name: sizes[name] for name in call.axes if sizes[name] > 1}
    cut = [
        _cut(array, _cut_dims(spec, array.ndim, long), long)
        for array, spec in zip(operands, call.in_specs, strict=True)
    ]
    shapes = [compat.shape_struct(var.aval) for var in call.body.invars]

    def part(*arrays: Any) -> list[Any]:
        return run_body(call.body, (), arrays, sizes, _run)

    mapped = jax.make_jaxpr(part)(*shapes)
    labels: list[list[Any]] = [list(range(aval.ndim)) for aval in mapped.out_avals]
    mapped_to = [
        _cut_dims(spec, aval.ndim, long)
        for spec, aval in zip(call.out_specs, mapped.out_avals, strict=True)
    ]
    seen: list[Any] = []
    for name, size in reversed(long.items()):
        seen.append(name)
        mapped, places = parts.over_parts(mapped, name, size, [_place(one, seen) for _, one in cut])
        for one, place in zip(labels, places, strict=True):
            if place is not None:
                one.insert(place, name)
    results = jaxpr_as_fun(mapped)(*(array for array, _ in cut))
    given = zip(results, labels, mapped_to, strict=True)
    return [_joined(array, one, dims, long) for array, one, dims in given]


def _cut_dims(spec: Any, rank: int, long: Mapping[str, int]) -> list[tuple[str, ...]]:
    """The mesh axes of more than one part over which a spec cuts each dimension, major first."""
    entries = [entry if isinstance(entry, tuple) else (entry,) for entry in spec]
    cut = [tuple(name for name in entry if name in long) for entry in entries]
    return [*cut, *[()] * (rank - len(cut))]


def _cut(
    array: Any, dims: Sequence[tuple[str, ...]], long: Mapping[str, int]
) -> tuple[Any, list[Any]]:
    """An operand with a dimension for each axis that cuts it, and what its dimensions are.

    These are axes by name, and dimensions of a part by number.
    """
    shape: list[int] = []
    labels: list[Any] = []
    for dim, (size, names) in enumerate(zip(array.shape, dims, strict=True)):
        counts = [long[name] for name in names]
        shape += [*counts, size // math.prod(counts)]
        labels += [*names, dim]
    return array if len(shape) == array.ndim else lax.reshape(array, tuple(shape)), labels


def _place(labels: Sequence[Any], seen: Sequence[str]) -> int | None:
    """Where the last axis of `seen` stands among the others of these and dimensions of a part."""
    if seen[-1] not in labels:
        return None
    return [one for one in labels if isinstance(one, int) or one in seen].index(seen[-1])


def _joined(
    array: Any, labels: list[Any], dims: Sequence[tuple[str, ...]], long: Mapping[str, int]
) -> Any:
    """A result with the dimensions of its parts put back where its spec says.

    Parts that no spec tells of are equal, or the caller said so: the first one is taken.
    """
    wanted: list[Any] = [label for dim, names in enumerate(dims) for label in (*names, dim)]
    for label in [one for one in labels if one not in wanted]:
        place = labels.index(label)
        array = lax.index_in_dim(array, 0, place, keepdims=False)
        labels = [one for one in labels if one != label]
    missing = [label for label in wanted if label not in labels]
    if missing:
        shape = (*(long[name] for name in missing), *array.shape)
        array = lax.broadcast_in_dim(array, shape, range(len(missing), len(shape)))
        labels = [*missing, *labels]
    order = [labels.index(label) for label in wanted]
    if order != sorted(order):
        array = lax.transpose(array, order)
    counts = iter(array.shape)
    shape = [math.prod(next(counts) for _ in (*names, dim)) for dim, names in enumerate(dims)]
    return array if len(shape) == array.ndim else lax.reshape(array, tuple(shape))


def _check_specs(equation: Any, call: compat.MappedCall, around: Mapping[str, int]) -> None:
    """Refuse specs that mean nothing for whole arrays. Raises CollectiveError."""
    for side, specs in (("in_specs", call.in_specs), ("out_specs", call.out_specs)):
        for spec in specs:
            line = compat.source_line(equation) or "an unknown line"
            if getattr(spec, "unreduced", ()):
                raise CollectiveError(
                    f"{line}: {side} of a shard_map have {spec}, a sum that is not finished: "
                    "finish it inside, by jax.lax.psum or jax.lax.psum_scatter"
                )
            entries = (entry if isinstance(entry, tuple) else (entry,) for entry in spec)
            again = [name for entry in entries for name in entry if name in around]
            if again:
                raise CollectiveError(
                    f"{line}: {side} of a shard_map have {spec}, but it stands in another one over "
                    f"{again[0]!r}; JAX does not lower that either: write one shard_map over the "
                    "axes of both"
                )
