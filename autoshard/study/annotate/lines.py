"""One line in the user's code, with what it says.

A **line** is one `with_sharding_constraint`, for what an expression is, or for an operand before it
is read; or one `autoshard.laid_out` about arrays of a function. It may be written where it is
reached by one call only, or in a helper that several call. Where arrays of several shapes pass it
may say something else of each: `with_sharding_constraint(x, LAYOUTS[x.shape])`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from autoshard.program.select import scope_names
from autoshard.study.annotate.source_lines import Constraint, Spot

SHOWN = 4
"""So many arrays of a line are named."""


@dataclass(frozen=True, slots=True)
class Line:
    """One `with_sharding_constraint` in the user's code, or one `laid_out`.

    Attributes:
      places: where it holds, and the layout there.
      where: the user's lines, the one to write it on first.
      names: of the arrays: a tree path, or the operation that makes or reads it, and its type.
      blocks: the repeated blocks that it is in, by scope: `layers`, `layer_*`.
      weight: bytes of all arrays that it names, all repetitions.
      by_shape: whether it says something else, or nothing, of arrays of other shapes there.
      arguments: whether it is about all arguments of a block.
      entries: what it says by key, where it is about a function
      (`autoshard.program.annotations.laid_out`).
      strict: whether each of them holds in every call of the function.
    """

    places: tuple[tuple[Spot, Constraint], ...]
    where: tuple[str, ...] = field(compare=False)
    names: tuple[str, ...] = field(compare=False)
    blocks: frozenset[str] = field(compare=False)
    weight: float = field(compare=False)
    by_shape: bool = field(default=False, compare=False)
    arguments: bool = field(default=False, compare=False)
    entries: tuple[tuple[str, Constraint], ...] = field(default=(), compare=False)
    strict: bool = field(default=True, compare=False)

    @property
    def block(self) -> bool:
        """Whether it is in a repeated block."""
        return bool(self.blocks)

    @property
    def spots(self) -> tuple[Spot, ...]:
        """Where it holds."""
        return tuple(spot for spot, _ in self.places)

    @property
    def says(self) -> tuple[Constraint, ...]:
        """What it says, each once."""
        return tuple(dict.fromkeys(constraint for _, constraint in self.places))

    @property
    def inward(self) -> bool:
        """Whether it can only be said of a function, as an entry: no line can stand there."""
        places = () if self.entries else self.places
        return any(spot.within or spot.scope or constraint.apart for spot, constraint in places)

    @property
    def named(self) -> int:
        """How many arrays it tells apart: entries of a function, or layouts that it says."""
        return len(self.entries or self.says)

    @property
    def table(self) -> bool:
        """Whether it says something else of arrays of other shapes in the same place."""
        places = {(spot.number, spot.read) for spot in self.spots}
        return self.by_shape and len(self.says) > 1 and len(places) == 1

    def __str__(self) -> str:
        if self.entries:
            return self._as_entries()
        first, *callers = self.where
        via = f", called at {' and '.join(callers)}" if callers else ""
        via += ", by x.shape" if self.by_shape else ""
        calls = []
        for constraint in self.says:
            each = list(
                dict.fromkeys(
                    n for n, c in zip(self.names, self.places, strict=True) if c[1] == constraint
                )
            )
            more = f" and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
            calls.append(f"x = {constraint}  # {', '.join(each[:SHOWN])}{more}")
        return f"{first}{via}: " + f"\n{' ' * len(first)}    ".join(calls)

    def _as_entries(self) -> str:
        (where,) = self.where
        name = where.rpartition(" ")[2]
        entries = [f"    {key!r}: {constraint.entry}," for key, constraint in self.entries]
        head = f"{where}: {name} = autoshard.laid_out({name}, {{"
        return "\n".join([head, *entries, "})" if self.strict else "}, strict=False)"])


def name_of(spot: Spot, dtype: str, scope: str, path: str) -> str:
    """An array as it is shown: the path of an input, or the operation, and the type."""
    made = f"{spot.primitive} in {'/'.join(_names(scope)) or 'the step'}"
    name = path or (f"operand {spot.number} of {made}" if spot.read else made)
    return f"{name}, {dtype}[{', '.join(map(str, spot.shape))}]"


def block_of(scope: str) -> str:
    """The scope of a repeated block, of one in it."""
    names = _names(scope)
    numbered = [k for k, name in enumerate(names) if "*" in name]
    return "/".join(names[: max(numbered, default=0) + 1])


def _names(scope: str) -> list[str]:
    return [re.sub(r"\d+", "*", name) for name in scope_names(scope)]
