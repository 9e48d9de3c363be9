"""A step that saves what is chosen, and computes the rest again in its backward pass.

    residuals = find_residuals(closed)
    closed = with_saved(closed, residuals, {"layers/attention/dot_general", ...})
    closed = with_saved(closed, residuals, names, offloaded={"layers/carry"})

The step is traced anew. A forward loop hands out a stack of each chosen value that the backward
loop needs, and the backward loop begins with the ops that make the others, under the scope
`rematted_computation` and with their source lines. Nothing else changes, so that the numbers are
the same to the last bit. The two computations are in different loops, or the second stays in its
`jax.checkpoint`, so that XLA does not merge them. What nobody reads any more is dropped.

A stack may lie in the memory of the host: each turn of the forward loop puts its part there, and
each turn of the backward loop fetches it. With `prefetch` a turn puts there what the turn before it
made, and fetches what the next one reads, so that a transfer has a whole turn to run beside: one
more carry holds what is on its way. The last turn's part stays on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.program.keep.levels import Level, Maker, Pair
from autoshard.program.keep.residuals import Demand, Residuals, demand_of, variable_of

_AGAIN = "rematted_computation"
"""The scope under which JAX computes again, by which traced ops are told apart."""


def with_saved(
    closed: Any,
    residuals: Residuals,
    saved: Collection[str],
    offloaded: Collection[str] = (),
    *,
    prefetch: bool | Collection[str] = False,
) -> Any:
    """The closed jaxpr of a step with the same results that saves the values named in `saved`.

    Args:
      closed: the step.
      residuals: its candidates, from `find_residuals(closed)`.
      saved: names of candidates. Of these, the ones that nothing needs then are not saved.
      offloaded: names of stacks (`Residuals.stacks`) that wait in the memory of the host.
      prefetch: whether they move a turn late there, and come a turn early; or the names of those
        that do.

    Raises:
      KeepError: a name is of no candidate or stack, or a value that must be saved is not named.
    """
    residuals.check(saved)
    away = residuals.hosted(saved, offloaded)
    early = offloaded if prefetch is True else prefetch or ()
    ahead = residuals.hosted(saved, set(early).intersection(offloaded))
    if not residuals.values and not away:
        return closed
    shapes = [compat.shape_struct(aval) for aval in closed.in_avals]

    def demand(pair: Pair) -> Demand:
        return demand_of(pair, residuals.numbers(pair, saved))

    def run(*arrays: Any) -> list[Any]:
        return _Rewriter(demand, away, ahead).run(residuals.level, arrays)

    return compat.drop_dead_code(jax.make_jaxpr(run)(*shapes))


class _Body:
    """The arrays of one level while it is traced: by variable, and what pairs hand on by number.

    Attributes:
      stacks: by the place of a forward loop, arrays by number.
      last: likewise, of stacks on the host what the last turn made, on the device.
    """

    def __init__(self, level: Level, arrays: Sequence[Any]) -> None:
        jaxpr, consts = level.closed.jaxpr, level.closed.consts
        self.level = level
        self.arrays: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        self.arrays.update(zip(jaxpr.invars, arrays, strict=True))
        self.stacks: dict[int, dict[int, Any]] = {}
        self.last: dict[int, dict[int, Any]] = {}

    def read(self, atom: Any) -> Any:
        return atom.val if compat.is_literal(atom) else self.arrays[atom]

    def write(self, equation: Any, results: Sequence[Any]) -> None:
        self.arrays.update(zip(equation.outvars, results, strict=True))

    def results(self) -> list[Any]:
        return [self.read(atom) for atom in self.level.closed.jaxpr.outvars]


class _BackwardBody(_Body):
    """A backward body: arrays are known by their numbers, whichever loop's variable names them."""

    def __init__(self, pair: Pair, known: dict[int, Any]) -> None:
        self.level = pair.backward.body
        self.pair, self.known = pair, known
        self.numbers = pair.backward.numbers
        self.stacks, self.last = {}, {}

    def read(self, atom: Any) -> Any:
        return atom.val if compat.is_literal(atom) else self.known[self.numbers[atom]]

    def write(self, equation: Any, results: Sequence[Any]) -> None:
        for var, result in zip(equation.outvars, results, strict=True):
            self.known.setdefault(self.numbers[var], result)


