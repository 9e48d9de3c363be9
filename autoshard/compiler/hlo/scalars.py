"""Integers that an expression has on each device.

The partitioner writes where a device's slice begins as arithmetic on `partition-id`, mostly a
lookup in a table: `dynamic-slice(constant({0, 512, 1024, 1536}), partition-id)`. Carried out for
all devices at once, it says along which mesh axes a slice is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from autoshard.compiler.hlo.module import Instruction
from autoshard.compiler.hlo.places import Place
from autoshard.compiler.hlo.shapes import ArrayShape

MOST_ELEMENTS = 65536
"""A larger table is not an index."""

_ITEM = re.compile(r"-?\d+|true|false")
_INTEGER = re.compile(r"(pred|[su]\d+)$")

Values = np.ndarray
"""The value on every device: shape (devices, *dimensions), int64."""


def per_device(place: Place, value: Instruction, devices: int) -> Values | None:
    """The integers that `value` has on each device; None where they do not follow from constants.

    Args:
      place: where `value` stands.
      value: of an integer or boolean type.
      devices: number of partitions.
    """
    return _Evaluator(devices).value(place, value)


def depends_on_device(place: Place, value: Instruction) -> bool:
    """Whether `value` is computed from the device's number."""
    seen: set[tuple[str, str]] = set()
    pending = [(place, value)]
    while pending:
        place, value = pending.pop()
        place, value = place.origin(value)
        key = (place.computation.name, value.name)
        if key in seen:
            continue
        seen.add(key)
        if value.opcode in ("partition-id", "replica-id"):
            return True
        pending.extend((place, place.find(name)) for name in value.operands)
    return False


class _Evaluator:
    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.known: dict[tuple[int, str], Values | None] = {}
        self.places: list[Place] = []  # kept alive, since `known` goes by identity

    def value(self, place: Place, value: Instruction) -> Values | None:
        place, value = place.outer(value)
        key = (id(place), value.name)
        if key not in self.known:
            self.places.append(place)
            self.known[key] = None  # a cycle has no value
            self.known[key] = self._compute(place, value)
        return self.known[key]

    def _compute(self, place: Place, value: Instruction) -> Values | None:
        shape = value.shape
        if value.opcode in ("fusion", "call"):
            inner = place.enter(value, value.called("calls", "to_apply")[0])
            return self.value(inner, inner.computation.root)
        if value.opcode == "get-tuple-element":
            origin, made = place.origin(value)
            return None if made is value else self.value(origin, made)
        if not isinstance(shape, ArrayShape) or not _INTEGER.match(shape.dtype):
            return None
        if shape.elements > MOST_ELEMENTS:
            return None
        if value.opcode == "constant":
            return self._constant(value, shape)
        if value.opcode == "partition-id":
            return np.arange(self.devices)
        if value.opcode == "replica-id":
            return np.zeros(self.devices, dtype=np.int64)
        operands = [self.value(place, place.find(name)) for name in value.operands]
        given = [operand for operand in operands if operand is not None]
        if not given or len(given) != len(operands):
            return None
        found = self._apply(value, given, shape)
        if found is not None and shape.dtype.startswith("u") and shape.dtype != "u64":
            found = found % (1 << int(shape.dtype[1:]))
        return found

    def _apply(self, value: Instruction, given: list[Values], shape: ArrayShape) -> Values | None:
        opcode = value.opcode
        if opcode in ("copy", "bitcast", "reshape", "convert", "copy-done", "copy-start"):
            return given[0].reshape(self.devices, *shape.dimensions)
        if opcode == "broadcast":
            return _broadcast(value, given[0], shape)
        if opcode == "dynamic-slice":
            return _dynamic_slice(given, shape)
        if opcode == "slice":
            return _slice(value, given[0])
        if opcode == "compare":
            test = _COMPARISONS.get(value.attribute("direction") or "")
            return None if test is None else test(*given).astype(np.int64)
        if opcode == "select":
            return np.where(given[0] != 0, given[1], given[2])
        if opcode == "clamp":
            return np.clip(given[1], given[0], given[2])
        operation = _ARITHMETIC.get(opcode)
        return None if operation is None else operation(*given)

    def _constant(self, value: Instruction, shape: ArrayShape) -> Values | None:
        items = _ITEM.findall(value.argument)
        if len(items) != shape.elements:  # the text leaves large ones out
            return None
        words = {"true": 1, "false": 0}
        numbers = np.array([words.get(item) if item in words else int(item) for item in items])
        table = numbers.reshape(shape.dimensions).astype(np.int64)
        return np.broadcast_to(table, (self.devices, *shape.dimensions))


def _broadcast(value: Instruction, given: Values, shape: ArrayShape) -> Values:
    named = re.findall(r"\d+", value.attribute("dimensions") or "")
    kept = [int(dimension) for dimension in named]
    sizes = [size if n in kept else 1 for n, size in enumerate(shape.dimensions)]
    devices = len(given)
    return np.broadcast_to(given.reshape(devices, *sizes), (devices, *shape.dimensions))


def _dynamic_slice(given: list[Values], shape: ArrayShape) -> Values:
    table, starts = given[0], given[1:]
    rows = []
    for device in range(len(table)):
        window = []
        for dimension, size in enumerate(shape.dimensions):
            most = table.shape[dimension + 1] - size
            start = min(max(int(starts[dimension][device].reshape(())), 0), most)
            window.append(slice(start, start + size))
        rows.append(table[device][tuple(window)])
    return np.stack(rows)


def _slice(value: Instruction, given: Values) -> Values:
    window = [slice(None)]
    for part in re.findall(r"\[([\d:]+)\]", value.attribute("slice") or ""):
        window.append(slice(*map(int, part.split(":"))))
    return given[tuple(window)]


def _divide(left: Values, right: Values) -> Values:
    safe = np.where(right == 0, 1, right)
    return np.trunc(left / safe).astype(np.int64)


def _remainder(left: Values, right: Values) -> Values:
    return left - _divide(left, right) * right


_ARITHMETIC: Mapping[str, Callable[..., Values]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "remainder": _remainder,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "negate": np.negative,
    "shift-left": np.left_shift,
    "shift-right-logical": np.right_shift,
    "shift-right-arithmetic": np.right_shift,
}

_COMPARISONS: Mapping[str, Callable[..., Values]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
