"""Random small problems, and brute force over them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from autoshard.solve import Edge, Node, Problem, Usage, evaluate
from autoshard.solve.evaluate import LOAD_TOLERANCE

SHAPES = ("random", "tree", "grid", "clique", "bipartite", "parts", "parallel", "lonely", "ring")


def brute_force(problem: Problem) -> float:
    """The best objective over all plans; +inf when no plan is feasible."""
    sizes = [node.costs.size for node in problem.nodes]
    if not sizes:
        return problem.offset if evaluate(problem, ()).feasible else np.inf
    picked = np.stack([axis.ravel() for axis in np.indices(sizes, dtype=np.int32)])
    total = np.full(picked.shape[1], problem.offset)
    for node, choices in zip(problem.nodes, picked, strict=True):
        total += node.costs[choices]
    for edge in problem.edges:
        total += edge.weight * edge.table[edge.left[picked[edge.u]], edge.right[picked[edge.v]]]
    if problem.limit is not None:
        for time in {usage.start for usage in problem.usages if usage.start < usage.stop}:
            load = np.zeros(picked.shape[1])
            for usage in problem.usages:
                if usage.start <= time < usage.stop:
                    load += usage.amounts[picked[usage.node]]
            total[load > problem.limit * (1 + LOAD_TOLERANCE)] = np.inf
    return float(total.min())


def load_at(problem: Problem, choices: Sequence[int], time: int) -> float:
    """The bytes that a plan takes at one time."""
    alive = [usage for usage in problem.usages if usage.start <= time < usage.stop]
    return float(sum(usage.amounts[choices[usage.node]] for usage in alive))


def random_problem(
    seed: int,
    *,
    shape: str = "random",
    forbidden: float = 0.3,
    tightness: float | None = 0.6,
    integers: bool = False,
    most: int = 7,
    alike: bool = False,
) -> Problem:
    """A problem of 2 to `most` nodes.

    `tightness` 0..1 places the limit between least and most load. With `alike`, edges share few
    tables and usages few vectors, and some tables leave one choice only.
    """
    random = np.random.default_rng(seed)
    count = int(random.integers(2, most + 1))
    sizes = random.integers(1, 5, size=count)

    def cost(*shape: int) -> np.ndarray:
        values = random.integers(0, 20, size=shape) if integers else random.exponential(size=shape)
        return np.asarray(values, dtype=float)

    nodes = tuple(Node(f"n{i}", cost(size)) for i, size in enumerate(sizes.tolist()))
    edges = []
    shared: dict[tuple[int, int, int], np.ndarray] = {}
    for u, v in _pairs(shape, count, random):
        rows, columns = int(random.integers(1, 5)), int(random.integers(1, 5))
        if alike and random.random() < 0.4:
            columns = rows
        table = cost(rows, columns) - (0 if integers else 0.2)
        table[random.random(table.shape) < forbidden] = np.inf
        if alike and rows == columns and random.random() < 0.5:
            table[~np.eye(rows, dtype=bool)] = np.inf
        if alike:
            table = shared.setdefault((rows, columns, int(random.integers(2))), table)
        left = random.integers(0, rows, size=sizes[u])
        right = random.integers(0, columns, size=sizes[v])
        if alike and rows == sizes[u]:
            left = np.arange(rows)
        if alike and columns == sizes[v]:
            right = np.arange(columns)
        edges.append(Edge(u, v, table, left, right, float(random.integers(1, 4))))
    usages = []
    for _ in range(int(random.integers(0, 2 * count))):
        node = int(random.integers(0, count))
        start = int(random.integers(0, 10))
        amounts = random.integers(0, 9, size=sizes[node]).astype(float)
        if alike:
            amounts = np.arange(sizes[node]) * float(random.integers(1, 4)) + random.integers(0, 3)
        usages.append(Usage(node, amounts, start, start + int(random.integers(0, 6))))
    limit = None
    if tightness is not None:
        free = Problem(nodes, (), tuple(usages), None)
        most_load = evaluate(free, [int(random.integers(size)) for size in sizes]).peak
        limit = float(np.floor(tightness * most_load)) + 1.0
    return Problem(nodes, tuple(edges), tuple(usages), limit, offset=1.5)


def _pairs(shape: str, count: int, random: np.random.Generator) -> list[tuple[int, int]]:
    if shape == "tree":
        return [(int(random.integers(0, i)), i) for i in range(1, count)]
    if shape == "clique":
        return list(itertools.combinations(range(count), 2))
    if shape == "grid":
        width = 2
        across = [(i, i + 1) for i in range(count - 1) if i % width == 0]
        return across + [(i, i + width) for i in range(count - width)]
    if shape == "bipartite":
        return [(u, v) for u in range(0, count, 2) for v in range(1, count, 2)]
    if shape == "parts":
        return [pair for pair in itertools.combinations(range(count), 2) if sum(pair) % 2 == 0]
    if shape == "parallel":
        return [(i + 1, i) if k else (i, i + 1) for i in range(count - 1) for k in (0, 0, 1)]
    if shape == "lonely":
        return []
    if shape == "ring":
        return [(i, (i + 1) % count) for i in range(count if count > 2 else 1)]
    pairs = []
    for _ in range(int(random.integers(0, 2 * count))):
        u, v = random.integers(0, count, size=2).tolist()
        if u != v:
            pairs.append((u, v))
    return pairs