class _Rewriter:
    """One trace of a step with the choices made.

    `away` are the numbers of stacks on the host, `ahead` those of them that are fetched a turn
    early.
    """

    def __init__(
        self,
        demand: Callable[[Pair], Demand],
        away: Mapping[Pair, Collection[int]],
        ahead: Mapping[Pair, Collection[int]],
    ) -> None:
        self.demand, self.away, self.ahead = demand, away, ahead

    def run(self, level: Level, arrays: Sequence[Any]) -> list[Any]:
        """The results of a level."""
        return self._run(level, arrays).results()

    def _run(self, level: Level, arrays: Sequence[Any]) -> _Body:
        body = _Body(level, arrays)
        for place, equation in enumerate(level.equations):
            self._step(body, level, place, equation)
        return body

    def _step(
        self, body: _Body, level: Level, place: int, equation: Any, *, early: bool = False
    ) -> None:
        """Run one equation of `level` in `body`; `early` if the forward pass is to make it."""
        forward = next((pair for pair in level.pairs if pair.forward.place == place), None)
        backward = next((pair for pair in level.pairs if pair.backward.place == place), None)
        with compat.equation_context(equation, forward=early):
            if forward is not None:
                results = self._forward(body, forward)
            elif backward is not None and backward.loops:
                results = self._backward(body, backward)
            elif backward is not None:
                results = self._checkpointed(body, backward)
            else:
                operands = [body.read(atom) for atom in equation.invars]
                bodies = list(map(self._traced, level.inside.get(place, [])))
                results = bind(equation, operands, bodies)
        body.write(equation, results)
        for pair in level.pairs:
            if not pair.loops and pair.window.stop == place + 1:
                wanted = self.demand(pair)
                every = (*wanted.stacks, *wanted.shared)
                body.stacks[pair.backward.place] = self._known(pair, body.arrays, every)

    def _traced(self, level: Level) -> Any:
        shapes = [compat.shape_struct(aval) for aval in level.closed.in_avals]
        return jax.make_jaxpr(lambda *arrays: self.run(level, arrays))(*shapes)

    def _forward(self, outside: _Body, pair: Pair) -> list[Any]:
        """The forward loop, with a stack of each value that the backward loop is to find there."""
        equation, level = pair.forward.equation, pair.forward.body
        away = self.away.get(pair, ())
        handed = {n: k for k, n in reversed(pair.stacks.items()) if n not in away}
        new = [number for number in self.demand(pair).stacks if number not in handed]
        fixed, carries = compat.scan_counts(equation.params)
        sent = [n for n in new if n in self.ahead.get(pair, ())]
        begun = fixed + carries

        def turn(arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            before, arrays = _split(arrays, begun, len(sent))
            body = self._run(level, arrays)
            results = body.results()
            known = self._known(pair, body.arrays, new)
            stacked = known | dict(zip(sent, before, strict=True))
            extra = [
                jax.device_put(stacked[n], jax.memory.Space.Host) if n in away else stacked[n]
                for n in new
            ]
            return [*results[:carries], *(known[n] for n in sent)], [*results[carries:], *extra]

        operands = [(outside.read(atom), atom.aval) for atom in equation.invars]
        empty = [_zeros(pair, n) for n in sent]
        results = loop_of(equation, operands, [], [], turn, carried=empty)
        last, results = _split(results, carries, len(sent))
        count = len(equation.outvars)
        outside.last[pair.forward.place] = dict(zip(sent, last, strict=True))
        outside.stacks[pair.forward.place] = {
            **{number: results[k] for number, k in handed.items()},
            **dict(zip(new, results[count:], strict=True)),
        }
        return results[:count]

    def _known(
        self, pair: Pair, arrays: Mapping[Any, Any], wanted: Sequence[int]
    ) -> dict[int, Any]:
        """Arrays of a forward body by number, with those `wanted` that its backward body makes."""
        front, back = pair.forward, pair.backward
        known = {front.numbers[var]: array for var, array in arrays.items() if var in front.numbers}
        body = _BackwardBody(pair, known)
        constants = zip(back.body.closed.jaxpr.constvars, back.body.closed.consts, strict=True)
        known.update((back.numbers[var], array) for var, array in constants)
        for place in _made_later(pair, [number for number in wanted if number not in known]):
            self._step(body, back.body, place, back.body.equations[place], early=True)
        return known

    def _backward(self, outside: _Body, pair: Pair) -> list[Any]:
        """The backward loop, which first makes what is not on stacks."""
        equation, demand = pair.backward.equation, self.demand(pair)
        front, back = pair.forward, pair.backward
        fixed, _ = compat.scan_counts(front.equation.params)
        _, carries = compat.scan_counts(equation.params)
        shared = [(k, n) for k, n in pair.shared.items() if n in demand.shared - set(back.given)]
        sources = {k: front.equation.invars[k] for k, _ in shared}
        consts = [(n, outside.read(sources[k]), sources[k].aval) for k, n in shared if k < fixed]
        slices = [(n, outside.read(sources[k]), sources[k].aval) for k, n in shared if k >= fixed]
        stacks = outside.stacks[front.place]
        slices += [(n, stacks[n], jax.typeof(stacks[n])) for n in demand.stacks]
        gone = set(pair.stacks.values()) - set(pair.shared.values()) - set(demand.stacks)
        last, away = outside.last[front.place], self.away.get(pair, ())
        begun = len(consts) + sum(compat.scan_counts(equation.params))

        def turn(arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            here, arrays = _split(arrays, begun, len(last))
            given = [*(n for n, _, _ in consts), *back.given, *(n for n, _, _ in slices)]
            known = {n: array for n, array in zip(given, arrays, strict=True) if n not in gone}
            known.update((n, jax.device_put(known[n], jax.memory.Space.Device)) for n in away)
            coming = [known[n] for n in last]
            known.update(zip(last, here, strict=True))
            for side in (front, back):
                closed = side.body.closed
                numbers = (side.numbers[var] for var in closed.jaxpr.constvars)
                known.update(zip(numbers, closed.consts, strict=True))
            results = self._backward_body(pair, demand, known)
            return [*results[:carries], *coming], results[carries:]

        operands = [(outside.read(atom), atom.aval) for atom in equation.invars]
        first = [(array, jax.typeof(array)) for array in last.values()]
        more = [pair[1:] for pair in consts], [pair[1:] for pair in slices]
        results = loop_of(equation, operands, *more, turn, carried=first)
        return _split(results, carries, len(first))[1]

    def _checkpointed(self, outside: _Body, pair: Pair) -> list[Any]:
        """A checkpoint that is given what is saved, and first makes what is not."""
        equation, demand, back = pair.backward.equation, self.demand(pair), pair.backward
        wanted = [n for n in (*demand.stacks, *demand.shared) if n not in back.given]
        arrays = outside.stacks[pair.backward.place]
        gone = set(pair.stacks.values()) - set(demand.stacks)

        def run(*given: Any) -> list[Any]:
            known = dict(zip((*back.given, *wanted), given, strict=True))
            closed = back.body.closed
            constants = (back.numbers[var] for var in closed.jaxpr.constvars)
            known.update(zip(constants, closed.consts, strict=True))
            kept = {number: array for number, array in known.items() if number not in gone}
            return self._backward_body(pair, demand, kept)

        operands = [*map(outside.read, equation.invars), *(arrays[n] for n in wanted)]
        avals = [atom.aval for atom in equation.invars] + [jax.typeof(arrays[n]) for n in wanted]
        closed = jax.make_jaxpr(run)(*map(compat.shape_struct, avals))
        return compat.bind_checkpoint(equation, operands, closed)

    def _backward_body(self, pair: Pair, demand: Demand, known: dict[int, Any]) -> list[Any]:
        body, back = _BackwardBody(pair, known), pair.backward
        with_twin = {
            back.numbers[var]: place
            for place in sorted(pair.primal, reverse=True)
            for var in back.body.equations[place].outvars
        }
        for maker in demand.again:
            places = {
                with_twin.get(pair.forward.numbers[var])
                for var in maker.equation.outvars
                if not maker.again and pair.forward.numbers[var] in with_twin
            }
            self._again(body, maker, sorted(place for place in places if place is not None))
        for place, equation in enumerate(back.body.equations):
            if place not in pair.primal:
                self._step(body, back.body, place, equation)
        return body.results()

    def _again(self, body: _BackwardBody, maker: Maker, twins: Sequence[int]) -> None:
        """Compute again: by the backward body's own equation if it has one, else by a copy."""
        back = body.pair.backward
        places = [maker.place] if maker.again else list(twins)
        for place in places:
            self._step(body, back.body, place, back.body.equations[place])
        made = {body.pair.forward.numbers.get(var) for var in maker.equation.outvars}
        if maker.again or made <= set(body.known):
            return
        front = body.pair.forward
        body.numbers = front.numbers
        with jax.named_scope(_AGAIN):
            self._step(body, front.body, maker.place, maker.equation)
        body.numbers = back.numbers


def _zeros(pair: Pair, number: int) -> tuple[Any, Any]:
    """An array of zeros like a forward value, and its abstract value."""
    aval = variable_of(pair, number).aval
    array = jnp.zeros(aval.shape, aval.dtype)
    return array, jax.typeof(array)


def _split(arrays: Sequence[Any], begin: int, count: int) -> tuple[list[Any], list[Any]]:
    """The `count` arrays from `begin` on, and the others."""
    return list(arrays[begin : begin + count]), [*arrays[:begin], *arrays[begin + count :]]


def _made_later(pair: Pair, numbers: Sequence[int]) -> list[int]:
    """Places of the backward body's equations that make these numbers of forward values."""
    todo, places = list(numbers), set[int]()
    while todo:
        maker = pair.makers.get(todo.pop())
        if maker is not None and maker.again and maker.place not in places:
            places.add(maker.place)
            todo += pair.operands(maker)
    return sorted(places)


def bind(equation: Any, operands: Sequence[Any], bodies: Sequence[Any]) -> list[Any]:
    """Apply an equation, with other bodies in place of its own if it has some."""
    if not bodies:
        return compat.bind_equation(equation, operands)
    name = equation.primitive.name
    if name in compat.REMAT:
        return compat.bind_checkpoint(equation, operands, bodies[0])
    if name == "cond":
        return compat.bind_equation(equation, operands, branches=tuple(bodies))
    key = "jaxpr" if name == "scan" else "body_jaxpr"
    return compat.bind_equation(equation, operands, **{key: bodies[0]})


def loop_of(
    equation: Any,
    operands: Sequence[tuple[Any, Any]],
    consts: Sequence[tuple[Any, Any]],
    slices: Sequence[tuple[Any, Any]],
    turn: Callable[[Sequence[Any]], tuple[list[Any], list[Any]]],
    *,
    carried: Sequence[tuple[Any, Any]] = (),
    length: int | None = None,
) -> list[Any]:
    """A loop like that of `equation`, with more constants before its operands and stacks behind.

    Operands are arrays with their abstract values; `turn` takes what enters one turn, in order, and
    returns what it carries and what it hands out. What is `carried` besides comes after what the
    loop carries. There are `length` turns, by default as many.
    """
    params = equation.params
    fixed, carries = compat.scan_counts(params)
    begun = fixed + carries
    whole = [*consts, *operands[:begun], *carried, *operands[begun:], *slices]
    fixed, carries = fixed + len(consts), carries + len(carried)
    options = {key: params[key] for key in ("_split_transpose",) if params.get(key)}

    def loop(*arrays: Any) -> Any:
        def step(carry: Any, one: Any) -> Any:
            return turn([*arrays[:fixed], *carry, *one])

        start, stacks = list(arrays[fixed : fixed + carries]), list(arrays[fixed + carries :])
        turns, unroll = length or params["length"], params["unroll"]
        reverse = params["reverse"]
        end, out = jax.lax.scan(
            step, start, stacks, turns, reverse=reverse, unroll=unroll, **options
        )
        return [*end, *out]

    shapes = [compat.shape_struct(aval) for _, aval in whole]
    return jaxpr_as_fun(jax.make_jaxpr(loop)(*shapes))(*(array for array, _ in whole))
