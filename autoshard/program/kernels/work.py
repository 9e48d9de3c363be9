"""What a Pallas call computes and moves: its body at every step of its grid.

    FLOP     = sum over equations of FLOP(equation) x steps that run it
    bytes    = sum over arrays of block bytes x moves of the block

A step runs a branch where its condition holds. Conditions of places in the grid, and of scalars
that the program gives as constants, are computed for all steps at once, so that blocks which a
causal mask skips count as nothing; of other conditions the dearest branch counts. A block is moved
where its index is another one than a step before; one that data decides on is taken to be moved at
every step.

Along an axis of which parts are told where they start, masks by position leave some parts more to
do than others: `KernelWork.uneven` has the shares of its places, by the FLOP of their steps.

What the author says (`pl.CostEstimate`) counts where it is less, since such estimates mostly leave
out what masks skip, and where data decides how much there is to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.kernels.cuts import GridCut, kernel_cuts
from autoshard.program.kernels.known.attention import known_attention
from autoshard.program.kernels.records import Arithmetic, Counts, KernelWork, Uneven
from autoshard.program.kernels.ring import Ring
from autoshard.program.kernels.scalars import Array, compute, is_scalar

LARGEST = 2**22
"""Steps of a grid up to which conditions and indices are computed."""
CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "remat2"})
NOTHING = frozenset(
    {
        *("get", "swap", "masked_load", "masked_swap", "load", "store", "program_id"),
        *("num_programs", "multiple_of", "debug_print", "debug_callback", "add_dependency"),
    }
)
"""What only reads, writes and names in a kernel."""


def kernel_work(
    equation: Any, counts: Counts, constants: Sequence[Array | None] = ()
) -> KernelWork:
    """The work of an equation of `pallas_call`.

    Args:
      equation: of the call.
      counts: what the equations of its body compute.
      constants: the operands that are constants of the program; None for others.

    Raises:
      ValueError: its grid has no steps, and results that they would write.
    """
    call = compat.kernel_call(equation)
    if 0 in call.grid:
        return _no_work(equation, call)
    given = [*constants, *[None] * len(equation.invars)][call.bounds : call.bounds + call.scalars]
    cuts = kernel_cuts(equation)
    told = [one for one in cuts.cuts if one.told]
    steps = _Steps(call, counts, given, {one.axis: 0.0 for one in told})
    found = steps.arithmetic()
    moved = sum(
        steps.moves(block) * math.prod(block.sizes) * block.itemsize for block in call.blocks
    )
    if call.estimate is not None:
        found, moved = _estimated(found, moved, call.estimate, guessed=steps.guessed)
    first = call.bounds + call.scalars
    uneven = tuple(
        Uneven(first + one.dims[-1][0], one.dims[-1][1], shares)
        for one in told
        if (shares := _shares(steps.along[one.axis], one.parts))
    )
    halves = _halves(equation, first, told, uneven[0]) if len(uneven) == 1 else None
    known = known_attention(equation)
    ring = known.ring if known is not None and known.holds(constants) else None
    rings = tuple(one for one in (halves, ring) if one is not None)
    return KernelWork(
        call.name,
        call.grid,
        found,
        steps.dtype,
        moved,
        steps.guessed,
        cuts.whole,
        uneven,
        rings,
        tuple(dict.fromkeys(steps.unknown)) if call.estimate is None else (),
    )


def _no_work(equation: Any, call: compat.KernelCall) -> KernelWork:
    """The work of a grid without steps, which nothing may depend on. Raises ValueError."""
    if any(var.aval.size for var in equation.outvars):
        line = compat.source_line(equation) or "an unknown line"
        raise ValueError(
            f"{line}: the grid {call.grid} of the kernel {call.name} has no steps, so that nobody "
            "writes its results: give it one for each block, the last one of a remainder, too "
            "(pl.cdiv)"
        )
    return KernelWork(call.name, call.grid, Arithmetic(), "float32", 0.0, False, ())


def _halves(equation: Any, first: int, told: Sequence[GridCut], uneven: Uneven) -> Ring | None:
    """What is exchanged so that devices have as much to do; None where parts have no halves."""
    (cut,) = (one for one in told if one.dims[-1] == (uneven.tensor - first, uneven.dimension))
    if cut.parts % 2 or cut.parts < 4:
        return None
    numbers = [first + number for number, _ in cut.dims]
    operands = tuple(k for k in numbers if k < len(equation.invars))
    results = tuple(k for k in numbers if k >= len(equation.invars))
    places = tuple((first + number, d) for number, d in cut.dims)
    return Ring(True, operands, results, (), places=places, parts=cut.parts // 2)


def _shares(flops: Any, parts: int) -> tuple[float, ...]:
    """The shares of so many groups of places in the FLOP of all places; none if they are equal."""
    found = np.atleast_1d(flops)
    if found.size % parts or not found.sum():
        return ()
    shares = found.reshape(parts, -1).sum(1) / found.sum()
    return () if np.allclose(shares, 1.0 / parts) else tuple(shares.tolist())


def _estimated(
    found: Arithmetic, moved: float, estimate: tuple[float, float, float], *, guessed: bool
) -> tuple[Arithmetic, float]:
    """What was counted, held to what the author of the kernel says."""
    flops, exponentials, bytes_moved = estimate
    share = flops / (found.products or found.flops or 1.0)
    if not guessed:
        share = min(share, 1.0)
        exponentials = min(exponentials, found.exponentials) if exponentials else found.exponentials
    if not found.flops:
        return Arithmetic(elementwise=flops, exponentials=exponentials), bytes_moved or moved
    filled = tuple(flops * share for flops in found.filled)
    scaled = Arithmetic(found.products * share, found.elementwise * share, exponentials, filled)
    return scaled, bytes_moved if guessed and bytes_moved else moved


@dataclass(slots=True)
class _Steps:
    """One walk through the body for all steps of a grid."""

    call: compat.KernelCall
    counts: Counts
    given: Sequence[Array | None]
    along: dict[int, Any] = field(default_factory=dict)
    guessed: bool = False
    dtype: str = "float32"
    places: list[Array | None] = field(default_factory=list)
    turns: float = 1.0
    unknown: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = self.call.grid
        rank = len(sizes)
        self.guessed = None in sizes
        self.unknown += [
            f"the size of axis {axis} of its grid, counted as one step"
            for axis, size in enumerate(sizes)
            if size is None
        ]
        self.places = [
            None
            if size is None
            else np.arange(size).reshape([-1 if d == axis else 1 for d in range(rank)])
            for axis, size in enumerate(sizes)
        ]

    @property
    def count(self) -> int:
        """Steps of the grid, one along axes of unknown size."""
        return math.prod(size or 1 for size in self.call.grid)

    def arithmetic(self) -> Arithmetic:
        """What the body computes in all steps."""
        body = self.call.body
        unknown = [None] * (len(body.invars) - self.call.scalars)
        one = self._walk(body, self.call.consts, [*self.given, *unknown], np.ones(()))
        return Arithmetic().plus(one, self.count)

    def moves(self, block: compat.Block) -> int:
        """How often a block is moved."""
        jaxpr = block.index_map.jaxpr
        rank = len(self.places)
        unknown = [None] * (len(jaxpr.invars) - rank - self.call.scalars)
        operands = [*self.places, *self.given, *unknown]
        indices = self._scalars(jaxpr, block.index_map.consts, operands)
        last, known = -1, []
        for index in indices:
            if index is None:
                self.guessed = True
                return self.count
            array = np.asarray(index)
            axes = [d for d, size in enumerate(array.shape) if size > 1]
            last = max([last, *axes])
            known.append(array)
        walked = tuple(size or 1 for size in self.call.grid[: last + 1])
        if math.prod(walked) > LARGEST:
            return math.prod(walked)
        changed = np.zeros(max(math.prod(walked) - 1, 0), bool)
        for array in known:
            shape = walked + (1,) * (rank - last - 1)
            flat = np.broadcast_to(array, shape).reshape(-1) if array.ndim else array.reshape(-1)
            if flat.size > 1:
                changed |= flat[1:] != flat[:-1]
        return int(changed.sum()) + 1

    def _scalars(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Results of a jaxpr of scalars; None for what is not known."""
        known: dict[Any, Any] = {}
        for var, value in zip(jaxpr.constvars, consts, strict=False):
            known[var] = _scalar(value)
        known.update(zip(jaxpr.invars, operands, strict=True))
        for equation in jaxpr.eqns:
            values = [self._value(atom, known) for atom in equation.invars]
            known.update(zip(equation.outvars, self._scalar(equation, values), strict=True))
        return [self._value(atom, known) for atom in jaxpr.outvars]

    def _value(self, atom: Any, known: dict[Any, Any]) -> Any:
        if compat.is_literal(atom):
            return np.asarray(atom.val) if np.ndim(atom.val) == 0 else None
        return known.get(atom)

    def _scalar(self, equation: Any, values: list[Any]) -> list[Any]:
        name = equation.primitive.name
        if name in ("program_id", "num_programs"):
            axis = self.call.ids[equation.params["axis"]]
            size = self.call.grid[axis]
            number = None if size is None else np.asarray(size)
            return [self.places[axis] if name == "program_id" else number]
        if name in CALLS:
            body, consts = compat.bodies_of(equation)[0]
            return self._scalars(body, consts, values)
        if name == "get":
            return [self._looked_up(equation, values)]
        if is_scalar(equation) and all(value is not None for value in values):
            shape = np.broadcast_shapes(*(value.shape for value in values))
            if math.prod(shape) <= LARGEST:
                return [compute(equation, values)]
        return [None for _ in equation.outvars]

    def _looked_up(self, equation: Any, values: list[Any]) -> Any:
        """An element of a constant, at places that are known; None for others."""
        access = compat.access_of(equation)
        if values[0] is None or access is None or any(size != 1 for size in access.sizes):
            return None
        atoms = zip(equation.invars, values, strict=True)
        known = {atom: value for atom, value in atoms if not compat.is_literal(atom)}
        places = [
            start if isinstance(start, int | np.integer) else self._value(start, known)
            for start in access.starts
        ]
        if any(place is None for place in places):
            return None
        ends = zip(places, values[0].shape, strict=True)
        return values[0][tuple(np.clip(place, 0, size - 1) for place, size in ends)]

    def _walk(
        self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Any], share: Array
    ) -> Arithmetic:
        """What a jaxpr computes in a step on average, where `share` of the steps run it."""
        return self._walked(jaxpr, consts, operands, share)[0]

    def _walked(
        self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Any], share: Array
    ) -> tuple[Arithmetic, list[Any]]:
        known: dict[Any, Any] = {}
        for var, value in zip(jaxpr.constvars, consts, strict=False):
            known[var] = _scalar(value)
        known.update(zip(jaxpr.invars, operands, strict=True))
        total = Arithmetic()
        for equation in jaxpr.eqns:
            values = [self._value(atom, known) for atom in equation.invars]
            found, results = self._equation(equation, values, share)
            total = total.plus(found)
            known.update(zip(equation.outvars, results, strict=True))
        return total, [self._value(atom, known) for atom in jaxpr.outvars]

    def _equation(
        self, equation: Any, values: list[Any], share: Array
    ) -> tuple[Arithmetic, list[Any]]:
        name = equation.primitive.name
        unknown = [None for _ in equation.outvars]
        bodies = compat.bodies_of(equation)
        if name == "cond":
            return self._branches(bodies, values, share), unknown
        if name in CALLS:
            body, consts = bodies[0]
            return self._walked(body, consts, values, share)
        if name == "scan":
            body, consts = bodies[0]
            count, _ = compat.scan_counts(equation.params)
            inner = [*values[:count], *[None] * (len(body.invars) - count)]
            length, around = equation.params["length"], self.turns
            self.turns = around * length
            once = self._walk(body, consts, inner, share)
            self.turns = around
            return Arithmetic().plus(once, length), unknown
        if name == "while":
            return self._while(equation, values, share), unknown
        if bodies and not self._is_counted(equation):
            total = Arithmetic()
            for body, consts in bodies:
                total = total.plus(self._walk(body, consts, [None] * len(body.invars), share))
            return total, unknown
        found = Arithmetic() if name in NOTHING else self.counts(equation)
        if found.products:
            self.dtype = str(equation.invars[0].aval.dtype)
        for axis in self.along:
            others = tuple(d for d in range(share.ndim) if d != axis)
            self.along[axis] = self.along[axis] + found.flops * self.turns * share.mean(others)
        return Arithmetic().plus(found, float(share.mean())), self._scalar(equation, values)

    def _is_counted(self, equation: Any) -> bool:
        """Whether a body only says how elements are combined."""
        return equation.primitive.name.startswith(("reduce", "scatter", "cum"))

    def _branches(
        self, bodies: Sequence[tuple[Any, Sequence[Any]]], values: list[Any], share: Array
    ) -> Arithmetic:
        which, operands = values[0], values[1:]
        if which is not None:
            shape = np.broadcast_shapes(np.shape(which), share.shape)
            if math.prod(shape) <= LARGEST:
                total = Arithmetic()
                for number, (body, consts) in enumerate(bodies):
                    taken = np.clip(which, 0, len(bodies) - 1) == number
                    if taken.any():
                        total = total.plus(self._walk(body, consts, operands, share * taken))
                return total
        found = [self._walk(body, consts, operands, share) for body, consts in bodies]
        self.guessed = True
        return max(found, key=lambda one: one.flops)

    def _while(self, equation: Any, values: list[Any], share: Array) -> Arithmetic:
        """A loop: as often as its counter says, once where nobody knows."""
        params = equation.params
        first = params["cond_nconsts"]
        consts = first + params["body_nconsts"]
        trips = self._trips(equation, values, first, consts)
        if trips is None:
            self.guessed = True
            self.unknown.append("the turns of a loop, counted as one")
            trips = np.ones(())
        body = params["body_jaxpr"]
        inner = [*values[first:consts], *[None] * (len(values) - consts)]
        return self._walk(body.jaxpr, body.consts, inner, share * trips)

    def _trips(self, equation: Any, values: list[Any], first: int, consts: int) -> Array | None:
        """Turns of a loop from a known number up to another, by one; None for other loops."""
        test, body = (equation.params[key].jaxpr for key in ("cond_jaxpr", "body_jaxpr"))
        if len(test.eqns) != 1 or test.eqns[0].primitive.name not in ("lt", "le"):
            return None
        counter, bound = test.eqns[0].invars
        before = dict(zip(test.invars, [*values[:first], *values[consts:]], strict=True))
        place = next((k for k, var in enumerate(test.invars[first:]) if var is counter), None)
        if place is None:
            return None
        old = body.invars[consts - first + place]
        made = [one for one in body.eqns if body.outvars[place] in one.outvars]
        steps = made[0].invars if made and made[0].primitive.name == "add" else ()
        by_one = any(compat.is_literal(one) and one.val == 1 for one in steps)
        if not by_one or not any(one is old for one in steps):
            return None
        if not compat.is_literal(bound) and bound in test.invars[first:]:
            carried = test.invars[first:].index(bound)
            if body.outvars[carried] is not body.invars[consts - first + carried]:
                return None
        start, end = before[counter], self._value(bound, before)
        if start is None or end is None:
            return None
        return np.maximum(end - start + (test.eqns[0].primitive.name == "le"), 0)


def _scalar(constant: Any) -> Any:
    """A constant of a jaxpr, if it is a number that is known before the step runs."""
    known = np.ndim(constant) == 0 and not compat.is_tracer(constant)
    return np.asarray(constant) if known else None
