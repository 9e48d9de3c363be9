"""Constraints written into the user's own code, before it is differentiated.

    with_sharding_constraint(x, P("data"))

on a line of a model says more than how `x` is laid out: what `checkpoint` computes again is laid
out alike, and so, by the transposition of the constraint, is the cotangent of `x`. All of this is
one line. To see what a line does, the user's function is traced with the constraint in it.

A **spot** is where user code makes an array: the lines of the calls that lead there, the primitive
and which of its results, and the shape. All passes over one spot (the layers of a Python loop)
share a line; where arrays of several shapes pass, a line may tell them by `x.shape`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from autoshard import compat
from autoshard.compat import Frame


@dataclass(frozen=True, slots=True)
class Spot:
    """Where user code makes an array.

    Attributes:
      frames: of all functions on the way, those of JAX too, innermost first.
      primitive: that makes it, or reads it.
      number: of the result, or the operand.
      read: whether it is an operand there.
      shape: of the array.
    """

    frames: tuple[Frame, ...]
    primitive: str
    number: int
    read: bool = False
    shape: tuple[int, ...] = ()

    @property
    def user(self) -> tuple[Frame, ...]:
        """The frames of the user's functions."""
        return tuple(frame for frame in self.frames if frame.user)


@dataclass(frozen=True, slots=True)
class Visit:
    """One array that is made at a spot.

    Attributes:
      spot, dtype: where it is, and what it holds.
      last: whether it is the value of the expression there: nothing else is made after it before
        the user's code goes on.
    """

    spot: Spot
    dtype: str
    last: bool


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a line says of an array.

    Attributes:
      spec: how it is laid out; None: as it comes.
      cotangent: how its cotangent is; None: as it comes.
    """

    spec: PartitionSpec | None
    cotangent: PartitionSpec | None

    @property
    def alike(self) -> bool:
        """Whether it says the same of both, as a plain `with_sharding_constraint` does."""
        return self.spec == self.cotangent

    def __call__(self, array: Any, mesh: Any) -> Any:
        """The array, constrained."""
        has_cotangent = jnp.issubdtype(array.dtype, jnp.inexact)
        if self.alike or not has_cotangent:
            return _constrained(array, self.spec, mesh)
        function = jax.custom_vjp(lambda x: _constrained(x, self.spec, mesh))
        function.defvjp(
            lambda x: (function(x), None),
            lambda _, cotangent: (_constrained(cotangent, self.cotangent, mesh),),
        )
        return function(array)

    def __str__(self) -> str:
        if self.alike:
            return f"with_sharding_constraint(x, {_shown(self.spec)})"
        return f"constrain(x, {_shown(self.spec)}, {_shown(self.cotangent)})"


def _constrained(array: Any, spec: PartitionSpec | None, mesh: Any) -> Any:
    if spec is None:
        return array
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))


def _shown(spec: PartitionSpec | None) -> str:
    return "None" if spec is None else f"P({', '.join(map(repr, spec))})"


CONSTRAIN = """@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def constrain(x, sharding, cotangent):  # of x and of its cotangent; None: as it comes
    return x if sharding is None else jax.lax.with_sharding_constraint(x, sharding)

constrain.defvjp(
    lambda x, sharding, cotangent: (constrain(x, sharding, cotangent), None),
    lambda sharding, cotangent, _, ct: (constrain(ct, cotangent, None),),
)"""
"""The function that a line calls which says of the cotangent something else."""


def line_of(frame: Frame) -> str:
    """`file.py:12` of a frame."""
    return f"{os.path.basename(frame.file)}:{frame.line}"


def visits(fn: Callable[..., Any], *args: Any) -> list[Visit]:
    """Every array that user code reads or makes when `fn(*args)` is traced, but for scalars."""
    found: list[tuple[Spot, Any]] = []

    def noted(read: bool) -> Any:
        def note(primitive: str, frames: tuple[Frame, ...], arrays: list[Any]) -> list[Any]:
            for number, array in enumerate(arrays):
                found.append((Spot(frames, primitive, number, read, _shape(array)), array))
            return arrays

        return note

    jax.eval_shape(_traced(fn, noted(True), noted(False)), *args)
    users = [spot.user for spot, _ in found]
    last: list[bool] = []
    after: Spot | None = None
    for spot, _ in reversed(found):
        same = after is not None and spot.frames == after.frames
        last.append(last[-1] if same else after is None or spot.user != after.user)
        after = spot
    return [
        Visit(spot, compat.array_facts(jax.typeof(array))[1], last)
        for (spot, array), user, last in zip(found, users, reversed(last), strict=True)
        if user and getattr(array, "ndim", 0)
    ]


def with_lines(fn: Callable[..., Any], constrain: Callable[[Spot, Any], Any]) -> Callable[..., Any]:
    """`fn` in which every array at a spot is what `constrain` makes of it."""

    def at(read: bool) -> Any:
        def change(primitive: str, frames: tuple[Frame, ...], arrays: list[Any]) -> list[Any]:
            spots = [
                Spot(frames, primitive, number, read, _shape(array))
                for number, array in enumerate(arrays)
            ]
            return [constrain(spot, array) for spot, array in zip(spots, arrays, strict=True)]

        return change

    return _traced(fn, at(True), at(False))


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(getattr(array, "shape", ()))


def _traced(fn: Callable[..., Any], reads: Any, makes: Any) -> Callable[..., Any]:
    def traced(*args: Any) -> Any:
        with compat.arrays_of_user_code(reads=reads, makes=makes, within=__file__):
            return fn(*args)

    return traced
