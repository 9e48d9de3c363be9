"""A function in double precision: the same equations, every float 64 bits wide.

A sharded program sums in another order, so that in bfloat16 its results differ from the unsharded
ones by rounding, and steps that divide small by small (Adam's first one is a sign) make large
differences of small ones. In double precision that noise is a billion times smaller: what still
differs is wrong. So both programs are run as

    widened(fn)(*wide(args))

which walks the jaxpr of `fn` and applies every equation to operands of 64 bits. Bodies of loops and
branches are walked too; calls, derivative rules and functions of `autoshard.kernel` are inlined,
but for the marks of microbatches. Bit casts and Pallas calls work in their own types; cuDNN's
attention is computed as it is written (`autoshard.lower.kernels.attention`). Integers stay as they
are, and so do scopes and source lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard import compat
from autoshard.lower.kernels.attention import plain_attention, why_not_plain
from autoshard.lower.mpmd.accumulate import LOOP, MICROBATCH, named
from autoshard.lower.numbers.rounding import Nudge
from autoshard.program.vocabulary import INLINED

_CALLS = frozenset({*INLINED, compat.RULED})
_TYPE_PARAMETERS = ("dtype", "new_dtype", "preferred_element_type", "out_dtype")
_REGIONS = frozenset({"scan", "while", "cond", "shard_map"})
_CALLS_OUT = frozenset({"ffi_call", "pure_callback", "io_callback"})
_OWN_TYPES = frozenset({"bitcast_convert_type", compat.PALLAS, *compat.INSIDE_FUSED_ATTENTION})
_WITH_COMBINER = frozenset(
    {
        "reduce",
        "reduce_window",
        "scatter",
        "scatter-add",
        "scatter-mul",
        "scatter-sub",
        "scatter-min",
        "scatter-max",
        "scatter_add",
        "scatter_mul",
        "scatter_sub",
        "scatter_min",
        "scatter_max",
        "select_and_scatter",
    }
)


class NotWidenedError(NotImplementedError):
    """An equation whose meaning in double precision is not known."""


def wide_dtype(dtype: Any) -> Any:
    """The 64-bit type of a floating dtype; others stay."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return dtype
    if jnp.issubdtype(dtype, np.complexfloating):
        return np.dtype("complex128")
    return np.dtype("float64") if jnp.issubdtype(dtype, np.floating) else dtype


def wide(tree: Any) -> Any:
    """A pytree of arrays with every float made 64 bits wide (call it with 64 bits enabled)."""

    def leaf_of(leaf: Any) -> Any:
        array = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
        return _cast(array, wide_dtype(array.dtype))

    return jax.tree.map(leaf_of, tree)


def widened(fn: Callable[..., Any], *args: Any, nudge: Nudge | None = None) -> Callable[..., Any]:
    """`fn` in double precision, for arguments shaped like `args`; call it with 64 bits enabled.

    Where `nudge` is given, it changes what is read and made as rounding might.

    Raises:
      NotWidenedError: `fn` holds an opaque operation (an FFI call, a callback).
    """
    shapes = jax.tree.map(
        lambda leaf: leaf if compat.in_host(leaf) else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        args,
    )
    with jax.enable_x64(False), compat.traced_without_gpu():
        closed, out = jax.make_jaxpr(fn, return_shape=True)(*shapes)
    tree = jax.tree.structure(out)
    closed = compat.without_refs(compat.in_lax(closed))
    _check(closed.jaxpr)

    @functools.wraps(fn)  # names of parameters stay
    def run(*arguments: Any) -> Any:
        flat = jax.tree.leaves(arguments)
        if nudge is not None:
            flat = [nudge.nudged(leaf) for leaf in flat]
        return jax.tree.unflatten(tree, _run(closed.jaxpr, closed.consts, flat, nudge))

    return run


def _cast(array: Any, dtype: Any) -> Any:
    return array if array.dtype == dtype else jax.lax.convert_element_type(array, dtype)


def _check(jaxpr: Any) -> None:
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        bodies = [
            body.jaxpr if hasattr(body, "jaxpr") else body
            for value in params.values()
            for body in (value if isinstance(value, tuple) else (value,))
            if hasattr(body, "eqns") or hasattr(body, "jaxpr")
        ]
        known = name in _CALLS or name in _REGIONS or name in (*_WITH_COMBINER, *_OWN_TYPES)
        if name in _CALLS_OUT or (bodies and not known):
            raise NotWidenedError(f"{name} cannot be run in double precision: it is opaque")
        if name in compat.FUSED_ATTENTION and (why := why_not_plain(equation)):
            raise NotWidenedError(why)
        if name in _CALLS or name in _REGIONS:
            for body in bodies:
                _check(body)


