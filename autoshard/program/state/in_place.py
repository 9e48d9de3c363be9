"""A step as a function that also returns what it changes in place.

    @nnx.jit
    def train_step(model, optimizer, batch):
        loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
        optimizer.update(model, grads)
        return loss

returns the loss alone: the new weights are found in `model`. A plan is made of what a step
computes, so the step that is planned is

    train_step'(model, optimizer, batch) -> loss, {"model": model, "optimizer": optimizer}

Two kinds of arguments can be changed in place, wherever they stand in a pytree: `jax.Ref`s, and
objects: nodes that are no tuples, lists or dictionaries, and not frozen. An object is changed where
an array in it is another than before and is no result of the step. What is done to dictionaries and
lists stays inside of the step, as under `jax.jit`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import KeyPath, keystr

from autoshard import compat
from autoshard.program.state.constants import hold, release
from autoshard.program.state.nodes import can_change, children_of
from autoshard.program.state.ties import argument_names

HOW = (
    "hand the state in as arrays and return them, as in `graphdef, state = nnx.split(model)`, "
    "`step(state, batch)` and `return loss, nnx.state(model)`"
)
SAME = "are one object"
COPY = (
    "give one of the two objects of its own, as `jax.tree.map(lambda leaf: leaf, "
    "nnx.state(model))` has; or " + HOW
)
MOST = 12
"""Lines of a message that name places."""


class InPlaceError(ValueError):
    """A step changes its arguments in a way that its results cannot show."""


def is_ref(leaf: Any) -> bool:
    """Whether a leaf is a `jax.Ref`, or stands for one."""
    return isinstance(leaf, jax.Ref) or bool(getattr(leaf, "is_ref", False))


def refs_of(args: Any) -> frozenset[int]:
    """The flat positions of the `jax.Ref`s in a pytree."""
    return frozenset(k for k, leaf in enumerate(jax.tree.leaves(args)) if is_ref(leaf))


def arrays_of(args: Any) -> Any:
    """A pytree with the contents of its `jax.Ref`s in their places, and constants set aside."""
    return jax.tree.map(lambda leaf: leaf[...] if isinstance(leaf, jax.Ref) else leaf, hold(args))


class Returning:
    """`fn` as a function of the same arguments, with arrays in the place of `jax.Ref`s.

    Constants are set aside in what it takes and returns (`autoshard.program.state.constants`). It
    returns what `fn` does, or a pair of that and a dictionary of the objects and Refs that `fn`
    changes, by their names, where there are such. What it is given stays as it is.

    Args:
      fn: a step, or a step of this kind.
      args: its arguments, of which some may be Refs, and objects may stand in two places.
      refs: flat positions of Refs, if arrays stand for them in `args`.

    Attributes:
      changed: once it was called, pairs of flat positions: of an array that comes in, and of the
        result that takes its place.
      returned: the same of what the step puts into an object and returns besides.
    """

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Any], refs: frozenset[int] = frozenset()
    ) -> None:
        if isinstance(fn, Returning):
            fn, refs = fn.fn, refs | fn.refs
        functools.update_wrapper(self, fn, updated=())
        args = hold(args)
        self.fn = fn
        self.refs = refs | refs_of(args)
        self.names = argument_names(fn, len(args))
        self.twice = _twice(args)
        self.changed: tuple[tuple[int, int], ...] = ()
        self.returned: tuple[tuple[int, int], ...] = ()

    def __call__(self, *arguments: Any) -> Any:
        """The result of the step, and what it changes.

        Raises:
          InPlaceError: what it changes is no longer built alike, or stands in two places.
        """
        flat, tree = jax.tree.flatten(arguments)
        given = [jax.new_ref(leaf) if k in self.refs else leaf for k, leaf in enumerate(flat)]
        arguments = jax.tree.unflatten(tree, given)
        places = [_Place.of(path, node, start) for path, node, start in _places(arguments)]
        result = hold(self.fn(*release(arguments)))
        returned = {id(leaf): k for k, leaf in enumerate(jax.tree.leaves(result))}
        changed = {self.place(one.path): one for one in places if one.is_changed(returned)}
        self._check(changed)
        self.changed = _pairs(len(jax.tree.leaves(result)), changed)
        self.returned = tuple(pair for one in places for pair in one.returned(returned))
        if not changed:
            return result
        return result, {name: one.arrays() for name, one in changed.items()}

    def place(self, path: KeyPath) -> str:
        """`model`, or `state.model` of what is part of an argument."""
        number = path[0].idx
        first = self.names[number] if number < len(self.names) else f"argument_{number}"
        return ".".join([first, *(keystr((key,), simple=True) for key in path[1:])])

    def _same(self, first: KeyPath, again: KeyPath) -> str:
        return f"{self.place(first)} and {self.place(again)} {SAME}"

    def hint(self) -> str:
        """What may be wrong with the arguments of a step that fails; empty if nothing is known."""
        if not self.twice:
            return ""
        return f"\n{'; '.join(self._same(*pair) for pair in self.twice)}, which is traced as two"

    def _check(self, changed: Mapping[str, _Place]) -> None:
        faults = []
        for name, place in changed.items():
            new = dict(place.leaves())
            faults += [f"  {name}{keystr(p)} is new" for p in new if p not in place.before]
            faults += [f"  {name}{keystr(p)} is gone" for p in place.before if p not in new]
            faults += [
                f"  {self._same(*pair)}" for pair in self.twice if any(map(place.holds, pair))
            ]
        if faults:
            heading = f"{getattr(self.fn, '__name__', 'it')} changes objects, but"
            shown = [*dict.fromkeys(faults)]
            more = [f"  and {len(shown) - MOST} more"] if len(shown) > MOST else []
            twice = any(one.endswith(SAME) for one in shown)
            raise InPlaceError("\n".join([heading, *shown[:MOST], *more, COPY if twice else HOW]))


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """An object or Ref that is part of no other object, and what was in it.

    Attributes:
      path: from the tuple of arguments.
      node: the object or Ref.
      start: the flat position of its first array.
      tree: how it was built.
      before: its arrays by their paths in it.
    """

    path: KeyPath
    node: Any
    start: int
    tree: Any
    before: Mapping[KeyPath, Any]

    @classmethod
    def of(cls, path: KeyPath, node: Any, start: int) -> _Place:
        before = dict(jax.tree.leaves_with_path(node))
        return cls(path, node, start, jax.tree.structure(node), before)

    def leaves(self) -> list[tuple[KeyPath, Any]]:
        found = jax.tree.leaves_with_path(self.node)
        arrays = compat.passed_through([leaf for _, leaf in found])
        return [(path, array) for (path, _), array in zip(found, arrays, strict=True)]

    def holds(self, path: KeyPath) -> bool:
        return path[: len(self.path)] == self.path

    def is_changed(self, returned: Collection[int]) -> bool:
        """Whether an array is no longer there, or is another and no result."""
        now = dict(self.leaves())
        return now.keys() != self.before.keys() or any(
            is_ref(leaf) or (leaf is not self.before[path] and id(leaf) not in returned)
            for path, leaf in now.items()
        )

    def returned(self, returned: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Flat positions of arrays that were replaced, and of the results that replace them."""
        for k, (path, leaf) in enumerate(self.leaves()):
            if id(leaf) in returned and leaf is not self.before.get(path, leaf):
                yield self.start + k, returned[id(leaf)]

    def arrays(self) -> Any:
        """What it holds now, built as it was."""
        return arrays_of(jax.tree.unflatten(self.tree, [leaf for _, leaf in self.leaves()]))


