"""Every way from one type to another, with its way back.

A row of `TRANSITIONS` names a call, the kind that it takes and the kind that it gives, whether data
is moved between devices, and the calls that its gradient takes, in order. `reinterpret` changes the
type and not a number, which may change what the numbers mean; `convert` keeps the meaning, at most
by cutting out or zeroing parts on each device. The gradient of a value of kind R is of kind P and
the reverse (see `autoshard.plan.types.axis_type`), so each row read backwards is another row:

    forward                backward
    I -> R  reinterpret    P -> I  all_reduce       parameters, and their gradients
    V -> R  all_gather     P -> V  reduce_scatter   the same, sharded (FSDP)
    P -> R  all_reduce     P -> R  all_reduce       the end of a tensor-parallel layer

`SPECIFICATIONS` in `autoshard.plan.types.specification` runs each of them on lists of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.plan.types.axis_type import AxisType, Kind

R, I, V, P = Kind.REPLICATE, Kind.INVARIANT, Kind.VARYING, Kind.PARTIAL


@dataclass(frozen=True, slots=True)
class Transition:
    """One row; see the module docstring.

    Attributes:
      call: the operation's name.
      source, target: the kinds before and after.
      communicates: whether devices exchange data.
      jax: how it is written in a `shard_map` body, with `{x}`, `{axis}`, and `{source}` and
        `{target}` for the dimensions that are sharded before and after.
      backward: the rows that take the gradient back, as (call, source, target).
    """

    call: str
    source: Kind
    target: Kind
    communicates: bool
    jax: str
    backward: tuple[tuple[str, Kind, Kind], ...]

    @property
    def key(self) -> tuple[str, Kind, Kind]:
        """What identifies the row."""
        return self.call, self.source, self.target

    def __str__(self) -> str:
        return f"{self.call}({self.source}->{self.target})"


_SLICE = "jax.lax.dynamic_slice_in_dim of {x} at jax.lax.axis_index({axis!r}), axis {target}"
_ZERO = "jnp.where(jax.lax.axis_index({axis!r}) == 0, {x}, 0)"
_PAD = "{x} written into zeros at jax.lax.axis_index({axis!r}), axis {source}"
_GATHER = "jax.lax.all_gather({x}, {axis!r}, axis={source}, tiled=True"
_PSUM = "jax.lax.psum({x}, {axis!r})"

TRANSITIONS: tuple[Transition, ...] = (
    Transition("reinterpret", R, I, False, "{x}", (("convert", I, P),)),
    Transition("reinterpret", R, V, False, "{x}", (("reinterpret", V, P),)),
    Transition("convert", R, V, False, _SLICE, (("convert", V, P),)),
    Transition("reinterpret", R, P, False, "{x}", (("reinterpret", R, P),)),
    Transition("convert", R, P, False, _ZERO, (("convert", R, P),)),
    Transition(
        "reinterpret",
        I,
        R,
        False,
        'jax.lax.pcast({x}, {axis!r}, to="reduced")',
        (("all_reduce", P, I),),
    ),
    Transition(
        "reinterpret",
        I,
        V,
        False,
        'jax.lax.pcast({x}, {axis!r}, to="varying")',
        (("reinterpret", V, P), ("all_reduce", P, I)),
    ),
    Transition("convert", I, V, False, _SLICE, (("all_gather", V, I),)),
    Transition("convert", I, P, False, _ZERO, (("reinterpret", R, I),)),
    Transition("all_gather", V, R, True, _GATHER + ")", (("reduce_scatter", P, V),)),
    Transition("all_gather", V, I, True, _GATHER + ', to="invarying")', (("convert", I, V),)),
    Transition(
        "all_to_all",
        V,
        V,
        True,
        "jax.lax.all_to_all({x}, {axis!r}, split_axis={target}, concat_axis={source}, tiled=True)",
        (("all_to_all", V, V),),
    ),
    Transition(
        "collective_permute",
        V,
        V,
        True,
        "jax.lax.ppermute({x}, {axis!r}, perm)",
        (("collective_permute", V, V),),
    ),
    Transition(
        "reinterpret",
        V,
        P,
        False,
        'jax.lax.pcast({x}, {axis!r}, to="unreduced")',
        (("reinterpret", R, V),),
    ),
    Transition("convert", V, P, False, _PAD, (("convert", R, V),)),
    Transition("all_reduce", P, R, True, _PSUM, (("all_reduce", P, R),)),
    Transition("all_reduce", P, I, True, _PSUM, (("reinterpret", I, R),)),
    Transition(
        "reduce_scatter",
        P,
        V,
        True,
        "jax.lax.psum_scatter({x}, {axis!r}, scatter_dimension={target}, tiled=True)",
        (("all_gather", V, R),),
    ),
)


def between(source: AxisType, target: AxisType) -> tuple[Transition, ...]:
    """The rows that keep what a value means on its way from one type to another.

    None where the types are equal, or where no single call leads from the one to the other.
    """
    if source == target:
        return ()
    return tuple(
        row
        for row in TRANSITIONS
        if (row.source, row.target) == (source.kind, target.kind)
        and (row.call != "reinterpret" or {row.source, row.target} == {R, I})
        and (row.call != "collective_permute" or source.dimension == target.dimension)
    )


def proposal(source: AxisType, target: AxisType, value: str, axis: str) -> str:
    """The missing call that makes a value of one type one of the other, as a line of JAX.

    >>> from autoshard.plan.types.axis_type import P, R
    >>> proposal(P(), R, "h", "model")
    "jax.lax.psum(h, 'model')"
    """
    rows = between(source, target)
    if not rows:
        return f"no single call leads from {source} to {target}"
    if source.operator not in ("", "sum"):
        if rows[0].call != "all_reduce" or source.operator not in ("max", "min"):
            return f"no single call leads from {source} to {target}"
        return f"jax.lax.p{source.operator}({value}, {axis!r})"
    return rows[0].jax.format(x=value, axis=axis, source=source.dimension, target=target.dimension)
