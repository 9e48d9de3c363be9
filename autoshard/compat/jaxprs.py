"""Jaxprs: what an equation calls and is made of, and equations bound again elsewhere."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.compat.kernel_equations import with_kernels, without_unread_results
from autoshard.compat.memory_spaces import host_shape, in_host

_CALLS = frozenset({"jit", "pjit"})
BODIES_OF_CALLS = ("jaxpr", "call_jaxpr", "call", "fwd_jaxpr")
"""Parameters of calls that hold what is called; the last two of custom_vmap and remat_opt."""


def drop_dead_code(closed: Any) -> Any:
    """`closed` without the equations and constants that no result needs; its inputs all stay."""
    from jax._src.interpreters import partial_eval

    jaxpr, before = closed.jaxpr, None
    while jaxpr is not before:  # what a dead kernel reads may be dead, too
        before, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
        jaxpr = with_kernels(before, without_unread_results)
    atoms = [atom for equation in jaxpr.eqns for atom in equation.invars]
    used = {atom for atom in (*atoms, *jaxpr.outvars) if not is_literal(atom)}
    kept = [pair for pair in zip(jaxpr.constvars, closed.consts, strict=True) if pair[0] in used]
    return closed.replace(
        jaxpr=jaxpr.replace(constvars=[var for var, _ in kept]),
        consts=[constant for _, constant in kept],
    )


def live_part(
    jaxpr: Any, used_outputs: Sequence[bool], kept_inputs: Sequence[bool]
) -> tuple[Any, list[bool]]:
    """`jaxpr` with its used outputs alone, and with the inputs that they need or that are kept.

    Returns it, and which inputs it has; equations with effects stay.
    """
    from jax._src.interpreters import partial_eval

    live, inputs = partial_eval.dce_jaxpr(jaxpr, list(used_outputs), list(kept_inputs))
    return live, list(inputs)


def is_literal(atom: Any) -> bool:
    """Whether an operand of an equation is a literal and not a variable."""
    return hasattr(atom, "val")


def literal(atom: Any) -> np.ndarray[Any, Any]:
    """The value of a literal: Python's numbers are of its type."""
    return np.asarray(atom.val, atom.aval.dtype)


def is_tracer(array: Any) -> bool:
    """Whether an array is of a trace that is still going on."""
    from jax.core import Tracer

    return isinstance(array, Tracer)


