"""Small facts read from a lowered module: element types, and how often a loop runs."""

from __future__ import annotations

import re
from typing import Any

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
        raise ValueError(f"element type {text} has no width")
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
