"""What someone can do for faster steps, each with its gain: batch, dtype, saved values, chips.

A plan's own decisions are priced anew by the evaluator, without a search: on the step with twice
the batch, with products in bfloat16, with other flags of the compiler, on twice the chips along the
axis of the mesh for which that is best. The best plan there takes at most that long. With other
values saved for the backward pass the step is another program: the choice that is cheapest at the
plan's own prices (`autoshard.search.keep.priced`) is searched for a plan on the same mesh.

Steps that do more work are compared by the seconds for the work of the plan's step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax

from autoshard.cost.step_prices import StepPrices
from autoshard.machine.compiler import sets_of_flags
from autoshard.machine.file import MachineError
from autoshard.machine.load import load, with_flags_named
from autoshard.machine.machine import Machine, under_flags
from autoshard.machine.numbers import with_numbers
from autoshard.models.find import Found, ProgramError, find, size_names
from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.evaluate import evaluate
from autoshard.plan.fits import fits, needed_bytes
from autoshard.plan.plan import Plan
from autoshard.plan.records import Estimate, MeshShape
from autoshard.program.facts import Facts
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import REWRITES
from autoshard.program.keep import find_residuals
from autoshard.program.rewritten import resaved
from autoshard.program.rules.ask_shardy import NoRuleError
from autoshard.program.subaxes import coarse
from autoshard.program.trace import Program, TraceError, trace
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.assemble import prices_of
from autoshard.search.keep.priced import cheapest, cost_of, rates_of
from autoshard.search.search import search
from autoshard.study.whatif.cases import machine_of
from autoshard.units import counted, format_bytes
from autoshard.xla import analyse

LAYOUTS, SEARCHED = "evaluator, layouts as they are", "search on this mesh"
"""How a gain was priced."""
SEARCH_SECONDS = 10.0
NOTHING, WORTH = 5e-4, 0.01
"""Shares of a step: what saves less is not advice; what promises less is not searched for."""
NARROW, WIDE = "bfloat16", "float32"
MORE = 2
"""So many times the batch, or the chips."""
BATCH = "batch"
MOST_BATCHES = 8
"""So many sizes are tried to find the batch of a step."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to do, and what it comes to.

    Attributes:
      what: to do.
      how: the words for it, on the command line or in a file.
      step_seconds: of a step then.
      work: how many times the work of the plan's step such a step does.
      chips: on how many times as many chips.
      peak_bytes: per device then.
      fits: whether that is within the limit of the plan.
      priced: how the seconds were found.
    """

    what: str
    how: str
    step_seconds: float
    peak_bytes: float
    fits: bool
    priced: str
    work: float = 1.0
    chips: float = 1.0

    @property
    def seconds(self) -> float:
        """Seconds for the work of the plan's step."""
        return self.step_seconds / self.work

    def saved(self, plan: Plan) -> float:
        """The part of the chip-seconds of the plan's work that is saved; negative if more."""
        step = plan.estimate.step_seconds
        return 1 - self.seconds * self.chips / step if step > 0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Larger:
    """The step with twice the batch that it has."""

    before: int
    program: Program

    @property
    def how(self) -> str:
        return f"{BATCH}={MORE * self.before}"


def advice(plan: Plan, prices: StepPrices, found: Found | None = None) -> tuple[Advice, ...]:
    """What can be done about a step, what saves most chip-seconds first, what does not fit last.

    More chips are told where the work is done sooner, at whatever chip-seconds; of all else, what
    saves none is left out.

    Args:
      plan: with its decisions numbered as in the program of `prices`.
      prices: of its program on its machine and mesh.
      found: the step as the user names it, from which one of another batch is made.
    """
    larger = None if found is None else _larger(plan, prices, found)
    pieces = (
        [] if larger is None else _batch(plan, prices, larger),
        _narrow(plan, prices),
        _kept(plan, prices),
        _flags(plan, prices.machine, prices.program),
        _chips(plan, prices, larger),
    )
    told = [one for piece in pieces for one in piece]
    step = plan.estimate.step_seconds
    told = [
        one
        for one in told
        if one.saved(plan) >= NOTHING or (one.chips > 1 and one.seconds <= step * (1 - NOTHING))
    ]
    return tuple(sorted(told, key=lambda one: (not one.fits, -one.saved(plan))))


