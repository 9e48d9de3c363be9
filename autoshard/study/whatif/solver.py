"""Rows, one after another, of one program: traced once per shape, each search begun from the last.

A solver belongs to one process. It keeps

    the traces            of the program at its last sizes, and the data flow on each chip
    the problems          of each mesh shape: strategies, layouts and choices stay the same objects
                          for all sizes that divide alike, and on other chips
                          (`autoshard.problem.memo`)
    decisions and duals   of each mesh shape, with which the search for the next row begins
                          (`autoshard.search.warm_start`): the plan is one to beat, the duals prove
                          a bound

The mesh shape of the last row's plan is searched first. The others are then searched only for what
is better by more than the gap: most are done with as soon as their bound says that there is no such
plan. Rows may come in any order; those of as many chips are best asked for one after another, alike
chips among them, each row with the chip or the sizes of the one before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autoshard.cost.step_prices import heap_factor
from autoshard.machine.chip import Chip
from autoshard.machine.improvements import MORE
from autoshard.machine.machine import Machine
from autoshard.models.find import call, find, target_of
from autoshard.models.providers import Target
from autoshard.plan.fits import fits
from autoshard.plan.made_copies import COPIES
from autoshard.plan.plan import MeshShape, Plan
from autoshard.plan.text.layouts import layouts_in_short
from autoshard.problem.memo import Shared
from autoshard.program.facts import Facts
from autoshard.program.model_work import tokens_per_step
from autoshard.program.trace import Program, trace
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.finish import finish
from autoshard.search.memory_loop import explore_fitting
from autoshard.search.mesh_axes import AXIS_NAMES, coarser_shapes
from autoshard.search.options import SearchOptions, WarmStart
from autoshard.search.search import prepare
from autoshard.search.warm_start import Earlier
from autoshard.solve.limit_hit import LimitHit
from autoshard.study.whatif import gains
from autoshard.study.whatif.cases import Case
from autoshard.study.whatif.kept import keep_row, key_of, read_row
from autoshard.study.whatif.row import Row
from autoshard.units import counted, format_bytes
from autoshard.xla import analyse

GIB = 2.0**30
TRACES = 8
"""So many traces are kept at most."""
SHARED_SIZES = 4
"""At most so many sizes of the program share strategies and layouts."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What all rows have in common.

    Attributes:
      program: a reference (`autoshard.models.find`), or a function that takes the sizes.
      time_limit: seconds for the search of one row.
      gap: a row's search stops when its plan is proven to be within this fraction of the best.
      tokens: in one step; a number, names of sizes to multiply, or None for what the program says.
      folder: where rows are kept, or None.
      code: which autoshard answers (`autoshard.study.whatif.kept.own_digest`).
    """

    program: str | Callable[..., Any]
    time_limit: float
    gap: float
    tokens: int | tuple[str, ...] | None = None
    folder: Path | None = None
    code: str = ""

    @property
    def name(self) -> str:
        """The program, as a user would call it."""
        if isinstance(self.program, str):
            return self.program
        return getattr(self.program, "__name__", "program")


Work = tuple[tuple[tuple[str, Any], ...], Target]
"""Sizes of the program, and what of the machine it depends on."""


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A program at some sizes, and what follows from it alone."""

    work: Work
    program: Program
    options: Mapping[str, Any]


class Answer(NamedTuple):
    """A row, whether it was there already, and why it could not be kept."""

    row: Row
    known: bool = False
    unkept: str = ""


