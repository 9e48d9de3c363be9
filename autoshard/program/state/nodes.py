"""Nodes of pytrees: what they hold, and whether they may hold other things later."""

from __future__ import annotations

import sys
from typing import Any

import jax


def children_of(node: Any) -> list[tuple[Any, Any]] | None:
    """The children of a node of a pytree with their keys; None of a leaf."""
    found = jax.tree_util.default_registry.flatten_one_level_with_keys(node)
    return None if found is None else list(found[0])


def can_change(node: Any) -> bool:
    """Whether a node of a pytree is an object that may hold other arrays later."""
    if node is None or isinstance(node, tuple | list | dict) or is_equinox(node):
        return False
    parameters = getattr(type(node), "__dataclass_params__", None)
    return parameters is None or not parameters.frozen


def is_equinox(node: Any) -> bool:
    """Whether a node is a module of Equinox, which refuses to be changed."""
    module = getattr(sys.modules.get("equinox"), "Module", ())
    return isinstance(node, module)
