"""What becomes of the kinds of a body's values over one axis, primitive by primitive.

`ordinary` is for all that does not communicate; `RULES` holds the collectives and the casts, which
say over which axes they act. Over every other axis they are linear: kinds pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoshard.plan.types.axis_type import Kind

R, I, V, P = Kind.REPLICATE, Kind.INVARIANT, Kind.VARYING, Kind.PARTIAL

LINEAR = frozenset(
    {
        *("add", "sub", "add_any", "neg", "reshape", "transpose", "broadcast_in_dim", "squeeze"),
        *("reduce_sum", "cumsum", "slice", "rev", "copy", "convert_element_type", "concatenate"),
        *("real", "imag", "stack", "unstack", "split", "expand_dims"),
    }
)
"""Linear in all their operands together."""

BILINEAR = frozenset({"mul", "dot_general", "conv_general_dilated"})
"""Linear in each operand alone. A quotient is linear in what is divided."""


class Mixed(Exception):  # noqa: N818
    """Kinds that do not go together over an axis; the message says what is missing."""


def ordinary(equation: Any, kinds: Sequence[Kind]) -> Kind:
    """The kind of the results of an op without communication.

    Raises:
      Mixed: for kinds that only communication could bring together.
    """
    name, found = equation.primitive.name, set(kinds)
    if P in found:
        return _partial(name, kinds)
    if R in found and I in found - {V} and V not in found:
        literal = all(
            hasattr(atom, "val") for atom, k in zip(equation.invars, kinds, strict=True) if k is I
        )
        if not literal:
            raise Mixed(
                "replicate and invariant operands have gradients of different kinds; missing "
                'jax.lax.pcast(x, axis, to="reduced") of the invariant ones'
            )
    if V in found:
        return V
    return R if R in found else I


def _partial(name: str, kinds: Sequence[Kind]) -> Kind:
    if name in LINEAR and set(kinds) == {P}:
        return P
    others = [kind for kind in kinds if kind is not P]
    single = len(others) == len(kinds) - 1
    if single and set(others) <= {R} and (name in BILINEAR or (name == "div" and kinds[0] is P)):
        return P
    raise Mixed(f"{name} is not linear in its partial operands; missing jax.lax.psum of them")


def _over(equation: Any, axis: str) -> bool:
    params = equation.params
    axes = params.get("axes", params.get("axis_name", ()))
    return axis in (axes if isinstance(axes, tuple) else (axes,))


def _to(target: Kind, *sources: Kind) -> Callable[[Any, Sequence[Kind], str], Kind]:
    """A primitive that makes `target` of `sources` over its axes."""

    def rule(equation: Any, kinds: Sequence[Kind], axis: str) -> Kind:
        if not _over(equation, axis):
            return _passed(kinds)
        wrong = {kind for kind in kinds if kind not in sources}
        if wrong:
            raise Mixed(
                f"{equation.primitive.name} takes {' or '.join(map(str, sources))}, but is given "
                + " and ".join(sorted(map(str, wrong)))
            )
        return target

    return rule


def _passed(kinds: Sequence[Kind]) -> Kind:
    found = set(kinds)
    return found.pop() if len(found) == 1 else V if found else I


def _axis_index(equation: Any, kinds: Sequence[Kind], axis: str) -> Kind:
    return V if _over(equation, axis) else I


RULES: Mapping[str, Callable[[Any, Sequence[Kind], str], Kind]] = {
    "axis_index": _axis_index,
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin"), _to(I, V, I, P)),
    "unreduced_psum": _to(I, P),
    "all_gather": _to(V, V, I),
    "all_gather_invariant": _to(I, V),
    "all_gather_reduced": _to(R, V),
    "reduce_scatter": _to(V, V, I, P),
    "unreduced_reduce_scatter": _to(V, P),
    "all_to_all": _to(V, V, I),
    "ragged_all_to_all": _to(V, V, I),
    "ppermute": _to(V, V, I),
    "pbroadcast": _to(V, V, I),
    "pvary": _to(V, I, V),
    "preduced": _to(R, I),
    # Two names each: the second is that of JAX before 0.12.
    **dict.fromkeys(("vary_unreduced_cast", "vary_unreduced_cast_p"), _to(P, V)),
    **dict.fromkeys(("reduced_vary_cast", "reduced_vary_cast_p"), _to(V, R)),
}
