"""What a kernel carries in its scratch from one step of the grid to the next.

Scratch outlives a step: sums grow in it along an axis of the grid. Another axis may be cut if the
kernel writes its scratch anew whenever that axis moves on, before it reads it. So the kernel is
walked through at the first step behind such a move: its place along the axis is a first one, along
all faster axes 0, along slower ones unknown. Conditions that are known there choose one branch; of
others all branches are walked, and what only one of them writes counts as not written.

Results of a kernel that nobody reads, and that keep their block along the axis, are scratch, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.kernels.scalars import Array, compute, is_scalar


class CarriedError(Exception):
    """A kernel reads scratch that it has not written since the axis moved on."""


class FirstStep:
    """One walk through a kernel, at its first steps behind moves along an axis.

    Args:
      axis: the number of the axis.
      starts: places along it at which parts may begin.
      grid: sizes of the grid; None where unknown.
      ids: the axis for each number by which `program_id` asks.
    """

    def __init__(
        self, axis: int, starts: Array, grid: Sequence[int | None], ids: Sequence[int]
    ) -> None:
        self.axis, self.starts, self.grid, self.ids = axis, starts, grid, ids
        self.written: dict[int, Array] = {}

    def check(self, jaxpr: Any, consts: Sequence[Any], kept: Sequence[int]) -> None:
        """Raise CarriedError if what one of the references `kept` (by position) holds is read."""
        shapes = {k: jaxpr.invars[k].aval.shape for k in kept}
        self.written = {k: np.zeros(shape, bool) for k, shape in shapes.items()}
        names = {jaxpr.invars[k]: k for k in kept}
        self._walk(jaxpr, consts, [None] * len(jaxpr.invars), names)

    def _walk(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        operands: Sequence[Array | None],
        names: dict[Any, int],
    ) -> list[Array | None]:
        known: dict[Any, Array | None] = dict.fromkeys(jaxpr.constvars)
        for var, value in zip(jaxpr.constvars, consts, strict=False):
            known[var] = self._constant(value)
        known.update(zip(jaxpr.invars, operands, strict=True))
        read = [atom for one in jaxpr.eqns for atom in one.invars] + list(jaxpr.outvars)
        used = {atom for atom in read if not compat.is_literal(atom)}

        def value_of(atom: Any) -> Array | None:
            return self._constant(atom.val) if compat.is_literal(atom) else known[atom]

        for equation in jaxpr.eqns:
            values = [value_of(atom) for atom in equation.invars]
            refs = {
                k: names[atom]
                for k, atom in enumerate(equation.invars)
                if not compat.is_literal(atom) and atom in names
            }
            results = self._equation(equation, values, refs, used)
            known.update(zip(equation.outvars, results, strict=True))
        return [value_of(atom) for atom in jaxpr.outvars]

    def _constant(self, value: Any) -> Array | None:
        array = np.asarray(value) if np.ndim(value) == 0 else None
        return array if array is not None and array.dtype.kind in "biuf" else None

    def _equation(
        self, equation: Any, values: list[Array | None], refs: dict[int, int], used: set[Any]
    ) -> list[Array | None]:
        name = equation.primitive.name
        unknown: list[Array | None] = [None for _ in equation.outvars]
        if name == "program_id":
            return [self._place(self.ids[equation.params["axis"]])]
        if name == "num_programs":
            size = self.grid[self.ids[equation.params["axis"]]]
            return [None if size is None else np.asarray(size)]
        if is_scalar(equation):
            given = [value for value in values if value is not None]
            return [compute(equation, given)] if len(given) == len(values) else unknown
        bodies = compat.bodies_of(equation)
        if name == "cond":
            return self._branches(bodies, values, refs)
        if name in ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "remat2"):
            body, consts = bodies[0]
            inner = {body.invars[k]: ref for k, ref in refs.items()}
            return self._walk(body, consts, values, inner)
        if name == "scan":
            self._scan(equation, values, refs)
            return unknown
        access = compat.access_of(equation) if 0 in refs else None
        if access is not None and len(refs) == 1:
            self._access(equation, access, refs[0], used)
            return unknown
        for ref in refs.values():
            self._require(ref, ...)
        return unknown

    def _place(self, axis: int) -> Array | None:
        if axis == self.axis:
            return self.starts
        return np.asarray(0) if axis > self.axis or self.grid[axis] == 1 else None

    def _branches(
        self, bodies: Sequence[Any], values: list[Array | None], refs: dict[int, int]
    ) -> list[Array | None]:
        which, operands = values[0], values[1:]
        taken = list(range(len(bodies)))
        if which is not None:
            chosen = {min(max(int(one), 0), len(bodies) - 1) for one in np.atleast_1d(which)}
            taken = sorted(chosen)
        before, after, results = self.written, [], []
        for number in taken:
            body, consts = bodies[number]
            self.written = {k: mask.copy() for k, mask in before.items()}
            inner = {body.invars[k - 1]: ref for k, ref in refs.items()}
            results.append(self._walk(body, consts, operands, inner))
            after.append(self.written)
        self.written = {k: np.logical_and.reduce([one[k] for one in after]) for k in before}
        return results[0] if len(taken) == 1 else [None for _ in results[0]]

    def _scan(self, equation: Any, values: list[Array | None], refs: dict[int, int]) -> None:
        """A loop's first round; later ones read what it has written or what was written before."""
        params = equation.params
        body, consts = params["jaxpr"].jaxpr, params["jaxpr"].consts
        count, _ = compat.scan_counts(params)
        given = [value if k < count else None for k, value in enumerate(values)]
        inner = {body.invars[k]: ref for k, ref in refs.items()}
        before = {k: mask.copy() for k, mask in self.written.items()}
        self._walk(body, consts, given, inner)
        if params["length"] == 0:
            self.written = before

    def _access(self, equation: Any, access: Any, ref: int, used: set[Any]) -> None:
        place: list[Any] = []
        certain = True
        for start, size in zip(access.starts, access.sizes, strict=True):
            number = start.val if compat.is_literal(start) else start
            if size is None or not isinstance(number, int | np.integer):
                place.append(slice(None))
                certain = False
            else:
                place.append(slice(int(number), int(number) + size))
        result_is_used = any(var in used for var in equation.outvars)
        if access.kind != "write" or result_is_used:
            self._require(ref, tuple(place))
        if access.kind == "write" and certain:
            self.written[ref][tuple(place)] = True

    def _require(self, ref: int, place: Any) -> None:
        if not self.written[ref][place].all():
            raise CarriedError
