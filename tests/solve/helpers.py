"""Random small problems, and brute force over them."""

from __future__ import annotations

import itertools

import numpy as np

from autoshard.solve import Edge, Node, Problem, Usage, evaluate


def brute_force(problem: Problem) -> float:
    """The best objective over all plans; +inf when no plan is feasible."""
    best = np.inf
    for choices in itertools.product(*(range(node.costs.size) for node in problem.nodes)):
        found = evaluate(problem, choices)
        if not found.violations:
            best = min(best, found.objective)
    return best


def random_problem(
    seed: int,
    *,
    shape: str = "random",
    forbidden: float = 0.3,
    tightness: float | None = 0.6,
    integers: bool = False,
) -> Problem:
    """A problem of up to 7 nodes; `tightness` 0..1 places the limit between least and most load."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 8))
    sizes = random.integers(1, 5, size=count)

    def cost(*shape: int) -> np.ndarray:
        values = random.integers(0, 20, size=shape) if integers else random.exponential(size=shape)
        return np.asarray(values, dtype=float)

    nodes = tuple(Node(f"n{i}", cost(size)) for i, size in enumerate(sizes.tolist()))
    edges = []
    for u, v in _pairs(shape, count, random):
        rows, columns = int(random.integers(1, 5)), int(random.integers(1, 5))
        table = cost(rows, columns) - (0 if integers else 0.2)
        table[random.random(table.shape) < forbidden] = np.inf
        left = random.integers(0, rows, size=sizes[u])
        right = random.integers(0, columns, size=sizes[v])
        edges.append(Edge(u, v, table, left, right, float(random.integers(1, 4))))
    usages = []
    for _ in range(int(random.integers(0, 2 * count))):
        node = int(random.integers(0, count))
        start = int(random.integers(0, 10))
        amounts = random.integers(0, 9, size=sizes[node]).astype(float)
        usages.append(Usage(node, amounts, start, start + int(random.integers(0, 6))))
    limit = None
    if tightness is not None:
        free = Problem(nodes, (), tuple(usages), None)
        most = evaluate(free, [int(random.integers(size)) for size in sizes]).peak
        limit = float(np.floor(tightness * most)) + 1.0
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
    pairs = []
    for _ in range(int(random.integers(0, 2 * count))):
        u, v = random.integers(0, count, size=2).tolist()
        if u != v:
            pairs.append((u, v))
    return pairs
