"""How the scalars of a kernel depend on one axis of its grid, and whether a cut shows.

Cut the axis into parts, each a multiple of `period` steps long. A device's part runs through the
same places as the first part, so a scalar may be used for anything if it repeats after `period`
steps: all devices see what they would see in the whole grid. A scalar that does not repeat may only
be computed with, and be an index of a block: there the array is cut, too.

    table[i] + rest     for the place i along the axis; rest is unknown, but repeats

`VariesError` is raised where a scalar that does not repeat is used: as a place in a reference, in a
condition, with arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.kernels.scalars import Array, compute, is_scalar


@dataclass(frozen=True, slots=True, eq=False)
class Along:
    """A scalar along one axis; None as a table stands for an unknown dependence."""

    table: Array | None
    rest: bool = False


class VariesError(Exception):
    """A kernel uses its place along an axis; says for what."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a grid, cut into parts of multiples of `period` steps."""

    number: int
    size: int
    period: int
    ids: tuple[int, ...]

    @property
    def same(self) -> Along:
        """Anything that repeats."""
        return Along(np.zeros(self.size, np.int64), rest=True)

    @property
    def place(self) -> Along:
        """The place along the axis."""
        return Along(np.arange(self.size))

    def constant(self, value: Any) -> Along:
        """A number."""
        return Along(np.broadcast_to(np.asarray(value), (self.size,)))

    def repeats(self, scalar: Along) -> bool:
        """Whether a scalar is the same a period later."""
        table = scalar.table
        if table is None:
            return False
        return bool((table[self.period :] == table[: -self.period]).all())

    def index_of(self, index_map: Any) -> list[Along]:
        """The indices that an index map gives, one for each dimension of its array.

        Raises:
          VariesError: it reads a scalar given in advance at a place along the axis.
        """
        jaxpr = index_map.jaxpr
        count = len(jaxpr.invars)
        places = [self.place if k == self.number else self.same for k in range(count)]
        return self.walk(jaxpr, index_map.consts, places)

    def check_body(self, jaxpr: Any, consts: Sequence[Any]) -> None:
        """Walk through a kernel. Raises VariesError where it uses its place along the axis."""
        self.walk(jaxpr, consts, [self.same] * len(jaxpr.invars))

    def walk(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Along]) -> list[Along]:
        """The results of a jaxpr. Raises VariesError."""
        known: dict[Any, Along] = dict.fromkeys(jaxpr.constvars, self.same)
        for var, value in zip(jaxpr.constvars, consts, strict=False):
            if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf":
                known[var] = self.constant(value)
        known.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Any) -> Along:
            if not compat.is_literal(atom):
                return known[atom]
            return self.constant(atom.val) if np.ndim(atom.val) == 0 else self.same

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[Along]) -> list[Along]:
        name = equation.primitive.name
        if name == "program_id":
            mine = self.ids[equation.params["axis"]] == self.number
            return [self.place if mine else self.same]
        if name == "num_programs":
            mine = self.ids[equation.params["axis"]] == self.number
            return [Along(None) if mine else self.same]
        if is_scalar(equation):
            return [self._scalar(equation, operands)]
        bodies = compat.bodies_of(equation)
        if name == "cond":
            self._need(operands[:1], equation)
            found = [self.walk(body, consts, operands[1:]) for body, consts in bodies]
            return [self._joined(results) for results in zip(*found, strict=True)]
        if name in ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "remat2"):
            body, consts = bodies[0]
            return self.walk(body, consts, operands)
        if name in ("scan", "while"):
            return self._loop(equation, operands)
        self._need(operands, equation)
        for body, consts in bodies:  # what is read in it repeats, and so does what it makes
            self.walk(body, consts, [self.same] * len(body.invars))
        return [self.same for _ in equation.outvars]

    def _loop(self, equation: Any, operands: list[Along]) -> list[Along]:
        params = equation.params
        if equation.primitive.name == "scan":
            body = params["jaxpr"]
            consts, _ = compat.scan_counts(params)
            parts = [(body, operands[:consts])]
        else:
            body, first = params["body_jaxpr"], params["cond_nconsts"]
            consts = first + params["body_nconsts"]
            parts = [
                (params["cond_jaxpr"], operands[:first]),
                (body, operands[first:consts]),
            ]
        self._need(operands[consts:], equation)
        for closed, given in parts:
            jaxpr = closed.jaxpr
            more = [self.same] * (len(jaxpr.invars) - len(given))
            results = self.walk(jaxpr, closed.consts, [*given, *more])
            self._need(results, equation)
        return [self.same for _ in equation.outvars]

    def _scalar(self, equation: Any, operands: list[Along]) -> Along:
        name = equation.primitive.name
        tables = [operand.table for operand in operands]
        if any(table is None for table in tables):
            return Along(None)
        if not any(operand.rest for operand in operands):
            return Along(compute(equation, tables))  # type: ignore[arg-type]
        if all(map(self.repeats, operands)):
            return self.same
        if name in ("add", "sub", "squeeze", "multiple_of") or _stays_integer(equation):
            return Along(compute(equation, tables), rest=True)  # type: ignore[arg-type]
        if name == "mul":
            factors = [one for one in operands if not one.rest and _is_constant(one)]
            if factors:
                return Along(compute(equation, tables), rest=True)  # type: ignore[arg-type]
        if name == "select_n" and self.repeats(operands[0]):
            return self._joined(operands[1:])
        return Along(None)

    def _joined(self, cases: Sequence[Along]) -> Along:
        """One of several scalars, where which one it is repeats."""
        first, *others = cases
        if all(map(self.repeats, cases)):
            return self.same
        if first.table is None or any(one.table is None for one in others):
            return Along(None)
        alike = all(
            self.repeats(Along(one.table - first.table)) for one in others if one.table is not None
        )
        return Along(first.table, rest=True) if alike else Along(None)

    def _need(self, operands: Sequence[Along], equation: Any) -> None:
        if not all(map(self.repeats, operands)):
            raise VariesError(equation.primitive.name)


def _is_constant(scalar: Along) -> bool:
    return scalar.table is not None and bool((scalar.table == scalar.table[0]).all())


def _stays_integer(equation: Any) -> bool:
    if equation.primitive.name != "convert_element_type":
        return False
    kinds = {np.dtype(one.aval.dtype).kind for one in (*equation.invars, *equation.outvars)}
    return kinds <= set("iu")
