"""Inputs paired with the results that take their places in the next step."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax

from autoshard.units import counted


class TraceError(ValueError):
    """The function cannot be traced, or the program holds something that cannot be planned."""


def donated_positions(donate_argnums: Any, count: int) -> tuple[int, ...]:
    """The positions of the donated arguments of a function that is given `count` of them.

    As in `jax.jit`, one number may stand for a sequence of one, and -1 is the last argument.

    Raises:
      TraceError: there is no such argument, or it is not a number.
    """
    try:
        numbers = [operator.index(donate_argnums)]
    except TypeError:
        try:
            numbers = [operator.index(one) for one in donate_argnums]
        except TypeError as error:
            raise TraceError(
                f"donate_argnums is {donate_argnums!r}, neither a position of an argument nor a "
                "sequence of positions"
            ) from error
    for number in numbers:
        if not -count <= number < count:
            raise TraceError(
                f"donate_argnums holds {number}, but the function is given "
                f"{counted(count, 'argument')}"
            )
    return tuple(dict.fromkeys(number % count for number in numbers))


def argument_names(fn: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of the first `count` positional parameters of `fn`, as far as it tells them."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(one.name for one in parameters if one.kind in positional)[:count]


def donated_of(
    args: Sequence[Any], donate: Sequence[int], changed: Sequence[tuple[int, int]]
) -> frozenset[int]:
    """Flat positions of what the step may overwrite: donated arguments, and what it changes."""
    asked = itertools.chain(*(span for k, span in enumerate(spans(args)) if k in donate))
    return frozenset(asked).union(given for given, _ in changed)


def spans(args: Sequence[Any]) -> tuple[range, ...]:
    """The flat positions of each argument."""
    ends = list(itertools.accumulate((len(jax.tree.leaves(arg)) for arg in args), initial=0))
    return tuple(range(*pair) for pair in itertools.pairwise(ends))


def ties_of(
    args: Sequence[Any],
    out: Any,
    donate: Sequence[int],
    changed: Sequence[tuple[int, int]],
    returned: Sequence[tuple[int, int]],
) -> tuple[tuple[int, int], ...]:
    """`state_ties` of a step that changes its arguments; what it changes is paired as told.

    See `autoshard.program.state.in_place.Returning`, of which `changed` and `returned` are.
    """
    ties = dict(changed)
    taken = set(ties.values())
    for given, result in (*state_ties(args, out[0] if changed else out, donate), *returned):
        if given not in ties and result not in taken:
            ties[given] = result
            taken.add(result)
    return tuple(sorted(ties.items()))


def state_ties(args: Sequence[Any], out: Any, donate: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Pair every leaf of state that comes in with the leaf of the result that replaces it.

    An argument is state when it is donated, or when a subtree of the result has the same
    structure and the same leaves (and holds more than one leaf). Each subtree is used once.
    """

    def leaves(tree: Any) -> list[tuple[tuple[int, ...], Any]]:
        return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]

    candidates: list[tuple[int, int, Any]] = []  # (depth left, first flat position, subtree)

    def subtrees(tree: Any, start: int, depth: int) -> None:
        candidates.append((depth, start, tree))
        if depth == 0:
            return
        children = jax.tree_util.default_registry.flatten_one_level(tree)
        if children is None:
            return
        for child in children[0]:
            subtrees(child, start, depth - 1)
            start += len(jax.tree.leaves(child))

    subtrees(out, 0, 2)
    # Outer subtrees first: parameters are not to take the place of a moment that looks like them.
    candidates.sort(key=lambda candidate: -candidate[0])
    used: set[int] = set()
    ties: list[tuple[int, int]] = []

    def match(tree: Any, start: int, donated: bool, depth: int) -> None:
        wanted = leaves(tree)
        if not wanted or (not donated and len(wanted) < 2):
            return
        for _, first, subtree in candidates:
            span = range(first, first + len(wanted))
            if jax.tree.structure(subtree) == jax.tree.structure(tree):
                same = leaves(subtree) == wanted
                if same and used.isdisjoint(span):
                    used.update(span)
                    ties.extend((start + k, first + k) for k in range(len(wanted)))
                    return
        if depth == 0:
            return
        children = jax.tree_util.default_registry.flatten_one_level(tree)
        if children is not None:
            for child in children[0]:
                match(child, start, donated, depth - 1)
                start += len(jax.tree.leaves(child))

    start = 0
    for number, arg in enumerate(args):
        match(arg, start, number in donate, 2)
        start += len(jax.tree.leaves(arg))
    return tuple(sorted(ties))
