"""A second memory of each mesh, of which a schedule problem knows nothing: that of its host, say.

What a microbatch takes there it takes and gives back together with what it takes of the mesh. So a
limit of the one is a limit of the other. With n(s) microbatches of stage s on their way,

    sum over s of n(s) elsewhere(s)  <=  room
    wherever  sum over s of n(s) taken(s)  <=  room * min over s of taken(s) / elsewhere(s)

With one stage on a mesh that allows as many microbatches as there is room for. With several, whose
ratios differ, it may allow fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from autoshard.solve.schedule.instance import Instance, Number


def _binds(elsewhere: Sequence[Number], room: Number, microbatches: int) -> bool:
    """Whether the stages of a mesh may take more elsewhere than there is.

    Args:
      elsewhere: what one microbatch takes there, by stage.
      room: what there is.
      microbatches: how many may be on their way.
    """
    return microbatches * sum(elsewhere) > room


def _limit_for(taken: Sequence[Number], elsewhere: Sequence[Number], room: Number) -> int:
    """The limit of a mesh's own memory within which what it takes elsewhere has room, too.

    Args:
      taken: what one microbatch takes of the mesh until its last task, by stage; more than zero
        wherever it takes something elsewhere.
      elsewhere, room: as for `_binds`.
    """
    whole = Fraction(max(room, 0))
    return math.floor(
        min(
            whole * Fraction(own) / Fraction(other)
            for own, other in zip(taken, elsewhere, strict=True)
            if other
        )
    )


def within(instance: Instance, elsewhere: Sequence[Number], rooms: Sequence[Number]) -> Instance:
    """The same problem with limits within which what stages take elsewhere has room there, too.

    Where that binds, W alone gives back what a microbatch takes.

    Args:
      instance: with a memory limit.
      elsewhere: what a microbatch takes elsewhere, by stage.
      rooms: what each mesh has there.
    """
    assert instance.memory_limit is not None
    limits, taken = list(instance.memory_limit), list(instance.memory_forward)
    backward = list(instance.memory_backward)
    for mesh, room in enumerate(rooms):
        here = instance.on(mesh)
        there = [elsewhere[s] for s in here]
        if _binds(there, room, instance.microbatches):
            for s in here:
                taken[s], backward[s] = max(taken[s], 1 if elsewhere[s] else 0), 0
            limits[mesh] = min(limits[mesh], _limit_for([taken[s] for s in here], there, room))
    return replace(
        instance,
        memory_forward=tuple(taken),
        memory_backward=tuple(backward),
        memory_weight=tuple(-f - b for f, b in zip(taken, backward, strict=True)),
        memory_limit=tuple(limits),
    )
