"""Problems shaped like a transformer training step on a mesh of equal axes.

Every value is a node whose choice is (layout it is stored in, layout of one copy); every operation
is a node whose choice gives each mesh axis one of its factors or none. The edges say that an
operand is read in the stored or the copied layout, and that the result is stored as it is written.
A layout gives each mesh axis one dimension, or none (-1).
"""

from __future__ import annotations

import itertools
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from autoshard.solve import Edge, Node, Problem, Usage

FLOPS = 4e14
LINK = 1e11
LATENCY = 2e-6
Layout = tuple[int, ...]


@dataclass
class Value:
    name: str
    sizes: tuple[int, ...]
    produced: int = 0
    last: int = 0
    readers: int = 0


@dataclass
class Builder:
    axes: tuple[int, ...]
    copies: int
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    reads: list[tuple[int, int, np.ndarray]] = field(default_factory=list)
    writes: list[tuple[int, int, np.ndarray]] = field(default_factory=list)
    clock: int = 0

    def layouts(self, rank: int) -> list[Layout]:
        return list(itertools.product(range(-1, rank), repeat=len(self.axes)))

    def value(self, name: str, *sizes: int) -> int:
        self.values.append(Value(name, sizes, self.clock, self.clock))
        return len(self.values) - 1

    def op(
        self, name: str, factors: dict[str, int], inputs: list[tuple[int, str]], out: str
    ) -> int:
        """An einsum; returns the value it makes."""
        letters = list(factors)
        strategies = list(itertools.product(range(-1, len(letters)), repeat=len(self.axes)))
        volume = float(np.prod(list(factors.values())))
        result = self.value(name, *(factors[c] for c in out))
        costs = []
        for strategy in strategies:
            shards = np.prod([a for a, f in zip(self.axes, strategy, strict=True) if f >= 0] or [1])
            seconds = 2 * volume / shards / FLOPS + LATENCY
            kept = [f for f in strategy if f >= 0 and letters[f] in out]
            spread = np.prod(
                [a for a, f in zip(self.axes, strategy, strict=True) if f in kept] or [1]
            )
            out_bytes = 2.0 * np.prod([factors[c] for c in out]) / spread
            for axis, factor in zip(self.axes, strategy, strict=True):
                if factor >= 0 and letters[factor] not in out:
                    seconds += LATENCY * axis + 2 * out_bytes * (axis - 1) / axis / LINK
            costs.append(seconds * self.copies)
        node = len(self.nodes)
        self.nodes.append(Node(name + ".op", np.array(costs)))
        for value, dims in inputs:
            self.values[value].last = self.clock
            self.values[value].readers += 1
            self.reads.append((node, value, self._project(strategies, letters, dims)))
        self.writes.append((node, result, self._project(strategies, letters, out)))
        self.clock += 1
        return result

    def _project(self, strategies: list[Layout], letters: list[str], dims: str) -> np.ndarray:
        number = {layout: i for i, layout in enumerate(self.layouts(len(dims)))}
        place = {i: dims.index(c) if c in dims else -1 for i, c in enumerate(letters)}
        place[-1] = -1
        return np.array([number[tuple(place[f] for f in s)] for s in strategies])

    def reshard_seconds(self, sizes: tuple[int, ...], a: Layout, b: Layout) -> float:
        shards = np.prod([n for n, d in zip(self.axes, a, strict=True) if d >= 0] or [1])
        have = 2.0 * np.prod(sizes) / shards
        seconds = 0.0
        for axis, old, new in zip(self.axes, a, b, strict=True):
            if old == new or old < 0:
                continue
            if new < 0:
                have *= axis
                seconds += LATENCY * axis + have * (axis - 1) / axis / LINK
            else:
                seconds += LATENCY * axis + have * (axis - 1) / axis / axis / LINK
        return seconds

    def build(self, headroom: float | None) -> Problem:
        value_node = {}
        tables: dict[tuple, np.ndarray] = {}
        for position, value in enumerate(self.values):
            rank = len(value.sizes)
            layouts = self.layouts(rank)
            pairs = [(a, b) for a in range(len(layouts)) for b in range(len(layouts))]
            if value.readers < 2 and position not in {v for _, v, _ in self.writes}:
                pairs = [(a, a) for a in range(len(layouts))]
            stored = np.array([a for a, _ in pairs])
            copied = np.array([b for _, b in pairs])
            key = (value.sizes, len(pairs))
            if key not in tables:
                matrix = np.array(
                    [[self.reshard_seconds(value.sizes, a, b) for b in layouts] for a in layouts]
                )
                local = np.array(
                    [
                        2.0
                        * np.prod(value.sizes)
                        / np.prod([n for n, d in zip(self.axes, a, strict=True) if d >= 0] or [1])
                        for a in layouts
                    ]
                )
                eye = np.where(np.eye(len(layouts)) > 0, 0.0, np.inf)
                either = np.minimum(eye[:, stored], eye[:, copied])
                tables[key] = (matrix, local, eye, either, stored, np.arange(len(pairs)))
            matrix, local, eye, either, stored_shared, identity = tables[key]
            node = value_node[position] = len(self.nodes)
            costs = matrix[stored, copied] * self.copies
            self.nodes.append(Node(value.name, costs))
            self.usages.append(Usage(node, local[stored], value.produced, value.last + 1))
            extra = np.where(stored == copied, 0.0, local[copied])
            if value.last > value.produced:
                self.usages.append(Usage(node, extra, value.produced + 1, value.last + 1))
            for op, which, projection in self.reads:
                if which == position:
                    self.edges.append(Edge(op, node, either, projection, identity))
            for op, which, projection in self.writes:
                if which == position:
                    self.edges.append(Edge(op, node, eye, projection, stored_shared))
        free = Problem(tuple(self.nodes), tuple(self.edges), tuple(self.usages), None)
        if headroom is None:
            return free
        least = np.zeros(self.clock + 2)
        for usage in self.usages:
            least[usage.start : usage.stop] += usage.amounts.min()
        return Problem(free.nodes, free.edges, free.usages, float(least.max() * headroom))


