"""Which choices of what a stage saves are worth a search: those that beat each other somewhere.

One stage of blocks from the middle of the program is planned with every choice, on each kind of
mesh. A choice is left out if it has no plan there, or if another one is as fast and keeps no more
for each microbatch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autoshard.lower.mpmd.cut.saving import Staged
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.search.meshes.keep.titles import WRITTEN, known_titles
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.request import Request
from autoshard.search.meshes.stage_program import Mode, StageProgram, stage_programs

LESS = 0.02
"""The fraction by which a slower choice must keep less than a faster one."""


def promising(
    request: Request, pricer: Pricer, mode: Mode, seconds: float, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Return the titles of promising choices, the fastest first; none if nothing can be chosen.

    Args:
      mode: whether the backward pass of the stage is one task.
      seconds: about how long this may take.
    """
    count, meshes = len(request.blocks), len(request.cluster.meshes)
    each = max(count // meshes, 1)
    counts = (each, *([each] if count > 2 * each else []))
    counts = (*counts, count - sum(counts)) if count > sum(counts) else (count,)
    stage, fewest = (1 if len(counts) > 2 else 0), min(request.steps)
    found: list[Staged] = []

    def look(staged: Staged) -> list[None]:
        found.append(staged)
        return [None] * len(counts)

    request.traced[fewest].cut(counts, saved=look)
    if not any(residuals.values for residuals in found[0].residuals):
        return ()
    titles = known_titles(found[0], request.cluster.meshes[0])
    stop = time.monotonic() + seconds
    kinds = {machine.name: machine for machine in request.cluster.meshes}
    left: dict[str, None] = {}
    for machine in kinds.values():
        prices: dict[str, StagePrice] = {}
        for at, title in enumerate(titles):
            say(f"planning a stage on {machine.name} that saves {title}")
            (program,) = stage_programs(request.cut(fewest, counts, [title]), mode, [stage])
            share = (stop - time.monotonic()) / (len(titles) - at) / len(kinds)
            price = _price(pricer, program, machine, prices, max(share, 1.0))
            if price is not None:
                prices[title] = price
        left.update(dict.fromkeys(_best(prices, fewest)))
    return tuple(left) or (WRITTEN,)


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


def _best(prices: dict[str, StagePrice], microbatches: int) -> list[str]:
    """Return the titles that no other one beats, the fastest first."""
    left, kept = [], float("inf")
    for title, one in sorted(prices.items(), key=lambda item: item[1].busy_seconds(microbatches)):
        if one.kept_bytes < kept * (1 - LESS):
            left.append(title)
            kept = one.kept_bytes
    return left
