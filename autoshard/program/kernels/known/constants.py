"""Values that no argument of a step decides, and calls without them among their operands.

Differentiating a loop has JAX compute ahead of it what depends on none of its turns. Of a call such
as `gmm(rows, matrices, sizes)` these are the zeros, numbers of rows and starts of counts that the
function makes for itself: they are computed in a part of their own, and stand among the operands of
what is left of the call. A function is known by what it was called with, so that these are taken
back into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.bodies import BODIES
from autoshard.program.shard_maps.collectives import is_cast, is_collective
from autoshard.program.vocabulary import INLINED

LIMIT = 1 << 24
"""Elements of the largest value that is computed to tell a call by it."""
_OUTSIDE = frozenset(
    {*BODIES, *INLINED, *compat.KERNELS, compat.ON_CORES, compat.FFI, "shard_map", "pure_callback"}
)
"""What is not run to know a value, beside collectives."""


_Cut = tuple[tuple[tuple[str, int], ...], ...]
"""For each dimension that a spec names, the axes of more than one part that cut it, with sizes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A value: the `position`-th result of an equation on such values, or what it is itself.

    With `cut` it is its one operand on each part of a mesh, put together.
    """

    equation: Any
    position: int
    operands: tuple[_Made, ...]
    given: Any = None
    cut: _Cut = ()


class Constants:
    """The values in a jaxpr and its bodies that depend on no input, computed when asked for."""

    def __init__(self, closed: Any) -> None:
        self._closed = closed  # keeps alive what is known by its place in memory
        self._made: dict[tuple[Any, ...], _Made] = {}
        self._of: dict[Any, _Made | None] = {}
        self._values: dict[_Made, np.ndarray[Any, Any]] = {}
        self._walk(*compat.opened(closed), [None] * len(closed.jaxpr.invars))

    def of(self, atom: Any) -> np.ndarray[Any, Any] | None:
        """The value of a variable or a literal; None if an input decides it, or it is too large.

        A body that is called in several places has those that are the same in all of them.
        """
        made = self._given(compat.literal(atom)) if compat.is_literal(atom) else self._of.get(atom)
        return None if made is None or atom.aval.size > LIMIT else self._value(made)

    def _given(self, value: Any) -> _Made:
        """Of a constant: equal numbers are one."""
        number = np.ndim(value) == 0 and hasattr(value, "dtype")
        key = (str(value.dtype), np.asarray(value).item()) if number else (id(value),)
        return self._made.setdefault(key, _Made(None, 0, (), value))

    def _value(self, made: _Made) -> np.ndarray[Any, Any]:
        if made not in self._values:
            if made.cut:
                (part,) = map(self._value, made.operands)
                counts = [math.prod(size for _, size in axes) for axes in made.cut]
                rank = np.ndim(part)
                self._values[made] = np.tile(part, [*counts, *[1] * (rank - len(counts))])
            elif made.equation is None:
                self._values[made] = np.asarray(made.given)
            else:
                operands = [self._value(one) for one in made.operands]
                results = compat.bind_equation(made.equation, operands)
                self._values[made] = np.asarray(results[made.position])
        return self._values[made]

    def _walk(
        self, jaxpr: Any, consts: Sequence[Any], given: Sequence[_Made | None]
    ) -> list[_Made | None]:
        """Note the variables of a body that is given these; its results."""
        here: dict[Any, _Made | None] = {}

        def note(var: Any, made: _Made | None) -> None:
            here[var] = made
            self._of[var] = made if self._of.get(var, made) is made else None

        def read(atom: Any) -> _Made | None:
            return self._given(compat.literal(atom)) if compat.is_literal(atom) else here.get(atom)

        for var, made in zip(
            (*jaxpr.constvars, *jaxpr.invars), (*map(self._given, consts), *given), strict=True
        ):
            note(var, made)
        for equation in jaxpr.eqns:
            results = self._results(equation, [read(atom) for atom in equation.invars])
            for var, made in zip(equation.outvars, results, strict=True):
                note(var, made)
        return [read(atom) for atom in jaxpr.outvars]

    def _results(self, equation: Any, operands: list[_Made | None]) -> Sequence[_Made | None]:
        name, unknown = equation.primitive.name, [None] * len(equation.outvars)
        if is_cast(equation):
            return operands
        if name in INLINED:
            body, consts = compat.called_jaxpr(equation)
            fits = len(body.invars) == len(operands) and len(body.constvars) == len(consts)
            return self._walk(body, consts, operands) if fits else unknown
        if name == "shard_map":
            return self._of_parts(equation, operands)
        for body, given in compat.loop_bodies(equation, operands):
            self._walk(*compat.opened(body), given)
        found = [one for one in operands if one is not None]
        if len(found) < len(operands) or not runs_alone(equation):
            return unknown
        key = (id(equation), *map(id, found))
        return [
            self._made.setdefault((*key, k), _Made(equation, k, tuple(found)))
            for k in range(len(unknown))
        ]

    def _of_parts(self, equation: Any, operands: list[_Made | None]) -> Sequence[_Made | None]:
        """Of a `shard_map`: a value is the same in all parts where no axis cuts it.

        What the parts of one leave for those of another is cut by all axes: what JAX computes of
        a body ahead of a loop, of which each part computes the same.
        """
        sizes = dict(equation.params["mesh"].shape)
        specs = equation.params["in_specs"], equation.params["out_specs"]
        asked, left = ([_cut(spec, sizes) for spec in side] for side in specs)
        given = [_part(one, cut) for one, cut in zip(operands, asked, strict=True)]
        results = self._walk(*compat.opened(equation.params["jaxpr"]), given)
        return [self._put_together(one, cut) for one, cut in zip(results, left, strict=True)]

    def _put_together(self, part: _Made | None, cut: _Cut) -> _Made | None:
        """What is the same on all parts, of which a result is made."""
        if part is None or not cut:
            return part
        return self._made.setdefault((id(part), cut), _Made(None, 0, (part,), cut=cut))


def runs_alone(equation: Any) -> bool:
    """Whether the results of an equation may be known by running it on its operands here."""
    outside = equation.primitive.name in _OUTSIDE or is_collective(equation)
    return not outside and not equation.effects


def _part(made: _Made | None, cut: _Cut) -> _Made | None:
    """What each part is given of a value; None where they are given unlike ones."""
    if made is None or not cut:
        return made
    return made.operands[0] if made.cut == cut else None


def _cut(spec: Any, sizes: Mapping[str, int]) -> _Cut:
    """How a spec cuts a value; nothing where no axis of more than one part does."""
    entries = (part if isinstance(part, tuple) else (part,) for part in spec)
    cut = [
        tuple((name, sizes[name]) for name in entry if sizes.get(name, 1) > 1) for entry in entries
    ]
    while cut and not cut[-1]:
        cut.pop()
    return tuple(cut)


def without_constants(equation: Any, value: Callable[[Any], Any]) -> Any | None:
    """A call without operands that no argument decides, which its body has as constants.

    Args:
      equation: of `jax.jit`.
      value: of an operand its value, or None (`Constants.of`).

    Returns None where there are none. What it returns is to be read, and not to be run: its other
    parameters are of the call with all operands.
    """
    values = [value(atom) for atom in equation.invars]
    if all(one is None for one in values):
        return None
    body = compat.with_inputs_held(equation.params["jaxpr"], values)
    given = [atom for atom, one in zip(equation.invars, values, strict=True) if one is None]
    return equation.replace(invars=given, params={**equation.params, "jaxpr": body})
