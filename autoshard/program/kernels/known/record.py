"""What is known of a library's function, and how a call of it is read.

A traced call keeps its function's name and file, its operands and what it is made of, but not its
options. These are read off its kernels: blocks say tiles, literals say scales. What is read is a
`Form`; it is right if the function, traced in this form, makes the same kernels again.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from autoshard import compat
from autoshard.program.bodies import all_equations, equations_in
from autoshard.program.rules.record import FactorKind, Rule

LANES = 128
"""Elements of a row of a TPU's tiles (https://openxla.org/xla/tiled_layout)."""
Options = Mapping[str, Any]
Said = TypeVar("Said")


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a function may have been called.

    Attributes:
      operands: the names of its parameters that take the operands, in order. Those that start with
        a star are passed by name; `*rhs.scale` is an attribute of what is passed as `rhs`.
      options: its other arguments.
    """

    operands: tuple[str, ...]
    options: Options

    def call(self, function: Callable[..., Any], arrays: Sequence[Any], **more: Any) -> Any:
        """Call the function in this form on other arrays, with other options."""
        pairs = list(zip(self.operands, arrays, strict=True))
        given = [array for name, array in pairs if not name.startswith("*")]
        named: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {}
        for name, array in ((name[1:], array) for name, array in pairs if name.startswith("*")):
            owner, _, attribute = name.partition(".")
            if attribute:
                parts.setdefault(owner, {})[attribute] = array
            else:
                named[name] = array
        for owner, attributes in parts.items():
            named[owner] = quantised(function)(**attributes)
        return function(*given, **{**named, **self.options, **more})


@dataclass(frozen=True, slots=True)
class Known:
    """A function of libraries, as the table has it.

    Attributes:
      name: of the function.
      modules: in which it is defined; copies of it that take the same parameters.
      forms: of the function and an equation that calls it, the ways in which it may have been
        called, the likeliest first; none where its operands are others than the rule is for.
      call: from the function, a form and the operands to results that are equal to the call's, by a
        call with a rule.
    """

    name: str
    modules: tuple[str, ...]
    forms: Callable[[Callable[..., Any], Any], Iterator[Form]]
    call: Callable[[Callable[..., Any], Form, Sequence[Any]], list[Any]]


def quantised(function: Callable[..., Any]) -> Any:
    """The class of arrays with scales, as the module of a function has it."""
    return sys.modules[function.__module__].QArray  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a rule names: dimensions that are cut together.

    Attributes:
      size: in elements.
      unit: parts are multiples of so many elements.
      kind: what becomes of parts.
      block: elements that share a scale; a unit is a multiple of it.
    """

    size: int
    unit: int = 1
    kind: FactorKind = FactorKind.PASS
    block: int = 1


def summed(size: int, unit: int = 1, block: int = 1) -> Dimension:
    """Of which parts give terms of the results."""
    return Dimension(size, unit, FactorKind.REDUCE, block)


def whole(size: int) -> Dimension:
    """Which is not cut."""
    return Dimension(size, 1, FactorKind.REPLICATE)


def rule_of(text: str, **dimensions: Dimension) -> Rule:
    """The rule of a text that names each dimension of operands and results.

    `#m` counts the units of `m`, `%m` its blocks; `k+two` is a dimension of two, the first one
    outside.

    >>> print(rule_of("m k, #m -> m", m=Dimension(512, 128), k=summed(64)))
    ([a.b, i], [a])->([a.b]) {a=4, b=128, i=64} reduction={i}, need_replication={b}
    """
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {}
    used = set(re.findall(r"\w+", text))
    for name, one in ((name, one) for name, one in dimensions.items() if name in used):
        operator = "sum" if one.kind is FactorKind.REDUCE else None
        factors[name] = one.size // one.unit, one.kind, operator
        factors[name, "unit"] = one.unit // one.block, FactorKind.REPLICATE, None
        factors[name, "block"] = one.block, FactorKind.REPLICATE, None

    def labels(name: str) -> list[Hashable]:
        if name.startswith("#"):
            return [name[1:]]
        plain = name.removeprefix("%")
        inner = ("unit",) if plain != name else ("unit", "block")
        return [plain, *((plain, one) for one in inner if factors[plain, one][0] > 1)]

    operands, results = (
        [
            [[one for name in names.split("+") for one in labels(name)] for names in tensor.split()]
            for tensor in side.split(",")
        ]
        for side in text.split("->")
    )
    return Rule.build(operands, results, factors)


def kernels_of(equation: Any) -> list[Any]:
    """The kernels within an equation, in order: Pallas calls, and kernels on a mesh of cores."""
    (body,) = (body for body, _ in compat.bodies_of(equation))
    kinds = compat.PALLAS, compat.ON_CORES
    return [one for one in all_equations(body) if one.primitive.name in kinds]


def names_of(equation: Any) -> tuple[str, ...]:
    """The names of the parameters that take the operands of a call, as far as they are known."""
    (body,) = (body for body, _ in compat.bodies_of(equation))
    names = tuple(body.debug_info.arg_names or ())
    return names if len(names) == len(equation.invars) else ()


def made_again(
    kernel: Any,
    options: Iterable[Said],
    called: Callable[[Said], Callable[..., Any]],
    shapes: Sequence[jax.ShapeDtypeStruct],
) -> Said | None:
    """The options with which a function makes a Pallas call again; None if it does with none.

    Args:
      kernel: the equation of the call.
      options: with which the function may have been called.
      called: the function with options.
      shapes: of its operands.
    """
    wanted = compat.written_out(kernel)
    for one in options:
        try:
            with warnings.catch_warnings(action="ignore"):
                traced = jax.make_jaxpr(called(one))(*shapes)
        except Exception:  # whatever a library says of options that it does not take
            continue
        made = [one for one in all_equations(traced.jaxpr) if one.primitive.name == compat.PALLAS]
        if [compat.written_out(one) for one in made] == [wanted]:
            return one
    return None


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
