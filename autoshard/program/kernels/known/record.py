"""What is known of a library's function, and how a call of it is read.

A traced call keeps its function's name and file, its operands and what it is made of, but not its
options. These are read off its kernels: blocks say tiles, literals say scales. What is read is a
`Form`; it is right if the function, traced in this form, makes the same kernels again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.bodies import all_equations, equations_in
from autoshard.program.rules.record import FactorKind, Rule

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a function may have been called.

    Attributes:
      operands: the names of its parameters that take the operands, in order. Those that start with
        a star are passed by name.
      options: its other arguments.
    """

    operands: tuple[str, ...]
    options: Options

    def call(self, function: Callable[..., Any], arrays: Sequence[Any], **more: Any) -> Any:
        """Call the function in this form on other arrays, with other options."""
        pairs = list(zip(self.operands, arrays, strict=True))
        given = [array for name, array in pairs if not name.startswith("*")]
        named = {name[1:]: array for name, array in pairs if name.startswith("*")}
        return function(*given, **{**named, **self.options, **more})


@dataclass(frozen=True, slots=True)
class Known:
    """A function of libraries, as the table has it.

    Attributes:
      name: of the function.
      modules: in which it is defined; copies of it that take the same parameters.
      forms: of an equation that calls it, the ways in which it may have been called, the likeliest
        first; none where its operands are others than the rule is for.
      call: from the function, a form and the operands to results that are equal to the call's, by a
        call with a rule.
    """

    name: str
    modules: tuple[str, ...]
    forms: Callable[[Any], Iterator[Form]]
    call: Callable[[Callable[..., Any], Form, Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a rule names: dimensions that are cut together.

    Attributes:
      size: in elements.
      unit: parts are multiples of so many elements.
      kind: what becomes of parts.
    """

    size: int
    unit: int = 1
    kind: FactorKind = FactorKind.PASS


def summed(size: int, unit: int = 1) -> Dimension:
    """Of which parts give terms of the results."""
    return Dimension(size, unit, FactorKind.REDUCE)


def whole(size: int) -> Dimension:
    """Which is not cut."""
    return Dimension(size, 1, FactorKind.REPLICATE)


def rule_of(text: str, **dimensions: Dimension) -> Rule:
    """The rule of a text that names each dimension of operands and results.

    `#m` counts the units of `m`; `k+two` is a dimension of two, the first one outside.

    >>> print(rule_of("m k, #m -> m", m=Dimension(512, 128), k=summed(64)))
    ([a.b, i], [a])->([a.b]) {a=4, b=128, i=64} reduction={i}, need_replication={b}
    """
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {}
    for name, one in dimensions.items():
        operator = "sum" if one.kind is FactorKind.REDUCE else None
        factors[name] = one.size // one.unit, one.kind, operator
        factors[name, "unit"] = one.unit, FactorKind.REPLICATE, None

    def labels(name: str) -> list[Hashable]:
        if name.startswith("#"):
            return [name[1:]]
        return [name, (name, "unit")] if dimensions[name].unit > 1 else [name]

    operands, results = (
        [
            [[one for name in names.split("+") for one in labels(name)] for names in tensor.split()]
            for tensor in side.split(",")
        ]
        for side in text.split("->")
    )
    return Rule.build(operands, results, factors)


def kernels_of(equation: Any) -> list[Any]:
    """The Pallas calls within an equation, in order."""
    (body,) = (body for body, _ in compat.bodies_of(equation))
    return [one for one in all_equations(body) if one.primitive.name == compat.PALLAS]


def shapes_of(equation: Any) -> list[tuple[int, ...]]:
    """The shapes of the operands of an equation."""
    return [tuple(getattr(atom.aval, "shape", ())) for atom in equation.invars]


def ranks_of(equation: Any) -> tuple[int, ...]:
    """The numbers of dimensions of the operands of an equation."""
    return tuple(map(len, shapes_of(equation)))


def literals_in(jaxpr: Any, kind: Any) -> list[Any]:
    """The scalar literals of a kind of number (`np.floating`) in a jaxpr, each once, in order."""
    found: dict[Any, None] = {}
    for equation in equations_in(jaxpr):
        for atom in equation.invars:
            if compat.is_literal(atom) and np.ndim(atom.val) == 0:
                number = np.asarray(atom.val)
                if np.issubdtype(number.dtype, kind) and np.isfinite(number):
                    found[number.item()] = None
    return list(found)