def _run(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], nudge: Nudge | None
) -> list[Any]:
    environment: dict[Any, Any] = dict(zip(jaxpr.constvars, map(wide, consts), strict=True))
    environment.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        if not compat.is_literal(atom):
            return environment[atom]
        value = jnp.asarray(atom.val, dtype=atom.aval.dtype)
        return _cast(value, wide_dtype(value.dtype))

    for equation in jaxpr.eqns:
        with compat.equation_context(equation):
            results = _equation(equation, [read(atom) for atom in equation.invars], nudge)
            name = equation.primitive.name
            if nudge is not None and name not in _CALLS:
                results = nudge(name, results)
        environment.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(equation: Any, operands: list[Any], nudge: Nudge | None) -> list[Any]:
    name = equation.primitive.name
    params = equation.params
    if name in _CALLS:
        body, consts = compat.called_jaxpr(equation)
        if params.get("name") in (LOOP, MICROBATCH):
            return named(lambda *arrays: _run(body, consts, arrays, nudge), params["name"])(
                *operands
            )
        return _run(body, consts, operands, nudge)
    if name == "scan":
        return compat.bind_equation(equation, operands, jaxpr=_body(params["jaxpr"], nudge))
    if name == "while":
        bodies = {key: _body(params[key], nudge) for key in ("cond_jaxpr", "body_jaxpr")}
        return compat.bind_equation(equation, operands, **bodies)
    if name == "cond":
        branches = tuple(_body(branch, nudge) for branch in params["branches"])
        return compat.bind_equation(equation, operands, branches=branches)
    if name == "shard_map":
        return _manual(params, operands, nudge)
    if name in compat.FUSED_ATTENTION:
        return plain_attention(equation, operands)
    if name in _OWN_TYPES:
        own = [
            _cast(operand, atom.aval.dtype)
            for operand, atom in zip(operands, equation.invars, strict=True)
        ]
        if name == compat.PALLAS:
            results = [atom.aval.shape for atom in equation.outvars]
            made = compat.bind_kernel(equation, own, results, {})
        else:
            made = compat.bind_equation(equation, own)
        found = [_cast(r, wide_dtype(r.dtype)) for r in made]
        if name != compat.PALLAS or nudge is None:
            return found
        return [nudge.rounded(one, r.dtype) for one, r in zip(found, made, strict=True)]
    if name == "reduce_precision":
        return operands
    changed = {
        key: wide_dtype(params[key]) for key in _TYPE_PARAMETERS if params.get(key) is not None
    }
    if name in _WITH_COMBINER:
        changed |= _combiners(params)
    return compat.bind_equation(equation, operands, **changed)


def _combiners(params: Any) -> dict[str, Any]:
    """What reductions and scatters do with two elements, in double precision."""
    changed = {}
    for kind in ("", "update_", "select_", "scatter_"):
        jaxpr, consts = params.get(f"{kind}jaxpr"), params.get(f"{kind}consts", ())
        if jaxpr is None:  # where JAX lowers a scatter without one, it overwrites
            continue
        closed = hasattr(jaxpr, "consts")
        body, consts = (jaxpr.jaxpr, jaxpr.consts) if closed else (jaxpr, consts)
        combiner = _combiner(body, consts)
        changed[f"{kind}jaxpr"] = combiner if closed else combiner.jaxpr
        if f"{kind}consts" in params:
            changed[f"{kind}consts"] = tuple(combiner.consts)
    return changed


def _combiner(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """What is done with two elements (or two of each array), in double precision."""
    scalars = [jax.ShapeDtypeStruct((), wide_dtype(var.aval.dtype)) for var in jaxpr.invars]
    return jax.make_jaxpr(lambda *elements: _run(jaxpr, consts, elements, None))(*scalars)


def _manual(params: Any, operands: list[Any], nudge: Nudge | None) -> list[Any]:
    """The body of a `shard_map` in double precision, on the same parts."""
    mapped = jax.shard_map(
        lambda *parts: _run(params["jaxpr"], (), parts, nudge),
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=list(params["out_specs"]),
        axis_names=set(params["newly_manual_axes"]),
        check_vma=params["check_vma"],
    )
    return list(mapped(*operands))


def _body(closed: Any, nudge: Nudge | None) -> Any:
    """A region's body in double precision, as a closed jaxpr."""
    shapes = [jax.ShapeDtypeStruct(aval.shape, wide_dtype(aval.dtype)) for aval in closed.in_avals]
    return jax.make_jaxpr(lambda *arrays: _run(closed.jaxpr, closed.consts, arrays, nudge))(*shapes)
