"""The body of a `shard_map` run on one part, with collectives in the primitives of parts.

Every equation is bound anew, outside of the mesh, and so are those of the loops and branches in it.
Calls stand in place; checkpoints stay. A function with a derivative rule of its own runs as it is
written, and says so to who would differentiate it now.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard import compat
from autoshard.program.as_run.calls import solver_of
from autoshard.program.flops import work_of_kernel
from autoshard.program.kernels.ruled import Said, call_with_rule
from autoshard.program.ragged import RAGGED, with_batch
from autoshard.program.rules.record import FactorKind, Rule
from autoshard.program.shard_maps.collectives import CollectiveError, is_collective, run_collective
from autoshard.program.vocabulary import INLINED

_CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})
_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}

Inner = Callable[[Any, Sequence[Any], Mapping[str, int]], list[Any]]
"""Runs a `shard_map` that stands inside of a body."""


def run_body(
    jaxpr: Any,
    consts: Sequence[Any],
    arrays: Sequence[Any],
    sizes: Mapping[str, int],
    inner: Inner,
) -> list[Any]:
    """The results of a body, or of one in it, on `arrays`.

    Args:
      sizes: the size of each mesh axis whose parts it is run on.

    Raises:
      CollectiveError: it holds something that cannot be run on all parts at once.
    """
    plain = map(compat.plain_constant, consts)
    environment: dict[Any, Any] = dict(zip(jaxpr.constvars, plain, strict=True))
    environment.update(zip(jaxpr.invars, arrays, strict=True))

    def read(atom: Any) -> Any:
        if compat.is_literal(atom):
            return compat.plain_constant(atom.val)
        return environment[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        with compat.plain_context(equation):
            results = _run(equation, operands, sizes, inner)
        environment.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _run(equation: Any, operands: list[Any], sizes: Mapping[str, int], inner: Inner) -> list[Any]:
    name = equation.primitive.name
    if is_collective(equation):
        try:
            return run_collective(equation, operands, sizes)
        except CollectiveError as error:
            raise _told(equation, str(error)) from error
    if name == "shard_map":
        return inner(equation, operands, sizes)
    if name == "custom_partitioning":  # of a part, there is nothing to partition
        body, consts = compat.called_jaxpr_of({"jaxpr": equation.params["call"]})
        return run_body(body, consts, operands, sizes, inner)
    if name == "custom_linear_solve":
        solver, operands = solver_of(equation, operands)
        return run_body(solver.jaxpr, solver.consts, operands, sizes, inner)
    if name in INLINED and name != "custom_vmap_call":  # whose rule is for several parts at once
        body, consts = compat.called_jaxpr(equation)

        def called(*arrays: Any) -> list[Any]:
            return run_body(body, consts, arrays, sizes, inner)

        if name in _CUSTOM:
            return list(_underivable(equation, called)(*operands))
        if name in compat.REMAT:
            shapes = [compat.shape_struct(var.aval) for var in body.invars]
            return compat.bind_checkpoint(equation, operands, jax.make_jaxpr(called)(*shapes))
        return called(*operands)
    reads = not all(map(compat.is_literal, equation.invars))
    if reads and not compat.has_batching_rule(equation):
        raise _told(
            equation,
            f"JAX cannot run {name} on several parts at once: call it outside of the shard_map, or "
            "give it a batching rule (jax.custom_batching.custom_vmap)",
        )
    if name == compat.PALLAS and compat.kernel_call(equation).is_told:
        return _told_kernel(equation)(*operands)
    if name == RAGGED:
        return _ragged_product(equation, equation.params["ragged_dot_dimension_numbers"])(*operands)
    changed: dict[str, Any] = {}
    for key in _BODIES.get(name, ()):
        bodies = equation.params[key]
        several = isinstance(bodies, tuple | list)
        new = [_plain(one, sizes, inner) for one in (bodies if several else [bodies])]
        changed[key] = tuple(new) if several else new[0]
    return compat.bind_plainly(equation, operands, **changed)


def _told_kernel(equation: Any) -> Callable[..., list[Any]]:
    """A kernel that is told scalars or its grid in advance, which may be run on several parts.

    Where those differ from part to part JAX would make a loop over the parts of it. It is one op
    with a dimension of parts then, of which each stays whole: it takes and moves what its grid and
    blocks say.
    """
    call = compat.kernel_call(equation)
    try:
        work = work_of_kernel(equation)
    except ValueError as error:
        raise CollectiveError(str(error)) from error
    assert work is not None

    def one_part(*arrays: Any) -> list[Any]:
        return compat.bind_plainly(equation, arrays)

    def ruled(*arrays: Any) -> list[Any]:
        rule, said = _of_whole_arrays(equation), Said(bytes=work.bytes)
        return call_with_rule(one_part, arrays, rule, name=work.name, said=said)

    def on_parts(*mapped: list[int | None]) -> Callable[..., list[Any]]:
        run = jax.custom_batching.custom_vmap(_vmapped(one_part, mapped))

        @run.def_vmap
        def batched(_: int, has: Sequence[bool], *arrays: Any) -> Any:
            axes = (*mapped, [0 if one else None for one in has])
            differ = any(has[: call.bounds + call.scalars])
            results = (_vmapped(ruled, axes) if differ else on_parts(*axes))(*arrays)
            return results, [True] * len(results)

        return run

    return on_parts()


def _vmapped(
    function: Callable[..., list[Any]], mapped: Sequence[list[int | None]]
) -> Callable[..., list[Any]]:
    """A function under one `jax.vmap` after another."""
    for axes in mapped:
        function = jax.vmap(function, axes)
    return function


def _of_whole_arrays(equation: Any) -> Rule:
    """The rule of an op that takes and makes whole arrays."""
    atoms = (*equation.invars, *equation.outvars)
    labels = [[(k, d) for d in range(len(atom.aval.shape))] for k, atom in enumerate(atoms)]
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {
        label: (size, FactorKind.REPLICATE, None)
        for tensor, atom in zip(labels, atoms, strict=True)
        for label, size in zip(tensor, atom.aval.shape, strict=True)
    }
    single = [[[label] for label in tensor] for tensor in labels]
    count = len(equation.invars)
    return Rule.build(single[:count], single[count:], factors)


def _ragged_product(equation: Any, numbers: Any) -> Callable[..., list[Any]]:
    """A ragged product that may be run on several parts at once.

    JAX batches it in some cases alone: where all operands have their parts in front.
    """
    params = equation.params

    def product(left: Any, right: Any, sizes: Any) -> list[Any]:
        result = lax.ragged_dot_general(
            left,
            right,
            sizes,
            numbers,
            precision=params["precision"],
            preferred_element_type=params["preferred_element_type"],
            group_offset=params["group_offset"],
        )
        return [result]

    run = jax.custom_batching.custom_vmap(product)

    @run.def_vmap
    def batched(size: int, has: Sequence[bool], *arrays: Any) -> Any:
        with_parts = [
            array if one else jnp.broadcast_to(array, (size, *array.shape))
            for array, one in zip(arrays, has, strict=True)
        ]
        more, place = with_batch(numbers)
        (result,) = _ragged_product(equation, more)(*with_parts)
        return [jnp.moveaxis(result, place, 0)], [True]

    return run


def _underivable(equation: Any, function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """A function that refuses to be differentiated: its own rule is for the inside of a body."""
    refusing = jax.custom_jvp(function)

    @refusing.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise _told(
            equation,
            "a function has a derivative rule of its own, which holds inside of the shard_map "
            "alone: plan the step with its gradients (jax.grad in the planned function) rather "
            "than differentiate the planned step",
        )

    return refusing


def _plain(closed: Any, sizes: Mapping[str, int], inner: Inner) -> Any:
    """The body of a loop or branch, traced anew."""
    shapes = [compat.shape_struct(aval) for aval in closed.in_avals]

    def run(*arrays: Any) -> list[Any]:
        return run_body(closed.jaxpr, closed.consts, arrays, sizes, inner)

    return jax.make_jaxpr(run)(*shapes)


def _told(equation: Any, why: str) -> CollectiveError:
    line = compat.source_line(equation) or "an unknown line"
    return CollectiveError(f"{line}: in a shard_map, {why}")
