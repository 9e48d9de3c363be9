"""A step some of whose loops run in parts, one after another, each of which may save other values.

    closed = with_parts(closed, {"layers": [24]})

A forward `scan` of 32 turns, whose stacks a backward one reads, becomes two, of turns 0 to 24 and
24 to 32, and so does the backward one. What the parts make is what the whole made, to the last bit:
carries go from part to part, and stacks of several parts are joined where anything but the other
loop of the pair reads them. What both parts read of one array, turn by turn (weights), they look
up in the whole of it, as a `scan` does (under the scope `scan_slice`): nothing is copied. Each part
has a scope `turns_START_STOP`, which requirements do not know (`autoshard.program.keep.names`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard import compat
from autoshard.program.keep.levels import Level, Pair
from autoshard.program.keep.names import turns_scope
from autoshard.program.keep.residuals import KeepError, Residuals
from autoshard.program.keep.rewrite import bind, loop_of


def with_parts(closed: Any, residuals: Residuals, parts: Mapping[str, Sequence[int]]) -> Any:
    """The closed jaxpr of a step with the same results whose named loops run in parts.

    Args:
      closed: the step.
      residuals: its candidates, from `find_residuals(closed)`.
      parts: by the name of a loop (`Residuals.loops`), the turns at which a further part begins.

    Raises:
      KeepError: no loop is called so, or it has no such turns.
    """
    if not parts:
        return closed
    known = residuals.loops
    cuts: dict[Pair, list[tuple[int, int]]] = {}
    for name, starts in parts.items():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise KeepError(f"no loop has a backward one and is called {name}; those: {listed}")
        turns = known[name].turns
        ends = [0, *starts, turns]
        if not starts or any(a >= b for a, b in itertools.pairwise(ends)):
            raise KeepError(
                f"{name} has {turns} turns, so that no parts of it begin at {list(starts)}: give "
                f"turns between 1 and {turns - 1}, the first ones first"
            )
        cuts[known[name]] = list(itertools.pairwise(ends))
    shapes = [compat.shape_struct(aval) for aval in closed.in_avals]
    run = _Cutter(cuts).run
    made = jax.make_jaxpr(lambda *arrays: run(residuals.level, arrays))(*shapes)
    return compat.drop_dead_code(made)


class _Cutter:
    """One trace of a step; `cuts` are the first turn and the end of each part, by pair."""

    def __init__(self, cuts: Mapping[Pair, Sequence[tuple[int, int]]]) -> None:
        self.cuts = cuts

    def run(self, level: Level, arrays: Sequence[Any]) -> list[Any]:
        """The results of a level."""
        jaxpr = level.closed.jaxpr
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, level.closed.consts, strict=True))
        known.update(zip(jaxpr.invars, arrays, strict=True))
        pieces: dict[Any, list[Any]] = {}

        def read(atom: Any) -> Any:
            return atom.val if compat.is_literal(atom) else known[atom]

        cut = {
            side.place: pair
            for pair in level.pairs
            if pair in self.cuts
            for side in (pair.forward, pair.backward)
        }
        for place, equation in enumerate(level.equations):
            operands, inside = [read(atom) for atom in equation.invars], level.inside.get(place, [])
            with compat.equation_context(equation):
                if place in cut:
                    ranges = self.cuts[cut[place]]
                    results = self._in_parts(equation, operands, inside[0], ranges, pieces)
                else:
                    results = bind(equation, operands, list(map(self._traced, inside)))
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _traced(self, level: Level) -> Any:
        shapes = [compat.shape_struct(aval) for aval in level.closed.in_avals]
        return jax.make_jaxpr(lambda *arrays: self.run(level, arrays))(*shapes)

    def _in_parts(
        self,
        equation: Any,
        operands: Sequence[Any],
        body: Level,
        ranges: Sequence[tuple[int, int]],
        pieces: dict[Any, list[Any]],
    ) -> list[Any]:
        """The results of a loop; `pieces` are the parts of stacks by variable, its own added."""
        fixed, carries = compat.scan_counts(equation.params)
        carried, numbers = list(operands[fixed : fixed + carries]), list(range(len(ranges)))
        made: dict[int, list[Any]] = {}
        for number in reversed(numbers) if equation.params["reverse"] else numbers:
            given = [*operands[:fixed], *carried, *operands[fixed + carries :]]
            stacks = {
                k: pieces[atom][number]
                for k, atom in enumerate(equation.invars)
                if k >= fixed + carries and not compat.is_literal(atom) and atom in pieces
            }
            results = self._part(equation, given, body, ranges[number], stacks)
            carried, made[number] = results[:carries], results[carries:]
        parts = [list(one) for one in zip(*(made[k] for k in numbers), strict=True)]
        pieces.update(zip(equation.outvars[carries:], parts, strict=True))
        return [*carried, *(lax.concatenate(one, 0) for one in parts)]

    def _part(
        self,
        equation: Any,
        operands: Sequence[Any],
        body: Level,
        turns: tuple[int, int],
        stacks: Mapping[int, Any],
    ) -> list[Any]:
        """The results of some turns of a loop.

        Args:
          operands: of the loop, with what is carried into these turns.
          turns: the first of them, and the one after the last.
          stacks: operands of these turns alone, by place.
        """
        start, stop = turns
        fixed, carries = compat.scan_counts(equation.params)
        count = len(operands)
        looked_up = [k for k in range(fixed + carries, count) if k not in stacks]

        def turn(arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            *arrays, index = arrays
            wholes, rest = arrays[: len(looked_up)], arrays[len(looked_up) :]
            given = dict(enumerate(rest[: fixed + carries]))
            given.update(zip(sorted(stacks), rest[fixed + carries :], strict=True))
            with compat.equation_line(equation), jax.named_scope("scan_slice"):
                given.update(
                    (
                        k,
                        lax.dynamic_index_in_dim(
                            whole, index, keepdims=False, allow_negative_indices=False
                        ),
                    )
                    for k, whole in zip(looked_up, wholes, strict=True)
                )
            results = self.run(body, [given[k] for k in range(count)])
            return results[:carries], results[carries:]

        mine = [*operands[: fixed + carries], *(stacks[k] for k in sorted(stacks))]
        typed = [(array, jax.typeof(array)) for array in mine]
        wholes = [(operands[k], jax.typeof(operands[k])) for k in looked_up]
        with jax.named_scope(turns_scope(start, stop)):
            index = jnp.arange(start, stop, dtype=jnp.int32)
            indices = [(index, jax.typeof(index))]
            return loop_of(equation, typed, wholes, indices, turn, length=stop - start)
