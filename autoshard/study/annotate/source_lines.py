"""Constraints written into the user's own code, before it is differentiated.

    with_sharding_constraint(x, P("data"))

on a line of a model says more than how `x` is laid out: what `checkpoint` computes again is laid
out alike, and so, by the transposition of the constraint, is the cotangent of `x`. All of this is
one line. To see what a line does, the user's function is traced with the constraint in it.

A **spot** is where user code makes an array: the lines of the calls that lead there, the primitive
and which of its results, and the shape; or where a function that `jax.checkpoint` is called on is
given one, at its top. All passes over one spot (the layers of a Python loop) share a line; where
arrays of several shapes pass, a line may tell them by `x.shape`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from autoshard import compat
from autoshard.compat import Frame, Standing
from autoshard.program.annotations import Reading, constrain


@dataclass(frozen=True, slots=True)
class Spot:
    """Where user code makes an array.

    Attributes:
      frames: of all functions on the way, those of JAX too, innermost first.
      primitive: that makes it, or reads it; `argument` at the top of a function.
      number: of the result, the operand or the argument.
      read: whether it is an operand there.
      shape: of the array.
      within: the function of JAX that it is a part of there; no line can be written into that.
      scope: under which it is passed; empty: under whichever.
    """

    frames: tuple[Frame, ...]
    primitive: str
    number: int
    read: bool = False
    shape: tuple[int, ...] = ()
    within: str = ""
    scope: tuple[str, ...] = ()

    @property
    def anywhere(self) -> Spot:
        """The spot under whichever scope."""
        return replace(self, scope=())

    @property
    def inlined(self) -> bool:
        """Whether it is of a call in the place of which the jaxpr has several operations."""
        return self.primitive.endswith("()")

    @property
    def user(self) -> tuple[Frame, ...]:
        """The frames of the user's functions."""
        return tuple(frame for frame in self.frames if frame.user)


@dataclass(frozen=True, slots=True)
class Visit:
    """One array that is made at a spot.

    Attributes:
      spot, dtype: where it is, under whichever scope, and what it holds.
      scope: in which it is made or read.
      last: whether it is the value of the expression there: nothing else is made after it before
        the user's code goes on.
    """

    spot: Spot
    dtype: str
    scope: tuple[str, ...]
    last: bool

    @property
    def scoped(self) -> Spot:
        """The spot under the scope of this array."""
        return replace(self.spot, scope=self.scope)


_ALIKE: Any = ...
Said = PartitionSpec | tuple[PartitionSpec, ...] | None
"""A layout, several that an array has in turn, or nothing."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a line says of an array.

    Attributes:
      spec: how it is laid out; None: as it comes.
      cotangent: how its cotangent is; None: as it comes.
      again: how it is where `checkpoint` computes it again; None: as it comes; default: alike.
      gradient, given: of an operand of a product, how the gradients of the others are computed from
        it, and how the cotangent of the result is for its own
        (`autoshard.program.annotations.Reading`).
    """

    spec: Said
    cotangent: Said
    again: Said = _ALIKE
    gradient: Said = None
    given: Said = None

    def __post_init__(self) -> None:
        if self.again is ...:
            object.__setattr__(self, "again", self.spec)

    @property
    def alike(self) -> bool:
        """Whether it says the same of all, as a plain `with_sharding_constraint` does."""
        same = self.spec == self.cotangent == self.again and not isinstance(self.spec, tuple)
        return same and not self.apart

    @property
    def apart(self) -> bool:
        """Whether it says something of the derivatives of the product that reads the array."""
        return self.gradient is not None or self.given is not None

    @property
    def twofold(self) -> bool:
        """Whether it says something else of what is computed again."""
        return self.spec != self.again

    @property
    def in_turn(self) -> bool:
        """Whether it says several layouts, one after the other."""
        return any(isinstance(one, tuple) for one in (self.spec, self.cotangent, self.again))

    def __call__(self, array: Any, mesh: Any, scope: str = "") -> Any:
        """The array, constrained, or as a product is to read it; in a scope, perhaps."""
        if self.apart:
            return self.reading(mesh)(array, scope=scope)
        laid, cotangent, again = (
            _sharding(mesh, one) for one in (self.spec, self.cotangent, self.again)
        )
        with jax.named_scope(scope) if scope else contextlib.nullcontext():
            return constrain(array, laid, cotangent=cotangent, again=again)

    def reading(self, mesh: Any) -> Reading:
        """The same of an operand of a product."""
        said = self.spec, self.cotangent, self.again, self.gradient, self.given
        return Reading(*(_sharding(mesh, one) for one in said))

    def __str__(self) -> str:
        if self.alike:
            return f"with_sharding_constraint(x, {_shown(self.spec)})"
        return f"autoshard.constrain(x, {self.arguments})"

    @property
    def entry(self) -> str:
        """What `autoshard.laid_out` is told of the array."""
        if self.apart:
            return f"autoshard.Reading({self.arguments})"
        return _shown(self.spec) if self.alike else f"lambda x: {self}"

    @property
    def arguments(self) -> str:
        """What `autoshard.constrain` is told of the array."""
        said = [_shown(self.spec)]
        if self.cotangent != (self.spec[::-1] if isinstance(self.spec, tuple) else self.spec):
            said.append(f"cotangent={_shown(self.cotangent)}")
        if self.twofold:
            said.append(f"again={_shown(self.again)}")
        if self.apart and self.gradient != self.again:
            said.append(f"gradient={_shown(self.gradient)}")
        if self.given is not None:
            said.append(f"given={_shown(self.given)}")
        return ", ".join(said)


