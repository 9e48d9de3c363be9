"""What ops make of sums over examples, and of zeros.

An op that is linear in a sum may run on the sum of one microbatch: the results of all of them add
up to its result. What is linear stands in the tables; anything else needs the whole sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from autoshard import compat
from autoshard.program.microbatches.states import Kind, State
from autoshard.program.vocabulary import ADDITIONS

SUMMING = frozenset(
    {"reduce_sum", "dot_general", "conv_general_dilated", "scatter-add", "scatter_add"}
)
"""Ops whose results on parts of what they sum over add up to the result on the whole."""
_ADDED = ADDITIONS | {"sub"}
_PRODUCTS = frozenset({"mul", "dot_general", "conv_general_dilated"})
_FIRST = frozenset(
    {
        *("neg", "reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "rev"),
        *("reduce_sum", "slice", "dynamic_slice", "split", "copy", "copy_p", "name", "cumsum"),
        *("real", "imag", "gather", "sharding_constraint", "reshard", "div"),
        *("reduce_window_sum", "convert_element_type"),
    }
)
"""Linear in the first operand, if the others are the same for all microbatches."""
_TERMS = {
    **dict.fromkeys(("concatenate", "stack"), slice(None)),
    **dict.fromkeys(("pad", "dynamic_update_slice"), slice(0, 2)),
    **dict.fromkeys(("scatter-add", "scatter_add"), slice(0, 3, 2)),
    "select_n": slice(1, None),
}
"""Linear in these operands together, if the others are the same for all microbatches."""
_ZERO_STAYS = frozenset(
    {
        *("broadcast_in_dim", "reshape", "convert_element_type", "transpose", "squeeze"),
        *("expand_dims", "neg", "copy", "slice", "reduce_sum", "concatenate", "name", "sub"),
        *ADDITIONS,
    }
)


def of_sums(equation: Any, states: Sequence[State]) -> Kind:
    """The state of what an op makes of sums and of what is the same for all microbatches."""
    name = equation.primitive.name
    sums = [k for k, state in enumerate(states) if state is Kind.SUM]
    if Kind.AFTER in states:
        return Kind.AFTER
    if name in _ADDED:
        linear = Kind.WHOLE not in states
    elif name in _PRODUCTS:
        linear = len(sums) == 1
    elif name in _TERMS:
        terms = range(len(states))[_TERMS[name]]
        linear = set(sums) <= set(terms) and all(states[k] is not Kind.WHOLE for k in terms)
    else:
        linear = name in _FIRST and sums == [0] and not _loses_fractions(equation)
    return Kind.SUM if linear else Kind.AFTER


def _loses_fractions(equation: Any) -> bool:
    """Whether an op turns floating-point numbers into integers or truth values."""
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    inexact = jnp.issubdtype(after, jnp.inexact)
    return not inexact and before != after and _rank(before) >= _rank(after)


def _rank(dtype: Any) -> int:
    kinds = (jnp.bool_, jnp.integer, jnp.inexact)
    return next((k for k, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), len(kinds))


def narrows(equation: Any) -> bool:
    """Whether an op only rounds: it is done once, on the sum."""
    if equation.primitive.name != "convert_element_type":
        return False
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    return after.itemsize < before.itemsize


def of_fixed(equation: Any, states: Sequence[State]) -> Kind:
    """The state of what an op makes of what is the same for all microbatches."""
    name = equation.primitive.name
    zeros = [state is Kind.ZERO for state in states]
    zero = (name in _ZERO_STAYS and zeros and all(zeros)) or (name == "mul" and any(zeros))
    return Kind.ZERO if zero else Kind.WHOLE


def of_literal(atom: Any) -> Kind:
    """The state of a literal."""
    dtype = compat.array_facts(atom.aval)[1]
    is_number = dtype != "token" and not dtype.startswith("key<")
    return Kind.ZERO if is_number and not np.any(np.asarray(atom.val)) else Kind.WHOLE


def sum_dtype(dtype: Any) -> Any:
    """The dtype in which values of a dtype are added up: 16-bit numbers in float32."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return jnp.dtype(jnp.float32) if narrow else dtype
