"""Factors that can be united and split: a union-find whose roots may be made of smaller factors.

Two descriptions of one dimension, `ij` and `k`, are made the same one by `meet`, which splits the
coarser factor until both sides are the same sequence of undivided factors (leaves). A factor keeps
the set of all kinds that its uses give it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.program.rules.record import FactorKind


class Factors:
    """Factors by number; `size` and `kinds` are right for leaves."""

    def __init__(self) -> None:
        self.size: list[int] = []
        self.kinds: list[set[FactorKind]] = []
        self._parent: list[int] = []
        self._parts: list[tuple[int, int] | None] = []

    def new(self, size: int, kind: FactorKind = FactorKind.PASS) -> int:
        self._parent.append(len(self._parent))
        self.size.append(size)
        self._parts.append(None)
        self.kinds.append({kind})
        return len(self._parent) - 1

    def find(self, factor: int) -> int:
        while self._parent[factor] != factor:
            self._parent[factor] = self._parent[self._parent[factor]]
            factor = self._parent[factor]
        return factor

    def leaves(self, factors: Sequence[int]) -> list[int]:
        """The undivided factors that `factors` are made of now, major first."""
        found: list[int] = []
        for factor in factors:
            root = self.find(factor)
            parts = self._parts[root]
            found.extend([root] if parts is None else self.leaves(parts))
        return found

    def unite(self, one: int, two: int) -> None:
        one, two = self.find(one), self.find(two)
        if one != two:
            self._parent[two] = one
            self.kinds[one] |= self.kinds[two]

    def split(self, factor: int, major: int) -> None:
        minor = self.size[factor] // major
        pair = self.new(major), self.new(minor)
        for part in pair:
            self.kinds[part] |= self.kinds[factor]
        self._parts[factor] = pair

    def replicate(self, factors: Sequence[int]) -> None:
        for leaf in self.leaves(factors):
            self.kinds[leaf].add(FactorKind.REPLICATE)

    def meet(self, one: Sequence[int], two: Sequence[int], size: int) -> None:
        """Makes the factors `one` and `two` of a dimension of `size` elements the same ones."""
        ones, twos = self.leaves(one), self.leaves(two)
        if len(ones) == len(twos) == 1:
            # The usual case; also that of a slice or a pad, where a factor is longer or shorter
            # than the dimension and neither can be split.
            self.unite(ones[0], twos[0])
            return
        ones = [leaf for leaf in ones if self.size[leaf] > 1]
        twos = [leaf for leaf in twos if self.size[leaf] > 1]
        whole = [math.prod(self.size[leaf] for leaf in leaves) for leaves in (ones, twos)]
        if whole != [size, size]:
            self.replicate([*one, *two])
            return
        while ones and twos:
            first, second = ones[0], twos[0]
            if self.size[first] == self.size[second]:
                self.unite(first, second)
                ones, twos = ones[1:], twos[1:]
                continue
            coarse, fine = sorted((first, second), key=lambda leaf: -self.size[leaf])
            if first == second or self.size[coarse] % self.size[fine]:
                self.replicate([*one, *two])
                return
            self.split(coarse, self.size[fine])
            ones, twos = self.leaves(ones), self.leaves(twos)
