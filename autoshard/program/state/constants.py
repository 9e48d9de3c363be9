"""Leaves of arguments and results that are not arrays, set aside while a step is traced.

Modules hold functions (`activation=jax.nn.gelu`), texts and settings beside their weights. JAX
traces arrays alone, so such a leaf is held in the structure of the pytree, as a `Constant` without
children: trees that hold other constants are other trees. A module of Equinox keeps numbers and
truth values as settings too, as `equinox.filter_jit` does.

A leaf that has an array (`__jax_array__`, as variables of Keras do) is replaced by it: JAX takes
such leaves in operations, but not as arguments.

What stands in an object that may change (`in_place.can_change`) is not set aside: such an object
declares what is not an array of it to JAX (Flax does so by itself).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from autoshard.program.state.nodes import can_change, children_of, is_equinox

_NUMBERS = (bool, int, float, complex)


@jax.tree_util.register_pytree_node_class
class Constant:
    """A leaf that is not an array, as a node of a pytree without children."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], _Same]:
        """No children, and the value as what tells it from others."""
        return (), _Same(self.value)

    @classmethod
    def tree_unflatten(cls, same: _Same, children: Any) -> Constant:
        """The constant again."""
        return cls(same.value)

    def __repr__(self) -> str:
        return f"Constant({self.value!r})"


class _Same:
    """A value that is compared by `==` where it can be hashed, else by its identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return False
        if self.value is other.value:
            return True
        return type(self.value) is type(other.value) and bool(
            _hashed(self.value) == _hashed(other.value)
        )

    def __hash__(self) -> int:
        return hash(_hashed(self.value))

    def __repr__(self) -> str:
        return repr(self.value)


def _hashed(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def as_arrays(tree: Any) -> Any:
    """The pytree with arrays for the leaves that have one; itself where there are none."""
    if not any(map(_has_array, jax.tree.leaves(tree))):
        return tree
    return jax.tree.map(
        lambda node: node.__jax_array__() if not _changes(node) and _has_array(node) else node,
        tree,
        is_leaf=_changes,
    )


def hold(tree: Any) -> Any:
    """The pytree with arrays for leaves that have one, and a `Constant` for each that is none.

    It is the given one where all leaves are arrays.
    """
    tree = as_arrays(tree)
    if not any(_may_be_constant(leaf) for leaf in jax.tree.leaves(tree)):
        return tree

    def is_leaf(node: Any) -> bool:
        return is_equinox(node) or _changes(node)

    def held(node: Any) -> Any:
        if is_equinox(node):
            return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else Constant(leaf), node)
        if _changes(node) or _is_array(node) or isinstance(node, _NUMBERS):
            return node
        return Constant(node)

    return jax.tree.map(held, tree, is_leaf=is_leaf)


def release(tree: Any) -> Any:
    """The pytree with the values of its `Constant`s in their places."""
    found = jax.tree.leaves(tree, is_leaf=_is_constant)
    if not any(map(_is_constant, found)):
        return tree
    return jax.tree.map(
        lambda leaf: leaf.value if _is_constant(leaf) else leaf,
        tree,
        is_leaf=lambda node: _is_constant(node) or _changes(node),
    )


def holds_constants(structure: Any) -> bool:
    """Whether a tree of this structure holds a `Constant`."""
    tree = jax.tree.unflatten(structure, [0] * structure.num_leaves)
    return any(map(_is_constant, jax.tree.leaves(tree, is_leaf=_is_constant)))


def _is_constant(node: Any) -> bool:
    return isinstance(node, Constant)


def _may_be_constant(leaf: Any) -> bool:
    return isinstance(leaf, _NUMBERS) or not _is_array(leaf)


def _has_array(leaf: Any) -> bool:
    """Whether a leaf is none of JAX's arrays, but has one."""
    return not isinstance(leaf, jax.Array | jax.Ref) and hasattr(leaf, "__jax_array__")


def _is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, or stands for one; numbers of Python are none here."""
    if isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct | jax.Ref):
        return True
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _changes(node: Any) -> bool:
    """Whether a node has children, and may hold others later."""
    return bool(can_change(node) and children_of(node))
