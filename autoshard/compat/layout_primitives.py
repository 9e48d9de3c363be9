"""Primitives that say how an array, its cotangent and what is computed again lie."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.compat.jaxprs import bind_equation, shape_struct


def laid_out(array: Any, first: Any, again: Any, cotangent: Any) -> Any:
    """`first(array)`, but `again(array)` where `checkpoint` computes it a second time.

    The cotangent goes through `cotangent`. All return an array like the one that they are given.
    """
    import jax

    shape = shape_struct(jax.typeof(array))
    bodies = [jax.make_jaxpr(one)(shape) for one in (first, again, cotangent)]
    primitive, _ = _laid_out_primitives()
    return primitive.bind(array, call_jaxpr=bodies[0], again=bodies[1], back=bodies[2])


@functools.lru_cache(maxsize=1)
def _laid_out_primitives() -> tuple[Any, Any]:
    """The primitive behind `laid_out`, and that of its tangents."""
    import jax
    from jax.extend.core import Primitive, jaxpr_as_fun
    from jax.interpreters import ad, batching, mlir, partial_eval

    values, tangents = Primitive("laid_out"), Primitive("laid_out_tangent")

    def run(*arrays: Any, call_jaxpr: Any, **_: Any) -> Any:
        return jaxpr_as_fun(call_jaxpr)(*arrays)[0]

    def differentiated(primals: Any, given: Any, **bodies: Any) -> Any:
        (tangent,) = given
        if not isinstance(tangent, ad.Zero):
            as_it_comes = jax.make_jaxpr(lambda x: x)(shape_struct(jax.typeof(tangent)))
            tangent = tangents.bind(tangent, call_jaxpr=as_it_comes, back=bodies["back"])
        return values.bind(*primals, **bodies), tangent

    def pushed(primals: Any, given: Any, **bodies: Any) -> Any:
        first, *others = primals
        terms = []
        if not isinstance(given[0], ad.Zero):
            terms.append(tangents.bind(given[0], *others, **bodies))
        if not all(isinstance(one, ad.Zero) for one in given[1:]):
            moved = [ad.instantiate_zeros(one) for one in given[1:]]
            terms.append(
                jax.jvp(lambda *rest: run(first, *rest, **bodies), others, tuple(moved))[1]
            )
        return tangents.bind(*primals, **bodies), functools.reduce(ad.add_tangents, terms)

    def pulled(cotangent: Any, tangent: Any, *others: Any, back: Any, **_: Any) -> Any:
        if isinstance(cotangent, ad.Zero):
            return [ad.Zero(tangent.aval), *(None for _ in others)]
        return [jaxpr_as_fun(back)(cotangent, *others)[0], *(None for _ in others)]

    for primitive in (values, tangents):
        primitive.def_impl(run)
        mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=False))
        batching.fancy_primitive_batchers[primitive] = functools.partial(_batched, primitive)
    values.def_abstract_eval(lambda array, **_: array)
    tangents.def_abstract_eval(lambda *_, call_jaxpr, **__: call_jaxpr.out_avals[0])
    ad.primitive_jvps[values] = differentiated
    ad.primitive_jvps[tangents] = pushed
    ad.primitive_transposes[tangents] = pulled
    partial_eval.partial_eval_jaxpr_custom_rules[values] = _split
    return values, tangents


def _batched(primitive: Any, vmapped: Any, arrays: Any, dimensions: Any, **bodies: Any) -> Any:
    """The primitive on many arrays at once: so are its bodies, over the same mesh axes."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    axes: list[Any] = list(dimensions)
    if all(axis is None for axis in axes):
        return primitive.bind(*arrays, **bodies), None
    array, *others = arrays
    if axes[0] is None:
        array, axes[0] = jax.numpy.broadcast_to(array, (vmapped.size, *array.shape)), 0
    shapes = [shape_struct(jax.typeof(one)) for one in (array, *others)]
    mapped = functools.partial(
        jax.vmap, in_axes=axes, out_axes=axes[0], spmd_axis_name=vmapped.spmd_name
    )
    result = jax.eval_shape(mapped(jaxpr_as_fun(bodies["call_jaxpr"])), *shapes)
    many = {}
    for name, body in bodies.items():
        given = result if name == "back" else shapes[:1]
        many[name] = jax.make_jaxpr(mapped(jaxpr_as_fun(body)))(*given, *shapes[1:])
    return primitive.bind(array, *others, **many), axes[0]


def _split(_: Any, unknown: Any, instantiated: Any, equation: Any) -> Any:
    """What is known of an operation in `checkpoint`, and what the backward pass computes.

    A rule of the primitive's own leaves `call_jaxpr` in the one and `again` in the other.
    """
    if unknown[0]:
        return None, equation, [True], [True], []
    again = equation.params["again"]
    known = equation.replace(params={**equation.params, "again": equation.params["call_jaxpr"]})
    staged = equation.replace(params={**equation.params, "call_jaxpr": again})
    return known, staged, [False], [True], [] if instantiated[0] else [equation.invars[0]]


