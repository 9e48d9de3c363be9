"""A search over what is saved for the backward pass, and over the number of microbatches.

Both are outer choices, like the mesh, and are decided together with the layouts. First the most
promising choice of what to save (`proposals`) and the step as it is written are planned for each
number of microbatches, on meshes of at most two axes. Then the other choices are, the cheapest at
the prices of the best plan first, on the mesh that was best for their number: the step that saves
these values, by the same search, which stops where it cannot beat the best plan so far, and does
not begin where the kernels alone take as long. After them come the choices that are cheapest at the
prices of the best plan (`priced`), which are other ones whenever a better plan is found. Before
these the best choice is tried with its weights cast before their loops (`early`), and with its sums
over devices after them (`late`). At last a loop is cut in two parts, of which the second saves
more, if memory is left (`parts`). With the best choice, all mesh shapes are searched at the end.

The bound of the plan is the least bound of all choices that were tried: of the chosen one over all
mesh shapes, of the others on the meshes on which they were planned. A note says so.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from autoshard.machine.machine import Machine
from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import MeshShape, Plan
from autoshard.program.keep import Residuals, find_residuals
from autoshard.program.trace import Program
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.assemble import prices_of
from autoshard.search.finish import finish
from autoshard.search.keep.accumulate import chosen_microbatches, cut_steps, microbatches_of
from autoshard.search.keep.early import cast_before
from autoshard.search.keep.late import beside_loops, sum_after
from autoshard.search.keep.offload import emptied, offloaded, on_host, waiting
from autoshard.search.keep.pads import pad_before
from autoshard.search.keep.parts import divided
from autoshard.search.keep.priced import (
    Place,
    Rates,
    cheapest,
    cost_of,
    in_order,
    rates_of,
    written_anew,
)
from autoshard.search.keep.proposals import Proposal, proposals
from autoshard.search.keep.shapes import coarse_shapes
from autoshard.search.keep.trials import (
    NOTHING,
    Base,
    Trial,
    among,
    best_of,
    bound_below,
    by_number,
    cheapest_first,
    dearest_wanted,
    hosted_by,
    kept_by,
    named,
    proof_of_all,
    said_of,
    saved_by,
)
from autoshard.search.memory_loop import explore_fitting
from autoshard.search.options import SearchOptions, WarmStart
from autoshard.search.prepare import prepare
from autoshard.search.scheduled.near import is_no_worse
from autoshard.search.scheduled.overlap import bound_at, faster_at_its_share
from autoshard.solve.limit_hit import LimitHit
from autoshard.units import format_seconds

FIRST, OTHERS, EARLY, LATE, TRIALS, PARTS = 0.35, 0.5, 0.55, 0.6, 0.65, 0.77
"""Until which fractions of the time limit the first two choices are planned, the other proposals
are, those with early casts and pads, late sums, those at a plan's prices, and loops in parts."""
DIVISIONS = 4
"""So many turns are tried at which the second part of a loop may begin."""
ROOM = (1.0, 1.5)
"""Of the memory that a plan leaves free, how much stacks may take: others may peak elsewhere."""
ROUNDS = 2
"""After so many of these in a row that are no better, there are no more with this room."""
WRITTEN = "as it is written"
PRICED = "cheapest at the prices of a plan"


def search_rewrites(program: Program, machine: Machine, asked: SearchOptions) -> list[Plan]:
    """Return the best plan over what is saved and how many microbatches, and others like it.

    Args:
      program: the step; what it saves as it is written is one of the choices.
      machine: the machine.
      asked: the options; the time limit is that of the whole search.

    Raises:
      TraceError: the step cannot be cut into any of the numbers of microbatches; the op is named.
      MeshError, RequirementError, InfeasibleError, NoPlanError: as `autoshard.search.search`.
    """
    return _Search(program, machine, asked).run()


