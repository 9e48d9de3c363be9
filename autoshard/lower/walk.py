"""The walk over a jaxpr, in exactly the order in which `autoshard.program` numbered its ops."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from autoshard import compat
from autoshard.lower.planned_arrays import PlannedArrays


class Walk(PlannedArrays, abc.ABC):
    """Equations one after another, of the step and of the bodies in it."""

    def run(self, *flat: Any) -> list[Any]:
        """The step on flat inputs; returns flat outputs."""
        program = self.program
        for value, array in zip(program.inputs, flat, strict=True):
            self.arrays[value] = array
        closed = program.jaxpr
        atoms = self._walk(closed.jaxpr, closed.consts, list(flat), list(program.inputs))
        outputs = []
        for array, _ in atoms:
            op = self._next("return")
            outputs.append(self._read(op, 0, array))
        return outputs

    def _walk(
        self, jaxpr: Any, consts: Sequence[Any], arrays: Sequence[Any], values: Sequence[int]
    ) -> list[tuple[Any, int]]:
        """Interpret `jaxpr`; returns for every output its array and its value's index."""
        environment: dict[Any, tuple[Any, int]] = {}
        for var, constant in zip(jaxpr.constvars, consts, strict=True):
            environment[var] = (constant, -1)
        for var, array, value in zip(jaxpr.invars, arrays, values, strict=True):
            environment[var] = (array, value)

        def read(atom: Any) -> tuple[Any, int]:
            return (atom.val, -1) if compat.is_literal(atom) else environment[atom]

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            with compat.equation_context(equation):
                results = self._equation(equation, operands)
            for var, result in zip(equation.outvars, results, strict=True):
                environment[var] = result
        return [read(atom) for atom in jaxpr.outvars]

    @abc.abstractmethod
    def _equation(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """The results of an equation, from operands that are given as it makes them."""