def _as_made_at(traceback: Any, closed: Any) -> Any:
    """A closed jaxpr of the lines of a traceback; that it is transposed is for others to say."""
    from jax._src import source_info_util

    def plain(equation: Any) -> Any:
        info = equation.source_info
        parts = (one for one in info.name_stack.stack if isinstance(one, source_info_util.Scope))
        stack = source_info_util.NameStack(tuple(parts))
        return equation.replace(source_info=info.replace(name_stack=stack, traceback=traceback))

    jaxpr = closed.jaxpr
    return closed.replace(jaxpr=jaxpr.replace(eqns=[plain(one) for one in jaxpr.eqns]))


def _unchanged(array: Any) -> Any:
    return array


REMAT = frozenset({"remat", "remat2", "checkpoint"})
"""Primitives of `jax.checkpoint`."""
PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
"""Primitives that are linear in each operand, so that their derivatives read the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """An operand that a product and its derivatives read each in a way of their own.

    Attributes:
      array: the operand.
      first: from it, what the product reads.
      again: what it reads where `checkpoint` computes it again.
      cotangent: from the cotangent of the operand, what is gone on with.
      gradient: from the operand, what the gradients of the others are computed from.
      given: from the cotangent of the result, what the gradient of the operand is computed from.
    """

    array: Any
    first: Callable[[Any], Any] = _unchanged
    again: Callable[[Any], Any] = _unchanged
    cotangent: Callable[[Any], Any] = _unchanged
    gradient: Callable[[Any], Any] = _unchanged
    given: Callable[[Any], Any] = _unchanged

    def then(self, first: Any, again: Any, cotangent: Any, gradient: Any, given: Any) -> Read:
        """Read so, with further functions for each."""
        return Read(
            self.array,
            lambda x: first(self.first(x)),
            lambda x: again(self.again(x)),
            lambda x: self.cotangent(cotangent(x)),
            lambda x: gradient(self.gradient(x)),
            lambda x: self.given(given(x)),
        )


def bind_reading(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Like `bind_equation`; some of the operands may be `Read`s."""
    if any(isinstance(one, Read) for one in operands):
        return [run_reading(lambda *arrays: bind_equation(equation, arrays), operands)]
    return bind_equation(equation, operands)


def run_reading(product: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """`product(*operands)`, where some of the operands are `Read`s.

    Args:
      product: linear in each operand; returns an array, or a list of one.
      operands: arrays, or `Read`s of arrays.
    """
    import jax
    from jax._src import source_info_util

    reads = [one if isinstance(one, Read) else Read(one) for one in operands]
    _, tangents = _laid_out_primitives()
    traceback = source_info_util.current().traceback

    def run(*arrays: Any) -> Any:
        return jax.tree.leaves(product(*arrays))[0]

    def plain(*arrays: Any) -> Any:
        pairs = zip(operands, reads, arrays, strict=True)
        return run(
            *(
                laid_out(array, read.first, read.again, _unchanged) if one is read else array
                for one, read, array in pairs
            )
        )

    def differentiated(primals: Any, moved: Any) -> Any:
        result, terms = plain(*primals), []
        for number, tangent in enumerate(moved):
            if isinstance(tangent, jax.custom_derivatives.SymbolicZero):
                continue
            before, (own, *after) = primals[:number], primals[number:]
            others = [*before, *after]
            along, back = both_ways(number, shape_struct(jax.typeof(own)))
            shapes = [shape_struct(jax.typeof(one)) for one in others]
            cotangent = shape_struct(jax.typeof(result))
            bodies = {
                "call_jaxpr": jax.make_jaxpr(along)(shape_struct(jax.typeof(tangent)), *shapes),
                "back": _as_made_at(traceback, jax.make_jaxpr(back)(cotangent, *shapes)),
            }
            terms.append(tangents.bind(tangent, *others, **bodies))
        return result, functools.reduce(jax.lax.add, terms)

    def both_ways(number: int, shape: Any) -> tuple[Any, Any]:
        """From the tangent of an operand to that of the result, and back from the cotangent."""
        read, around = reads[number], [*reads[:number], *reads[number + 1 :]]

        def along(tangent: Any, *others: Any) -> Any:
            return run(*others[:number], tangent, *others[number:])

        def back(cotangent: Any, *others: Any) -> Any:
            seen = [one.gradient(x) for one, x in zip(around, others, strict=True)]
            pull = jax.linear_transpose(lambda tangent: along(tangent, *seen), shape)
            return read.cotangent(pull(read.given(cotangent))[0])

        return along, back

    called = jax.custom_jvp(plain)
    called.defjvp(differentiated, symbolic_zeros=True)
    return called(*(one.array for one in reads))
