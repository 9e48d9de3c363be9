"""Calls of known library functions in a step, and calls with rules in place of them.

A call is known by its function: its name, and the file of a module of the table. The function is
traced anew in the forms in which it may have been called, and the first one that makes the same
kernels is taken. Where none does, since the call is one that the table does not know, it stays as
it is, and its kernels are cut by what their grids say.

A call may have more operands than its function takes: what JAX computed of it ahead of a loop
(`constants`). Without them it must compute the same as the function does in its form.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from autoshard import compat
from autoshard.program.bodies import call_in_place, replaced
from autoshard.program.kernels.known.alike import compute_alike
from autoshard.program.kernels.known.constants import Constants, without_constants
from autoshard.program.kernels.known.record import Form, Known, kernels_of
from autoshard.program.kernels.known.table import TABLE


def know_kernels(closed: Any, ruled: Collection[str] = ()) -> Any:
    """A closed jaxpr with a call that has a rule in place of each known one.

    Args:
      closed: of a step.
      ruled: names for which the user has given rules; calls of such functions, or with such kernels
        inside, stay.
    """

    constants = functools.cache(lambda: Constants(closed))

    def change(equation: Any) -> Any:
        if equation.primitive.name == "shard_map":
            with _of_device(equation):
                body = replaced(equation.params["jaxpr"], change)
            same = body is equation.params["jaxpr"]
            return equation if same else equation.replace(params={**equation.params, "jaxpr": body})
        found = _known_call(equation, ruled, constants)
        return equation if found is None else call_in_place(*found)

    jaxpr = replaced(closed.jaxpr, change)
    return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)


def _of_device(equation: Any) -> Any:
    """A context of the devices that the mesh of a `shard_map` says, and without its axes."""
    mesh = equation.params["mesh"]
    device = getattr(mesh, "abstract_mesh", mesh).abstract_device
    if device is None:
        device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def _known_call(
    equation: Any, ruled: Collection[str], constants: Callable[[], Constants]
) -> tuple[Any, Callable[[Any, Sequence[Any]], list[Any]]] | None:
    """A known call, with operands of its function alone, and what computes it with a rule.

    None for other equations.
    """
    name, file = compat.called_function(equation)
    for known in TABLE if file else ():
        function = _function(known, file) if known.name == name else None
        if function is None:
            continue
        kernels = list(map(_kernel_name, kernels_of(equation)))
        if not kernels or {name, *kernels} & set(ruled):
            return None
        call, form = equation, _form(known, function, equation)
        if form is None:
            call = without_constants(equation, constants().of)
            form = None if call is None else _form(known, function, call, as_much=True)
        if form is not None:
            return call, _computed(known, function, form)
    return None


def _computed(
    known: Known, function: Callable[..., Any], form: Form
) -> Callable[[Any, Sequence[Any]], list[Any]]:
    return lambda _, arrays: known.call(function, form, arrays)


def _function(known: Known, file: str) -> Callable[..., Any] | None:
    """The function itself, if it stands in this file."""
    for name in known.modules:
        module = sys.modules.get(name)
        if module is not None and module.__file__ == file:
            return getattr(module, known.name)
    return None


def _form(
    known: Known, function: Callable[..., Any], equation: Any, as_much: bool = False
) -> Form | None:
    """The form in which the function makes the kernels of an equation; None if none does.

    With `as_much` it must compute the results in the same way, too.
    """
    wanted = _made(equation)
    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    for form in known.forms(function, equation):
        try:
            with warnings.catch_warnings(action="ignore"):
                traced = jax.make_jaxpr(lambda *given, form=form: form.call(function, given))
                closed = traced(*shapes)
        except Exception:  # whatever a library says of a form that it does not take
            continue
        calls = closed.jaxpr.eqns
        if len(calls) != 1 or _made(calls[0]) != wanted:
            continue
        if not as_much or compute_alike(compat.in_lax(closed), equation.params["jaxpr"]):
            return form
    return None


def _made(equation: Any) -> tuple[Any, ...]:
    """What a call makes, and by which kernels, to be compared."""
    results = [(var.aval.shape, var.aval.dtype) for var in equation.outvars]
    return results, [compat.written_out(one) for one in kernels_of(equation)]


def _kernel_name(kernel: Any) -> str:
    """The name of a Pallas call, or of a kernel on a mesh of cores."""
    if kernel.primitive.name == compat.ON_CORES:
        return str(kernel.params["name"])
    return compat.kernel_call(kernel).name
