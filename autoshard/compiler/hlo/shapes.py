"""Types in HLO text, and the bytes that they take.

    bf16[8,128]{1,0:T(8,128)(2,1)S(1)}     an array; what is in braces is its layout
    (f32[], s32[4])                        a tuple
    pred[<=16]                             a bounded dynamic dimension, counted at its bound

Bytes are those of the elements: padding to tiles is not in them.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
_BITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array's element type, as HLO names it, and its dimensions."""

    dtype: str
    dimensions: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dimensions)

    @property
    def bytes(self) -> int:
        return -(-self.elements * _bits(self.dtype) // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dimensions))}]"


Shape = ArrayShape | tuple["Shape", ...]


@functools.lru_cache(maxsize=65536)
def parse_shape(text: str) -> Shape:
    """The shape that `text` spells (memoised).

    Raises:
      ValueError: it is not a shape.

    >>> str(parse_shape("bf16[8,128]{1,0:T(8,128)}"))
    'bf16[8, 128]'
    """
    text = text.strip()
    if not text.startswith("("):
        found = _ARRAY.match(text)
        if found is None:
            raise ValueError(f"{text[:80]!r} is not an HLO shape; write one such as bf16[8,128]")
        sizes = (part.strip().removeprefix("<=") for part in found[2].split(","))
        return ArrayShape(found[1], tuple(int(size) for size in sizes if size))
    parts: list[Shape] = []
    depth, start = 0, 1
    for index, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if (character == "," and depth == 1) or depth == 0:
            part = re.sub(r"/\*.*?\*/", "", text[start:index]).strip()
            if part:
                parts.append(parse_shape(part))
            start = index + 1
            if depth == 0:
                break
    return tuple(parts)


def leaves(shape: Shape) -> tuple[ArrayShape, ...]:
    """The arrays of a shape, those of nested tuples in order."""
    if isinstance(shape, ArrayShape):
        return (shape,)
    return tuple(leaf for part in shape for leaf in leaves(part))


def total_bytes(shape: Shape) -> int:
    """Bytes of all arrays of a shape."""
    return sum(leaf.bytes for leaf in leaves(shape))


@functools.lru_cache(maxsize=256)
def _bits(dtype: str) -> int:
    if dtype in ("token", "opaque"):
        return 0
    if dtype == "pred":
        return 8
    digits = _BITS.search(dtype)
    if digits is None:
        raise ValueError(
            f"element type {dtype!r} has no width; give one of XLA's, such as bf16 or s32"
        )
    return int(digits.group())