def _priced(plan: Plan, prices: StepPrices) -> Estimate | None:
    """What the plan's decisions come to at these prices; None where they are not possible there."""
    try:
        return evaluate(prices, plan.decisions, plan.mesh.names).estimate
    except (InconsistentPlanError, ValueError):
        return None


def _told(
    plan: Plan, estimate: Estimate, what: str, how: str, *, work: float = 1.0, chips: float = 1.0
) -> Advice:
    peak, room = needed_bytes(estimate), fits(estimate, plan.memory_limit)
    step = estimate.step_seconds
    return Advice(what, how, step, peak, room, LAYOUTS, work, chips)


def _larger(plan: Plan, prices: StepPrices, found: Found) -> _Larger | None:
    """The step with twice the batch; None where it has no size of that name, or is another one."""
    machine, program = prices.machine, prices.program
    told = {name: plan.options[name] for name in REWRITES if name in plan.options}
    try:
        now = _batch_of(found, program, machine)
        if now is None:
            return None
        more = find(found.reference, {BATCH: MORE * now}, machine=machine)
        options = {**more.options, **told}
        traced = trace(more.fn, *more.args, name=more.reference, **options)
    except (ProgramError, TraceError, NoRuleError):
        return None
    return _Larger(now, traced) if alike(traced, program) else None


def _batch(plan: Plan, prices: StepPrices, larger: _Larger) -> Iterator[Advice]:
    estimate = _priced(plan, prices_of(plan, larger.program, prices.machine))
    if estimate is not None:
        what = f"a batch of {MORE * larger.before:,} in place of {larger.before:,}"
        yield _told(plan, estimate, what, larger.how, work=MORE)


def _batch_of(found: Found, program: Program, machine: Machine) -> int | None:
    """The batch with which the step was made: the one with which its arguments are what they are.

    Raises:
      ProgramError: with another batch there is no such step.
    """
    if BATCH not in size_names(found.reference):
        return None
    back = {program.inputs[i] for i, _ in program.ties}
    shapes = [program.values[v].shape for v in program.inputs if v not in back]
    sizes = sorted({shape[0] for shape in shapes if shape}, reverse=True)
    for size in sizes[:MOST_BATCHES]:
        if _shapes(find(found.reference, {BATCH: size}, machine=machine)) == _shapes(found):
            return size
    return None


def _shapes(found: Found) -> list[tuple[int, ...]]:
    return [jax.numpy.shape(leaf) for leaf in jax.tree.leaves(found.args)]


def alike(one: Program, other: Program) -> bool:
    """Whether programs differ in sizes alone, so that decisions for one can be those of another."""
    return [(op.primitive, op.inputs, op.outputs) for op in one.ops] == [
        (op.primitive, op.inputs, op.outputs) for op in other.ops
    ]


def _narrow(plan: Plan, prices: StepPrices) -> Iterator[Advice]:
    """Products in bfloat16; values keep their width, so that a step that halves it gains more."""
    rates = prices.machine.chip.peak_flops
    if rates.get(NARROW, 0.0) <= rates.get(WIDE, 0.0):
        return
    program = prices.program
    products = [op for op in program.ops if is_matrix_op(op.primitive)]
    if not any(program.values[v].dtype == WIDE for op in products for v in op.inputs if v >= 0):
        return
    machine = with_numbers(prices.machine, {f"chip.peak_flops.{WIDE}": rates[NARROW]})
    estimate = _priced(plan, prices_of(plan, program, machine, analysed=prices.dataflow))
    if estimate is not None:
        how = f"cast parameters and inputs to jax.numpy.{NARROW} in the step"
        yield _told(plan, estimate, f"products in {NARROW}", how)