def _places(arguments: Sequence[Any]) -> Iterator[tuple[KeyPath, Any, int]]:
    """Objects and Refs that are part of no other object, with their first flat positions."""
    start = 0

    def within(node: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any, int]]:
        nonlocal start
        children = children_of(node)
        if is_ref(node) or (children and can_change(node)):
            yield path, node, start
            start += len(jax.tree.leaves(node))
        elif children is None:
            start += 1
        else:
            for key, child in children:
                yield from within(child, (*path, key))

    yield from within(tuple(arguments), ())


def _pairs(first: int, changed: Mapping[str, _Place]) -> tuple[tuple[int, int], ...]:
    """Flat positions of what comes in and of the results, which follow `first` others by name."""
    pairs = []
    for name in sorted(changed):
        place = changed[name]
        pairs += [(place.start + k, first + k) for k in range(len(place.before))]
        first += len(place.before)
    return tuple(sorted(pairs))


def _twice(arguments: Sequence[Any]) -> tuple[tuple[KeyPath, KeyPath], ...]:
    """Paths of objects and Refs that stand in two places."""
    seen: dict[int, KeyPath] = {}
    found = []

    def visit(node: Any, path: KeyPath) -> None:
        children = children_of(node)
        if is_ref(node) or (children and can_change(node)):
            if id(node) in seen:
                found.append((seen[id(node)], path))
                return
            seen[id(node)] = path
        for key, child in children or ():
            visit(child, (*path, key))

    visit(tuple(arguments), ())
    return tuple(found)
