"""The equations of kernels (Pallas calls, cuDNN's attention), changed wherever they stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.compat.fused_attention import FUSED_ATTENTION

PALLAS = "pallas_call"
ON_CORES = "mpmd_map"
"""A Pallas kernel that runs on a mesh of cores (`pallas.kernel`)."""
KERNELS = frozenset({PALLAS, *FUSED_ATTENTION})
"""What runs on parts as it is: no partitioner looks into it."""
FFI = "ffi_call"


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr without its constants, and these. JAX from 0.11 on has them in the jaxpr."""
    from jax.extend.core import ClosedJaxpr

    if isinstance(jaxpr, ClosedJaxpr):
        return jaxpr.jaxpr, jaxpr.consts
    return jaxpr, ()


def bodies_of(equation: Any) -> list[tuple[Any, Sequence[Any]]]:
    """The jaxprs that an equation holds, each with its constants."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    return [
        open_jaxpr(one)
        for value in equation.params.values()
        for one in (value if isinstance(value, tuple | list) else (value,))
        if isinstance(one, Jaxpr | ClosedJaxpr)
    ]


def with_kernels(jaxpr: Any, change: Callable[[Any, frozenset[Any]], Any]) -> Any:
    """A jaxpr with each of its kernels changed, in the bodies of its equations too.

    Args:
      jaxpr: closed or open.
      change: from an equation of one of `KERNELS`, and the variables that are read around it, to
        another one, or to None, which leaves it out.
    """
    opened, _ = open_jaxpr(jaxpr)
    if opened is not jaxpr:
        inside = with_kernels(opened, change)
        return jaxpr if inside is opened else jaxpr.replace(jaxpr=inside)
    atoms = [atom for one in jaxpr.eqns for atom in one.invars] + list(jaxpr.outvars)
    used = frozenset(atom for atom in atoms if not hasattr(atom, "val"))
    equations = [_with_kernels(one, change, used) for one in jaxpr.eqns]
    if all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=[one for one in equations if one is not None])


def _with_kernels(equation: Any, change: Callable[..., Any], used: frozenset[Any]) -> Any:
    from jax.extend.core import ClosedJaxpr, Jaxpr

    if equation.primitive.name in KERNELS:
        return change(equation, used)

    def changed(value: Any) -> Any:
        if isinstance(value, Jaxpr | ClosedJaxpr):
            return with_kernels(value, change)
        if type(value) in (tuple, list):
            new = [changed(one) for one in value]
            same = all(one is other for one, other in zip(new, value, strict=True))
            return value if same else type(value)(new)
        return value

    params = {name: changed(value) for name, value in equation.params.items()}
    if all(params[name] is value for name, value in equation.params.items()):
        return equation
    return equation.replace(params=params)


def without_unread_results(equation: Any, used: frozenset[Any]) -> Any:
    """A Pallas call whose results that are not among `used` are dropped; None where none is left.

    JAX before 0.12 takes no kernel for dead code.
    """
    from jax._src.core import DropVar

    if equation.primitive.name != PALLAS:
        return equation
    read = [var in used for var in equation.outvars]
    if not any(read) and not _has_side_effects(equation):
        return None
    if all(
        now or isinstance(var, DropVar) for now, var in zip(read, equation.outvars, strict=True)
    ):
        return equation
    outvars = [
        var if now else DropVar(var.aval) for now, var in zip(read, equation.outvars, strict=True)
    ]
    return equation.replace(outvars=outvars)


def _has_side_effects(equation: Any) -> bool:
    said = getattr(equation.params["compiler_params"], "has_side_effects", False)
    named = getattr(said, "name", "SIDE_EFFECTING" if said else "PURE")
    return named == "SIDE_EFFECTING" or bool(equation.effects)


def interpreted(equation: Any, used: frozenset[Any]) -> Any:
    """A Pallas call in interpret mode; another kernel as it is."""
    del used
    if equation.primitive.name != PALLAS:
        return equation
    params = {
        **equation.params,
        "interpret": equation.params["interpret"] or True,
        "jaxpr": with_plain_literals(equation.params["jaxpr"]),
    }
    return equation.replace(params=params)


def written_out(equation: Any) -> Any:
    """What a kernel is, to be compared: its parameters as text, and what it computes by places.

    Two traces of one function share other functions that it calls, or do not, so that the text of
    a jaxpr may differ by the names of variables.
    """
    return _written(dict(equation.params))


def _written(value: Any) -> Any:
    from jax.extend.core import ClosedJaxpr, Jaxpr
    from jax.sharding import Sharding

    if isinstance(value, Jaxpr | ClosedJaxpr):
        return _jaxpr_by_places(value)
    if isinstance(value, Sharding):  # inside of a kernel, of whatever stands around it
        return str(None)
    if isinstance(value, Mapping):
        return [(str(name), _written(one)) for name, one in sorted(value.items(), key=str)]
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [_written(one) for one in value]
    return str(value)


def _jaxpr_by_places(jaxpr: Any) -> Any:
    opened, consts = open_jaxpr(jaxpr)
    places: dict[Any, int] = {}

    def place(atom: Any) -> tuple[str, str]:
        if hasattr(atom, "val"):
            return str(np.asarray(atom.val)), str(atom.aval)
        return str(places.setdefault(atom, len(places))), str(atom.aval)

    given = [place(atom) for atom in (*opened.constvars, *opened.invars)]
    equations = [
        (
            one.primitive.name,
            [place(atom) for atom in one.invars],
            _written(dict(one.params)),
            [place(atom) for atom in one.outvars],
        )
        for one in opened.eqns
    ]
    return given, [str(one) for one in consts], equations, [place(one) for one in opened.outvars]


def with_plain_literals(jaxpr: Any) -> Any:
    """A kernel whose literals are numbers of NumPy.

    JAX's interpreter asks an index of a masked store for its shape, which a literal of JAX's own
    type (`TypedInt`) has not.
    """
    from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

    opened, _ = open_jaxpr(jaxpr)
    if opened is not jaxpr:
        return jaxpr.replace(jaxpr=with_plain_literals(opened))

    def plain(atom: Any) -> Any:
        if not hasattr(atom, "val") or hasattr(atom.val, "shape"):
            return atom
        return Literal(np.asarray(atom.val, atom.aval.dtype)[()], atom.aval)

    def inside(value: Any) -> Any:
        if isinstance(value, Jaxpr | ClosedJaxpr):
            return with_plain_literals(value)
        return type(value)(map(inside, value)) if type(value) in (tuple, list) else value

    equations = [
        one.replace(
            invars=list(map(plain, one.invars)),
            params={name: inside(value) for name, value in one.params.items()},
        )
        for one in jaxpr.eqns
    ]
    return jaxpr.replace(eqns=equations, outvars=list(map(plain, jaxpr.outvars)))