def _kept(plan: Plan, prices: StepPrices) -> Iterator[Advice]:
    """Another choice of what is saved for the backward pass, if nobody has searched for one."""
    if "saved" in plan.options or plan.requirements:
        return
    residuals = find_residuals(prices.program.written)
    now = residuals.saved_as_written()
    rates = rates_of(residuals, now, plan, prices)
    chosen = cheapest(residuals.values, rates, ()) if residuals.values else None
    step = plan.estimate.step_seconds
    if chosen is None:
        return
    hoped = cost_of(residuals, rates, now) - cost_of(residuals, rates, chosen)
    if hoped < WORTH * step:
        return
    try:
        best = search(
            resaved(prices.program, chosen),
            prices.machine,
            mesh=_axes(plan.mesh),
            memory_limit=plan.memory_limit,
            time_limit=SEARCH_SECONDS,
            gap=WORTH,
            baselines=False,
        )
    except (InfeasibleError, NoPlanError, TraceError):
        return
    before, after = (
        sum(rates.bytes[name] for name in residuals.on_stacks(names)) for names in (now, chosen)
    )
    than = f", not {format_bytes(before)}" if before else " instead of computing it again"
    what = f"keeping {format_bytes(after)} per device for the backward pass{than}"
    told = _told(plan, best.estimate, what, "--remat search")
    yield replace(told, priced=SEARCHED)


def _flags(plan: Plan, machine: Machine, program: Program) -> Iterator[Advice]:
    """Other flags of the compiler."""
    compiler = machine.chip.compiler
    for flags in sets_of_flags(compiler.name):
        if flags == compiler.flags:
            continue
        estimate = _priced(plan, prices_of(plan, program, under_flags(machine, flags)))
        if estimate is not None:
            how = f"--machine {with_flags_named(plan.machine, flags)}"
            yield _told(plan, estimate, f"the compiler's flags {flags!r}", how)


def _chips(plan: Plan, prices: StepPrices, larger: _Larger | None) -> Iterator[Advice]:
    """Twice the chips, along the axis for which that is best; with twice the batch, if need be."""
    machine = prices.machine
    try:
        same, more = (_alike(machine, times * machine.chips) for times in (1, MORE))
    except MachineError:
        return
    if (same.chip, same.network) != (machine.chip, machine.network):
        return  # the numbers of a file, of which there is no larger one
    what = f"{counted(more.chips, 'chip', ',')}"
    yield from _grown(plan, more, prices.program, prices.dataflow, what)
    if larger is not None:
        batch = f"{what}, and a batch of {MORE * larger.before:,}"
        for one in _grown(plan, more, larger.program, None, batch):
            yield replace(one, work=MORE, how=f"{one.how}, {larger.how}")


def _alike(machine: Machine, chips: int) -> Machine:
    """So many chips of the machine's family, under its flags. Raises MachineError."""
    found = machine_of(machine.family, chips)
    flags = machine.chip.compiler.flags
    return found if flags == "default" else load(with_flags_named(found.name, flags))


def _grown(
    plan: Plan, machine: Machine, program: Program, facts: Facts | None, what: str
) -> Iterator[Advice]:
    """The plan on a mesh of which one axis is longer, the one for which that is best."""
    facts = analyse(program, machine.chip) if facts is None else facts
    best: tuple[Estimate, MeshShape] | None = None
    for axis, size in enumerate(plan.mesh.sizes):
        sizes = (*plan.mesh.sizes[:axis], MORE * size, *plan.mesh.sizes[axis + 1 :])
        longer = replace(plan, mesh=MeshShape(plan.mesh.names, sizes))
        try:
            anew = prices_of(longer, program, machine, analysed=facts)
        except ValueError:  # its axes do not lie on the network
            continue
        estimate = _priced(longer, anew)
        if estimate and (best is None or estimate.step_seconds < best[0].step_seconds):
            best = estimate, longer.mesh
    if best is not None:
        how = f"--machine {machine.name} --mesh {str(best[1]).replace(', ', ',')}"
        yield _told(plan, best[0], what, how, chips=MORE)


def _axes(shape: MeshShape) -> Mapping[str, int | Sequence[int]]:
    """A mesh as `search` takes it."""
    axes = coarse(shape.names, shape.sizes).items()
    return {name: parts[0] if len(parts) == 1 else parts for name, parts in axes}
