"""A primitive that calls a function of which a rule says how it may be cut.

What the function is made of stays inside: a planner sees one equation, with the rule among its
parameters. Outside of plans it is computed as it is written.

    fn            the function, of flat operands to a list of results; called anew on parts
    call_jaxpr    what JAX makes of it on whole arrays
    rule, work    of whole arrays; what they are, they know themselves
    name          by which a user knows it
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from autoshard.compat.jaxprs import shape_struct

RULED = "ruled_call"


class Batched(Protocol):
    """A rule that knows itself of many arrays at once."""

    def batched(self, size: int, operands: Sequence[bool]) -> Batched:
        """With one more dimension in front, of `operands` and of all results."""
        ...


def ruled_call(
    fn: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
    rule: Callable[[Any], Batched],
    **params: Any,
) -> list[Any]:
    """Bind the primitive on operands; `rule` makes the rule of the closed jaxpr of `fn`."""
    import jax

    shapes = [shape_struct(jax.typeof(one)) for one in operands]
    closed = jax.make_jaxpr(fn)(*shapes)
    return _primitive().bind(*operands, fn=fn, call_jaxpr=closed, rule=rule(closed), **params)


@functools.lru_cache(maxsize=1)
def _primitive() -> Any:
    from jax.extend.core import Primitive, jaxpr_as_fun
    from jax.interpreters import batching, mlir

    primitive = Primitive(RULED)
    primitive.multiple_results = True
    # From JAX 0.12 on a call of a function with a derivative rule counts as one that is lowered in
    # two steps. What is called here takes arrays; what it is made of is lowered with it.
    primitive.is_high = lambda *_, **__: False

    def run(*arrays: Any, call_jaxpr: Any, **_: Any) -> list[Any]:
        return list(jaxpr_as_fun(call_jaxpr)(*arrays))

    def types(*_: Any, call_jaxpr: Any, **__: Any) -> Any:
        return call_jaxpr.out_avals, call_jaxpr.effects

    primitive.def_impl(run)
    primitive.def_effectful_abstract_eval(types)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    batching.fancy_primitive_batchers[primitive] = _batched
    return primitive


def _batched(vmapped: Any, arrays: Any, dimensions: Any, **params: Any) -> Any:
    """The call on many arrays at once: the function under `jax.vmap`, the rule with a factor more.

    The new dimension is the first one of all operands that have it.
    """
    import jax

    fn, rule = params.pop("fn"), params.pop("rule")
    params.pop("call_jaxpr")
    has = [dimension is not None for dimension in dimensions]
    if not any(has):
        given = {**params, "fn": fn, "rule": rule}
        closed = jax.make_jaxpr(fn)(*(shape_struct(jax.typeof(one)) for one in arrays))
        results = _primitive().bind(*arrays, call_jaxpr=closed, **given)
        return results, [None] * len(results)
    arrays = [
        jax.numpy.moveaxis(array, dimension, 0) if dimension is not None else array
        for array, dimension in zip(arrays, dimensions, strict=True)
    ]

    def many(*operands: Any) -> list[Any]:
        axes = [0 if one else None for one in has]
        name = vmapped.spmd_name
        return list(jax.vmap(lambda *one: fn(*one), axes, 0, spmd_axis_name=name)(*operands))

    results = ruled_call(many, arrays, lambda _: rule.batched(vmapped.size, has), **params)
    return results, [0] * len(results)
