"""Sums over many devices after a loop, in place of one in each of its turns.

    scan(turn, ...)     whose turn returns  sum(gradients, (0, 1))
    scan(turn, ...)     whose turn returns  sum(gradients.reshape(64, -1, ...), (1, 2))

and a sum over the 64 afterwards. A dimension that is cut over 64 devices is summed on each of them
in the turns, and the devices' sums become one after the loop, for all turns at once: gradients of
norms and biases are short, so that a turn waits for the network and not for bytes. It is the order
in which devices sum anyhow; what is summed on one device alone may differ in its last bit.

Only what a loop stacks is summed late, where nothing in the loop reads it but casts, signs and
shapes on the way there; those are made after the loop. Loops in loops are seen through, and so are
the bodies of `jax.checkpoint`s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.program.bodies import all_equations, run_equations
from autoshard.program.keep.opened import opened, opened_body
from autoshard.program.keep.rewrite import loop_of

SCOPE = "late_sums"
"""The scope of sums after loops."""

_PASSED = frozenset(
    {
        "convert_element_type", "reshape", "transpose", "squeeze", "expand_dims", "copy", "neg",
        "add", "add_any", "sub", "mul", "div", "reduce_sum",
    }
)  # fmt: skip
"""Primitives that take little to run after a loop, for all of its turns at once."""


class _Late(NamedTuple):
    """A result of a loop's turn that is made of sums: these, and the equations behind them."""

    place: int
    sums: tuple[Any, ...]
    behind: tuple[Any, ...]


def with_late_sums(closed: Any, parts: Sequence[int]) -> Any:
    """The closed jaxpr of a step that ends sums of loops after them.

    Args:
      closed: the step.
      parts: into how many parts the first summed dimension of each sum is cut, the second, and so
        on: the number of devices over which it lies, or more. Of a dimension that is no multiple of
        it, the largest common divisor.

    Returns:
      The same object where there is no such sum.
    """
    if all(equation.primitive.name != "scan" for equation in all_equations(closed.jaxpr)):
        return closed
    known = opened(closed, remat=False)
    made = _rewritten(known, parts, looped=False)
    return closed if made is known else compat.drop_dead_code(made)


def _rewritten(closed: Any, parts: Sequence[int], *, looped: bool) -> Any:
    """A body whose loops end no sums that can wait, itself where there are none.

    `looped` says whether it is in a loop: what a `jax.checkpoint` there sums is summed after it.
    """
    bodies: dict[int, tuple[Any, list[_Late]]] = {}
    for equation in closed.jaxpr.eqns:
        if (body := opened_body(equation)) is None:
            continue
        loop = equation.primitive.name == "scan"
        made, late = _rewritten(body, parts, looped=looped or loop), []
        if loop:
            late = _late(made.jaxpr, compat.scan_counts(equation.params)[1], parts)
        elif looped:
            late = _late(made.jaxpr, 0, parts)
        if late or made is not body:
            bodies[id(equation)] = made, late
    if not bodies:
        return closed

    def run(equation: Any, operands: list[Any]) -> Sequence[Any]:
        if id(equation) not in bodies:
            return compat.bind_equation(equation, operands)
        return _ended_after(equation, operands, *bodies[id(equation)], parts)

    shapes = [compat.shape_struct(aval) for aval in closed.in_avals]
    return jax.make_jaxpr(lambda *arrays: run_equations(closed.jaxpr, closed.consts, arrays, run))(
        *shapes
    )


def _late(jaxpr: Any, carries: int, parts: Sequence[int]) -> list[_Late]:
    """What a turn of a loop returns for its stacks and could be summed after it."""
    made_by = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
    found = []
    for place in range(carries, len(jaxpr.outvars)):
        one = _sums_of(jaxpr.outvars[place], made_by, parts)
        if one is not None and one[0]:
            found.append(_Late(place, *one))
    while found:
        mine = {id(equation) for one in found for equation in (*one.sums, *one.behind)}
        ends = {one.place for one in found}
        read = _read_elsewhere(jaxpr, mine, ends)
        fit = [
            one
            for one in found
            if not any(equation.outvars[0] in read for equation in (*one.sums, *one.behind))
        ]
        if len(fit) == len(found):
            break
        found = fit
    return found


def _read_elsewhere(jaxpr: Any, mine: set[int], ends: set[int]) -> set[Any]:
    """What other equations of a body read than these, and other results than these are."""
    others = [atom for one in jaxpr.eqns if id(one) not in mine for atom in one.invars]
    results = [atom for place, atom in enumerate(jaxpr.outvars) if place not in ends]
    return {atom for atom in (*others, *results) if not compat.is_literal(atom)}


def _sums_of(
    atom: Any, made_by: Mapping[Any, Any], parts: Sequence[int]
) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """The sums of which a value is made, and the equations behind them in order.

    None if it is made of anything else.
    """
    if compat.is_literal(atom):
        return ((), ()) if not atom.aval.shape else None
    equation = made_by.get(atom)
    if equation is None:
        return None
    behind = _passed(equation, made_by, parts)
    if behind is None and _cut(equation, parts):
        return (equation,), ()
    return behind


