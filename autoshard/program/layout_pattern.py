"""Layouts that a user asks for: closed and open dimensions, and axes that stay out.

    [data, (data, model), None, model?, ?, ...] replicated(pod)

One entry per dimension, in JAX's notation with Shardy's open dimensions added:

    data, (data, model)   cut by exactly these axes, major first: a closed dimension
    None                  whole
    model?                cut by these axes and perhaps by more, minor to them: an open dimension
    ?                     cut as may be
    ...                   last: all further dimensions are `?`

`replicated(AXES)` names axes that cut no dimension, `free(AXES)` those of which nothing is said:
they may cut any. Shardy's own text is read too:
`[{"data"}, {"model", ?}, {}, {?}], replicated={"pod"}`. See
https://openxla.org/shardy/sharding_representation for what the words mean.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NAME = r"[A-Za-z_][\w.]*"
_TOKEN = re.compile(rf"\s*(\.\.\.|{_NAME}|[()\[\]{{}}?,=]|\S)")


class PatternError(ValueError):
    """A text that is not a layout; the message quotes it and says what may stand there."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """What is asked of one dimension: these axes, major first; `open` allows more behind them."""

    axes: tuple[str, ...] = ()
    open: bool = False

    def __str__(self) -> str:
        if not self.axes:
            return "?" if self.open else "None"
        text = self.axes[0] if len(self.axes) == 1 else f"({', '.join(self.axes)})"
        return f"{text}?" if self.open else text


@dataclass(frozen=True, slots=True)
class LayoutPattern:
    """A set of layouts; see the module docstring.

    Attributes:
      dimensions: one entry per dimension.
      more: whether the value may have further dimensions, all of them open.
      replicated: axes that cut no dimension.
      free: axes of which nothing is said; the mesh need not have them.
    """

    dimensions: tuple[Dimension, ...]
    more: bool = False
    replicated: tuple[str, ...] = ()
    free: tuple[str, ...] = ()

    def __str__(self) -> str:
        entries = [*map(str, self.dimensions), *(["..."] if self.more else [])]
        text = f"[{', '.join(entries)}]"
        for word, axes in (("replicated", self.replicated), ("free", self.free)):
            text += f" {word}({', '.join(axes)})" if axes else ""
        return text

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis of which something is said, once."""
        named = [axis for dimension in self.dimensions for axis in dimension.axes]
        return tuple(dict.fromkeys([*named, *self.replicated]))

    def fits_rank(self, rank: int) -> bool:
        """Whether a value of this rank can have such a layout."""
        return len(self.dimensions) == rank or (self.more and len(self.dimensions) <= rank)

    def faults(self, names: Sequence[str], repair: str = "") -> list[str]:
        """What is wrong with it on a mesh with axes of these names, major to minor.

        `repair` says what else helps where axes of a dimension are not in mesh order.
        """
        found = [f"{axis!r} is not an axis of the mesh" for axis in self.axes if axis not in names]
        seen: list[str] = []
        for dimension in self.dimensions:
            found += [f"axis {axis!r} stands twice" for axis in dimension.axes if axis in seen]
            seen += dimension.axes
            order = [axis for axis in names if axis in dimension.axes]
            if len(order) == len(dimension.axes) and order != list(dimension.axes):
                found.append(
                    f"axes {Dimension(dimension.axes)} are not in mesh order: write "
                    f"{Dimension(tuple(order))}{repair}"
                )
        found += [
            f"axis {axis!r} is both used and replicated" for axis in self.replicated if axis in seen
        ]
        said = (*seen, *self.replicated)
        found += [f"axis {axis!r} is both named and free" for axis in self.free if axis in said]
        return found

    def undivided(
        self, shape: Sequence[int], names: Sequence[str], sizes: Sequence[int]
    ) -> list[str]:
        """The dimensions of `shape` that the named axes do not cut into equal parts."""
        size_of = dict(zip(names, sizes, strict=True))
        parts = [math.prod(size_of[axis] for axis in one.axes) for one in self.dimensions]
        return [
            f"dimension {number} of {shape[number]} is not divisible by {count}"
            for number, count in enumerate(parts)
            if shape[number] % count
        ]

    def mask(
        self, layouts: NDArray[np.int64], names: Sequence[str], sizes: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Which of the layouts `[n, axes]` (a dimension per axis, or -1) are in the set; `[n]`.

        Axes of size 1 cut nothing and are not looked at.
        """
        live = [
            axis for axis, size in enumerate(sizes) if size > 1 and names[axis] not in self.free
        ]
        result = np.ones(len(layouts), dtype=bool)
        for axis in live:
            if names[axis] in self.replicated:
                result &= layouts[:, axis] < 0
        for number, dimension in enumerate(self.dimensions):
            wanted = [axis for axis in live if names[axis] in dimension.axes]
            for axis in live:
                here = layouts[:, axis] == number
                if axis in wanted:
                    result &= here
                elif not dimension.open or (wanted and axis < wanted[-1]):
                    result &= ~here  # closed; or it would stand major to what is asked for
        return result


def fitting_order(
    patterns: Iterable[LayoutPattern], names: Sequence[str]
) -> tuple[str, ...] | None:
    """The order of a mesh's axes in which every dimension of the patterns names its own.

    It is that of `names` but where a pattern asks for another one; None where no order fits all.
    """
    after: dict[str, set[str]] = {name: set() for name in names}
    for pattern in patterns:
        for dimension in pattern.dimensions:
            known = [axis for axis in dimension.axes if axis in after]
            for major, minor in itertools.pairwise(known):
                after[minor].add(major)
    order: list[str] = []
    # By hand: networkx takes longer to import than the few axes of a mesh to sort.
    while len(order) < len(names):
        ready = [one for one in names if one not in order and after[one] <= set(order)]
        if not ready:
            return None
        order.append(ready[0])
    return tuple(order)


def parse_pattern(text: str) -> LayoutPattern:
    """Read a layout in either notation.

    Raises:
      PatternError: the text is not a layout.

    >>> str(parse_pattern('[{"x", ?}, {}, {?}], replicated={"z"}'))
    '[x?, None, ?] replicated(z)'
    """
    return _Reader(text).pattern()


class _Reader:
    """A position in the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [token for token in _TOKEN.findall(text.replace('"', " ")) if token.strip()]
        self.at = 0

    def pattern(self) -> LayoutPattern:
        self._expect("[")
        dimensions: list[Dimension] = []
        more = False
        while not self._next_is("]"):
            if dimensions or more:
                self._expect(",")
            if more:
                self._fail("nothing behind '...'")
            if self._next_is("...", take=True):
                more = True
            else:
                dimensions.append(self._dimension())
        self._expect("]")
        named: dict[str, tuple[str, ...]] = {}
        for word in ("replicated", "free"):
            self._next_is(",", take=True)
            if self._next_is(word, take=True):
                self._next_is("=", take=True)
                named[word] = self._group()
        if self.at < len(self.tokens):
            self._fail("the end")
        return LayoutPattern(tuple(dimensions), more, **named)

    def _dimension(self) -> Dimension:
        if self._next_is("{"):
            axes = self._group(open_too=True)
            return Dimension(tuple(a for a in axes if a != "?"), "?" in axes)
        if self._next_is("?", take=True):
            return Dimension((), True)
        if self._next_is("None", take=True):
            return Dimension()
        axes = self._group() if self._next_is("(") else (self._name(),)
        return Dimension(axes, self._next_is("?", take=True))

    def _group(self, *, open_too: bool = False) -> tuple[str, ...]:
        closing = {"(": ")", "{": "}"}.get(self._peek())
        if closing is None:
            self._fail("axes in parentheses")
        self.at += 1
        found: list[str] = []
        while not self._next_is(str(closing), take=True):
            if found:
                self._next_is(",", take=True)
            found.append("?" if open_too and self._next_is("?", take=True) else self._name())
        return tuple(found)

    def _name(self) -> str:
        token = self._peek()
        if not re.fullmatch(_NAME, token):
            self._fail("the name of an axis")
        self.at += 1
        return token

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _next_is(self, token: str, *, take: bool = False) -> bool:
        found = self._peek() == token
        self.at += found and take
        return found

    def _expect(self, token: str) -> None:
        if not self._next_is(token, take=True):
            self._fail(repr(token))

    def _fail(self, wanted: str) -> None:
        there = repr(self._peek()) if self._peek() else "the end"
        raise PatternError(
            f"{self.text.strip()!r} is not a layout: {wanted} should stand where {there} stands; "
            "write one entry per dimension, such as [data, None, model?, ?], or [...] "
            "replicated(pod)"
        )
