"""The sharding rule of cuDNN's fused attention, see `autoshard.compat.FusedAttention`.

Sequences of the batch, and key/value heads with the query heads that read them, are independent of
each other. The width of a head stays whole; positions may be cut as a ring, where the call is one
that can be run so (`autoshard.program.kernels.ring`). In the forward pass the query heads of one
key/value head may be cut, too; backward, their sum is the gradient of that head.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from autoshard import compat
from autoshard.program.kernels.ring import length_dimension, ring_of
from autoshard.program.rules.record import FactorKind, Rule

_BATCH, _HEAD, _GROUP = "batch", "head", "group"
_SEQUENCE, _HALVES = "sequence", "halves"


def attention_rule(equation: Any) -> Rule:
    """The rule of an equation of `compat.FUSED_ATTENTION`."""
    call = compat.fused_attention(equation)
    shapes = [tuple(atom.aval.shape) for atom in (*equation.invars, *equation.outvars)]
    count = len(equation.invars)
    queries, keys = shapes[:2]
    length = length_dimension(call)
    head, ring = 3 - length, ring_of(equation)
    heads = keys[head]
    cut: list[Hashable] = (
        [] if ring is None else [_SEQUENCE, _HALVES] if ring.causal else [_SEQUENCE]
    )
    names = _Names(shapes, heads, queries[head] // heads, head, cut)
    by_place = {0: "queries", 1: "keys", 2: "keys", 3: "bias"} | dict.fromkeys(range(4, 10), "rows")
    if call.paged:
        by_place |= {1: "pages", 2: "pages"}
    behind = ("stat", "queries", "queries") if call.backward else ()
    by_place |= {10 + k: name for k, name in enumerate(behind)}
    results = ("queries", "keys", "keys", "bias") if call.backward else ("queries", "stat")
    by_place |= {count + k: name for k, name in enumerate(results)}
    tensors = [names.of(k, by_place.get(k, "whole")) for k in range(len(shapes))]
    kinds: dict[str, FactorKind] = dict.fromkeys((_BATCH, _HEAD, _GROUP), FactorKind.PASS)
    if call.backward:
        kinds[_GROUP] = FactorKind.REPLICATE
    if call.modified:
        kinds = dict.fromkeys(kinds, FactorKind.REPLICATE)
    if call.backward and call.bias:  # what a bias of all has as its gradient is a sum over them
        if shapes[3][0] != queries[0]:
            kinds[_BATCH] = FactorKind.REPLICATE
        if shapes[3][1] != queries[head]:
            kinds[_HEAD] = FactorKind.REPLICATE
    sizes = {_BATCH: queries[0], _HEAD: heads, _GROUP: queries[head] // heads}
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {
        name: (size, kinds[name], None) for name, size in sizes.items()
    }
    if ring is not None:
        halves = 2 if ring.causal else 1
        factors[_SEQUENCE] = queries[length] // halves, FactorKind.RING, None
        factors[_HALVES] = halves, FactorKind.REPLICATE, None
    factors |= {name: (size, FactorKind.REPLICATE, None) for name, size in names.others.items()}
    return Rule.build(tensors[:count], tensors[count:], factors)


class _Names:
    """Factors of every dimension of the operands and results."""

    def __init__(
        self,
        shapes: list[tuple[int, ...]],
        heads: int,
        group: int,
        head: int,
        sequence: list[Hashable],
    ) -> None:
        self.shapes, self.heads, self.group, self.head = shapes, heads, group, head
        self.sequence = sequence
        self.others: dict[Hashable, int] = {}

    def of(self, number: int, kind: str) -> list[list[Hashable]]:
        """The factors of each dimension of one array."""
        shape = self.shapes[number]
        if 0 in shape:
            kind = "whole"
        batch, heads = self.shapes[0][0], self.heads * self.group
        grouped: list[Hashable] = [_HEAD, _GROUP] if self.group > 1 else [_HEAD]
        found: dict[int, list[Hashable]] = {}
        if kind == "queries":
            found = {0: [_BATCH], self.head: grouped, 3 - self.head: self.sequence}
        elif kind == "keys":
            found = {0: [_BATCH], self.head: [_HEAD], 3 - self.head: self.sequence}
        elif kind == "pages":
            found = {self.head: [_HEAD]}
        elif kind == "rows":
            found = {0: [_BATCH]}
        elif kind == "bias":
            found = {0: [_BATCH]} if shape[0] == batch else {}
            found |= {1: grouped} if shape[1] == heads else {}
        elif kind == "stat":
            packed = shape[0] // batch
            inside = [self._other(number, 0, packed)] if packed > 1 else []
            found = {0: [_BATCH, *inside], 1: grouped, 2: self.sequence}
        return [found.get(d) or [self._other(number, d, size)] for d, size in enumerate(shape)]

    def _other(self, number: int, dimension: int, size: int) -> Hashable:
        name = number, dimension
        self.others[name] = size
        return name
