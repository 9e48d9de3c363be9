"""Numbers of values: two values with one number are equal, whatever the inputs are.

Every equation without effects is known by its primitive, its parameters and the numbers of its
operands, so that an op that computes again what another one computed has that one's number. Calls
are looked through, and loops and branches are numbered result by result: an inner loop that is run
again, and hands out residuals besides, makes the same carries as the first one did. In a loop,
carries are numbered by their starts, and what a loop makes by its starts and the numbers after one
turn: if those are equal, so are all turns.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.vocabulary import INLINED

_STATEFUL = frozenset({"rng_uniform"})
"""Primitives without effects that make something else each time."""
_LARGE = 2**16
"""Bytes of a constant above which it is equal to none but itself."""


class Numbering:
    """Hands out numbers; one for everything that is to be compared."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._alive: list[Any] = []  # what is known by its identity must not be freed
        self._count = 0

    def fresh(self) -> int:
        """A number that nothing else has."""
        self._count += 1
        return self._count

    def of(self, *key: Hashable) -> int:
        """The number of what is known by `key`."""
        if key not in self._numbers:
            self._numbers[key] = self.fresh()
        return self._numbers[key]

    def literal(self, atom: Any) -> int:
        """The number of a literal."""
        shape, dtype, _ = compat.array_facts(atom.aval)
        return self.of("literal", shape, dtype, np.asarray(atom.val).tobytes())

    def constant(self, constant: Any) -> int:
        """The number of a constant of a closed jaxpr."""
        size = getattr(constant, "nbytes", _LARGE)
        dtype = getattr(constant, "dtype", None)
        if size >= _LARGE or not isinstance(dtype, np.dtype):
            return self.of("constant", self._identity(constant))
        array = np.asarray(constant)
        return self.of("constant", array.shape, str(dtype), array.tobytes())

    def walk(
        self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[int]
    ) -> tuple[dict[Any, int], list[int]]:
        """The number of every variable of a jaxpr, and those of its results."""
        numbers = dict(zip(jaxpr.constvars, map(self.constant, consts), strict=True))
        numbers.update(zip(jaxpr.invars, inputs, strict=True))
        for equation in jaxpr.eqns:
            operands = [self.read(atom, numbers) for atom in equation.invars]
            results = self.equation(equation, operands)
            numbers.update(zip(equation.outvars, results, strict=True))
        return numbers, [self.read(atom, numbers) for atom in jaxpr.outvars]

    def read(self, atom: Any, numbers: dict[Any, int]) -> int:
        """The number of an operand."""
        return self.literal(atom) if compat.is_literal(atom) else numbers[atom]

    def equation(self, equation: Any, operands: Sequence[int]) -> list[int]:
        """The numbers of an equation's results."""
        name = equation.primitive.name
        if not repeatable(equation):
            return [self.fresh() for _ in equation.outvars]
        if name in INLINED:
            body, consts = compat.called_jaxpr(equation)
            return self.walk(body, consts, operands)[1]
        if name == "scan":
            return self._scan(equation, operands)
        if name == "while":
            return self._while(equation, operands)
        if name == "cond":
            ends = [
                self.walk(branch.jaxpr, branch.consts, operands[1:])[1]
                for branch in equation.params["branches"]
            ]
            return [self.of("cond", operands[0], *each) for each in zip(*ends, strict=True)]
        known = tuple((key, self._known(value)) for key, value in sorted(equation.params.items()))
        whole = self.of(name, known, *operands)
        return [self.of("result", whole, k) for k in range(len(equation.outvars))]

    def _scan(self, equation: Any, operands: Sequence[int]) -> list[int]:
        params, body = equation.params, equation.params["jaxpr"]
        consts, carries = compat.scan_counts(params)
        starts = operands[consts : consts + carries]
        inside = [
            *operands[:consts],
            *(self.of("carry", start, k) for k, start in enumerate(starts)),
            *(self.of("slice", stack) for stack in operands[consts + carries :]),
        ]
        ends = self.walk(body.jaxpr, body.consts, inside)[1]
        turns = self.of("scan", params["length"], params["reverse"], *starts, *ends[:carries])
        made = [self.of("carried", turns, k) for k in range(carries)]
        return [*made, *(self.of("stack", turns, end) for end in ends[carries:])]

    def _while(self, equation: Any, operands: Sequence[int]) -> list[int]:
        params = equation.params
        tested, bodies = params["cond_nconsts"], params["body_nconsts"]
        starts = operands[tested + bodies :]
        carried = [self.of("carry", start, k) for k, start in enumerate(starts)]
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        tests = self.walk(test.jaxpr, test.consts, [*operands[:tested], *carried])[1]
        given = [*operands[tested : tested + bodies], *carried]
        ends = self.walk(body.jaxpr, body.consts, given)[1]
        turns = self.of("while", *tests, *starts, *ends)
        return [self.of("carried", turns, k) for k in range(len(starts))]

    def _known(self, value: Any) -> Hashable:
        """What a parameter of an equation is compared by."""
        if isinstance(value, tuple | list):
            return tuple(map(self._known, value))
        if isinstance(value, dict):
            return tuple((key, self._known(one)) for key, one in sorted(value.items()))
        if isinstance(value, np.ndarray):
            return value.shape, str(value.dtype), value.tobytes()
        if isinstance(value, bool | float):
            return type(value).__name__, repr(value)
        if hasattr(value, "eqns"):  # a kernel; a text that leaves something out tells nothing
            text = "" if getattr(value, "consts", ()) else str(value)
            return text if text and "..." not in text else self._identity(value)
        try:
            hash(value)
        except TypeError:
            return self._identity(value)
        return value

    def _identity(self, value: Any) -> int:
        self._alive.append(value)
        return id(value)


def repeatable(equation: Any) -> bool:
    """Whether an equation makes the same whenever it is run, and does nothing else."""
    return not equation.effects and equation.primitive.name not in _STATEFUL