@dataclass(frozen=True)
class Sizes:
    """Batch and sequence, width, hidden width, heads and their size."""

    b: int
    s: int
    d: int = 4096
    f: int = 14336
    h: int = 32
    k: int = 128


def forward(build: Builder, sizes: Sizes, p: str, x: int) -> tuple[int, tuple[Any, ...]]:
    """One block of `x`: its result, and what its gradient reads."""
    b, s, d, f, h, k = astuple(sizes)
    w = {
        "q": build.value(p + "wq", d, h, k),
        "k": build.value(p + "wk", d, h, k),
        "v": build.value(p + "wv", d, h, k),
        "o": build.value(p + "wo", h, k, d),
        "up": build.value(p + "up", d, f),
        "gate": build.value(p + "gate", d, f),
        "down": build.value(p + "down", f, d),
    }
    n = build.op(p + "norm1", {"b": b, "s": s, "d": d}, [(x, "bsd")], "bsd")
    wide = {"b": b, "s": s, "d": d, "h": h, "k": k}
    q, ke, v = (build.op(p + c, wide, [(n, "bsd"), (w[c], "dhk")], "bshk") for c in "qkv")
    scores = {"b": b, "h": h, "s": s, "t": s, "k": k}
    a = build.op(p + "scores", scores, [(q, "bshk"), (ke, "bthk")], "bhst")
    o = build.op(p + "mix", scores, [(a, "bhst"), (v, "bthk")], "bshk")
    y = build.op(p + "out", wide, [(o, "bshk"), (w["o"], "hkd")], "bsd")
    r = build.op(p + "add1", {"b": b, "s": s, "d": d}, [(x, "bsd"), (y, "bsd")], "bsd")
    m = build.op(p + "norm2", {"b": b, "s": s, "d": d}, [(r, "bsd")], "bsd")
    mlp = {"b": b, "s": s, "d": d, "f": f}
    u = build.op(p + "up", mlp, [(m, "bsd"), (w["up"], "df")], "bsf")
    g = build.op(p + "gate", mlp, [(m, "bsd"), (w["gate"], "df")], "bsf")
    z = build.op(p + "act", {"b": b, "s": s, "f": f}, [(u, "bsf"), (g, "bsf")], "bsf")
    t = build.op(p + "down", mlp, [(z, "bsf"), (w["down"], "fd")], "bsd")
    new = build.op(p + "add2", {"b": b, "s": s, "d": d}, [(r, "bsd"), (t, "bsd")], "bsd")
    return new, (p, w, n, q, ke, v, a, o, m, u, g, z)