def called_jaxpr(equation: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr that a call (`jit`, `checkpoint`, `custom_jvp_call`, …) runs, and its constants."""
    return called_jaxpr_of(equation.params)


def called_jaxpr_of(parameters: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    """Like `called_jaxpr`, of the parameters of a call."""
    body: Any = next((parameters[name] for name in BODIES_OF_CALLS if name in parameters), None)
    return opened(body)


def opened(body: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and its constants, which it has if it is closed."""
    return getattr(body, "jaxpr", body), getattr(body, "consts", ())


def scan_counts(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """(constants, carries): how many of the operands of a `scan` come first, and then.

    Args:
      parameters: of the equation. JAX from 0.11 on says both in `ft_in`.
    """
    if "ft_in" not in parameters:
        return parameters["num_consts"], parameters["num_carry"]
    constants, carries, _ = parameters["ft_in"].unpack()
    return len(constants), len(carries)


def loop_bodies(equation: Any, operands: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """The bodies of a loop or a choice, each with what it is given in every turn.

    Args:
      equation: any one; of others than `scan`, `while` and `cond` there are none.
      operands: of the equation, whatever stands for them.

    What differs from turn to turn is None.
    """
    name, params, operands = equation.primitive.name, equation.params, list(operands)
    if name == "scan":
        count, _ = scan_counts(params)
        return [(params["jaxpr"], [*operands[:count], *([None] * len(operands[count:]))])]
    if name == "while":
        of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
        carried = [None] * (len(operands) - of_cond - of_body)
        return [
            (params["cond_jaxpr"], [*operands[:of_cond], *carried]),
            (params["body_jaxpr"], [*operands[of_cond : of_cond + of_body], *carried]),
        ]
    return [(body, operands[1:]) for body in params["branches"]] if name == "cond" else []


def with_inputs_held(closed: Any, values: Sequence[Any]) -> Any:
    """A closed jaxpr of which the inputs with values, which are not None, are constants."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    inputs = closed.jaxpr.invars
    free = [k for k, value in enumerate(values) if value is None]

    def run(*given: Any) -> list[Any]:
        rest = iter(given)
        return jaxpr_as_fun(closed)(*(next(rest) if one is None else one for one in values))

    held = jax.make_jaxpr(run)(*(shape_struct(inputs[k].aval) for k in free))
    info, names = held.jaxpr.debug_info, closed.jaxpr.debug_info.arg_names
    if names is not None and len(names) == len(inputs):
        info = info._replace(arg_names=tuple(names[k] for k in free))
    return held.replace(jaxpr=held.jaxpr.replace(debug_info=info))


@functools.lru_cache(maxsize=1)
def loops_are_inlined() -> bool:
    """Whether JAX writes the body of a loop into the loop, and not into a function of its own."""
    import jax

    def loop(x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (jax.lax.sin(x), None), x, length=2)[0]

    return "call @" not in jax.jit(loop).lower(0.0).as_text(dialect="stablehlo")


def closed(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """A jaxpr with its constants as one closed jaxpr."""
    from jax.extend.core import ClosedJaxpr

    return ClosedJaxpr(jaxpr, list(consts))


def passed_through(tracers: Sequence[Any]) -> list[Any]:
    """Tracers, or in their places what calls were given that hand it back as it is."""
    known: dict[int, list[int | None]] = {}

    def source(tracer: Any) -> Any:
        call = getattr(tracer, "parent", None)
        if call is None or call.primitive.name not in _CALLS:
            return tracer
        if id(call) not in known:
            known[id(call)] = _handed_back(called_jaxpr(call)[0])
        given = known[id(call)][call.outvars.index(tracer.val)]
        return tracer if given is None else source(call.in_tracers[given])

    return [source(tracer) for tracer in tracers]


def _handed_back(jaxpr: Any) -> list[int | None]:
    """Which input each result of a jaxpr is, through the calls in it; None if it is computed."""
    inputs = {var: k for k, var in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            inner = _handed_back(called_jaxpr(equation)[0])
            for var, given in zip(equation.outvars, inner, strict=True):
                atom = None if given is None else equation.invars[given]
                if atom is not None and not is_literal(atom) and atom in inputs:
                    inputs[var] = inputs[atom]
    return [None if is_literal(atom) else inputs.get(atom) for atom in jaxpr.outvars]


def in_lax(closed: Any) -> Any:
    """A closed jaxpr in which what JAX opens at lowering alone (`jnp.searchsorted`, `jnp.nonzero`,
    `jnp.frexp` and others from JAX 0.12 on) is opened into the primitives of `jax.lax`.

    Raises:
      TypeError: an argument or a result is of a type that stands for several arrays.
    """
    from jax._src.interpreters import partial_eval

    jaxpr = closed.jaxpr
    if several := [
        str(atom.aval)
        for atom in (*jaxpr.invars, *jaxpr.outvars)
        if getattr(atom.aval, "is_high", False)
    ]:
        raise TypeError(
            f"arguments or results of types that stand for several arrays: {', '.join(several)}; "
            "hand over and return the arrays themselves"
        )
    return partial_eval.lower_jaxpr2(closed) if jaxpr.is_high else closed


def without_refs(closed: Any) -> Any:
    """A closed jaxpr in which the Refs that it makes are arrays that it hands on."""
    from jax._src.core import InternalMutableArrayEffect
    from jax._src.state.discharge import discharge_state

    makes = any(isinstance(effect, InternalMutableArrayEffect) for effect in closed.effects)
    return discharge_state(closed) if makes else closed


def array_facts(aval: Any) -> tuple[tuple[int, ...], str, int]:
    """(shape, dtype name, bytes per element) of an abstract value; typed PRNG keys by their data.

    Values that are not arrays (tokens, effects) count as empty scalars.
    """
    shape = tuple(int(n) for n in getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return shape, "token", 0
    return shape, str(dtype), int(dtype.itemsize)


def equation_scope(equation: Any, *, forward: bool = False) -> Any:
    """A context in which new equations keep the scope and the source line of `equation`.

    With `forward`, an equation of the backward pass that computes forward values, whose scope says
    so, has the scope that it would have in the forward pass.
    """
    from jax._src import source_info_util

    own = equation.source_info.name_stack
    if forward:
        parts = (one for one in own.stack if one.name not in _OF_THE_BACKWARD_PASS)
        own = source_info_util.NameStack(tuple(parts))
    stack = source_info_util.current_name_stack() + own
    return source_info_util.user_context(_traceback(equation), name_stack=stack)


_OF_THE_BACKWARD_PASS = frozenset({"transpose", "rematted_computation"})
"""Transforms and scopes by which JAX tells what is of the backward pass."""


def _traceback(equation: Any) -> Any:
    """Where an equation comes from; what calls it, if no line of a user's is known of it."""
    from jax._src import source_info_util

    own = equation.source_info.traceback
    if own is not None and source_info_util.user_frame(own) is not None:
        return own
    return source_info_util._source_info_context.context.traceback or own


def equation_line(equation: Any) -> Any:
    """A context in which new equations keep the source line of `equation`, but not its scope."""
    from jax._src import source_info_util

    return source_info_util.user_context(_traceback(equation))


def equation_context(equation: Any, *, forward: bool = False) -> Any:
    """Like `equation_scope`, with the settings of JAX under which `equation` was made."""
    context = contextlib.ExitStack()
    context.enter_context(equation_scope(equation, forward=forward))
    context.enter_context(equation.ctx.manager)
    return context


def bind_equation(equation: Any, operands: Sequence[Any], **changed: Any) -> list[Any]:
    """Apply the primitive of `equation` to new operands, with some of its parameters changed."""
    parameters = equation.primitive.get_bind_params({**equation.params, **changed})
    results = equation.primitive.bind(*operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def run_program_order(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of a `program_order` equation, with a barrier between the equations that it keeps
    in order, as in JAX's own lowering. JAX 0.11 writes those barriers when it traces; what is left
    there is an equation without an order."""
    from jax.extend.core import jaxpr_as_fun

    if equation.params.get("enforce", False):
        return list(equation.primitive.to_lojax(*operands, **equation.params))
    return jaxpr_as_fun(equation.params["call_jaxpr"])(*operands)


def with_derivative_of(equation: Any, primal: Any) -> Any:
    """`primal` with the derivative rule that a `custom_jvp` or `custom_vjp` equation carries.

    `primal` may take more operands than the equation; these depend on the others, and the rule does
    without them.
    """
    import jax

    count = len(equation.invars)

    def original(*operands: Any) -> list[Any]:
        return bind_equation(equation, operands[:count])

    if equation.primitive.name == "custom_jvp_call":
        function = jax.custom_jvp(primal)
        function.defjvp(
            lambda primals, tangents: jax.jvp(original, primals[:count], tangents[:count])
        )
        return function
    function = jax.custom_vjp(primal)
    function.defvjp(
        lambda *operands: jax.vjp(original, *operands), lambda pull, cotangents: pull(cotangents)
    )
    return function


def shape_struct(aval: Any, shape: Sequence[int] | None = None) -> Any:
    """What stands for an abstract value, or one of another `shape`, where a function is traced.

    A `ShapeDtypeStruct`, weak type included; JAX's own type of what lies in the host's memory.
    """
    import jax

    shape = tuple(aval.shape if shape is None else shape)
    weak = bool(getattr(aval, "weak_type", False))
    if in_host(aval):
        return host_shape(shape, aval.dtype, weak_type=weak)
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=weak)


def bind_checkpoint(equation: Any, operands: Sequence[Any], body: Any) -> list[Any]:
    """Apply an equation of `jax.checkpoint` to operands, with another closed jaxpr in it.

    There may be more operands behind its own.
    """
    from jax._src.interpreters import partial_eval

    jaxpr = partial_eval.convert_constvars_jaxpr(body.jaxpr)
    kept = equation.params["prevent_cse"]
    if isinstance(kept, tuple):
        more = (True,) * (len(operands) - len(kept))
        kept = (False,) * len(body.consts) + kept + more  # as `jax.checkpoint` itself has it
    return bind_equation(equation, [*body.consts, *operands], jaxpr=jaxpr, prevent_cse=kept)
