"""A known attention kernel on one device's part of the sequence, over keys that go round.

See `autoshard.program.kernels.known.joinable`. The library's function is called anew for each pair
of parts: under the causal mask for a device's own keys, without one for those of others. What an
operand repeats for each row is sent once, and repeated by the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.lower.kernels.ring import RingPlace, ring_backward, ring_forward
from autoshard.lower.parts.cut import Cut, refused
from autoshard.program.kernels.known.attention import known_attention
from autoshard.program.kernels.known.joinable import Joinable
from autoshard.program.kernels.rule import ring_factors


def ring_axes(cut: Cut) -> tuple[int, ...]:
    """The mesh axes of the ring over which keys go round; none where they do not."""
    rings = ring_factors(cut.op.rule, cut.op.kernel.rings if cut.op.kernel is not None else ())
    return tuple(
        axis
        for axis, factor in enumerate(cut.assignment)
        if factor in rings and rings[factor].passed and cut.devices.sizes[axis] > 1
    )


def kernel_in_ring(
    equation: Any,
    arrays: Sequence[Any],
    cut: Cut,
    axes: tuple[int, ...],
    run: Callable[[Any, Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """The results of an attention kernel on one device, from its parts of the operands.

    Args:
      equation: of the kernel.
      arrays: the device's parts of its operands.
      cut: how it is cut.
      axes: of the mesh along which its sequence is.
      run: what runs a closed jaxpr with kernels in it.

    Raises:
      LoweringError: the kernel is none that is known.
    """
    known = known_attention(equation)
    if known is None:
        raise refused(cut, "the library that made its kernel makes another one now")
    length = known.lengths[known.ring.operands[0]]
    place = RingPlace(
        cut.devices,
        axes,
        length,
        known.ring.causal,
        statistic=length,
        keys_length=known.lengths[known.ring.passed[0]],
    )
    thin = [known.thin(number, one) for number, one in enumerate(arrays)]

    def call(given: Sequence[Any], causal: bool) -> list[Any]:
        shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in given]
        closed = jax.make_jaxpr(lambda *parts: known.run(parts, causal))(*shapes)
        return list(run(closed, given))

    made = (_forward if known.forward else _backward)(known, thin, place, call)
    found = []
    for number, shape in enumerate(cut.local_results, len(arrays)):
        one = made.get(number)
        if one is None:  # nobody reads it
            found.append(jnp.zeros(shape, equation.outvars[number - len(arrays)].aval.dtype))
            continue
        found.append(known.thick(number, one, shape))
    return found


Call = Callable[[Sequence[Any], bool], list[Any]]


def _forward(
    known: Joinable, arrays: Sequence[Any], place: RingPlace, call: Call
) -> dict[int, Any]:
    def attend(*given: Any) -> list[Any]:
        *parts, causal = given
        return call(parts, causal)

    parts = [arrays[k] for k in known.ring.operands]

    def finish(made: Sequence[Any]) -> list[Any]:
        pairs = enumerate(known.results(made), known.first)
        return [one if number in known.ring.results else None for number, one in pairs]

    return dict(enumerate(ring_forward(place, parts, attend, finish), known.first))


def _backward(
    known: Joinable, arrays: Sequence[Any], place: RingPlace, call: Call
) -> dict[int, Any]:
    ring = known.ring
    others = [k for k in ring.operands if k not in ring.passed]
    own = [number for number in ring.results if number not in ring.summed]

    def derive(rows: Sequence[Any], keys: Sequence[Any], causal: bool) -> Any:
        given = dict(zip((*others, *ring.passed), (*rows, *keys), strict=True))
        found = call([given[k] for k in ring.operands], causal)
        mine, theirs = ([k - known.first for k in side] for side in (own, ring.summed))
        return [found[k] for k in mine], [found[k] for k in theirs]

    rows, dims = [arrays[k] for k in others], [known.length(k) for k in others]
    keys = [arrays[k] for k in ring.passed]
    to_rows, to_keys = ring_backward(place, rows, dims, keys, derive)
    return dict(zip((*own, *ring.summed), (*to_rows, *to_keys), strict=True))


def run_opaque(closed: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr with opaque calls in place of its kernels: to be read."""

    def opaque(equation: Any, used: frozenset[Any]) -> Any:
        del used
        shapes = [compat.shape_struct(var.aval) for var in equation.outvars]
        call = jax.ffi.ffi_call(equation.primitive.name, shapes)
        return compat.replaced_by(equation, lambda *given: list(call(*given)))

    return list(jaxpr_as_fun(compat.with_kernels(closed, opaque))(*arrays))
