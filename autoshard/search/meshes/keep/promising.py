"""Which choices of what a stage saves are worth a search: those that beat each other somewhere.

One stage of blocks from the middle of the program is planned with every choice, on each kind of
mesh; of blocks that are no turns of a loop, a single one. A choice is left out if it has no plan
there, or if another one is as fast and keeps no more for each microbatch. Where time is over, the
first choices are left.

Where stacks may lie on the host, a few choices are planned with some there
(`autoshard.search.meshes.keep.away`): those without a plan, and then those that are left. Of all,
those are left then that no other one beats, where a host that could have too little room counts,
too; and the fastest without the host, for memory that is ample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.lower.mpmd.cut.saving import StageChoice, Staged
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.search.meshes.bounds.bricks import is_scanned
from autoshard.search.meshes.keep.away import offered
from autoshard.search.meshes.keep.titles import WRITTEN, different, known_titles
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.problem import host_limit
from autoshard.search.meshes.request import Request
from autoshard.search.meshes.stage_program import Mode, StageProgram, stage_programs

LESS = 0.02
"""The fraction by which a slower choice must keep less than a faster one."""
MOST = 3
"""With so many choices of what is saved stacks are offered on the host."""
SHARE = 0.6
"""Of the time, what the choices without the host may take where there are others."""
LEAST = frozenset({WRITTEN, "nothing"})
"""Choices that save little."""


def promising(
    request: Request,
    pricer: Pricer,
    mode: Mode,
    seconds: float,
    say: Callable[[str], None],
    *,
    offloads: bool = False,
) -> tuple[str, ...]:
    """Return the titles of promising choices, the fastest first; none if nothing can be chosen.

    Args:
      mode: whether the backward pass of the stage is one task.
      seconds: about how long this may take.
      offloads: whether stacks may lie on the host.
    """
    count, meshes = len(request.blocks), len(request.cluster.meshes)
    each = max(count // meshes, 1)
    size = each if is_scanned(request.blocks) else 1
    counts = [one for one in (each, size, count - each - size) if one > 0]
    counts = counts if count > each else [count]
    stage = 1 if len(counts) > 2 else 0
    found: list[Staged] = []

    def look(staged: Staged) -> list[StageChoice]:
        found.append(staged)
        return [StageChoice()] * len(counts)

    request.traced[min(request.steps)].cut(counts, saved=look)
    if not any(residuals.values for residuals in found[0].residuals):
        return ()
    kinds = {machine.name: machine for machine in request.cluster.meshes}
    looked = _Look(request, pricer, mode, found[0], counts, stage, say)
    left: dict[str, None] = {}
    stop = time.monotonic() + seconds
    for at, machine in enumerate(kinds.values()):
        until = time.monotonic() + (stop - time.monotonic()) / (len(kinds) - at)
        left.update(dict.fromkeys(looked.on(machine, until, offloads=offloads)))
    return tuple(left) or (WRITTEN,)


@dataclass(slots=True)
class _Look:
    """The stage that is planned with every choice: `stage` of a cut into these `counts`."""

    request: Request
    pricer: Pricer
    mode: Mode
    staged: Staged
    counts: Sequence[int]
    stage: int
    say: Callable[[str], None]
    prices: dict[str, StagePrice] = field(default_factory=dict)

    def on(self, machine: Machine, stop: float, *, offloads: bool) -> list[str]:
        """Return the titles that no other one beats on a kind of mesh, the fastest first."""
        self.prices = {}
        first, fewest = self.request.cluster.meshes[0], min(self.request.steps)
        titles = known_titles(self.staged, first)
        begun = time.monotonic()
        share = SHARE if offloads else 1.0
        self._plan(titles, machine, begun + share * (stop - begun))
        left = best_of(self.prices, fewest)
        if not offloads or any(one.host is None for one in self.request.cluster.meshes):
            return left
        bases = [title for title in titles if title not in self.prices] + left
        bases = list(dict.fromkeys([*bases[: MOST - 1], *(t for t in bases if t in LEAST)]))
        away = different(self.staged, offered(bases, LEAST), first, known=titles)
        self._plan(away, machine, stop)
        room = host_limit(machine) / max(self.request.steps)
        return best_of(self.prices, fewest, known=left[:1], room=room)

    def _plan(self, titles: Sequence[str], machine: Machine, stop: float) -> None:
        """Plan the stage with these choices."""
        fewest = min(self.request.steps)
        for at, title in enumerate(titles):
            self.say(f"planning a stage on {machine.name} that saves {title}")
            cut = self.request.cut(fewest, self.counts, [title])
            (program,) = stage_programs(cut, self.mode, [self.stage])
            share = (stop - time.monotonic()) / (len(titles) - at)
            if share <= 0 and self.prices:
                return
            price = _price(self.pricer, program, machine, self.prices, max(share, 1.0))
            if price is not None:
                self.prices[title] = price


def _price(
    pricer: Pricer,
    program: StageProgram,
    machine: Machine,
    others: dict[str, StagePrice],
    seconds: float,
) -> StagePrice | None:
    """Return the price of a stage on the mesh shape of the others, or None."""
    shapes: Sequence[MeshShape] = [one.mesh for one in others.values()][:1]
    least = dict.fromkeys(shapes or pricer.candidates(machine), 0.0)
    limit = pricer.limit(machine)
    found = pricer.price(program, machine, least, limit, seconds, rough=True, most=3 * seconds)
    return None if isinstance(found, str) else found


def best_of(
    prices: Mapping[str, StagePrice],
    microbatches: int,
    *,
    known: Sequence[str] = (),
    room: float = float("inf"),
) -> list[str]:
    """Return the titles that no other one beats, the fastest first.

    Args:
      known: titles that stay.
      room: what one microbatch may keep on the host without ever having too little there.
    """
    ranked = sorted(prices.items(), key=lambda item: item[1].busy_seconds(microbatches))
    left = [title for title, _ in ranked if title in known]
    for title, one in ranked:
        seconds, kept = one.busy_seconds(microbatches), one.kept_bytes
        there = max(one.host_bytes - room, 0.0)
        if title not in known and not any(
            other.busy_seconds(microbatches) <= seconds
            and other.kept_bytes * (1 - LESS) <= kept
            and max(other.host_bytes - room, 0.0) <= there
            for other in (prices[name] for name in left)
        ):
            left.append(title)
    return sorted(left, key=lambda title: prices[title].busy_seconds(microbatches))
