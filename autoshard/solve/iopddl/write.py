"""Choice problems in the contest's format, so that they are read again as they were.

Whole numbers are written as whole numbers and all others as decimals, so nothing is rounded; the
contest's own tools take whole numbers only. What the format has no place for is refused: several
usages of one node, an offset, times before 0, finite costs that it reads as forbidden. Names of
nodes are not kept.
"""

from __future__ import annotations

import gzip
import os
from typing import Any

import msgspec
import numpy as np

from autoshard.files import write_whole
from autoshard.solve.iopddl.tables import FORBIDDEN, Faults
from autoshard.solve.problem import Edge, Floats, Problem, ProblemError, Usage


def to_json(problem: Problem, name: str = "") -> dict[str, Any]:
    """The contest's form of a problem, to be written under the key `problem`; +inf becomes 1e18.

    Raises:
      ProblemError: names everything in the problem that the format cannot hold.
    """
    faults = Faults("the problem")
    held = _usages(problem, faults)
    _check_costs(problem, faults)
    if problem.offset:
        faults.add(
            f"the offset {problem.offset:.17g} has no place; subtract it, or add it to every cost "
            "of one node"
        )
    if faults.count:
        raise ProblemError(faults.listed("the contest's format cannot hold this problem"))
    nothing = [0, 0]
    data: dict[str, Any] = {
        "name": name,
        "nodes": {
            "intervals": [
                [held[i].start, held[i].stop] if i in held else list(nothing)
                for i in range(len(problem.nodes))
            ],
            "costs": [_numbers(node.costs) for node in problem.nodes],
            "usages": [
                _numbers(held[i].amounts) if i in held else [0] * node.costs.size
                for i, node in enumerate(problem.nodes)
            ],
        },
        "edges": {
            "nodes": [[edge.u, edge.v] for edge in problem.edges],
            "costs": [_numbers(edge.pair_costs().ravel()) for edge in problem.edges],
        },
    }
    if problem.limit is not None and np.isfinite(problem.limit):
        data["usage_limit"] = _numbers(np.array([problem.limit]))[0]
    return data


def write(path: str | os.PathLike[str], problem: Problem, name: str = "") -> None:
    """Write a contest file, gzip'ed when the path ends in .gz; raises what `to_json` does."""
    text = msgspec.json.encode({"problem": to_json(problem, name)})
    # Without a time stamp, so that equal problems are equal files.
    write_whole(path, gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def _numbers(row: Floats) -> list[int | float]:
    """Whole numbers as int, all others as float, infinity as what forbids."""
    row = np.minimum(row, FORBIDDEN)
    whole = (row == np.floor(row)) & (np.abs(row) <= FORBIDDEN)
    if whole.all():
        return row.astype(np.int64).tolist()
    return [int(x) if is_whole else x for x, is_whole in zip(row.tolist(), whole, strict=True)]


def _usages(problem: Problem, faults: Faults) -> dict[int, Usage]:
    """The one usage of each node that has any."""
    held: dict[int, list[Usage]] = {}
    for usage in problem.usages:
        if usage.start < usage.stop and usage.amounts.any():
            held.setdefault(usage.node, []).append(usage)
    for node, usages in held.items():
        name = problem.nodes[node].name
        if len(usages) > 1:
            spans = ", ".join(f"[{usage.start}, {usage.stop})" for usage in usages)
            faults.add(f"{name} has several usages, over {spans}; leave it one")
        if min(usage.start for usage in usages) < 0:
            start = min(usage.start for usage in usages)
            faults.add(f"the usage of {name} starts at {start}; shift all times to 0 or later")
    return {node: usages[0] for node, usages in held.items()}


def _check_costs(problem: Problem, faults: Faults) -> None:
    def large(row: Floats) -> np.ndarray:
        return (row >= FORBIDDEN) & (row < np.inf)

    repair = "which reads as forbidden; use a larger unit of cost"
    for node in problem.nodes:
        if large(node.costs).any():
            faults.add(f"{node.name} has a choice that costs {node.costs.max():g}, {repair}")
    for edge in problem.edges:
        if _largest(edge) >= FORBIDDEN:
            u, v = problem.nodes[edge.u].name, problem.nodes[edge.v].name
            faults.add(f"edge {u} - {v} has a pair that costs {_largest(edge):g}, {repair}")


def _largest(edge: Edge) -> float:
    """The largest finite cost of a pair."""
    table = edge.table
    return edge.weight * float(np.max(table, where=table < np.inf, initial=-np.inf))