def _passed(
    equation: Any, made_by: Mapping[Any, Any], parts: Sequence[int]
) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """`_sums_of` the result of an equation that only passes on what is made of sums."""
    if equation.primitive.name not in _PASSED:
        return None
    sums: dict[int, Any] = {}
    behind: dict[int, Any] = {}
    for operand in equation.invars:
        if (inner := _sums_of(operand, made_by, parts)) is None:
            return None
        sums |= {id(one): one for one in inner[0]}
        behind |= {id(one): one for one in inner[1]}
    return tuple(sums.values()), (*behind.values(), equation)


def _cut(equation: Any, parts: Sequence[int]) -> dict[int, int]:
    """Of a sum, the dimensions that are cut, and into how many parts; none of others."""
    if equation.primitive.name != "reduce_sum":
        return {}
    shape, axes = equation.invars[0].aval.shape, sorted(equation.params["axes"])
    if SCOPE in re.split(r"[/()]", str(equation.source_info.name_stack)):
        return {axis: shape[axis] for axis in axes}  # of a `jax.checkpoint` in the loop
    cut = {axis: gcd(shape[axis], count) for axis, count in zip(axes, parts, strict=False)}
    return {axis: count for axis, count in cut.items() if count > 1}


def _ended_after(
    equation: Any, operands: Sequence[Any], body: Any, late: Sequence[_Late], parts: Sequence[int]
) -> list[Any]:
    """The results of a loop or a `jax.checkpoint` whose body sums parts, once these are summed."""
    sums = list({id(one): one for each in late for one in each.sums}.values())
    places = {one.place for one in late}
    kept = [place for place in range(len(body.jaxpr.outvars)) if place not in places]
    loop = equation.primitive.name == "scan"
    made = _run(equation, operands, body if not late else _inner(body, kept, sums, parts))
    results = dict(zip(kept, made, strict=False))
    with jax.named_scope(SCOPE):
        ended = {}
        for one, stack in zip(sums, made[len(kept) :], strict=True):
            axes = [axis + loop for axis in _axes_of_parts(one, parts)]
            ended[one.outvars[0]] = lax.reduce_sum(stack, axes)
    for one in late:
        end = partial(_end, body, one)
        given = [ended[each.outvars[0]] for each in one.sums]
        results[one.place] = jax.vmap(end)(*given) if loop else end(*given)
    return [results[place] for place in range(len(body.jaxpr.outvars))]


def _run(equation: Any, operands: Sequence[Any], body: Any) -> list[Any]:
    """The results of a loop or a `jax.checkpoint` with another body."""
    if equation.primitive.name != "scan":
        return compat.bind_checkpoint(equation, operands, body)
    _, carries = compat.scan_counts(equation.params)

    def turn(given: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        made = jaxpr_as_fun(body)(*given)
        return made[:carries], made[carries:]

    return loop_of(equation, [(one, jax.typeof(one)) for one in operands], [], [], turn)


def _inner(body: Any, kept: Sequence[int], sums: Sequence[Any], parts: Sequence[int]) -> Any:
    """A body that has the results that are kept, and after them sums of parts."""
    wanted = {id(one) for one in sums}

    def inner(*arrays: Any) -> list[Any]:
        summed: dict[int, Any] = {}

        def run(equation: Any, operands: list[Any]) -> Sequence[Any]:
            if id(equation) in wanted:
                summed[id(equation)] = _partial(equation, operands[0], parts)
            return compat.bind_equation(equation, operands)

        results = run_equations(body.jaxpr, body.consts, arrays, run)
        return [results[place] for place in kept] + [summed[id(one)] for one in sums]

    shapes = [compat.shape_struct(aval) for aval in body.in_avals]
    return compat.drop_dead_code(jax.make_jaxpr(inner)(*shapes))


def _partial(equation: Any, operand: Any, parts: Sequence[int]) -> Any:
    """The sums of the parts of an operand."""
    cut, axes = _cut(equation, parts), equation.params["axes"]
    if all(cut.get(axis) == operand.shape[axis] for axis in axes):
        return operand
    shape: list[int] = []
    summed: list[int] = []
    for axis, size in enumerate(operand.shape):
        split = [cut[axis], size // cut[axis]] if axis in cut else [size]
        shape += split
        if axis in axes:
            summed.append(len(shape) - 1)
    return lax.reduce_sum(operand.reshape(shape), summed)


def _axes_of_parts(equation: Any, parts: Sequence[int]) -> list[int]:
    """The axes of a sum of parts over which the parts lie."""
    cut, axes = _cut(equation, parts), equation.params["axes"]
    left = [axis for axis in range(equation.invars[0].aval.ndim) if axis in cut or axis not in axes]
    return [place for place, axis in enumerate(left) if axis in cut]


def _end(body: Any, late: _Late, *sums: Any) -> Any:
    """A result of a turn, from its sums."""
    known = dict(zip((one.outvars[0] for one in late.sums), sums, strict=True))
    for equation in late.behind:
        given = [one.val if compat.is_literal(one) else known[one] for one in equation.invars]
        known[equation.outvars[0]] = compat.bind_equation(equation, given)[0]
    return known[body.jaxpr.outvars[late.place]]
