"""Choices of what to save that are worth a search.

Beside the policies that people use (everything, products, products without batch dimensions,
attention, nothing: `policies`), these are the best choices at rough prices, where layouts play no
part. A value that the backward pass needs is saved or computed again, and to be computed again,
each operand of its op must be there too:

    min   sum over v of  save(v) * saved(v) + again(v) * recomputed(v)
    s.t.  saved(v) + recomputed(v) >= 1                  for each v that is needed
          saved(u) + recomputed(u) >= recomputed(v)      for each u that the op of v reads

which is a minimum cut. Saving costs writing the stack and reading it, and the price of its bytes
in memory; computing again costs the op's roofline. What is no product is fused with one, so that it
costs nothing (`fused`), or has kernels of its own: both are tried. The price of a byte is raised
until the stacks fit the memory that is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ortools.graph.python.max_flow import SimpleMaxFlow

from autoshard import compat
from autoshard.cost.roofline import op_seconds
from autoshard.machine.chip import Chip
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Program
from autoshard.program.keep import Residual, Residuals
from autoshard.program.rewritten import resaved

_UNIT = 1e-12
"""Seconds of one unit of a flow, whose capacities are whole numbers."""
_NEVER = 2**50
_HALVINGS = 24
"""Of the interval in which the price of a byte is sought."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A choice: what it is called, the names of what it saves, and of its stacks on the host.

    With `prefetch` these move a turn late there, and come a turn early.
    """

    title: str
    saved: frozenset[str]
    offloaded: frozenset[str] = frozenset()
    prefetch: bool = False

    def applied(self, step: Program) -> Program:
        """The step that does so."""
        return resaved(step, self.saved, self.offloaded, prefetch=self.prefetch)


def proposals(
    residuals: Residuals, chip: Chip, chips: int, free_bytes: float
) -> tuple[list[Proposal], list[Proposal]]:
    """Choices to try, the most promising first, and those whose stacks alone do not fit.

    No choice is there twice.

    Args:
      residuals: the candidates of the program.
      chip: of the machine.
      chips: how many there are; stacks are cut into as many parts at best.
      free_bytes: per device, for stacks.
    """
    pinned = frozenset(one.name for one in residuals.values if one.pinned)
    fit: list[Proposal] = []
    large: list[Proposal] = []
    seen: set[tuple[str, ...]] = set()
    size = {one.name: one.bytes / chips for one in residuals.values}
    for title, saved in choices(residuals, chip, chips, free_bytes):
        stacks = residuals.on_stacks(saved | pinned)
        if stacks not in seen:
            seen.add(stacks)
            fits = sum(size[name] for name in stacks) <= free_bytes
            (fit if fits else large).append(Proposal(title, frozenset(stacks)))
    return fit, large


def choices(
    residuals: Residuals, chip: Chip, chips: int, free_bytes: float
) -> Iterator[tuple[str, frozenset[str]]]:
    """All choices with their titles, always as many; arguments as for `proposals`."""
    values = residuals.values
    for fused, title in ((True, "cheapest"), (False, "cheapest with kernels of their own")):
        again = {one.name: again_seconds(one, chip, chips, fused) for one in values}
        yield title, _cheapest(residuals, again, chip, chips, free_bytes)
    yield from policies(residuals)


def policies(residuals: Residuals) -> Iterator[tuple[str, frozenset[str]]]:
    """What people save, by the names of values, with a title each.

    What `attention` makes is that of the kernels, or of the last batched product of each pair of
    loops where there are no kernels.
    """
    values = residuals.values
    kernels = {*compat.KERNELS, compat.RULED}
    attention = {one.name for one in values if one.primitive in kernels}
    products = frozenset(one.name for one in values if is_matrix_op(one.primitive)) - attention
    unbatched = products & _unbatched(residuals)
    # Of what a kernel makes, the backward pass may read a part alone.
    kernel_bytes = {one.name: one.bytes for one in values if one.name in attention}
    for one in values:
        if one.reads and kernel_bytes.keys() >= set(one.reads):
            smaller = one.bytes < min(kernel_bytes[name] for name in one.reads)
            attention |= {one.name} if smaller else set()
    if not attention:
        batched = [one.name for one in values if one.name in products - unbatched]
        attention = {residuals.homes[name][0]: name for name in batched}.values()
    yield "products without batch dimensions, and attention", unbatched.union(attention)
    yield "products without batch dimensions", unbatched
    yield "products", products
    yield "attention", frozenset(attention)
    yield "everything", frozenset(one.name for one in values if not one.tied)
    yield "nothing", frozenset()


def _unbatched(residuals: Residuals) -> frozenset[str]:
    """Names of values that no product with batch dimensions makes."""
    found = []
    for name, (pair, number) in residuals.homes.items():
        numbers = pair.makers[number].equation.params.get("dimension_numbers")
        batched = isinstance(numbers, tuple) and any(numbers[1])
        found += [] if batched else [name]
    return frozenset(found)


def again_seconds(one: Residual, chip: Chip, chips: int, fused: bool) -> float:
    """Seconds of computing a value again in all turns, cut into as many parts as there are chips.

    A weight in another dtype is converted where it is read.
    """
    if one.tied and not one.pinned:
        return 0.0
    written = one.bytes / one.turns
    traffic, unit = written, "vector"
    if is_matrix_op(one.primitive):
        traffic, unit = written + one.read_bytes, "matrix"
    elif fused:
        return 0.0
    elif one.read_bytes > 2 * written:  # a reduction reads what it reduces
        traffic = one.read_bytes
    return one.turns * op_seconds(chip, one.flops / chips, traffic / chips, one.dtype, unit=unit)


def _cheapest(
    residuals: Residuals, again: dict[str, float], chip: Chip, chips: int, free_bytes: float
) -> frozenset[str]:
    """The cheapest choice whose stacks fit, by the price of a byte at which they do."""
    size = {one.name: one.bytes / chips for one in residuals.values}
    save = {name: 2.0 / chip.memory_rate * bytes for name, bytes in size.items()}
    return around(residuals, save, again, size, free_bytes)[0]


def around(
    residuals: Residuals,
    save: Mapping[str, float],
    again: Mapping[str, float],
    size: Mapping[str, float],
    free_bytes: float,
) -> tuple[frozenset[str], frozenset[str] | None]:
    """The cheapest choices at the price of a byte at which stacks fit, and just below it.

    The second saves more than fits; it is None where what is cheapest at no price fits. No choice
    in between is cheaper, for its bytes, than some turns of the one and the others of the other.

    Args:
      residuals: the candidates of the program.
      save, again: seconds, by name.
      size: bytes per device of their stacks, by name.
      free_bytes: per device, for stacks.
    """

    def at(price: float) -> frozenset[str]:
        seconds = {name: save[name] + price * bytes for name, bytes in size.items()}
        return _cut(residuals.values, seconds, again)

    def fits(saved: Collection[str]) -> bool:
        return sum(size[name] for name in residuals.on_stacks(saved)) <= free_bytes

    large = at(0.0)
    if fits(large):
        return large, None
    total = sum(again.values())
    low, high = 0.0, total / max(min(size.values(), default=1.0), 1.0)
    best = frozenset(one.name for one in residuals.values if one.pinned)
    for _ in range(_HALVINGS):
        price = (low + high) / 2 if low else high / 64
        saved = at(price)
        if fits(saved):
            best, high = saved, price
        else:
            large, low = saved, price
    return best, large


def _cut(
    values: tuple[Residual, ...], save: Mapping[str, float], again: Mapping[str, float]
) -> frozenset[str]:
    """What the cheapest choice saves, as the module says."""
    flow = SimpleMaxFlow()
    source, sink = 0, 1
    there = {one.name: 2 + 2 * k for k, one in enumerate(values)}
    made = {name: node + 1 for name, node in there.items()}

    def edge(start: int, end: int, seconds: float) -> None:
        flow.add_arc_with_capacity(start, end, min(int(seconds / _UNIT), _NEVER))

    for one in values:
        name, more = one.name, again[one.name] - save[one.name]
        edge(there[name], sink, save[name])
        if one.pinned:
            edge(made[name], sink, _NEVER * _UNIT)
        elif more >= 0:
            edge(made[name], sink, more)
        else:
            edge(source, made[name], -more)
        for other in (there[name], *(there[read] for read in one.reads)):
            edge(made[name], other, _NEVER * _UNIT)
        if one.needed:
            edge(source, there[name], _NEVER * _UNIT)
    flow.solve(source, sink)
    kept = set(flow.get_source_side_min_cut())
    return frozenset(n for n in there if there[n] in kept and made[n] not in kept)
