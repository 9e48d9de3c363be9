"""Forward computations and the backward ones that read what they hand out.

A *level* is the body of the step, of a loop, of a branch or of a `jax.checkpoint`, with calls
opened. In it, a `scan` of the backward pass makes a *pair* with the forward `scan` of as many turns
from whose stacks it reads. In turn i it reads what turn i of the forward loop handed out, whichever
way each of them runs. So values of the two bodies are comparable: stacks by what was put on them,
and what both loops are given as it is (weights, slice by slice). Numbers (`numbering`) then say
which ops of the backward body compute again what the forward body has.

A differentiated `jax.checkpoint` that stands in its level (an unrolled layer) makes a pair with the
level itself: its body is the backward one, and the forward one are the ops of the level from the
first that it computes again (but for what is made of weights alone) to the last whose result it
reads. What is made before these it may read, as it reads weights; there are no turns, and for a
stack it is given the value itself.

A value of the backward body is *primal* if it depends on such values alone, and on no cotangent.
What other ops read of these, and the loop hands out, is *needed*: it is on a stack, or is computed
again from what is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard import compat
from autoshard.program.flops import is_matrix_op
from autoshard.program.keep.numbering import Numbering, repeatable
from autoshard.program.keep.opened import opened


@dataclass(eq=False, slots=True)
class Level:
    """A body: its closed jaxpr, its pairs, and the bodies in it by the place of their equation."""

    closed: Any
    pairs: list[Pair] = field(default_factory=list)
    inside: dict[int, list[Level]] = field(default_factory=dict)

    @property
    def equations(self) -> Sequence[Any]:
        """Its equations, in order."""
        return self.closed.jaxpr.eqns


@dataclass(eq=False, slots=True)
class Side:
    """One loop of a pair: its place, equation and body, and the number of every variable there.

    `given` are the numbers of what enters it in each turn, and `made` those of its results.
    """

    place: int
    equation: Any
    body: Level
    numbers: dict[Any, int]
    given: list[int]
    made: list[int]

    def atom(self, atom: Any, numbering: Numbering) -> int:
        """The number of an operand."""
        return numbering.read(atom, self.numbers)


@dataclass(eq=False, slots=True)
class Pair:
    """A forward loop, the backward loop that reads its stacks, and how values come about there.

    Attributes:
      forward, backward: the loops; or a level, and a `jax.checkpoint` in it.
      loops: which of these.
      window: places of the equations of the forward body.
      carried: numbers of what the forward loop carries into a turn: never computed again.
      shared: numbers of what both are given, by place among the forward loop's operands.
      weights: numbers of those of them that are inputs.
      stacks: numbers of what the forward loop hands out by turns, by place among its results.
      makers: by number, the side, place and equation that make it; of the forward body if it can.
      primal: places of the equations of the backward body that only make primal values.
      needed: numbers of what the rest of the backward body reads of primal values.
    """

    numbering: Numbering
    forward: Side
    backward: Side
    loops: bool
    window: range
    carried: list[int]
    shared: dict[int, int]
    weights: frozenset[int]
    stacks: dict[int, int]
    makers: dict[int, Maker]
    primal: set[int]
    needed: list[int]

    @property
    def turns(self) -> int:
        """How often the forward body runs."""
        return self.forward.equation.params["length"] if self.loops else 1

    @property
    def start(self) -> int:
        """The place in their level at which the forward computation begins."""
        return self.forward.place if self.loops else self.window.start

    def steps(self) -> Iterator[tuple[int, Any]]:
        """The equations of the forward body and their places."""
        equations = self.forward.body.equations
        for place in self.window:
            if self.loops or is_forward(equations[place]):
                yield place, equations[place]

    def operands(self, maker: Maker) -> list[int]:
        """The numbers of what an equation reads, without its literals."""
        side = self.backward if maker.again else self.forward
        atoms = maker.equation.invars
        return [side.numbers[atom] for atom in atoms if not compat.is_literal(atom)]


@dataclass(frozen=True, slots=True)
class Maker:
    """The equation that makes a value; `again` if it is of the backward body."""

    place: int
    equation: Any
    again: bool


def level_of(closed: Any, *, remat: bool = False) -> Level:
    """The body `closed`, with the pairs in it and the bodies below it.

    Args:
      closed: a closed jaxpr.
      remat: open its checkpoints: there is no barrier before what they compute again.
    """
    level = Level(opened(closed, remat=remat))
    numbering = Numbering()
    jaxpr, consts = level.closed.jaxpr, level.closed.consts
    inputs = [numbering.fresh() for _ in jaxpr.invars]
    numbers, _ = numbering.walk(jaxpr, consts, inputs)
    for first, second in _partners(level.equations):
        ends = [(k, level.equations[k]) for k in (first, second)]
        bodies = [level_of(equation.params["jaxpr"], remat=True) for _, equation in ends]
        level.inside.update({k: [body] for (k, _), body in zip(ends, bodies, strict=True)})
        level.pairs.append(_pair(numbering, numbers, ends, bodies))
    for place, equation in enumerate(level.equations):
        if equation.primitive.name in compat.REMAT and equation.params["differentiated"]:
            body = level_of(compat.closed(*compat.called_jaxpr(equation)), remat=True)
            pair = _checkpointed(numbering, numbers, level, place, body)
            if pair is not None:
                level.inside[place] = [body]
                level.pairs.append(pair)
        if place not in level.inside and (bodies := list(_bodies(equation))):
            level.inside[place] = [level_of(body) for body in bodies]
    return level


def _bodies(equation: Any) -> Iterator[Any]:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        yield params["jaxpr"]
    elif name == "while":
        yield params["body_jaxpr"]
    elif name == "cond":
        yield from params["branches"]
    elif name in compat.REMAT:
        yield compat.closed(*compat.called_jaxpr(equation))


def _partners(equations: Sequence[Any]) -> list[tuple[int, int]]:
    """Places of forward loops and of the backward loops that read most of their stacks."""
    made: dict[Any, int] = {}
    found: list[tuple[int, int]] = []
    taken: set[int] = set()
    for place, equation in enumerate(equations):
        if equation.primitive.name != "scan":
            continue
        _, carries = compat.scan_counts(equation.params)
        if is_backward(equation):
            start = sum(compat.scan_counts(equation.params))
            read = [made[a] for a in equation.invars[start:] if a in made]
            length = equation.params["length"]
            read = [k for k in read if equations[k].params["length"] == length and k not in taken]
            if read:
                partner = max(sorted(set(read)), key=read.count)
                taken.add(partner)
                found.append((partner, place))
        else:
            made.update(dict.fromkeys(equation.outvars[carries:], place))
    return found


def is_backward(equation: Any) -> bool:
    """Whether an equation is of the backward pass, and computes nothing of the forward pass."""
    stack = str(equation.source_info.name_stack)
    return "transpose(" in stack and "rematted_computation" not in stack


def is_forward(equation: Any) -> bool:
    """Whether an equation is not of the backward pass, whatever that computes again."""
    stack = str(equation.source_info.name_stack)
    return "transpose(" not in stack and equation.primitive.name not in compat.REMAT


def _checkpointed(
    numbering: Numbering, outer: dict[Any, int], level: Level, place: int, body: Level
) -> Pair | None:
    """The pair of a checkpoint and the level that it stands in; None if it has no twins there."""
    equation, jaxpr = level.equations[place], level.closed.jaxpr
    given = [numbering.read(atom, outer) for atom in equation.invars]
    back = _side(numbering, place, equation, body, given)
    again = {back.numbers[var] for one in body.equations for var in one.outvars}
    before = [(k, one) for k, one in enumerate(level.equations[:place]) if is_forward(one)]
    weights = [outer[var] for var in (*jaxpr.invars, *jaxpr.constvars)]
    own = again - tied(weights, before, outer)
    twins = [k for k, one in before if any(outer[var] in own for var in one.outvars)]
    if not twins:
        return None
    first, read = twins[0], own | set(given)
    last = max(k for k, one in before if any(outer[var] in read for var in one.outvars))
    earlier = [outer[var] for k, one in before if k < first for var in one.outvars]
    made = {outer[var] for k, one in before if first <= k <= last for var in one.outvars}
    shared = dict(enumerate(dict.fromkeys((*weights, *earlier))))
    stacks = {k: number for k, number in enumerate(given) if number in made}
    front = Side(-1, equation, level, outer, [], [])
    window = range(first, last + 1)
    pair = Pair(
        *(numbering, front, back, False, window),
        *([], shared, frozenset(weights), stacks, {}, set(), []),
    )
    _find_primal(pair, {*shared.values(), *made})
    return pair


def tied(
    weights: Iterable[int], steps: Iterable[tuple[int, Any]], numbers: Mapping[Any, int]
) -> set[int]:
    """The numbers of what ops other than products make of weights, constants and one another."""
    found = set(weights)
    for _, equation in steps:
        read = [numbers[atom] for atom in equation.invars if not compat.is_literal(atom)]
        if found.issuperset(read) and not is_matrix_op(equation.primitive.name):
            found.update(numbers[var] for var in equation.outvars)
    return found


def _pair(
    numbering: Numbering,
    outer: dict[Any, int],
    ends: Sequence[tuple[int, Any]],
    bodies: Sequence[Level],
) -> Pair:
    def sliced(equation: Any) -> tuple[list[int], int, int]:
        """The numbers of a loop's operands as its body sees them; carries are new."""
        consts, carries = compat.scan_counts(equation.params)
        numbers = [numbering.read(atom, outer) for atom in equation.invars]
        given = numbers[:consts] + [numbering.fresh() for _ in range(carries)]
        return given, consts, carries

    (first, forward), (second, backward) = ends
    given, consts, carries = sliced(forward)
    stacked = [numbering.read(a, outer) for a in forward.invars[consts + carries :]]
    given += [numbering.of("slice", number) for number in stacked]
    front = _side(numbering, first, forward, bodies[0], given)
    shared = {k: n for k, n in enumerate(given) if not consts <= k < consts + carries}
    stacks = {k: front.made[k] for k in range(carries, len(forward.outvars))}
    on_stack = {outer[forward.outvars[k]]: number for k, number in stacks.items()}

    taken, its_consts, its_carries = sliced(backward)
    for atom in backward.invars[its_consts + its_carries :]:
        number = numbering.read(atom, outer)
        taken.append(on_stack.get(number, numbering.of("slice", number)))
    back = _side(numbering, second, backward, bodies[1], taken)

    carried = given[consts : consts + carries]
    window, weights = range(len(bodies[0].equations)), frozenset(shared.values())
    pair = Pair(
        *(numbering, front, back, True, window),
        *(carried, shared, weights, stacks, {}, set(), []),
    )
    _find_primal(pair, {*shared.values(), *stacks.values()})
    return pair