class _Search:
    """The state of one search: the choices tried so far, and the best of them."""

    def __init__(self, program: Program, machine: Machine, asked: SearchOptions) -> None:
        self.machine, self.remat = machine, asked.remat
        self.saves, self.offloads = asked.remat != "respect", asked.remat == "offload"
        self.asked = replace(asked, remat="respect", accumulate=(1,))
        self.started = time.monotonic()
        self.trials: list[Trial] = []
        self.large: list[str] = []
        self.anew: dict[Program, frozenset[Place]] = {}
        self.notes: list[str] = []
        self.numbers = tuple(asked.accumulate) != (1,)
        self.steps, self.refused = cut_steps(program, asked.accumulate)

    def run(self) -> list[Plan]:
        """See `search_rewrites`."""
        known = [find_residuals(step.written) for step in self.steps] if self.saves else []
        if not any(one.values for one in known):
            if self.saves:
                self.notes.append(NOTHING)
            if len(self.steps) == 1:
                return self._alone(self.steps[0])
            known = []
        shapes = coarse_shapes(self.steps[0], self.machine, self.asked)
        bases = [self._base(step, one) for step, one in itertools.zip_longest(self.steps, known)]
        # What looks best comes first: what cannot beat it costs no search then.
        first = [(base, choice) for base in bases for choice in base.choices[:1]]
        first += [(base, None) for base in bases]
        self._tried(first, shapes, FIRST if known else TRIALS)
        ranked = itertools.zip_longest(*(self._in_order(base) for base in bases))
        pairs = [zip(bases, rank, strict=True) for rank in ranked]
        todo = [(base, choice) for pair in pairs for base, choice in pair if choice is not None]
        self._tried(todo, shapes, OTHERS)
        if not any(one.plan for one in self.trials):
            self._tried([(base, one) for base in bases for one in base.lean], shapes, TRIALS)
        if known:
            self._refined([*bases, *self._beside_loops()], shapes)
            self._beside()
            self._in_two_parts()
        best = best_of(self.trials, by_bytes=self.saves, by_schedule=self.asked.by_schedule)
        return self._among_others(self._concluded(best), best)

    def _in_order(self, base: Base) -> Sequence[Proposal]:
        """Its other choices, by their cost at the prices of the best plan there is of it.

        Where time is short, those that look best then are tried.
        """
        mine = [one for one in self.trials if one.base is base.step and one.plan is not None]
        best = min(mine, key=lambda one: one.objective, default=None)
        if best is None or "offloaded" in best.program.options:
            return base.choices[1:]
        residuals, rates = self._rates(best)
        return in_order(residuals, rates, base.choices[1:])

    def _rates(self, trial: Trial) -> tuple[Residuals, Rates]:
        """The candidates of a trial with a plan, and what they cost there."""
        assert trial.plan is not None
        residuals = find_residuals(trial.base.written)
        prices = prices_of(trial.plan, trial.program, self.machine)
        saved, anew = saved_by(trial.program, residuals), self.anew.get(trial.base)
        if anew is None:
            anew = self.anew[trial.base] = written_anew(trial.base, residuals, self.machine.chip)
        away = hosted_by(trial.program)
        return residuals, rates_of(residuals, saved, trial.plan, prices, anew, away)

    def _tried(
        self,
        choices: Sequence[tuple[Base, Proposal | None]],
        shapes: Sequence[MeshShape],
        until: float,
    ) -> None:
        """Plan choices in equal parts of the time until a fraction of the limit."""
        for at, (base, choice) in enumerate(choices):
            share = self._used() + (until - self._used()) / (len(choices) - at)
            if self._interrupted() or (self.trials and share <= self._used()):
                break
            mine = [one for one in self.trials if one.base is base.step]
            best = min(mine, key=lambda one: one.objective, default=None)
            found = None if best is None or choice is None else best.explored
            self._try(base, choice, shapes if found is None else [found.shape], share)

    def _beside_loops(self) -> list[Base]:
        """Plan the best choices with casts, pads and sums elsewhere; steps of these."""
        steps = []
        for made, until in ((cast_before, EARLY), (pad_before, EARLY), (sum_after, LATE)):
            for one in made(self.trials, self.machine.chip.compiler):
                tried = len(self.trials)
                self._tried([(one.base, one.choice)], [one.shape], until)
                for trial in self.trials[tried:]:
                    self.trials[-1] = one.judged(trial, by_schedule=self.asked.by_schedule)
                steps.append(one.base)
        return steps

    def _refined(self, bases: Sequence[Base], shapes: Sequence[MeshShape]) -> None:
        """Plan the choices that are cheapest at the prices of the best plan so far."""
        for room in ROOM:
            vain = 0
            while vain < ROUNDS and self._used() < TRIALS and not self._interrupted():
                best = min(self.trials, key=lambda one: one.objective)
                if best.plan is None:
                    return
                choice = self._priced(best, room)
                if choice is None:
                    break
                base = next(one for one in bases if one.step is best.base)
                self._tried([(base, choice)], shapes, TRIALS)
                again = min(self.trials, key=lambda one: one.objective) is best
                vain = vain + 1 if again else 0

    def _beside(self) -> None:
        """Plan choices with as much on the host as moves there beside other work."""
        whole = (one for one in self.trials if self.offloads and not hosted_by(one.program))
        best = min(whole, key=lambda one: one.objective, default=None)
        if best is None or best.plan is None or best.explored is None:
            return
        base = Base(best.base)
        residuals, rates = self._rates(best)
        saved = saved_by(best.program, residuals)
        made = on_host(residuals, rates, saved, self.machine)
        self._tried([(base, choice) for choice in made], [best.explored.shape], PARTS)

    def _in_two_parts(self) -> None:
        """Plan choices that save more in the last turns of a loop, on the mesh of the best plan."""
        best = min(self.trials, key=lambda one: one.objective)
        if best.plan is None or best.explored is None:
            return
        residuals, rates = self._rates(best)
        compiler, program = self.machine.chip.compiler, best.program
        division = divided(residuals, rates, compiler, program.options)
        tried: dict[int, float | None] = {}
        now = cost_of(residuals, rates, saved_by(program, residuals))
        least = self.asked.gap * best.objective
        while len(tried) <= DIVISIONS:
            if division is None or self._used() >= PARTS or self._interrupted():
                return
            gain = now - cost_of(residuals, rates, division.less) + division.gain
            if gain <= least or (made := division.applied(best.base)) is None:
                return
            step, choice = made
            self._tried([(Base(step), choice)], [best.explored.shape], PARTS)
            plan = self.trials[-1].plan
            # Where the limit binds hard there may be a plan whose layouts cost what is gained.
            fits = plan is not None and self.trials[-1].objective < best.objective
            tried.setdefault(division.turns, needed_bytes(best.plan.estimate))
            tried[division.start] = needed_bytes(plan.estimate) if plan and fits else None
            division = division.beginning(tried, best.plan.memory_limit)

    def _priced(self, best: Trial, room: float) -> Proposal | None:
        """The cheapest choice at the prices of a plan that is not tried, in so much of its room.

        None if it is no better than that of the plan.
        """
        if "offloaded" in best.program.options:
            return None  # what a byte of the device is worth is not known then
        residuals, rates = self._rates(best)
        roomy = replace(rates, free_bytes=room * rates.free_bytes)
        beaten = cost_of(residuals, rates, saved_by(best.program, residuals))
        known, large = [], []
        for one in self.trials:
            if one.base is best.base and not hosted_by(one.program):
                names = saved_by(one.program, residuals)
                known.append(residuals.on_stacks(names))
                # It has no plan that is better, but would be better if it fitted.
                if one.plan is None and cost_of(residuals, rates, names) < beaten:
                    large.append(known[-1])
        saved = cheapest(residuals.values, roomy, known, large)
        least = self.asked.gap * best.objective
        if saved is None or beaten - cost_of(residuals, rates, saved) <= least:
            return None
        return Proposal(PRICED, saved)

    def _base(self, step: Program, residuals: Residuals | None) -> Base:
        """A number of microbatches, and the choices of what to save that are to be tried in it."""
        searcher, _ = prepare(step, self.machine, self.asked)
        if residuals is None:
            return Base(step, searcher.flow)
        chip, chips = self.machine.chip, self.machine.chips
        free = searcher.limit - sum(step.values[v].bytes for v in step.inputs) / chips
        fit, large = proposals(residuals, chip, chips, free)
        lean: list[Proposal] = []
        if self.offloads:
            lean = emptied(residuals, (*fit, *large), self.machine.host, chips)
            fit += offloaded(residuals, (*large, *fit), self.machine.host, chips, free)
        self.large += [named(one.title, microbatches_of(step)) for one in large]
        written = set(residuals.on_stacks(residuals.saved_as_written()))
        choices = tuple(one for one in fit if one.offloaded or one.saved != written)
        return Base(step, searcher.flow, choices, tuple(lean))

    def _alone(self, step: Program) -> list[Plan]:
        """The plans of the only choice that there is."""
        found = self._everywhere(step, self._options(1.0))
        more = chosen_microbatches(step, {}, self.refused) if self.numbers else []
        return [replace(plan, notes=(*plan.notes, *self.notes, *more)) for plan in found]

    def _used(self) -> float:
        """The fraction of the time limit that is over."""
        return (time.monotonic() - self.started) / self.asked.time_limit

    def _interrupted(self) -> bool:
        found = (one.explored for one in self.trials if one.explored)
        return any(one.limit_hit is LimitHit.INTERRUPTED for one in found)

    def _options(self, until: float) -> SearchOptions:
        """The options of a part that lasts until this fraction of the time limit."""
        left = (until - self._used()) * self.asked.time_limit
        return replace(self.asked, time_limit=max(left, 0.5))

    def _try(
        self,
        base: Base,
        choice: Proposal | None,
        shapes: Sequence[MeshShape],
        until: float,
    ) -> None:
        """Plan one choice on some mesh shapes, if it can be among the best so far."""
        asked = replace(self._options(until), baselines=False, count=1, by_schedule=False)
        facts = None if choice else base.facts
        cutoff = dearest_wanted(self.trials, self.asked.count)
        better = len(self.trials) >= self.asked.count
        known = WarmStart(facts=facts, only_better=better, seeks_limit=False)
        program = base.step if choice is None else choice.applied(base.step)
        searcher, _ = prepare(program, self.machine, asked, known)
        searcher.cutoff, searcher.remat = cutoff, self.remat
        title = named(choice.title if choice else WRITTEN, microbatches_of(base.step))
        trial = Trial(title, base.step, program, searcher, searcher.ideal)
        if searcher.ideal >= cutoff * (1 - asked.gap):
            least = format_seconds(searcher.ideal)
            self.trials.append(replace(trial, why=f"its kernels alone take {least} a step"))
            return
        try:
            found = explore_fitting(searcher, shapes)
            (plan,) = finish(searcher, found, asked)
            trial = replace(trial, bound=plan.proof.bound, explored=found, plan=plan)
        except (InfeasibleError, NoPlanError) as error:
            bound = min(bound_below(searcher, shape.sizes, cutoff) for shape in shapes)
            beaten = bound >= cutoff * (1 - asked.gap)
            why = f"none is below {format_seconds(cutoff)} a step" if beaten else str(error)
            trial = replace(trial, bound=bound, why=why)
        self.trials.append(trial)

    def _concluded(self, best: Trial) -> list[Plan]:
        """The plans of the best choice, on all mesh shapes, with the bound of all choices."""
        found: list[Plan] = []
        free = self.asked.mesh is None and not self._interrupted()
        if best.plan is not None:
            rest = replace(self._options(1.0), start=best.plan)
            search = partial(self._everywhere, best.program)
            found = faster_at_its_share(search, best.plan, best.program, self.machine, rest)
            if found:
                return [self._proven(plan, best) for plan in found]
        if best.plan is None or free:
            options = replace(self._options(1.0), start=best.plan or self.asked.start)
            try:
                found = self._everywhere(best.program, options)
            except NoPlanError:
                if best.plan is None:
                    raise
        if best.plan is not None and not (found and is_no_worse(found[0], best.plan, self.asked)):
            assert best.explored is not None
            found = finish(best.searcher, best.explored, self.asked)
        return [self._proven(plan, best) for plan in found]

    def _among_others(self, found: list[Plan], best: Trial) -> list[Plan]:
        """After the best plan those of the other choices and its own others, by turns."""
        asked = () if self.asked.count == 1 else cheapest_first(self.trials)
        others = [self._proven(plan, one, best) for one, plan in asked if one is not best]
        return among(found, others)[: self.asked.count]

    def _everywhere(self, program: Program, asked: SearchOptions) -> list[Plan]:
        """The plans of one choice on all mesh shapes."""
        searcher, shapes = prepare(program, self.machine, asked)
        searcher.remat = self.remat
        return finish(searcher, explore_fitting(searcher, shapes), asked)

    def _proven(self, plan: Plan, mine: Trial, best: Trial | None = None) -> Plan:
        """The plan of a choice with the least bound of all, and a note of what that covers.

        `best` is the cheapest choice, by default this one.
        """
        others = [one for one in self.trials if one is not mine]
        share = None if self.asked.corrections.hidden else plan.corrections.hidden
        bounds = [bound_at(share, one.bound, one.searcher.ideal, self.machine) for one in others]
        proof = proof_of_all(plan.proof, bounds, time.monotonic() - self.started)
        notes = (*plan.notes, *self._notes(mine, best or mine))
        kept = kept_by(mine) if self.saves and not self.notes else ()
        return replace(plan, proof=proof, notes=notes, kept=kept)

    def _notes(self, mine: Trial, best: Trial) -> list[str]:
        notes = [*self.notes, *waiting(mine.program), *beside_loops(mine.program)]
        if self.numbers:
            notes += chosen_microbatches(mine.base, by_number(self.trials), self.refused)
        if self.saves and not self.notes:
            notes.append(said_of(mine, best, self.trials))
        if self.large:
            notes.append(f"not tried, as their stacks alone do not fit: {', '.join(self.large)}")
        return notes
