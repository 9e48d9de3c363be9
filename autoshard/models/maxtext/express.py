"""The best plan that a file of MaxText's configuration can express.

The file says how many devices lie along each axis of MaxText's mesh; its logical axis rules then
say where everything lies. So each split of the devices is one plan: the step is built by MaxText
with that mesh, its constraints and the shardings of its arguments are demands, and what they leave
open lies as Shardy's propagation completes them (`autoshard.lower.facts.completed`). Which axes do
different things for the model is asked of MaxText (`autoshard.models.maxtext.splits`). First all
devices lie along one axis, each in turn, then along the best of these and another one, in all
proportions (where none fits, along any two). From the best of all a prime factor at a time moves to
another axis while that helps.

With `remat="search"` the tensors of MaxText's `remat_policy: custom` are chosen too, with
`"offload"` also for the host (`autoshard.models.maxtext.places`): on the default split where that
fits, since what is slower than the best so far costs little to price, and again on the best one.
With several numbers of microbatches each is priced on the best splits. The default is priced first,
so that what is found is never worse than it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard.interrupts import acknowledge
from autoshard.machine.machine import Machine
from autoshard.machine.network import Torus
from autoshard.models.maxtext.config import configured, keys, remat_keys
from autoshard.models.maxtext.places import Places, choose
from autoshard.models.maxtext.splits import (
    AxisUse,
    Split,
    distinct,
    neighbours,
    ordered,
    shown,
    splits,
)
from autoshard.models.maxtext.step import axis_use, tensor_names, train_step
from autoshard.models.providers import ProgramError, Target
from autoshard.plan.plan import Plan
from autoshard.program.select import RequirementError
from autoshard.program.trace import trace
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.finish import finish
from autoshard.search.keep.trials import bound_below
from autoshard.search.memory_loop import explore_fitting
from autoshard.search.options import SearchOptions, WarmStart
from autoshard.search.prepare import MeshError, prepare
from autoshard.units import counted, format_bytes, format_seconds

OTHER_STEPS = ("diloco", "stage")
"""Axes that make another step of it: with several models, and with a pipeline."""
AGAIN = 4
"""So many of the best splits are priced again with other microbatches and saved tensors."""
SECONDS, GAP = 20.0, 0.001
"""Of the search of one split: the most seconds, and how close to its best."""
NOT_FASTER = "no plan that fits is below"
"""So the reason begins of a choice that is not the best, whatever its own plan is."""
LONGEST = 200
"""Letters of a reason why a choice has no plan."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a file says.

    Attributes:
      split: the axes above one.
      between: the axis that reaches over all slices; empty where there is one.
      microbatches: the step works on so many, one after another.
      saved: the tensors that are kept for the backward pass; None as the user's settings say.
      offloaded: the tensors that wait for it in the memory of the host.
    """

    split: Split
    between: str = ""
    microbatches: int = 1
    saved: tuple[str, ...] | None = None
    offloaded: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [shown(self.split)]
        words += [f"{self.between} over the slices"] if self.between else []
        words += [f"{self.microbatches} microbatches"] if self.microbatches > 1 else []
        if self.saved is not None:
            words.append(f"saved: {', '.join(self.saved) or 'layer inputs alone'}")
        words += [f"on the host: {', '.join(self.offloaded)}"] if self.offloaded else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Trial:
    """A choice with its plan, or the reason why it has none."""

    choice: Choice
    plan: Plan | None = None
    why: str = ""

    @property
    def seconds(self) -> float:
        return math.inf if self.plan is None else self.plan.estimate.step_seconds

    def __str__(self) -> str:
        if self.plan is None:
            return f"{self.choice}: {self.why}"
        estimate = self.plan.estimate
        size = format_bytes(estimate.expected_bytes)
        return f"{self.choice}: {format_seconds(estimate.step_seconds)} a step, {size}"


class Expression:
    """The search for the best file; `best` is the best trial so far."""

    def __init__(
        self,
        name: str,
        target: Target,
        settings: Mapping[str, Any],
        *,
        machine: Machine,
        asked: SearchOptions,
        heard: Callable[[str], None],
    ) -> None:
        self.name, self.target, self.settings = name, target, dict(settings)
        self.machine, self.asked, self.heard = machine, asked, heard
        self.slices = slices_of(machine)
        self.trials: dict[Choice, Trial] = {}
        self.left_out: dict[str, str] = {}
        self.interrupted = False
        own = [key for key in settings if key.startswith(("ici_", "dcn_"))]
        if own or "num_slices" in settings:
            raise ProgramError(f"{', '.join(own) or 'num_slices'}: this is what is searched for")

    @functools.cached_property
    def order(self) -> tuple[str, ...]:
        """The axes of MaxText's mesh."""
        return tuple(self._configured({}).mesh_axes)

    @functools.cached_property
    def uses(self) -> dict[str, AxisUse]:
        """What the model asks of the axes that do different things."""
        found = {}
        for axis in self.order:
            if axis in OTHER_STEPS or parallelism_key("ici", axis) not in keys():
                self.left_out[axis] = "it makes another step" if axis in OTHER_STEPS else "no key"
                continue
            self.heard(f"what the model asks of {axis}")
            try:
                config = self._configured({parallelism_key("ici", axis): 2})
                found[axis] = axis_use(config, self.target, axis)
            except ProgramError as error:
                self.left_out[axis] = _in_one_line(error)
        alike = distinct(found)
        for axis in found:
            if not found[axis].cut:
                self.left_out[axis] = "it cuts nothing of this model"
        for axis, others in alike.items():
            self.left_out |= dict.fromkeys(others, f"it does what {axis} does")
        return {axis: found[axis] for axis in alike}

    def tensors(self, choice: Choice) -> list[str]:
        """The tensors of the model that MaxText's `remat_policy: custom` knows."""
        known = tensor_names(self._configured(self._rest(choice)), self.target)
        return [name for name in remat_keys() if name in known]

    @property
    def best(self) -> Trial | None:
        """The fastest that fits."""
        found = min(self.trials.values(), key=lambda one: one.seconds, default=None)
        return None if found is None or found.plan is None else found

    def run(self) -> Trial:
        """The best choice.

        Raises:
          InfeasibleError: none fits; what became of each is listed.
          ProgramError: MaxText cannot build the model.
        """
        try:
            self._search()
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)
            self.interrupted = True
        if self.best is None:
            told = "\n".join(f"  {one}" for one in list(self.trials.values())[:12])
            raise InfeasibleError(f"no split of MaxText's mesh fits {self.machine.name}:\n{told}")
        return self.best

    def price(self, choice: Choice) -> Trial:
        """The plan of a choice, or the reason why it cannot be the best so far."""
        known = self.trials.get(choice)
        if known is not None:
            return known
        self.heard(f"{len(self.trials) + 1}: {choice}")
        cutoff = math.inf if self.best is None else self.best.seconds
        try:
            trial = Trial(choice, self._planned(choice, cutoff))
        except (InfeasibleError, MeshError, NoPlanError, ProgramError, RequirementError) as error:
            trial = Trial(choice, why=_in_one_line(error))
        self.trials[choice] = trial
        return trial

    def settings_of(self, choice: Choice) -> dict[str, Any]:
        """The keys of MaxText's configuration that a choice says, the user's own included."""
        mesh = mesh_settings(choice, self.order, self.slices)
        return {**self.settings, **mesh, **self._rest(choice)}

    def config_of(self, choice: Choice) -> Any:
        """MaxText's configuration of a choice."""
        return self._configured(self.settings_of(choice))

    def ranked(self) -> list[Trial]:
        """The trials that have a plan, the fastest first."""
        found = [one for one in self.trials.values() if one.plan is not None]
        return sorted(found, key=lambda one: one.seconds)

    def counted(self) -> str:
        """How many choices were priced, and what became of them."""
        left = [one.why for one in self.trials.values() if one.plan is None]
        slower = sum(why.startswith(NOT_FASTER) for why in left)
        said = [f"{len(self.trials) - len(left)} had a plan"]
        said += [f"{slower} can be no faster than what was found before them"] if slower else []
        said += [f"{len(left) - slower} cannot be planned"] if len(left) > slower else []
        return f"{counted(len(self.trials), 'choice')} priced: {', '.join(said)}"

    def unplanned(self) -> list[Trial]:
        """The trials that cannot be planned, with the reasons, one of each."""
        left = [one for one in self.trials.values() if one.plan is None]
        found = {one.why: one for one in left if not one.why.startswith(NOT_FASTER)}
        return list(found.values())

    def default(self) -> Choice:
        """What MaxText does where nobody says anything: all devices along `fsdp`."""
        inside = {"fsdp": self.machine.chips // self.slices}
        if self.slices == 1:
            return Choice(ordered(inside, self.order))
        return Choice(ordered({**inside, "data": self.slices}, self.order), "data")

    def _search(self) -> None:
        counts = sorted(set(self.asked.accumulate)) or [1]
        chips = self.machine.chips
        self.price(replace(self.default(), microbatches=counts[0]))
        self._place()
        self._all(self._over_slices(splits(chips, self.uses, self.order, axes=1)), counts[0])
        pairs = splits(chips, self.uses, self.order, axes=2)
        if self.best is not None:
            axis = max(self.best.choice.split, key=lambda one: one[1])[0]
            pairs = [one for one in pairs if axis in dict(one)]
        self._all(self._over_slices(pairs), counts[0])
        self._walk()
        for count in counts[1:]:
            self._all([one.choice for one in self._tops()] or [self.default()], count)
        self._place()
        self._walk()

    def _all(self, choices: Iterable[Choice], count: int) -> None:
        for choice in choices:
            kept = choice if self.best is None else self.best.choice
            places = {"saved": kept.saved, "offloaded": kept.offloaded}
            self.price(replace(choice, microbatches=count, **places))

    def _tops(self) -> list[Trial]:
        """The best trials of different splits."""
        found: dict[tuple[Split, str], Trial] = {}
        for one in self.ranked():
            found.setdefault((one.choice.split, one.choice.between), one)
        return list(found.values())[:AGAIN]

    def _walk(self) -> None:
        """Go on from the best split while a neighbour is better."""
        while (best := self.best) is not None:
            near = neighbours(best.choice.split, self.uses, self.order)
            for choice in self._over_slices(near):
                self.price(replace(best.choice, split=choice.split, between=choice.between))
            if self.best is best:
                return

    def _over_slices(self, found: Sequence[Split]) -> list[Choice]:
        """Each split with each axis that may reach over the slices."""
        if self.slices == 1:
            return [Choice(split) for split in found]
        return [
            Choice(split, axis)
            for split in found
            for axis, size in split
            if size % self.slices == 0
        ]

    def _place(self) -> None:
        """Choose where tensors wait for the backward pass, on the best split or the default."""
        if self.asked.remat == "respect":
            return
        first = replace(self.default(), microbatches=min(self.asked.accumulate, default=1))
        choice = first if self.best is None else self.best.choice

        def seconds(places: Places) -> float:
            there = replace(choice, saved=places.device, offloaded=places.host)
            return self.price(there).seconds

        choose(self.tensors(choice), seconds, host=self.asked.remat == "offload")

    def _planned(self, choice: Choice, cutoff: float) -> Plan:
        config = self.config_of(choice)
        fn, args, options = train_step(config, self.target, keep=True)
        notes = options.pop("notes")
        program = trace(fn, *args, name=f"maxtext:{self.name}", **options)
        sizes = sorted(choice.split, key=lambda one: one[0] != choice.between)
        asked = SearchOptions(
            mesh=dict(sizes),
            memory_limit=self.asked.memory_limit,
            time_limit=min(SECONDS, self.asked.time_limit),
            gap=max(GAP, self.asked.gap),
            baselines=False,
            complete=True,
            join_sums=self.asked.join_sums,
        )
        known = WarmStart(only_better=not math.isinf(cutoff), seeks_limit=False)
        searcher, shapes = prepare(program, self.machine, asked, known)
        searcher.cutoff = cutoff
        try:
            (plan,) = finish(searcher, explore_fitting(searcher, shapes), asked)
        except (InfeasibleError, NoPlanError) as error:
            least = bound_below(searcher, shapes[0].sizes, cutoff)
            if known.only_better and least >= cutoff * (1 - asked.gap):
                why = f"{NOT_FASTER} {format_seconds(cutoff)} a step"
                raise NoPlanError(why) from error
            raise
        return replace(plan, notes=(*plan.notes, *notes))

    def _configured(self, settings: Mapping[str, Any]) -> Any:
        slices = {"num_slices": self.slices} if self.slices > 1 else {}
        return configured(self.name, self.target, {**self.settings, **slices, **settings})

    def _rest(self, choice: Choice) -> dict[str, Any]:
        """What a choice says beside the mesh."""
        found: dict[str, Any] = {}
        if choice.microbatches > 1:
            batch = self._configured({}).per_device_batch_size
            each = batch / choice.microbatches
            found["gradient_accumulation_steps"] = choice.microbatches
            found["per_device_batch_size"] = int(each) if each == int(each) else each
        if choice.saved is not None:
            places = dict.fromkeys(remat_keys(), "remat")
            places |= dict.fromkeys(choice.saved, "device")
            places |= dict.fromkeys(choice.offloaded, "offload")
            found |= {"remat_policy": "custom", **places}
        return found


def slices_of(machine: Machine) -> int:
    """How many slices a machine has: what its levels outside of a torus hold; of GPUs 1."""
    if not isinstance(machine.network[0], Torus):
        return 1
    return math.prod(level.chips for level in machine.network[1:])


def parallelism_key(kind: str, axis: str) -> str:
    """The key of MaxText's configuration for an axis, inside a slice (`ici`) or between (`dcn`).

    >>> parallelism_key("ici", "stage")
    'ici_pipeline_parallelism'
    """
    return f"{kind}_{'pipeline' if axis == 'stage' else axis}_parallelism"


def mesh_settings(choice: Choice, order: Sequence[str], slices: int) -> dict[str, int]:
    """The keys that give every axis of a mesh its size.

    >>> mesh_settings(Choice((("data", 8), ("fsdp", 4)), "data"), ("data", "fsdp"), 2)
    {'ici_data_parallelism': 4, 'dcn_data_parallelism': 2, 'ici_fsdp_parallelism': 4, \
'dcn_fsdp_parallelism': 1}
    """
    sizes = dict(choice.split)
    found = {}
    for axis in order:
        outside = slices if axis == choice.between else 1
        found[parallelism_key("ici", axis)] = sizes.get(axis, 1) // outside
        found[parallelism_key("dcn", axis)] = outside
    return found


def _in_one_line(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} ..."
