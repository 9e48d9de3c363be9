"""A body run on one microbatch: what holds examples is shorter, all else is as it is.

What is the same for every microbatch, but as long as the batch, is made shorter where it meets
examples: made anew, if a broadcast, an iota or cheap ops on such make it, else by taking the
examples of this microbatch out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from autoshard import compat
from autoshard.program.keep.opened import says_no_layouts
from autoshard.program.microbatches.resize import resized
from autoshard.program.microbatches.states import (
    FIXED,
    Kind,
    Part,
    State,
    has_parts,
    refusal,
)
from autoshard.program.microbatches.sums import of_literal
from autoshard.program.microbatches.tracking import Tracking
from autoshard.program.vocabulary import BARRIER, FREE_PRIMITIVES, INLINED


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """An array, its state, and what made it: an equation, its operands and which result it is."""

    array: Any
    state: State
    maker: tuple[Any, Sequence[Held], int] | None = None


class Microbatch:
    """One microbatch of a step.

    Attributes:
      tracking: the states.
      count: how many microbatches there are.
      index: which of them this is, an int32.
    """

    def __init__(self, tracking: Tracking, count: int, index: Any) -> None:
        self.tracking, self.count, self.index = tracking, count, index

    def walk(self, jaxpr: Any, consts: Sequence[Any], given: Sequence[Held]) -> list[Held]:
        """The results of a body."""
        known = {
            var: Held(constant, Kind.WHOLE)
            for var, constant in zip(jaxpr.constvars, consts, strict=True)
        }
        known.update(zip(jaxpr.invars, given, strict=True))
        for equation in jaxpr.eqns:
            operands = [held(atom, known) for atom in equation.invars]
            with compat.equation_context(equation):
                results = self.equation(equation, operands)
            known.update(zip(equation.outvars, results, strict=True))
        return [held(atom, known) for atom in jaxpr.outvars]

    def equation(self, equation: Any, operands: Sequence[Held]) -> list[Held]:
        """The results of an equation."""
        states = [one.state for one in operands]
        name = equation.primitive.name
        made = self.tracking.of(equation, states)
        if name in INLINED and name not in compat.REMAT:
            if not says_no_layouts(equation) and has_parts(states):
                raise refusal(equation, "is a jax.jit that says how arrays of the whole batch lie")
            return self.walk(*compat.called_jaxpr(equation), operands)
        if equation.effects:
            raise refusal(equation, "has an effect, which would come once for every microbatch")
        arrays = [one.array for one in operands]
        if not has_parts(states) or name == BARRIER:
            results = compat.bind_equation(equation, arrays)
        elif name in compat.REMAT:
            results = self._checkpoint(equation, operands)
        elif name == "scan":
            results = self._scan(equation, operands)
        elif name == "while":
            results = self._while(equation, operands)
        elif name == "cond":
            results = self._cond(equation, operands, made)
        else:
            results = self._on_examples(equation, operands, made)
        return [
            Held(array, state, (equation, operands, k) if state in FIXED else None)
            for k, (array, state) in enumerate(zip(results, made, strict=True))
        ]

    def array(self, one: Held, state: State) -> Any:
        """The array of a value in another state that it may have."""
        return self.part(one, state) if isinstance(state, Part) else one.array

    def part(self, one: Held, part: Part) -> Any:
        """The examples of this microbatch in a value."""
        if isinstance(one.state, Part):
            return one.array
        made = self._anew(one, part)
        if made is not None:
            return made
        shape, d = one.array.shape, part.dimension
        here = self.tracking.examples // self.count
        cut = (part.outer, here, self.count, part.inner)
        array = lax.reshape(one.array, (*shape[:d], *cut, *shape[d + 1 :]))
        array = lax.dynamic_index_in_dim(array, self.index, d + 2, keepdims=False)
        return lax.reshape(array, self._shape(shape, part))

    def _shape(self, shape: Sequence[int], part: Part) -> tuple[int, ...]:
        """The shape of an array of this microbatch's examples alone."""
        length = shape[part.dimension] // self.count
        return (*shape[: part.dimension], length, *shape[part.dimension + 1 :])

    def _shapes(self, equation: Any, states: Sequence[State]) -> list[tuple[int, ...]]:
        return [
            self._shape(var.aval.shape, state) if isinstance(state, Part) else var.aval.shape
            for var, state in zip(equation.outvars, states, strict=True)
        ]

    def _anew(self, one: Held, part: Part) -> Any:
        """A part of what is the same for all microbatches, made again; None if it is not cheap."""
        if isinstance(one.state, Part):
            return one.array
        if one.maker is None or one.maker[0].primitive.name not in FREE_PRIMITIVES:
            return None
        equation, operands, result = one.maker
        if equation.primitive.name == "iota" and equation.params["dimension"] == part.dimension:
            return None
        rule = self.tracking.rule(equation)
        place = self.tracking.place(rule, rule.results[result], part)
        if place is None or len(equation.outvars) > 1:
            return None
        arrays = []
        for operand, tensor in zip(operands, rule.operands, strict=True):
            there = self.tracking.part(rule, tensor, place)
            array = operand.array if there is None else self._anew(operand, there)
            if array is None:
                return None
            arrays.append(array)
        with compat.equation_line(equation):
            return resized(equation, arrays, [self._shape(one.array.shape, part)])[0]

    def _on_examples(
        self, equation: Any, operands: Sequence[Held], made: Sequence[State]
    ) -> list[Any]:
        tracking, rule = self.tracking, self.tracking.rule(equation)
        place = tracking.place_of(equation, [one.state for one in operands])
        arrays = []
        for one, tensor in zip(operands, rule.operands, strict=True):
            part = None if isinstance(one.state, Part) else tracking.part(rule, tensor, place)
            arrays.append(one.array if part is None else self.part(one, part))
        return resized(equation, arrays, self._shapes(equation, made))

    def _checkpoint(self, equation: Any, operands: Sequence[Held]) -> list[Any]:
        body, consts = compat.called_jaxpr(equation)

        def run(*arrays: Any) -> list[Any]:
            given = [Held(array, one.state) for array, one in zip(arrays, operands, strict=True)]
            return [one.array for one in self.walk(body, consts, given)]

        arrays = [one.array for one in operands]
        shapes = [compat.shape_struct(jax.typeof(array)) for array in arrays]
        return compat.bind_checkpoint(equation, arrays, jax.make_jaxpr(run)(*shapes))

    def _scan(self, equation: Any, operands: Sequence[Held]) -> list[Any]:
        params = equation.params
        fixed, carries = compat.scan_counts(params)
        given, _ = self.tracking.scan(equation, [one.state for one in operands])
        carried, stacked = given[fixed : fixed + carries], given[fixed + carries :]
        body = params["jaxpr"]

        def turn(carry: Sequence[Any], stack: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            here = [*map(Held, carry, carried), *map(Held, stack, stacked)]
            results = self.walk(body.jaxpr, body.consts, [*operands[:fixed], *here])
            ends = [
                self.array(one, state)
                for one, state in zip(results[:carries], carried, strict=True)
            ]
            return ends, [one.array for one in results[carries:]]

        starts = operands[fixed : fixed + carries]
        start = [self.array(one, state) for one, state in zip(starts, carried, strict=True)]
        stacks = [one.array for one in operands[fixed + carries :]]
        keys = ("length", "reverse", "unroll")
        options = {key: params[key] for key in keys}
        if params.get("_split_transpose"):
            options["_split_transpose"] = True
        ends, out = lax.scan(turn, start, stacks, **options)
        return [*ends, *out]

    def _while(self, equation: Any, operands: Sequence[Held]) -> list[Any]:
        params = equation.params
        tested, bodies = params["cond_nconsts"], params["body_nconsts"]
        carried = self.tracking.loop(equation, [one.state for one in operands])
        test, body = params["cond_jaxpr"], params["body_jaxpr"]

        def goes_on(carry: Sequence[Any]) -> Any:
            given = [*operands[:tested], *map(Held, carry, carried)]
            return self.walk(test.jaxpr, test.consts, given)[0].array

        def turn(carry: Sequence[Any]) -> list[Any]:
            given = [*operands[tested : tested + bodies], *map(Held, carry, carried)]
            results = self.walk(body.jaxpr, body.consts, given)
            return [self.array(one, state) for one, state in zip(results, carried, strict=True)]

        starts = operands[tested + bodies :]
        start = [self.array(one, state) for one, state in zip(starts, carried, strict=True)]
        return lax.while_loop(goes_on, turn, start)

    def _cond(self, equation: Any, operands: Sequence[Held], made: Sequence[State]) -> list[Any]:
        def branch(closed: Any) -> Any:
            def run() -> list[Any]:
                results = self.walk(closed.jaxpr, closed.consts, operands[1:])
                return [self.array(one, state) for one, state in zip(results, made, strict=True)]

            return run

        return lax.switch(operands[0].array, [branch(one) for one in equation.params["branches"]])


def held(atom: Any, known: dict[Any, Held]) -> Held:
    """The value of an operand."""
    return Held(atom.val, of_literal(atom)) if compat.is_literal(atom) else known[atom]
