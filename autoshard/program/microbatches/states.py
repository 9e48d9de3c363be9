"""What of a value depends on which examples of the batch.

WHOLE   no example: it is the same for every microbatch
ZERO    whole, and zero everywhere: it may stand for any of the others too
Part    the examples lie along a dimension, and each of them depends on itself alone
SUM     the value is the sum of what the microbatches make of it
AFTER   it is made of sums in another way, so that it is known after the last microbatch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from autoshard import compat


class Kind(Enum):
    """See the module docstring."""

    WHOLE = "whole"
    ZERO = "zero"
    SUM = "sum"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Part:
    """The examples make up `dimension` together with `outer` major and `inner` minor elements."""

    dimension: int
    outer: int = 1
    inner: int = 1


State = Kind | Part
FIXED = frozenset({Kind.WHOLE, Kind.ZERO})
"""The states of what is the same for every microbatch."""


class CutError(ValueError):
    """A step that cannot be cut into microbatches; says at which op."""


class NeedsAllError(CutError):
    """An op reads single examples, and sums over all of them."""


def refusal(equation: Any, why: str, kind: type[CutError] = CutError) -> CutError:
    """The error of an equation that does not allow the cut."""
    name, line = equation.primitive.name, compat.source_line(equation) or "no source line"
    scope = str(equation.source_info.name_stack) or "(top)"
    return kind(f"{name} at {scope} ({line}) {why}")


def needs_all(equation: Any) -> CutError:
    """The error of an equation that reads single examples, and what is made of all of them."""
    why = "reads single examples together with a sum over all of them"
    return refusal(equation, why, NeedsAllError)


def is_after(states: Sequence[State]) -> bool:
    """Whether something is known after the last microbatch alone."""
    return Kind.AFTER in states


def has_parts(states: Sequence[State]) -> bool:
    """Whether something holds single examples."""
    return any(isinstance(state, Part) for state in states)


def joined(one: State, two: State, equation: Any) -> State:
    """The state of what is the one or the other, as a loop or a branch has it.

    Raises:
      CutError: single examples or sums, or examples along different dimensions.
    """
    if one == two or two is Kind.ZERO:
        return one
    if one is Kind.ZERO:
        return two
    if has_parts([one, two]):
        if Kind.WHOLE not in (one, two):
            both_parts = isinstance(one, Part) and isinstance(two, Part)
            why = "hands on its examples along different dimensions"
            raise refusal(equation, why) if both_parts else needs_all(equation)
        return two if one is Kind.WHOLE else one
    return Kind.AFTER
