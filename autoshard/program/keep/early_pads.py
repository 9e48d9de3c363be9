"""Products of padded rows, in place of pads of what products make.

    pad((x @ w + b).transpose(...))                     a kernel of its own
    select(real, (pad(x) @ w + b).transpose(...), 0)    runs inside of the product

A kernel that takes whole blocks of a sequence is given one that is filled up. The rows that fill it
up are rows of the product as well, and what is computed of them is replaced by what the pad says.
The product computes more, and nothing is copied. Each element is the sum that it was, which a
compiler may add in another order in a product of another size.

A pad moves along dimensions that are rows (or batches) of the products behind it, through what is
computed element by element, and changes of shape that leave them whole. What else is read on the
way is padded where it is read, as a table of positions, and so is what others read too. Bodies of
loops and of `jax.checkpoint`s are seen through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard import compat
from autoshard.program.bodies import run_equations
from autoshard.program.keep.opened import opened, opened_body

Filled = dict[int, tuple[int, int]]
"""How many elements a pad puts before a dimension and after it, by dimension."""

Behind = dict[int, tuple[Any, Filled]]
"""Equations by their identity, and what of their results is to be filled up."""

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
        if (body := opened_body(equation)) is not None and (made := _rewritten(body)) is not body:
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


def _key(atom: Any) -> Any:
    """A variable, or what tells a literal from others."""
    return id(atom) if compat.is_literal(atom) else atom


class _TwoWaysError(Exception):
    """One array is read along two dimensions, each of which is filled up for one reader alone."""


class _Moves:
    """The pads of a body that move before products.

    Attributes:
      pads: them, by the identity of their equations.
      wide: what makes their operands, from products on, and what of its results is filled up.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.made_by = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
        self.readers: dict[Any, set[int]] = {var: set() for var in self.made_by}
        for reader, atoms in [*((id(one), one.invars) for one in jaxpr.eqns), (-1, jaxpr.outvars)]:
            for atom in atoms:
                if _key(atom) in self.readers:
                    self.readers[atom].add(reader)
        self.pads: set[int] = set()
        self.wide: dict[int, Filled] = {}
        for equation in jaxpr.eqns:
            if (filled := _fills(equation)) and (found := self._behind(equation, filled)):
                self.pads.add(id(equation))
                self.wide |= {number: ends for number, (_, ends) in found.items()}

    def _behind(self, pad: Any, filled: Filled) -> Behind:
        """What makes the operand of a pad, from products on, if it can be made wider.

        What something else reads stays as it is, and is padded where it is read.
        """
        stays: set[int] = set()
        while True:
            found: Behind = {}
            made = self.made_by.get(_key(pad.invars[0]))
            try:
                if made is None or not self._collect(made, filled, stays, found):
                    return {}
            except _TwoWaysError:
                return {}
            mine = {id(pad), *found}
            read = {
                number
                for number, (equation, _) in found.items()
                if any(self.readers[var] - mine for var in equation.outvars)
            }
            if not read:
                return found
            stays |= read

    def _collect(self, made: Any, filled: Filled, stays: set[int], found: Behind) -> bool:
        """Note an equation and what is behind it; whether there is a product, and it can be wider.

        Raises _TwoWaysError where one array would have to be wider in two ways.
        """
        number = id(made)
        if number in found:
            if found[number][1] != filled:
                raise _TwoWaysError
            return True
        if number in stays or number in self.wide or not (before := _operands(made, filled)):
            return False
        known = dict(found)
        found[number] = made, filled
        products = made.primitive.name == "dot_general"
        if not products:
            for atom, ends in zip(made.invars, before, strict=True):
                maker = self.made_by.get(_key(atom))
                if ends and maker is not None and self._repeats(atom, ends) is None:
                    products |= self._collect(maker, ends, stays, found)
        if not products:
            found.clear()
            found.update(known)
        return products

    def _repeats(self, atom: Any, filled: Filled) -> Any:
        """The equation that repeats a value along what is filled up; None of others."""
        equation = self.made_by.get(_key(atom))
        if equation is None or equation.primitive.name != "broadcast_in_dim":
            return None
        places = equation.params["broadcast_dimensions"]
        sizes = dict(zip(places, equation.invars[0].aval.shape, strict=True))
        return None if any(sizes.get(place, 1) > 1 for place in filled) else equation

    def widened(self, equation: Any, operands: list[Any], held: Mapping[Any, Any]) -> list[Any]:
        """The results of an equation, filled up with anything."""
        filled = self.wide[id(equation)]
        for place, ends in enumerate(_operands(equation, filled)):
            atom, shape = equation.invars[place], _wider(equation.invars[place].aval.shape, ends)
            if operands[place].shape == shape:
                continue
            if (maker := self._repeats(atom, ends)) is not None:
                own = held[_key(maker.invars[0])]
                (operands[place],) = compat.bind_equation(maker, [own], shape=shape)
            else:
                operands[place] = _padded(operands[place], ends)
        shape = _wider(equation.outvars[0].aval.shape, filled)
        return compat.bind_equation(equation, operands, **_changed(equation, shape))


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


def _operands(equation: Any, filled: Filled) -> list[Filled]:
    """What of its operands is to be filled up for the results of an equation to be.

    Empty of equations that treat other elements of these dimensions together, or are not known.
    """
    name, params = equation.primitive.name, equation.params
    shapes = [atom.aval.shape for atom in equation.invars]
    if name == "dot_general":
        return _of_product(equation, filled)
    if name in _ELEMENTWISE:
        return [
            {place: filled[place] for place in filled if shape and shape[place] > 1}
            for shape in shapes
        ]
    if name == "transpose":
        return [{params["permutation"][place]: ends for place, ends in filled.items()}]
    if name == "reshape":
        (own,), made = shapes, equation.outvars[0].aval.shape
        there = {(math.prod(own[:place]), size): place for place, size in enumerate(own)}
        places = {place: there.get((math.prod(made[:place]), made[place])) for place in filled}
        found = {at: filled[place] for place, at in places.items() if at is not None}
        return [found] if len(found) == len(filled) else []
    if name == "slice":
        strides = params["strides"] or (1,) * len(shapes[0])
        whole = equation.outvars[0].aval.shape
        taken = all(strides[place] == 1 and whole[place] == shapes[0][place] for place in filled)
        return [filled] if taken else []
    if name in ("concatenate", "split"):
        axis = params["dimension" if name == "concatenate" else "axis"]
        return [] if axis in filled else [filled] * len(shapes)
    return []


def _changed(equation: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """The parameters of an equation whose (first) result has a wider shape, where they say it."""
    name, params = equation.primitive.name, equation.params
    if name == "reshape":
        return {"new_sizes": shape}
    if name == "slice":
        ends = zip(params["limit_indices"], equation.outvars[0].aval.shape, shape, strict=True)
        return {"limit_indices": tuple(limit + new - old for limit, old, new in ends)}
    return {}


def _of_product(equation: Any, filled: Filled) -> list[Filled]:
    """What of the two operands of a product is to be filled up for its result to be."""
    sums, batches = equation.params["dimension_numbers"]
    ranks = [operand.aval.ndim for operand in equation.invars]
    rows, columns = (
        [place for place in range(rank) if place not in summed and place not in batch]
        for rank, summed, batch in zip(ranks, sums, batches, strict=True)
    )
    first = [*batches[0], *rows, *[None] * len(columns)]
    second = [*batches[1], *[None] * len(rows), *columns]
    return [
        {at: ends for place, ends in filled.items() if (at := places[place]) is not None}
        for places in (first, second)
    ]


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
