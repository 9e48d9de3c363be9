"""Collectives that the compiler makes once, or not at all, in a module where Shardy wrote them all.

Equal reshards of one value are one collective, and those of a constant are none.
"""

from __future__ import annotations

from typing import Any

from autoshard.lower.collectives import KINDS

_COLLECTIVES = frozenset(f"sdy.{kind}" for kind in KINDS)


def walk_in(operation: Any) -> Any:
    """Every operation inside of one, with the operations of a block before those of its regions."""
    for region in operation.regions:
        for block in region.blocks:
            for view in list(block.operations):
                inner = view.operation
                yield inner
                if inner.regions:
                    yield from walk_in(inner)


def merge_equal(operation: Any) -> None:
    """Merge collectives of a block that do the same to one value."""
    for region in operation.regions:
        for block in region.blocks:
            seen: dict[Any, Any] = {}
            for view in list(block.operations):
                inner = view.operation
                if inner.name not in _COLLECTIVES:
                    merge_equal(inner)
                    continue
                what = tuple(str(inner.attributes[k]) for k in range(len(inner.attributes)))
                key = inner.operands[0], inner.name, what
                if key in seen:
                    inner.results[0].replace_all_uses_with(seen[key])
                    inner.erase()
                else:
                    seen[key] = inner.results[0]


def drop_constants(operation: Any) -> None:
    """Drop the collectives of constants: every device makes its own part."""
    for inner in list(walk_in(operation)):
        if inner.name in _COLLECTIVES and _is_constant(inner.operands[0]):
            inner.results[0].replace_all_uses_with(inner.operands[0])
            inner.erase()


def _is_constant(value: Any) -> bool:
    """Whether a value is one number everywhere, or counts along a dimension."""
    maker = value.owner
    name = getattr(maker, "name", "")  # a block has none
    if name == "stablehlo.broadcast_in_dim":
        return _is_constant(maker.operands[0])
    return name in {"stablehlo.constant", "stablehlo.iota"}
