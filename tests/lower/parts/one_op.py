"""One op cut as the factors of the mesh axes say, run by every device on its part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import autoshard
from autoshard.lower.local import run_in_parts
from autoshard.lower.parts.cut import Cut
from autoshard.lower.parts.manual import Devices
from autoshard.program.rules.record import Rule
from autoshard.program.strategies import enumerate_strategies, project_assignment


class OneOp:
    """The only op of a primitive in `fn`, which computes little else.

    Attributes:
      rule: its sharding rule.
    """

    def __init__(self, fn: Callable[..., Any], arrays: Sequence[Any], primitive: str) -> None:
        program = autoshard.trace(fn, *arrays)
        (self._op,) = (op for op in program.ops if op.primitive == primitive)
        equations = program.jaxpr.jaxpr.eqns
        (self._equation,) = (one for one in equations if one.primitive.name == primitive)
        self._shapes = tuple(program.values[value].shape for value in self._op.outputs)
        self._arrays = arrays
        self.rule: Rule = self._op.rule

    def assignments(self, mesh_shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """All ways to cut it: the factor of every axis, or -1."""
        found = enumerate_strategies(self.rule, mesh_shape, self._shapes)
        return iter(sorted({tuple(row) for row in found.assignment.tolist()}))

    def on_parts(self, assignment: Sequence[int], mesh_shape: tuple[int, ...], *arrays: Any) -> Any:
        """Its result from the results on parts, of other arrays where they are given."""
        chosen = np.array([assignment])
        whole = tuple(np.full((1, len(mesh_shape)), -1) for _ in self._op.outputs)
        strategy = project_assignment(self.rule, chosen, whole, mesh_shape)
        names = tuple("xyz"[: len(mesh_shape)])
        cut = Cut(
            self._op,
            tuple(tuple(layout[0].tolist()) for layout in strategy.reads),
            tuple(tuple(layout[0].tolist()) for layout in strategy.written),
            tuple(np.flatnonzero(strategy.reduced[0]).tolist()),
            self._shapes,
            Devices(names, mesh_shape),
            tuple(assignment),
        )
        devices = np.array(jax.devices()[: np.prod(mesh_shape)]).reshape(mesh_shape)
        run = jax.jit(lambda *a: run_in_parts(self._equation, a, cut, Mesh(devices, names)))
        (result,) = run(*(arrays or self._arrays))
        return result.sum(tuple(range(len(cut.partial))))
