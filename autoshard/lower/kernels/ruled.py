"""Calls of which the user says how they may be cut, on the parts that one device holds.

A function of `autoshard.kernel` is called anew on the parts. An FFI call gets results of the shapes
of its parts; its attributes stay. On CPU kernels inside of a function run in interpret mode, and
cuDNN's attention in plain JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.lower.kernels.attention import plain_attention, why_not_plain
from autoshard.lower.parts.cut import Cut, LoweringError


def run_ruled(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The results of a function of `autoshard.kernel` on the parts of one device.

    Raises:
      LoweringError: of parts it makes arrays of other shapes than parts of its results.
    """
    if cut.is_whole:
        return run_closed(equation.params["call_jaxpr"], arrays)
    shapes = [
        jax.ShapeDtypeStruct(one.shape, atom.aval.dtype)
        for one, atom in zip(arrays, equation.invars, strict=True)
    ]
    try:
        local = jax.make_jaxpr(equation.params["fn"])(*shapes)
    except (TypeError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise _refused(cut, f"it does not run on parts {_shown(shapes)}: {why}") from error
    made = [tuple(aval.shape) for aval in local.out_avals]
    if made != list(cut.local_results):
        why = f"of parts {_shown(shapes)} it makes {made}, not {list(cut.local_results)}"
        raise _refused(cut, why)
    return run_closed(local, arrays)


def run_foreign(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The results of an FFI call on one device, from its parts of the operands."""
    return compat.bind_foreign(equation, arrays, cut.local_results)


def run_closed(closed: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr, whose kernels run as they can on each platform."""
    changed = on_cpu(closed)
    if changed is closed:
        return list(jaxpr_as_fun(closed)(*arrays))
    return list(
        lax.platform_dependent(*arrays, cpu=jaxpr_as_fun(changed), default=jaxpr_as_fun(closed))
    )


def on_cpu(closed: Any) -> Any:
    """A closed jaxpr whose kernels run as they can on CPU; itself if it holds none."""
    return compat.with_kernels(closed, _on_cpu)


def _on_cpu(equation: Any, used: frozenset[Any]) -> Any:
    """A Pallas call in interpret mode, another kernel in plain JAX."""
    if equation.primitive.name == compat.PALLAS:
        return compat.interpreted(equation, used)
    if why_not_plain(equation):
        return equation
    return compat.replaced_by(equation, lambda *given: plain_attention(equation, given))


def _refused(cut: Cut, reason: str) -> LoweringError:
    return LoweringError(
        f"{cut.op} is cut by its rule {cut.op.rule}, but {reason}; say in its rule what must stay "
        "whole (replicate), or let the function work on parts"
    )


def _shown(shapes: Sequence[Any]) -> str:
    return str([tuple(one.shape) for one in shapes])