def _side(numbering: Numbering, place: int, equation: Any, body: Level, given: list[int]) -> Side:
    numbers, made = numbering.walk(body.closed.jaxpr, body.closed.consts, given)
    return Side(place, equation, body, numbers, given, made)


def _find_primal(pair: Pair, available: set[int]) -> None:
    """Fill in what makes which value, what is primal, and what is needed."""
    front, back = pair.forward, pair.backward
    makers = pair.makers
    for place, equation in pair.steps():
        for var in equation.outvars:
            makers.setdefault(front.numbers[var], Maker(place, equation, False))
    constants = back.body.closed.jaxpr.constvars
    primal = available | {back.numbers[var] for var in constants}
    needed: dict[int, None] = {}
    for place, equation in enumerate(back.body.equations):
        read = [back.numbers[a] for a in equation.invars if not compat.is_literal(a)]
        if repeatable(equation) and primal.issuperset(read):
            pair.primal.add(place)
            for var in equation.outvars:
                primal.add(back.numbers[var])
                makers.setdefault(back.numbers[var], Maker(place, equation, True))
        else:
            needed.update(dict.fromkeys(number for number in read if number in primal))
    needed.update(dict.fromkeys(number for number in back.made if number in primal))
    literals = {
        pair.numbering.literal(a) for a in back.body.closed.jaxpr.outvars if compat.is_literal(a)
    }
    pair.needed = [n for n in needed if n not in literals]
