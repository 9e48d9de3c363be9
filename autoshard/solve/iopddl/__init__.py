"""Problems of the ASPLOS/EuroSys 2025 IOPDDL contest: read, written, and priced as it does.

The public format (https://github.com/google/iopddl) is JSON, plain or gzip'ed:
`nodes.intervals[i]` = [start, stop) half open, `nodes.costs[i]` and `nodes.usages[i]` one number
per choice, `edges.nodes[e]` = [u, v], `edges.costs[e]` = the row-major matrix over choices of u
and v, `usage_limit` for every time (none where it is missing). What the numbers mean here:

* A cost of at least 1e18, or an infinite one, forbids. Forbidden choices are left out of the
  nodes, forbidden pairs become +inf; neither is ever a large number.
* An edge from a node to itself adds its diagonal to the costs of the node. Edges between the same
  two nodes add up. What adds up to at least 1e18 is forbidden too.
* Numbers are doubles: whole numbers above 2^53 are rounded to 16 digits. Costs may be fractions or
  negative, although the contest's are neither.
* A node may be in no edge, and may use nothing: [0, 0) is no time at all.

`Instance.original` maps a solution back to the choice numbers of the file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.solve.evaluate import Evaluation
from autoshard.solve.iopddl.build import Built, ForbiddenError, build
from autoshard.solve.iopddl.decode import decode, from_data
from autoshard.solve.iopddl.price import price, refute
from autoshard.solve.iopddl.tables import FORBIDDEN, SHOWN, Tables, check_values
from autoshard.solve.iopddl.write import to_json, write
from autoshard.solve.problem import Integers, Problem, ProblemError
from autoshard.units import counted

__all__ = [
    "FORBIDDEN",
    "ForbiddenError",
    "Instance",
    "from_json",
    "read",
    "to_json",
    "write",
]


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A contest file: its name, its choice problem, and its own numbers.

    `kept[i]` are the file's numbers of the choices of node i that are not forbidden.
    """

    name: str
    problem: Problem
    kept: tuple[Integers, ...]
    tables: Tables

    def original(self, choices: Sequence[int]) -> tuple[int, ...]:
        """The choice numbers of the file for a solution of the problem."""
        return tuple(
            int(numbers[choice]) for numbers, choice in zip(self.kept, choices, strict=True)
        )

    def reduced(self, original: Sequence[int]) -> tuple[int, ...]:
        """The choices of the problem for the choice numbers of the file.

        Raises ProblemError naming every node whose choice is forbidden in the file.
        """
        if len(original) != len(self.kept):
            raise ProblemError(
                f"{counted(len(original), 'choice')} for "
                f"{counted(len(self.kept), 'node')}; give one each"
            )
        positions = [int(np.searchsorted(k, c)) for k, c in zip(self.kept, original, strict=True)]
        bad = [
            f"{node.name}: choice {c}"
            for node, k, c, at in zip(
                self.problem.nodes, self.kept, original, positions, strict=True
            )
            if at >= k.size or k[at] != c
        ]
        if bad:
            more = f"\n  and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
            raise ProblemError("forbidden choices:\n  - " + "\n  - ".join(bad[:SHOWN]) + more)
        return tuple(positions)

    def evaluate(self, original: Sequence[int]) -> Evaluation:
        """What the choice numbers of the file cost by the file's own numbers alone."""
        return price(self.tables, original)

    def refute(self, original: Sequence[int], objective: float) -> str:
        """What is wrong with a solution said to cost `objective`, by the file's own numbers.

        Empty where nothing is; the reader is judged along with the solver.
        """
        return refute(self.tables, original, objective)


def read(path: str | os.PathLike[str]) -> Instance:
    """Read a contest file, plain or gzip'ed (told by its content).

    Raises:
      ForbiddenError: every choice of a node is forbidden, so that there is no solution.
      ProblemError: the file is damaged, of another format, or contradicts itself; the message
        names the file and every node and edge at fault, with its values and the repair.
      OSError: there is no such file, or it may not be read.
    """
    source = repr(str(path))
    return _instance(decode(Path(path).read_bytes(), source), source)


def from_json(data: Any, *, source: str = "the data") -> Instance:
    """The instance of a decoded contest file; raises what `read` does.

    Args:
      data: the mapping that the file holds; its rows may also be arrays.
      source: what messages call it.
    """
    return _instance(from_data(data, source), source)


def _instance(tables: Tables, source: str) -> Instance:
    check_values(tables, source)
    built: Built = build(tables, source)
    return Instance(tables.name, built.problem, built.kept, tables)
