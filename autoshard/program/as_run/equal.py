"""Equal sums and products are one, as the compiler makes them.

Two equations of one body that do the same to the same operands have the same results. XLA computes
them once, and a collective that settles both is made once. So the second goes before a program is
planned, and its readers read the results of the first:

    a = y * y; s = reduce_sum(a)
    b = y * y; t = reduce_sum(b); f(s, t)      ->      a = y * y; s = reduce_sum(a); f(s, s)

Otherwise a plan would pay for both, or lay them out in two ways, which keeps the compiler from
merging them. Operands are equal if they are results of equal equations. These stay as written:

* what is cheap (`FREE_PRIMITIVES`), and calls of nothing else: it is computed again in the kernel
  of each reader, merged or not. It is gone where nothing reads it any more. But where products (or
  sorts, and what else has kernels of its own) read both, one copy of the one result serves them;
* what has an effect, calls Python or a kernel, or is a loop or branch: XLA does not compare them;
* constraints: each is what the user says in its own place;
* barriers, and functions that are computed again behind one (`jax.checkpoint`): they are there to
  keep equal equations apart.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.bodies import with_bodies
from autoshard.program.flops import is_matrix_op
from autoshard.program.vocabulary import ALGORITHMS, BARRIER, CALLS_PYTHON, FREE_PRIMITIVES, INLINED

_APART = frozenset(
    {
        BARRIER,
        "scan",
        "while",
        "cond",
        "sharding_constraint",
        *CALLS_PYTHON,
        *compat.REMAT,
        *compat.KERNELS,
        compat.RULED,
    }
)


def merge_equal(closed: Any) -> Any:
    """A closed jaxpr in which no two sums or products of a body are equal."""
    jaxpr = _merged(closed.jaxpr)
    return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)


def _merged(jaxpr: Any) -> Any:
    """`jaxpr` without the equations that are equal to one before; itself if there are none."""
    made: dict[Hashable, Any] = {}
    first: dict[Any, Any] = {}  # of equal variables
    instead: dict[Any, Any] = {}
    equations = []
    read = _read_by_kernels(jaxpr)
    for equation in jaxpr.eqns:
        key = _key(equation, first)
        before = equation if key is None else made.setdefault(key, equation)
        if before is not equation:
            pairs = [
                (var, first.get(one, one))
                for var, one in zip(equation.outvars, before.outvars, strict=True)
            ]
            first.update(pairs)
            if not _is_cheap(equation) or any(a in read and b in read for a, b in pairs):
                instead.update(pairs)
                continue
        operands = [_other(atom, instead) for atom in equation.invars]
        if any(a is not b for a, b in zip(operands, equation.invars, strict=True)):
            equation = equation.replace(invars=operands)
        equations.append(with_bodies(equation, _merged))
    if not instead and all(a is b for a, b in zip(equations, jaxpr.eqns, strict=True)):
        return jaxpr
    results = [_other(atom, instead) for atom in jaxpr.outvars]
    return jaxpr.replace(eqns=equations, outvars=results)


def _read_by_kernels(jaxpr: Any) -> set[Any]:
    """The variables that products, sorts and their like read, or calls of functions with some."""
    return {
        atom
        for equation in jaxpr.eqns
        if _has_kernels(equation)
        for atom in equation.invars
        if not compat.is_literal(atom)
    }


def _has_kernels(equation: Any) -> bool:
    name = equation.primitive.name
    if name in INLINED:
        return any(map(_has_kernels, compat.called_jaxpr(equation)[0].eqns))
    return is_matrix_op(name) or name in ALGORITHMS


def _other(atom: Any, instead: dict[Any, Any]) -> Any:
    return atom if compat.is_literal(atom) else instead.get(atom, atom)


def _is_cheap(equation: Any) -> bool:
    """Whether an equation is computed wherever its results are read."""
    if equation.primitive.name not in INLINED:
        return equation.primitive.name in FREE_PRIMITIVES
    return all(map(_is_cheap, compat.called_jaxpr(equation)[0].eqns))


def _key(equation: Any, first: dict[Any, Any]) -> Hashable | None:
    """What equal equations have in common; None for those that stay apart."""
    if equation.effects or equation.primitive.name in _APART:
        return None
    params = tuple(sorted(equation.params.items(), key=lambda item: item[0]))
    operands = tuple(_operand(atom, first) for atom in equation.invars)
    results = tuple(str(var.aval) for var in equation.outvars)
    key = equation.primitive, params, operands, results
    try:
        hash(key)
    except TypeError:  # a parameter that cannot be compared
        return None
    return key


def _operand(atom: Any, first: dict[Any, Any]) -> Hashable:
    if compat.is_literal(atom):
        return str(atom.aval), np.asarray(atom.val).tobytes()
    return first.get(atom, atom)
