"""Reads and writes the problems of the ASPLOS/EuroSys 2025 IOPDDL contest.

The public format (https://github.com/google/iopddl) is JSON, plain or gzip'ed:
`nodes.intervals[i]` = [start, stop) half open, `nodes.costs[i]` and `nodes.usages[i]` one number
per choice, `edges.nodes[e]` = [u, v], `edges.costs[e]` = the row-major matrix over choices of u
and v, `usage_limit` for every time. Costs of at least 1e18 forbid: such choices are left out of
the nodes, such pairs become +inf. An edge from a node to itself is added to the costs of the node.
`Instance.original` maps a solution back to the choice numbers of the file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoshard.solve.problem import Edge, Integers, Node, Problem, ProblemError, Usage

FORBIDDEN = 1e18


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A contest problem: its name, the choice problem, and the file's numbers of the choices."""

    name: str
    problem: Problem
    kept: tuple[Integers, ...]

    def original(self, choices: Sequence[int]) -> tuple[int, ...]:
        """The choice numbers of the file for a solution of the problem."""
        return tuple(
            int(numbers[choice]) for numbers, choice in zip(self.kept, choices, strict=True)
        )

    def reduced(self, original: Sequence[int]) -> tuple[int, ...]:
        """The choices of the problem for the choice numbers of the file.

        Raises ProblemError naming every node whose choice is forbidden in the file.
        """
        positions = [int(np.searchsorted(k, c)) for k, c in zip(self.kept, original, strict=True)]
        bad = [
            f"{node.name}: choice {c}"
            for node, k, c, at in zip(
                self.problem.nodes, self.kept, original, positions, strict=True
            )
            if at >= k.size or k[at] != c
        ]
        if bad:
            raise ProblemError("forbidden choices:\n  - " + "\n  - ".join(bad[:20]))
        return tuple(positions)


def read(path: str | Path) -> Instance:
    """Read a contest file (.json or .json.gz). Raises ProblemError when it contradicts itself."""
    raw = Path(path).read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    data = json.loads(raw)
    return from_json(data.get("problem", data))


def from_json(data: dict) -> Instance:
    """The instance of a decoded contest file."""
    nodes, edges = data["nodes"], data["edges"]
    costs = [np.array(row, dtype=np.float64) for row in nodes["costs"]]
    lengths = {key: len(nodes[key]) for key in ("costs", "usages", "intervals")}
    if len(set(lengths.values())) != 1 or len(edges["nodes"]) != len(edges["costs"]):
        raise ProblemError(f"lists of different lengths: nodes {lengths}, edges of the same kind")
    tables = {}
    for (u, v), flat in zip(edges["nodes"], edges["costs"], strict=True):
        table = np.array(flat, dtype=np.float64)
        if table.size != costs[u].size * costs[v].size:
            raise ProblemError(
                f"edge {u}-{v}: {table.size} costs for {costs[u].size} x {costs[v].size} choices"
            )
        table = table.reshape(costs[u].size, costs[v].size)
        if u == v:
            costs[u] = costs[u] + np.diagonal(table)
        else:
            tables[len(tables)] = (u, v, table)
    kept = tuple(np.flatnonzero(row < FORBIDDEN) for row in costs)
    empty = [i for i, numbers in enumerate(kept) if numbers.size == 0]
    if empty:
        raise ProblemError(f"nodes {empty[:20]} have only forbidden choices")
    records, shared = [], {}
    for u, v, table in tables.values():
        small = table[np.ix_(kept[u], kept[v])]
        small[small >= FORBIDDEN] = np.inf
        key = (small.shape, small.tobytes())
        small = shared.setdefault(key, small)
        records.append(Edge.dense(u, v, small))
    usages = [
        Usage(i, np.array(amounts, dtype=np.float64)[kept[i]], int(start), int(stop))
        for i, (amounts, (start, stop)) in enumerate(
            zip(nodes["usages"], nodes["intervals"], strict=True)
        )
        if start < stop and any(amounts)
    ]
    names = [f"node {i}" for i in range(len(costs))]
    problem = Problem(
        tuple(Node(name, row[k]) for name, row, k in zip(names, costs, kept, strict=True)),
        tuple(records),
        tuple(usages),
        data.get("usage_limit"),
    )
    return Instance(data.get("name", ""), problem, kept)


def to_json(problem: Problem, name: str = "") -> dict:
    """The contest's form of a problem; +inf becomes 1e18. Numbers are rounded to integers.

    Raises ProblemError for a node with several usages, which the format cannot hold.
    """
    spans = [[0, 0] for _ in problem.nodes]
    usages = [[0] * node.costs.size for node in problem.nodes]
    seen: set[int] = set()
    for usage in problem.usages:
        if usage.node in seen:
            raise ProblemError(f"{problem.nodes[usage.node].name} has several usages")
        seen.add(usage.node)
        spans[usage.node] = [usage.start, usage.stop]
        usages[usage.node] = [round(a) for a in usage.amounts.tolist()]
    data = {
        "name": name,
        "nodes": {
            "intervals": spans,
            "costs": [[round(c) for c in node.costs.tolist()] for node in problem.nodes],
            "usages": usages,
        },
        "edges": {
            "nodes": [[edge.u, edge.v] for edge in problem.edges],
            "costs": [
                [round(min(c, FORBIDDEN)) for c in edge.pair_costs().ravel().tolist()]
                for edge in problem.edges
            ],
        },
    }
    if problem.limit is not None:
        data["usage_limit"] = round(problem.limit)
    return data


def write(path: str | Path, problem: Problem, name: str = "") -> None:
    """Write a contest file; gzip'ed when the path ends in .gz."""
    text = json.dumps({"problem": to_json(problem, name)}).encode()
    Path(path).write_bytes(gzip.compress(text) if str(path).endswith(".gz") else text)