@dataclass(slots=True)
class Solver:
    """Answers rows; see the module."""

    asked: Asked
    traces: dict[Work, Traced] = field(default_factory=dict)
    flows: dict[tuple[Work, Chip], Facts] = field(default_factory=dict)
    earlier: dict[tuple[int, ...], Earlier] = field(default_factory=dict)
    shared: dict[tuple[int, ...], Shared] = field(default_factory=dict)
    shared_for: tuple[int, tuple[str, ...]] = 0, ()
    shared_sizes: set[tuple[tuple[str, Any], ...]] = field(default_factory=set)
    last_mesh: tuple[int, ...] = ()
    answered: list[tuple[Case, Row, Plan | None]] = field(default_factory=list)

    def row(self, case: Case) -> Answer:
        """The row of a case; it is kept where it can be."""
        started = time.monotonic()
        traced = self._trace(case)
        folder = self.asked.folder
        asked = {"gap": self.asked.gap, "time_limit": self.asked.time_limit, "sizes": case.sizes}
        asked["tokens"] = self.asked.tokens
        asked["program"] = self.asked.name
        key = key_of(self.asked.code, traced.program.fingerprint, case.machine, case.limit, asked)
        if folder is not None and (known := read_row(folder, key)) is not None:
            self.answered.append((case, *known))
            return Answer(known[0], known=True)
        row, plan = self._from_higher_limit(case) or self._solved(case, traced)
        self.answered.append((case, row, plan))
        row = replace(row, key=key, solver_seconds=time.monotonic() - started)
        try:
            if folder is not None:
                keep_row(folder, row, plan)
        except OSError as error:
            return Answer(row, unkept=f"cannot write {str(folder)!r}: {error.strerror or error}")
        return Answer(row)

    def _trace(self, case: Case) -> Traced:
        wanted, reference = self.asked.program, self.asked.name
        sizes, target = work = case.sizes, target_of(wanted, case.machine)
        if work not in self.traces:
            found = (
                find(wanted, dict(sizes), machine=target)
                if isinstance(wanted, str)
                else call(wanted, dict(sizes), reference)
            )
            program = trace(found.fn, *found.args, name=reference, **found.options)
            while len(self.traces) >= TRACES:
                oldest = next(iter(self.traces))
                del self.traces[oldest]
                self.flows = {key: flow for key, flow in self.flows.items() if key[0] != oldest}
            self.traces[work] = Traced(work, program, found.plan_options)
        return self.traces[work]

    def _from_higher_limit(self, case: Case) -> tuple[Row, Plan | None] | None:
        """The answer that follows from one for a higher limit on the same machine, if one does.

        A lower limit allows no other plan. So a plan that keeps it stays within its gap, and the
        price of a byte is none; and where nothing kept the higher one, nothing keeps this one.
        """
        for other, row, plan in self.answered:
            if (other.machine, other.sizes) != (case.machine, case.sizes):
                continue
            if other.limit < case.limit:
                continue
            if row.status == "infeasible":
                return replace(row, limit_bytes=case.limit), None
            if plan is not None and fits(plan.estimate, case.limit):
                binds = gains.binding(dict(row.saved_seconds), 0.0)
                row = replace(row, limit_bytes=case.limit, seconds_per_gib=0.0, binds=binds)
                return row, replace(plan, memory_limit=case.limit)
        return None

    def _flow(self, traced: Traced, chip: Chip) -> Facts:
        """The program's data flow on a chip, which decides what is fused."""
        key = traced.work, chip
        if key not in self.flows:
            self.flows[key] = analyse(traced.program, chip)
        return self.flows[key]

    def _solved(self, case: Case, traced: Traced) -> tuple[Row, Plan | None]:
        machine = case.machine
        row = Row(
            sizes=dict(case.sizes),
            chip=case.chip,
            chips=machine.chips,
            machine=machine.name,
            limit_bytes=case.limit,
            status="infeasible",
            tokens=self._tokens(case, traced),
        )
        flow = self._flow(traced, machine.chip)
        alive = _alive_bytes(traced.program, flow, machine.chip)
        constants = float(traced.program.constant_bytes)
        if alive / machine.chips + constants > case.limit:
            return replace(row, why=_too_few(alive, constants, case)), None
        self._share(case)
        asked = SearchOptions(
            memory_limit=case.limit,
            time_limit=self.asked.time_limit,
            gap=self.asked.gap,
            baselines=False,
            options=traced.options,
        )
        known = WarmStart(
            facts=flow,
            earlier=dict(self.earlier),
            shared=self.shared,
            only_better=True,
            seeks_limit=False,
        )
        searcher, shapes = prepare(traced.program, machine, asked, known)
        first, starts, spare = self._in_turn(shapes)
        try:
            found = explore_fitting(searcher, first, starts=starts, spare=spare)
            if found.limit_hit is LimitHit.INTERRUPTED:
                raise KeyboardInterrupt  # half an answer is not kept
            (plan,) = finish(searcher, found, asked)
        except InfeasibleError as error:
            return replace(row, why=str(error)), None
        except NoPlanError as error:
            return replace(row, status="no plan", why=str(error)), None
        for sizes, one in searcher.found.items():
            if one.earlier is not None:
                self.earlier[sizes] = one.earlier
        self.last_mesh = plan.mesh.sizes
        price = searcher.found[found.shape.sizes].outcome.report.price_of_byte
        return self._priced(row, plan, traced, machine, price), plan

    def _share(self, case: Case) -> None:
        """Forget what builds for other chips share, and for too many sizes of the program."""
        chips = case.machine.chips, case.machine.chip.compiler.platforms
        if chips != self.shared_for or case.sizes not in self.shared_sizes:
            if chips != self.shared_for or len(self.shared_sizes) >= SHARED_SIZES:
                self.shared, self.shared_for, self.shared_sizes = {}, chips, set()
            self.shared_sizes.add(case.sizes)

    def _in_turn(
        self, shapes: Sequence[MeshShape]
    ) -> tuple[list[MeshShape], list[MeshShape], list[MeshShape]]:
        """The mesh shapes in turn, those to start with, and to spare (`explore`).

        Those of two axes that they refine are solved in a moment, and what is found there is at
        once the one to beat. With plans of earlier rows to begin with, one of them is enough as a
        rule. Among shapes of as many axes those like the mesh of the last row's plan come first,
        then those on which the last row had the cheapest plans.
        """
        coarse = {sizes: None for shape in shapes for sizes, _ in coarser_shapes(shape.sizes)}
        flat = [MeshShape(AXIS_NAMES[: len(sizes)], sizes) for sizes in coarse if len(sizes) > 1]
        flat.sort(key=self._promise)
        count = len(flat)
        if flat and flat[0].sizes in self.earlier:
            count = max(1, sum(map(self._is_like_last, flat)))
        return sorted(shapes, key=self._promise), flat[:count], flat[count:]

    def _is_like_last(self, shape: MeshShape) -> bool:
        """Whether the last plan's mesh is this one, or refines it."""
        coarser = (sizes for sizes, _ in coarser_shapes(self.last_mesh))
        return shape.sizes == self.last_mesh or shape.sizes in coarser

    def _promise(self, shape: MeshShape) -> tuple[bool, float]:
        """Those like the mesh of the last plan come first, those without a plan last."""
        known = self.earlier.get(shape.sizes)
        return not self._is_like_last(shape), math.inf if known is None else known.objective

    def _priced(
        self, row: Row, plan: Plan, traced: Traced, machine: Machine, price_of_byte: float
    ) -> Row:
        estimate, proof = plan.estimate, plan.proof
        step = estimate.step_seconds
        flow = self._flow(traced, machine.chip)
        saved = gains.saved_seconds(plan, traced.program, flow, machine)
        per_second = None if row.tokens is None else row.tokens / step
        return replace(
            row,
            status=proof.status,
            mesh=str(plan.mesh),
            layouts=layouts_in_short(plan, traced.program),
            step_seconds=step,
            lower_seconds=estimate.lower_seconds,
            upper_seconds=estimate.upper_seconds,
            bound_seconds=proof.bound,
            gap=proof.gap,
            compute_seconds=estimate.compute_seconds,
            collective_seconds=estimate.collective_seconds,
            peak_bytes=estimate.peak_bytes,
            tokens_per_second=per_second,
            tokens_per_second_per_chip=None if per_second is None else per_second / machine.chips,
            utilisation=None if plan.work is None else plan.work.utilisation(step),
            binds=gains.binding(saved, price_of_byte * MORE * row.limit_bytes),
            saved_seconds=saved,
            seconds_per_gib=price_of_byte * GIB,
            copies=next((note for note in plan.notes if note.startswith(COPIES)), None),
        )

    def _tokens(self, case: Case, traced: Traced) -> int | None:
        wanted = self.asked.tokens
        if wanted is None:
            return tokens_per_step(traced.program)
        if isinstance(wanted, int):
            return wanted
        return math.prod(int(dict(case.sizes)[name]) for name in wanted)


def _alive_bytes(program: Program, flow: Facts, chip: Chip) -> float:
    """The most bytes that are alive at once, over all devices together; no plan has fewer.

    With what the compiler's heap takes beside temporaries.
    """
    events = np.zeros(flow.end + 2)
    for value in program.values:
        start, stop = flow.start[value.index], flow.stop[value.index]
        if not value.free and stop > start:
            held = value.bytes * heap_factor(flow, chip, value.index)
            events[start] += held
            events[stop] -= held
    return float(np.cumsum(events)[: flow.end].max(initial=0.0))


def _too_few(alive: float, constants: float, case: Case) -> str:
    least = alive / case.machine.chips + constants
    said = (
        f"{format_bytes(alive)} are alive at once: at least {format_bytes(least)} on each of "
        f"{counted(case.machine.chips, 'chip')}, more than the limit of {format_bytes(case.limit)}"
    )
    if constants >= case.limit:
        return f"{said}, which constants alone fill"
    return f"{said}; take {counted(math.ceil(alive / (case.limit - constants)), 'chip')} or more"
