"""Loops as they are planned: what they need is computed, and nothing is hidden in them.

Equivalent forms of a loop are put in place of it before a program is laid out flat.

* **Dead carries go.** What no condition, no live carry and no reader of a `while` loop needs is not
  computed: XLA drops it, and would not make its collectives. A `scan` of one turn needs of its
  carries what is read of the results alone, since no next turn reads them.
* **A condition on arrays stands in the body.** XLA evaluates a condition in a computation of its
  own, once more often than the body; what it reads is resharded there a second time. So the test
  of the next turn becomes a carry, computed before the loop and at the end of the body:

      while cond(c): c = body(c)      ->      t = cond(c)
                                              while t: c = body(c); t = cond(c)

  Under `jax.vmap` a condition has one test for each element. Elements whose test failed keep their
  carries, and the loop goes on while `any` test holds: both are written out, once a turn.

Conditions on scalars alone (`i < n`) stay, since the compiler reads trip counts off them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.program.bodies import call_in_place, replaced, with_bodies, with_equations


def plain_loops(closed: Any) -> Any:
    """A closed jaxpr without dead code, whose loops carry what lives; `while`s test a scalar."""
    jaxpr = replaced(closed.jaxpr, _tested_by_scalars)
    closed = compat.drop_dead_code(closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr))
    while True:
        jaxpr = _without_dead_carries(closed.jaxpr)
        if jaxpr is closed.jaxpr:
            return closed
        closed = compat.drop_dead_code(closed.replace(jaxpr=jaxpr))


def constant_trips(equation: Any) -> int | None:
    """How often a `while` loop runs that counts from one literal to another, or None."""
    params = equation.params
    consts, bodies = params["cond_nconsts"], params["body_nconsts"]
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name not in ("lt", "le"):
        return None
    test = condition.eqns[0]
    counter, bound = test.invars
    if condition.outvars[0] is not test.outvars[0] or counter not in condition.invars[consts:]:
        return None
    place = condition.invars[consts:].index(counter)
    if bound in condition.invars[:consts]:
        bound = equation.invars[condition.invars.index(bound)]
    after = body.outvars[place]
    steps = [one for one in body.eqns if after in one.outvars]
    if not steps or steps[0].primitive.name != "add":
        return None
    old, step = steps[0].invars
    start = equation.invars[consts + bodies + place]
    if old is not body.invars[bodies + place]:
        return None
    if not all(compat.is_literal(atom) for atom in (bound, step, start)):
        return None
    first, last, by = (atom.val for atom in (start, bound, step))
    if by <= 0 or not all(float(one).is_integer() for one in (first, last, by)):
        return None
    last = int(last) + (test.primitive.name == "le")
    return max(0, -(-(last - int(first)) // int(by)))


# -- conditions ----------------------------------------------------------------------------------


def _tested_by_scalars(equation: Any) -> Any:
    """A loop whose condition on arrays is in its body; another equation as it is."""
    if equation.primitive.name != "while" or not _reads_arrays(equation):
        return equation
    return call_in_place(equation, _tested_in_body)


def _reads_arrays(loop: Any) -> bool:
    """Whether a loop's condition computes with more than scalars."""
    condition = loop.params["cond_jaxpr"].jaxpr
    atoms = [atom for one in condition.eqns for atom in (*one.invars, *one.outvars)]
    return any(getattr(atom.aval, "shape", ()) for atom in (*atoms, *condition.outvars))


def _tested_in_body(loop: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of a loop whose condition is computed before it, and at the end of its body."""
    params = loop.params
    consts, bodies = params["cond_nconsts"], params["body_nconsts"]
    for_condition, for_body = operands[:consts], operands[consts : consts + bodies]

    def tests(carried: Sequence[Any]) -> tuple[Any, Any]:
        (test,) = jaxpr_as_fun(params["cond_jaxpr"])(*for_condition, *carried)
        return (jnp.any(test), test) if test.ndim else (test, ())

    def turn(state: tuple[Any, Any, list[Any]]) -> tuple[Any, Any, list[Any]]:
        _, test, old = state
        new = jaxpr_as_fun(params["body_jaxpr"])(*for_body, *old)
        if not isinstance(test, tuple):
            new = [_where(test, one, other) for one, other in zip(new, old, strict=True)]
        return *tests(new), new

    carried = list(operands[consts + bodies :])
    return jax.lax.while_loop(lambda state: state[0], turn, (*tests(carried), carried))[2]


def _where(test: Any, new: Any, old: Any) -> Any:
    """`new` where an element's test holds; the elements are the first dimensions of both."""
    missing = tuple(range(test.ndim, new.ndim))
    wide = jax.lax.broadcast_in_dim(test, new.shape, tuple(range(test.ndim))) if missing else test
    return jax.lax.select(wide, new, old)


# -- dead carries --------------------------------------------------------------------------------


def _without_dead_carries(jaxpr: Any) -> Any:
    """`jaxpr` whose loops carry only what is needed; itself if they all do."""
    atoms = [atom for one in jaxpr.eqns for atom in one.invars]
    used = {atom for atom in (*atoms, *jaxpr.outvars) if not compat.is_literal(atom)}
    equations = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "while":
            equation = _thinned(equation, [var in used for var in equation.outvars])
        if equation.primitive.name == "scan" and equation.params["length"] == 1:
            equation = _turned_once(equation, [var in used for var in equation.outvars])
        equations.append(with_bodies(equation, _without_dead_carries))
    return with_equations(jaxpr, equations)


def _thinned(loop: Any, read: Sequence[bool]) -> Any:
    """A `while` loop without the carries and constants on which nothing that is read depends."""
    params = loop.params
    consts, bodies = params["cond_nconsts"], params["body_nconsts"]
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    test, tested = compat.live_part(condition.jaxpr, [True], [False] * len(condition.in_avals))
    live = [one or other for one, other in zip(read, tested[consts:], strict=True)]
    while True:
        turn, needed = compat.live_part(body.jaxpr, live, [False] * bodies + live)
        if needed[bodies:] == live:
            break
        live = [one or other for one, other in zip(live, needed[bodies:], strict=True)]
    kept = [*tested[:consts], *needed[:bodies], *live]
    if all(kept) and len(turn.eqns) == len(body.jaxpr.eqns):
        return loop
    test, _ = compat.live_part(condition.jaxpr, [True], [*tested[:consts], *live])
    return loop.replace(
        params={
            **params,
            "cond_jaxpr": condition.replace(jaxpr=test),
            "body_jaxpr": body.replace(jaxpr=turn),
            "cond_nconsts": sum(tested[:consts]),
            "body_nconsts": sum(needed[:bodies]),
        },
        invars=[atom for atom, keep in zip(loop.invars, kept, strict=True) if keep],
        outvars=[var for var, keep in zip(loop.outvars, live, strict=True) if keep],
    )


def _turned_once(loop: Any, read: Sequence[bool]) -> Any:
    """A `scan` of one turn that hands on, as they came, the carries of which no result is read."""
    consts, carries = compat.scan_counts(loop.params)
    closed = loop.params["jaxpr"]
    body, results = closed.jaxpr, list(closed.jaxpr.outvars)
    for number in range(carries):
        if not read[number]:
            results[number] = body.invars[consts + number]
    if results == list(body.outvars):
        return loop
    turn = closed.replace(jaxpr=body.replace(outvars=results))
    return loop.replace(params={**loop.params, "jaxpr": turn})
