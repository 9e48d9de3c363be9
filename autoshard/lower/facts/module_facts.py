"""Small facts read from a lowered module.

Element types, how often a loop runs, where an operation stands, and whom a permute sends to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autoshard import compat


def element_type(text: str) -> tuple[str, int]:
    """(JAX's short name, bits in memory) of an MLIR element type: `ui32` is (`u32`, 32)."""
    if text.startswith("complex<"):
        _, bits = element_type(text[len("complex<") : -1])
        return f"c{2 * bits}", 2 * bits
    if text == "i1":
        return "bool", 8
    name = text.replace("ui", "u", 1) if text.startswith("ui") else text
    digits = re.search(r"\d+", text)
    if digits is None:
        raise ValueError(
            f"element type {text} has no width; give one of StableHLO's, such as bf16 or i32"
        )
    return name, int(digits.group())


def _constant(value: Any) -> int | None:
    """The integer that a value is, where a constant makes it."""
    if compat.is_block_argument(value) is not None:
        return None
    owner = value.owner
    if owner.name not in ("sdy.constant", "stablehlo.constant"):
        return None
    return compat.splat_integer(owner.attributes["value"])


def constant_trips(loop: Any) -> int | None:
    """The trip count of `for i in range(start, bound, step)` with three constants, or None."""
    condition = loop.regions[0].blocks[0]
    decision = list(condition.operations)[-1].operation.operands[0]
    if compat.is_block_argument(decision) is not None:
        return None
    test = decision.owner
    if test.name != "stablehlo.compare" or "LT" not in str(test.attributes["comparison_direction"]):
        return None
    index = compat.is_block_argument(test.operands[0])
    bound = _constant(test.operands[1])
    if index is None or bound is None:
        return None
    body = loop.regions[1].blocks[0]
    step_value = list(body.operations)[-1].operation.operands[index]
    if compat.is_block_argument(step_value) is not None:
        return None
    addition = step_value.owner
    if addition.name != "stablehlo.add":
        return None
    counter, other = addition.operands[0], addition.operands[1]
    step = _constant(other)
    start = _constant(loop.operands[index])
    if counter != body.arguments[index] or step is None or step < 1 or start is None:
        return None
    return max(0, -(-(bound - start) // step))


def sent_over(permute: Any, mesh_axes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of a mesh along which a `collective_permute` sends to another place."""
    pairs = compat.integer_table(permute.attributes["source_target_pairs"])
    sources, targets = (
        np.stack(np.unravel_index(side, tuple(mesh_axes.values()))) for side in pairs.T
    )
    moved = (sources != targets).any(axis=1)
    return tuple(name for name, one in zip(mesh_axes, moved, strict=True) if one)


def is_ragged_exchange(operation: Any) -> bool:
    """Whether an operation is an all-to-all of ragged rows."""
    if operation.name != "stablehlo.custom_call":
        return False
    return str(operation.attributes["call_target_name"]).strip('"') == "ragged_all_to_all"


def exchanged_over(exchange: Any, mesh_axes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of a mesh along which the groups of an all-to-all of ragged rows lie."""
    config = exchange.attributes["backend_config"]
    groups = compat.integer_table(config["replica_groups"])
    places = np.stack(np.unravel_index(groups, tuple(mesh_axes.values())))
    moved = (places != places[:, :, :1]).any(axis=(1, 2))
    return tuple(name for name, one in zip(mesh_axes, moved, strict=True) if one)


def operations(operation: Any) -> Iterator[Any]:
    """The operations of a module."""
    for view in operation.regions[0].blocks[0].operations:
        yield view.operation


def used_once(value: Any) -> bool:
    """Whether a value has one use."""
    return sum(1 for _ in value.uses) == 1


def joined_scope(outer: str, inner: str) -> str:
    """A name stack within another one."""
    return "/".join(part for part in (outer, inner) if part)


def where(operation: Any) -> tuple[str, str]:
    """(name stack, `file.py:12` of the user's code)."""
    scope, frames = compat.location_frames(operation.location)
    return scope, compat.users_line(frames)
