"""Products of padded rows, in place of pads of what products make.

    pad((x @ w + b).transpose(...))                     a kernel of its own
    select(real, (pad(x) @ w + b).transpose(...), 0)    runs inside of the product

A kernel that takes whole blocks of a sequence is given one that is filled up. The rows that fill it
up are rows of the product as well, and what is computed of them is replaced by what the pad says.
The product computes more, and nothing is copied. Each element is the sum that it was, which a
compiler may add in another order in a product of another size.

A pad moves along dimensions that are rows (or batches) of the products behind it, through casts,
transpositions and what is computed element by element of these and of what is repeated along the
dimension; only where nothing else reads what is between. Bodies of loops and of `jax.checkpoint`s
are seen through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard import compat
from autoshard.program.bodies import run_equations
from autoshard.program.keep.opened import opened

Filled = dict[int, tuple[int, int]]
"""How many elements a pad puts before a dimension and after it, by dimension."""

SCOPE = "early_pads"
"""The scope of pads before products."""

_ELEMENTWISE = frozenset(
    {
        "convert_element_type", "copy", "neg", "abs", "exp", "tanh", "logistic", "square", "sqrt",
        "rsqrt", "integer_pow", "add", "add_any", "sub", "mul", "div", "max", "min",
    }
)  # fmt: skip


def with_early_pads(closed: Any) -> Any:
    """The closed jaxpr of a step with the same results that pads what its products read.

    The same object where there is nothing to pad so.
    """
    known = opened(closed, remat=False)
    made = _rewritten(known)
    return closed if made is known else compat.drop_dead_code(made)


def _rewritten(closed: Any) -> Any:
    """A body that pads what its products read, itself where there is nothing to pad so."""
    jaxpr, moves = closed.jaxpr, _Moves(closed.jaxpr)
    bodies: dict[int, Any] = {}
    for equation in jaxpr.eqns:
        if (body := _inside(equation)) is not None and (made := _rewritten(body)) is not body:
            bodies[id(equation)] = made
    if not bodies and not moves.pads:
        return closed

    def step(*arrays: Any) -> list[Any]:
        held: dict[Any, Any] = {}

        def run(equation: Any, operands: list[Any]) -> Sequence[Any]:
            held.update(zip(map(_key, equation.invars), operands, strict=True))
            if id(equation) in moves.pads:
                return [_filled(equation, *operands)]
            if id(equation) in moves.wide:
                return moves.widened(equation, operands, held)
            if id(equation) not in bodies:
                return compat.bind_equation(equation, operands)
            if equation.primitive.name in compat.REMAT:
                return compat.bind_checkpoint(equation, operands, bodies[id(equation)])
            return compat.bind_equation(equation, operands, jaxpr=bodies[id(equation)])

        return run_equations(jaxpr, closed.consts, arrays, run)

    return jax.make_jaxpr(step)(*map(compat.shape_struct, closed.in_avals))


def _inside(equation: Any) -> Any:
    """The closed body of a loop or a `jax.checkpoint`, opened; None of other equations."""
    name = equation.primitive.name
    if name != "scan" and name not in compat.REMAT:
        return None
    jaxpr, consts = compat.called_jaxpr(equation)
    return opened(compat.closed(jaxpr, consts), remat=False)


def _key(atom: Any) -> Any:
    """A variable, or what tells a literal from others."""
    return id(atom) if compat.is_literal(atom) else atom


class _Moves:
    """The pads of a body that move before products.

    Attributes:
      pads: them, by the identity of their equations.
      wide: what makes their operands, from products on, and what of its result is filled up.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.made_by = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
        read = [*(atom for one in jaxpr.eqns for atom in one.invars), *jaxpr.outvars]
        self.readers = Counter(map(_key, read))
        self.pads: set[int] = set()
        self.wide: dict[int, Filled] = {}
        for equation in jaxpr.eqns:
            filled = _fills(equation)
            found = self._behind(equation.invars[0], filled) if filled else None
            if found is not None:
                self.pads.add(id(equation))
                self.wide |= found

    def _behind(self, atom: Any, filled: Filled) -> dict[int, Filled] | None:
        """What makes a value, from products on, and is to be wider for it to be so.

        None if it is made of anything else, or something else reads it.
        """
        equation = self.made_by.get(_key(atom))
        if equation is None or self.readers[atom] > 1:
            return None
        name, found = equation.primitive.name, {id(equation): filled}
        if name == "dot_general":
            return found
        if name == "transpose":
            turned = _turned(equation, filled)
            before = self._behind(equation.invars[0], turned)
            return None if before is None else found | before
        if name not in _ELEMENTWISE:
            return None
        others = [one for one in equation.invars if self._repeated(one, filled) is None]
        for operand in others:
            if (before := self._behind(operand, filled)) is None:
                return None
            found |= before
        return found if others else None

    def _repeated(self, atom: Any, filled: Filled) -> Any:
        """The equation that repeats a value along what is filled up, or the value itself where it
        has one element there; None of others."""
        if all(size == 1 for place, size in enumerate(atom.aval.shape) if place in filled):
            return atom
        equation = self.made_by.get(_key(atom))
        if equation is None or equation.primitive.name != "broadcast_in_dim":
            return None
        places = equation.params["broadcast_dimensions"]
        sizes = dict(zip(places, equation.invars[0].aval.shape, strict=True))
        return None if any(sizes.get(place, 1) > 1 for place in filled) else equation

    def widened(self, equation: Any, operands: list[Any], held: Mapping[Any, Any]) -> list[Any]:
        """The results of an equation, filled up with anything."""
        filled = self.wide[id(equation)]
        if equation.primitive.name == "dot_general":
            parts = _of_operands(equation, filled)
            operands = [_padded(*pair) for pair in zip(operands, parts, strict=True)]
        elif equation.primitive.name in _ELEMENTWISE:
            for place, atom in enumerate(equation.invars):
                maker = self._repeated(atom, filled)
                if maker is not None and maker is not atom:
                    shape, own = _wider(atom.aval.shape, filled), held[_key(maker.invars[0])]
                    (operands[place],) = compat.bind_equation(maker, [own], shape=shape)
        return compat.bind_equation(equation, operands)