def _sharding(mesh: Any, said: Said) -> Any:
    if isinstance(said, tuple):
        return [NamedSharding(mesh, one) for one in said]
    return None if said is None else NamedSharding(mesh, said)


def _shown(spec: Said) -> str:
    if isinstance(spec, tuple):
        return f"[{', '.join(map(_shown, spec))}]"
    return "None" if spec is None else f"P({', '.join(map(repr, spec))})"


def line_of(frame: Frame) -> str:
    """`file.py:12` of a frame."""
    return f"{os.path.basename(frame.file)}:{frame.line}"


def visits(fn: Callable[..., Any], *args: Any) -> list[Visit]:
    """Every array that user code reads or makes when `fn(*args)` is traced, but for scalars."""
    found: list[tuple[Spot, Any, tuple[str, ...]]] = []

    def noted(read: bool) -> Any:
        def note(primitive: str, standing: Standing, arrays: list[Any]) -> list[Any]:
            for number, array in enumerate(arrays):
                spot = _spot(standing, primitive, number, read, array)
                found.append((spot.anywhere, array, standing.scope))
            return arrays

        return note

    jax.eval_shape(_traced(fn, noted(True), noted(False)), *args)
    users = [spot.user for spot, *_ in found]
    last: list[bool] = []
    after: Spot | None = None
    for spot, *_ in reversed(found):
        same = after is not None and spot.frames == after.frames
        last.append(last[-1] if same else after is None or spot.user != after.user)
        after = spot
    return [
        Visit(spot, compat.array_facts(jax.typeof(array))[1], scope, last)
        for (spot, array, scope), user, last in zip(found, users, reversed(last), strict=True)
        if user and getattr(array, "ndim", 0)
    ]


def with_lines(fn: Callable[..., Any], constrain: Callable[[Spot, Any], Any]) -> Callable[..., Any]:
    """`fn` in which every array is what `constrain` makes of it, given its spot with its scope."""

    def at(read: bool) -> Any:
        def change(primitive: str, standing: Standing, arrays: list[Any]) -> list[Any]:
            spots = [
                _spot(standing, primitive, number, read, array)
                for number, array in enumerate(arrays)
            ]
            return [constrain(spot, array) for spot, array in zip(spots, arrays, strict=True)]

        return change

    return _traced(fn, at(True), at(False))


def _spot(standing: Standing, name: str, number: int, read: bool, array: Any) -> Spot:
    within, _, primitive = name.rpartition("/")
    shape = tuple(getattr(array, "shape", ()))
    return Spot(standing.frames, primitive, number, read, shape, within, standing.scope)


def _traced(fn: Callable[..., Any], reads: Any, makes: Any) -> Callable[..., Any]:
    def traced(*args: Any) -> Any:
        with compat.arrays_of_user_code(reads=reads, makes=makes, within=__file__):
            return fn(*args)

    return traced
