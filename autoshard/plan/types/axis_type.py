"""What a value is over one mesh axis.

    R     replicate   every device holds the value; its gradient is partial
    I     invariant   every device holds the value, and so it is with its gradient
    V     varying     every device holds a value of its own; S(d): its part of dimension d
    P     partial     every device holds a term; the value is their sum (or maximum, ...)

`R` and `I` are the same numbers. They differ in what becomes of gradients: each device adds to the
gradient of an `R` what it did with it, so that a sum is pending, while the gradient of an `I` is
whole. Parameters are `I` between steps and `R` where they are used; what leads from the one to the
other moves nothing, and its transpose is the all-reduce of the gradients.

A value has one such type for every axis of its mesh. It is written as JAX writes types, with the
axes that shard a dimension behind `@` and the others in braces, `f32[8@x, 4]{P: y}`; replicate is
not written.

The system is that of typed SPMD code (https://github.com/meta-pytorch/spmd_types); JAX calls the
four reduced, invarying, varying and unreduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from autoshard.plan.decisions import State
from autoshard.program.layout import format_state


class Kind(Enum):
    """The four kinds of type over one axis; the value is the letter that is printed."""

    REPLICATE = "R"
    INVARIANT = "I"
    VARYING = "V"
    PARTIAL = "P"

    @property
    def gradient(self) -> Kind:
        """The kind of the gradient of a value of this kind."""
        return _GRADIENT.get(self, self)

    def __str__(self) -> str:
        return self.value


_GRADIENT = {Kind.REPLICATE: Kind.PARTIAL, Kind.PARTIAL: Kind.REPLICATE}


@dataclass(frozen=True, slots=True)
class AxisType:
    """The type of a value over one mesh axis.

    Attributes:
      kind: see the module docstring.
      dimension: of a varying value, the dimension of which each device holds its part; None where
        nothing is known of how the parts make up a whole.
      operator: of a partial value, what joins the terms.
    """

    kind: Kind
    dimension: int | None = None
    operator: str = ""

    def __post_init__(self) -> None:
        if self.dimension is not None and self.kind is not Kind.VARYING:
            raise ValueError(
                f"type {self.kind} has no dimension, but was given {self.dimension}; leave it out"
            )
        if bool(self.operator) != (self.kind is Kind.PARTIAL):
            raise ValueError(
                f"type {self.kind} has operator {self.operator!r}; give one to P, and to no other"
            )

    @property
    def gradient(self) -> AxisType:
        """The type of the gradient.

        Raises:
          ValueError: the terms of a partial value are joined by something other than a sum.
        """
        if self.operator not in ("", "sum"):
            raise ValueError(
                f"the gradient of {self} is none of the four kinds; join the terms of a "
                f"{self.operator} before it is differentiated"
            )
        kind = self.kind.gradient
        return AxisType(kind, self.dimension, "sum" if kind is Kind.PARTIAL else "")

    def __str__(self) -> str:
        if self.dimension is not None:
            return f"S({self.dimension})"
        return f"P({self.operator})" if self.operator not in ("", "sum") else str(self.kind)


R = AxisType(Kind.REPLICATE)
I = AxisType(Kind.INVARIANT)
V = AxisType(Kind.VARYING)


def S(dimension: int) -> AxisType:  # noqa: N802
    """Varying, each device with its part of `dimension`."""
    return AxisType(Kind.VARYING, dimension)


def P(operator: str = "sum") -> AxisType:  # noqa: N802
    """Partial, the terms joined by `operator`."""
    return AxisType(Kind.PARTIAL, None, operator)


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of an array on a mesh.

    Attributes:
      dtype, shape: of the whole array.
      state: per dimension the mesh axes that shard it, major first.
      partial: {axis: operator} as pairs, in mesh order.
      invariant: the axes over which it is `I`; over all others it is `R`.
    """

    dtype: str
    shape: tuple[int, ...]
    state: State
    partial: tuple[tuple[int, str], ...] = ()
    invariant: frozenset[int] = frozenset()

    def over(self, axis: int) -> AxisType:
        """The type over one mesh axis.

        >>> str(ValueType("float32", (8, 4), ((), (1,)), ((0, "sum"),)).over(1))
        'S(1)'
        """
        for dimension, axes in enumerate(self.state):
            if axis in axes:
                return S(dimension)
        operator = dict(self.partial).get(axis)
        if operator is not None:
            return P(operator)
        return I if axis in self.invariant else R

    def text(self, names: Sequence[str]) -> str:
        """The type as it is written, with the names of the axes.

        >>> ValueType("float32", (8, 4), ((), (1,)), ((0, "sum"),)).text(("x", "y"))
        'f32[8, 4@y]{P: x}'
        """
        notes: dict[str, list[str]] = {}
        for axis, operator in self.partial:
            notes.setdefault(str(P(operator)), []).append(names[axis])
        for axis in sorted(self.invariant):
            notes.setdefault(str(I), []).append(names[axis])
        braces = "; ".join(f"{kind}: {', '.join(axes)}" for kind, axes in notes.items())
        text = format_state(self.dtype, self.shape, self.state, names)
        return text + (f"{{{braces}}}" if braces else "")