def backward(build: Builder, sizes: Sizes, saved: tuple[Any, ...], grad: int) -> int:
    """The gradient of one block's operand, and its weights renewed."""
    b, s, d, f, h, k = astuple(sizes)
    p, w, n, q, ke, v, a, o, m, u, g, z = saved
    mlp = {"b": b, "s": s, "d": d, "f": f}
    wide = {"b": b, "s": s, "d": d, "h": h, "k": k}
    scores = {"b": b, "h": h, "s": s, "t": s, "k": k}
    dz = build.op(p + "dz", mlp, [(grad, "bsd"), (w["down"], "fd")], "bsf")
    ddown = build.op(p + "ddown", mlp, [(grad, "bsd"), (z, "bsf")], "fd")
    three = [(dz, "bsf"), (g, "bsf"), (u, "bsf")]
    du = build.op(p + "du", {"b": b, "s": s, "f": f}, three, "bsf")
    dup = build.op(p + "dup", mlp, [(du, "bsf"), (m, "bsd")], "df")
    dm = build.op(p + "dm", mlp, [(du, "bsf"), (w["up"], "df")], "bsd")
    dr = build.op(p + "dr", {"b": b, "s": s, "d": d}, [(dm, "bsd"), (grad, "bsd")], "bsd")
    do = build.op(p + "do", wide, [(dr, "bsd"), (w["o"], "hkd")], "bshk")
    dwo = build.op(p + "dwo", wide, [(dr, "bsd"), (o, "bshk")], "hkd")
    da = build.op(p + "da", scores, [(do, "bshk"), (v, "bthk")], "bhst")
    dv = build.op(p + "dv", scores, [(do, "bshk"), (a, "bhst")], "bthk")
    dq = build.op(p + "dq", scores, [(da, "bhst"), (ke, "bthk")], "bshk")
    dk = build.op(p + "dk", scores, [(da, "bhst"), (q, "bshk")], "bthk")
    grads = {}
    for c, e in zip("qkv", (dq, dk, dv), strict=True):
        grads[c] = build.op(p + "dw" + c, wide, [(e, "bshk"), (n, "bsd")], "dhk")
    dn = build.op(p + "dn", wide, [(dq, "bshk"), (w["q"], "dhk")], "bsd")
    grad = build.op(p + "dx", {"b": b, "s": s, "d": d}, [(dn, "bsd"), (dr, "bsd")], "bsd")
    for c, e, dims in (("up", dup, "df"), ("down", ddown, "fd"), ("o", dwo, "hkd")):
        shape = dict(zip(dims, build.values[e].sizes, strict=True))
        build.op(p + "adam_" + c, shape, [(w[c], dims), (e, dims)], dims)
    for c, e in grads.items():
        build.op(p + "adam_" + c, {"d": d, "h": h, "k": k}, [(w[c], "dhk"), (e, "dhk")], "dhk")
    return grad


def transformer(
    blocks: int = 1,
    axes: tuple[int, ...] = (4, 4, 4),
    headroom: float | None = None,
    copies: int = 32,
    batch: int = 64,
    sequence: int = 4096,
) -> Problem:
    """A training step of `blocks` transformer blocks, each standing for `copies` equal ones."""
    sizes, build = Sizes(batch, sequence), Builder(axes, copies)
    x = build.value("x", batch, sequence, sizes.d)
    saved = []
    for i in range(blocks):
        x, kept = forward(build, sizes, f"block{i}.", x)
        saved.append(kept)
    grad = build.op("loss", {"b": batch, "s": sequence, "d": sizes.d}, [(x, "bsd")], "bsd")
    for kept in reversed(saved):
        grad = backward(build, sizes, kept, grad)
    return build.build(headroom)