def _fills(equation: Any) -> Filled:
    """What a pad fills up; nothing of one that cuts, or puts elements between others."""
    if equation.primitive.name != "pad":
        return {}
    config = equation.params["padding_config"]
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        return {}
    return {place: (low, high) for place, (low, high, _) in enumerate(config) if low or high}


def _wider(shape: Sequence[int], filled: Filled) -> tuple[int, ...]:
    """A shape, filled up."""
    return tuple(size + sum(filled.get(place, ())) for place, size in enumerate(shape))


def _turned(equation: Any, filled: Filled) -> Filled:
    """What of the operand of a transposition is to be filled up for its result to be."""
    permutation = equation.params["permutation"]
    return {permutation[place]: ends for place, ends in filled.items()}


def _of_operands(equation: Any, filled: Filled) -> tuple[Filled, Filled]:
    """What of the two operands of a product is to be filled up for its result to be."""
    sums, batches = equation.params["dimension_numbers"]
    ranks = [operand.aval.ndim for operand in equation.invars]
    rows, columns = (
        [place for place in range(rank) if place not in summed and place not in batch]
        for rank, summed, batch in zip(ranks, sums, batches, strict=True)
    )
    first = [*batches[0], *rows, *[None] * len(columns)]
    second = [*batches[1], *[None] * len(rows), *columns]
    return (
        {at: ends for place, ends in filled.items() if (at := first[place]) is not None},
        {at: ends for place, ends in filled.items() if (at := second[place]) is not None},
    )


def _padded(operand: Any, filled: Filled) -> Any:
    """An operand, filled up with zeros."""
    if not filled:
        return operand
    with jax.named_scope(SCOPE):
        config = [(*filled.get(place, (0, 0)), 0) for place in range(operand.ndim)]
        return lax.pad(operand, jnp.zeros((), operand.dtype), config)


def _filled(equation: Any, wide: Any, value: Any) -> Any:
    """The result of a pad, of an operand that is filled up with anything."""
    shape, real = equation.invars[0].aval.shape, None
    for place, (low, _) in _fills(equation).items():
        at = lax.iota(jnp.int32, wide.shape[place])
        inside = (at >= low) & (at < low + shape[place]) if low else at < shape[place]
        one = lax.broadcast_in_dim(inside, wide.shape, [place])
        real = one if real is None else real & one
    assert real is not None
    return lax.select(real, wide, lax.broadcast(value, wide.shape))
