"""Arrays put in the place of those that a step has changed in its arguments.

The next call of the step finds them there, as after a call of the step itself. An object keeps its
identity; of an attribute `name` it may offer `set_raw_name` or `set_name`, which are then called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import FlattenedIndexKey, GetAttrKey

from autoshard.program.state.nodes import can_change, children_of


def write_back(arguments: Sequence[Any], arrays: Mapping[int, Any]) -> None:
    """Put arrays into objects that are part of `arguments`.

    Args:
      arguments: of a step.
      arrays: by the flat positions of what they replace; each is in an object.
    """
    position = 0

    def written(node: Any) -> Any:
        nonlocal position
        children = children_of(node)
        if children is None:
            position += 1
            return arrays.get(position - 1, node)
        new = [written(child) for _, child in children]
        changes = zip(children, new, strict=True)
        odd = [(key, before, after) for (key, before), after in changes if after is not before]
        if not odd:
            return node
        if not can_change(node):
            shallow = jax.tree.structure(node, is_leaf=lambda one: one is not node)
            return jax.tree.unflatten(shallow, new)
        for change in odd:
            _set(node, *change)
        return node

    written(tuple(arguments))


def _set(node: Any, key: Any, before: Any, after: Any) -> None:
    if isinstance(key, FlattenedIndexKey):  # registered without keys
        key = GetAttrKey(*[name for name, one in vars(node).items() if one is before][:1])
    if not isinstance(key, GetAttrKey):
        node[key.key if hasattr(key, "key") else key.idx] = after
        return
    for name in (f"set_raw_{key.name}", f"set_{key.name}"):
        if callable(write := getattr(type(node), name, None)):
            write(node, after)
            return
    setattr(node, key.name, after)
