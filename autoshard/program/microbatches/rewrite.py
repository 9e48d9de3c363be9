"""A step whose examples are worked on in microbatches, by a loop around what reaches them.

    closed = with_microbatches(closed, 4, state={0, 1, 2})

Microbatch `i` of `m` takes the examples `i`, `i + m`, `i + 2m`, ...: if the batch is sharded, every
device finds its part of each microbatch among its own examples. Sums over examples (the loss, and
gradients) are carried, those of 16-bit numbers in float32. Constants stay as they are, so that a
mean is the sum of what the microbatches add to it: the numbers are the same but for the order of
additions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard import compat
from autoshard.program.keep.opened import opened
from autoshard.program.microbatches.cut import Cut, find_cut, product_flops
from autoshard.program.microbatches.run import Held, Microbatch, held
from autoshard.program.microbatches.states import FIXED, CutError, Kind, Part
from autoshard.program.microbatches.sums import sum_dtype
from autoshard.program.microbatches.tracking import Tracking
from autoshard.program.rules.choose import UserRules

SCOPE = "microbatches"
"""The scope of the loop."""


def with_microbatches(
    closed: Any,
    count: int,
    *,
    state: Collection[int],
    user_rules: UserRules | None = None,
    mark: str = "",
) -> Any:
    """The closed jaxpr of a step with the same results that works on `count` parts of its batch.

    The batch are inputs other than the `state` that have as many examples as first dimension; of
    several such dimensions, the one that reaches most FLOP.

    Args:
      closed: the step.
      count: how many microbatches, 2 or more.
      state: positions of the inputs that the step hands on to the next.
      user_rules: sharding rules of opaque ops.
      mark: the name of a call that holds the work of one microbatch; by default there is none.

    Raises:
      CutError: no input has a first dimension that `count` divides, or an op does something else
        with examples than to keep them apart or to sum over them; the op is named.
    """
    if count < 2:
        raise ValueError(f"{count} microbatches do not cut the batch; give 2 or more")
    level = opened(closed, remat=False)
    tracking, parts, cut = _best_cut(level, count, state, user_rules)
    step = _Step(level, count, tracking, parts, cut, mark)
    shapes = [compat.shape_struct(aval) for aval in level.in_avals]
    return compat.drop_dead_code(jax.make_jaxpr(step.run)(*shapes))


def examples_in(
    closed: Any, *, state: Collection[int], user_rules: UserRules | None = None
) -> frozenset[int]:
    """Positions of the inputs of a closed jaxpr that hold the examples of its batch.

    Args:
      closed, state, user_rules: as of `with_microbatches`.

    Raises:
      CutError: as `with_microbatches`, of any count.
    """
    return frozenset(_best_cut(opened(closed, remat=False), 1, state, user_rules)[1])


def _best_cut(
    level: Any, count: int, state: Collection[int], user_rules: UserRules | None
) -> tuple[Tracking, dict[int, Part], Cut]:
    """The batch of a step without calls, and the cut that it allows. Raises CutError."""
    batches = _batches(level, count, state)
    total = product_flops(level.jaxpr.eqns)
    found: list[tuple[float, Tracking, dict[int, Part], Cut]] = []
    faults: list[str] = []
    for examples, positions in batches.items():
        tracking = Tracking(level, examples, user_rules or {})
        parts = {k: Part(0) for k in positions}
        try:
            cut = find_cut(tracking, level, parts)
        except CutError as error:
            faults.append(str(error))
            continue
        inside = product_flops([level.jaxpr.eqns[k] for k in cut.loop])
        if cut.loop and 2 * inside >= total:
            found.append((inside, tracking, parts, cut))
        else:
            faults.append(f"a first dimension of {examples} reaches {inside:.3g} of the FLOP")
    if not found:
        listed = "".join(f"\n  * {fault}" for fault in faults)
        raise CutError(f"the step cannot be cut into {count} microbatches:{listed}")
    return max(found, key=lambda one: one[0])[1:]


def _batches(closed: Any, count: int, state: Collection[int]) -> dict[int, list[int]]:
    """Positions of the inputs that may hold examples, by how many. Raises CutError."""
    found: dict[int, list[int]] = {}
    shapes = {k: aval.shape for k, aval in enumerate(closed.in_avals) if k not in state}
    for position, shape in shapes.items():
        if shape and shape[0] and not shape[0] % count:
            found.setdefault(shape[0], []).append(position)
    if not found:
        listed = ", ".join(map(str, shapes.values())) or "none"
        raise CutError(
            f"the step cannot be cut into {count} microbatches: this divides the first dimension "
            f"of no input beside its state; these have the shapes {listed}"
        )
    return found


class _Step:
    """A step on flat inputs, in microbatches."""

    def __init__(
        self,
        closed: Any,
        count: int,
        tracking: Tracking,
        parts: Mapping[int, Part],
        cut: Cut,
        mark: str,
    ) -> None:
        self.closed, self.jaxpr, self.count, self.mark = closed, closed.jaxpr, count, mark
        self.tracking, self.parts, self.cut = tracking, parts, cut

    def run(self, *arrays: Any) -> list[Any]:
        """The results of the step."""
        jaxpr, cut = self.jaxpr, self.cut
        known = {
            var: Held(array, Kind.WHOLE)
            for var, array in zip(
                (*jaxpr.constvars, *jaxpr.invars), (*self.closed.consts, *arrays), strict=True
            )
        }
        self._whole(cut.before, known)
        results = self._loop(known, arrays)
        known.update({var: Held(array, Kind.WHOLE) for var, array in results.items()})
        self._whole(cut.after, known)
        return [held(atom, known).array for atom in jaxpr.outvars]

    def _whole(self, places: Sequence[int], known: dict[Any, Held]) -> None:
        """Run equations on all examples."""
        for place in places:
            equation = self.jaxpr.eqns[place]
            operands = [held(atom, known) for atom in equation.invars]
            with compat.equation_context(equation):
                results = compat.bind_equation(equation, [one.array for one in operands])
            states = [self.cut.states[var] for var in equation.outvars]
            for k, (var, array) in enumerate(zip(equation.outvars, results, strict=True)):
                state = states[k] if states[k] in FIXED else Kind.WHOLE
                known[var] = Held(array, state, (equation, operands, k))

    def _loop(self, known: Mapping[Any, Held], arrays: Sequence[Any]) -> dict[Any, Any]:
        """What the loop hands out, by variable."""
        cut, variables = self.cut, self.jaxpr.invars
        inputs = [variables[k] for k in self.parts]
        fixed = {var: one for var, one in known.items() if cut.states[var] in FIXED}

        def work(index: Any, batch: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            here = Microbatch(self.tracking, self.count, index)
            values = {
                **fixed,
                **dict(zip(inputs, map(Held, batch, self.parts.values()), strict=True)),
            }
            for place in cut.loop:
                equation = self.jaxpr.eqns[place]
                operands = [held(atom, values) for atom in equation.invars]
                with compat.equation_context(equation):
                    results = here.equation(equation, operands)
                values.update(
                    (var, fixed.get(var, result))
                    for var, result in zip(equation.outvars, results, strict=True)
                )
            terms = [values[var].array.astype(sum_dtype(var.aval.dtype)) for var in cut.sums]
            return terms, [values[var].array for var in (*cut.stacked, *cut.alike)]

        if self.mark:
            work.__name__ = work.__qualname__ = self.mark
        of_one = jax.jit(work) if self.mark else work

        def turn(sums: Sequence[Any], one: Any) -> tuple[list[Any], Any]:
            terms, stacked = of_one(*one)
            return [total + term for total, term in zip(sums, terms, strict=True)], stacked

        zeros = [jnp.zeros(v.aval.shape, sum_dtype(v.aval.dtype)) for v in cut.sums]
        batch = [_dealt(arrays[k], self.count) for k in self.parts]
        with jax.named_scope(SCOPE):
            steps = jnp.arange(self.count, dtype=jnp.int32)
            sums, stacks = lax.scan(turn, zeros, (steps, batch))
            made = dict(zip((*cut.stacked, *cut.alike), stacks, strict=True))
            return {
                **{v: s.astype(v.aval.dtype) for v, s in zip(cut.sums, sums, strict=True)},
                **{var: self._collected(made[var], var) for var in cut.stacked},
                **{var: made[var][0] for var in cut.alike},
            }

    def _collected(self, stack: Any, var: Any) -> Any:
        """All examples of what the microbatches made, `[microbatches, ...]`, in their order."""
        part = self.cut.states[var]
        assert isinstance(part, Part)
        shape, d = stack.shape[1:], part.dimension
        here = self.tracking.examples // self.count
        cut = (*shape[:d], part.outer, here, part.inner, *shape[d + 1 :])
        stack = lax.reshape(stack, (self.count, *cut))
        return lax.reshape(jnp.moveaxis(stack, 0, d + 2), var.aval.shape)


def _dealt(array: Any, count: int) -> Any:
    """`[examples, ...]` as `[microbatches, examples / microbatches, ...]`."""
    here, rest = array.shape[0] // count, array.shape[1:]
    return jnp.swapaxes(lax.reshape(array, (here, count, *rest)), 0, 1)
