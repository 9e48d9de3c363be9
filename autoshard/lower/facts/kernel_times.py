"""What the kernels of a lowered plan take by its prices, for compilers that give them no time.

XLA writes no cycles for a kernel that people wrote, and looks into none. In a compiled module a
kernel is known by its scope, to which lowering adds parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.cost.kernels import kernel_seconds, longest_parts
from autoshard.cost.rings import rounds
from autoshard.machine.chip import Chip
from autoshard.plan.decisions import Decisions
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.kernels.ring import calls
from autoshard.program.trace import Program


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A kernel of a program: where it stands, and the seconds of one run on its part.

    Of a ring, whose steps run it several times, the mean of these.
    """

    scope: str
    seconds: float

    @property
    def parts(self) -> list[str]:
        """The names of which its scope consists."""
        return names_in(self.scope)

    def may_be(self, op_name: str) -> bool:
        """Whether an instruction of this name, which has more parts, may be this kernel."""
        rest = iter(names_in(op_name))
        return all(part in rest for part in self.parts)


def names_in(scope: str) -> list[str]:
    """The names of a scope, those of transformations and of what stands in them each by itself.

    >>> names_in("transpose(jvp())/flash"), names_in("transpose(jvp(flash))")
    (['transpose', 'jvp', 'flash'], ['transpose', 'jvp', 'flash'])
    """
    return re.findall(r"[^/()]+", scope)


def kernel_times(
    program: Program, decisions: Decisions, mesh_shape: Sequence[int], chip: Chip
) -> list[KernelTime]:
    """The kernels of a program, as decisions cut them."""
    chosen, found = ChosenStrategies(decisions, mesh_shape), []
    for op in program.ops:
        if op.kernel is not None and decisions.assignment[op.index] is not None:
            strategy = chosen(op)
            longest = longest_parts(op, strategy, mesh_shape)
            seconds = float(kernel_seconds(chip, op.kernel, strategy.shards, longest)[0])
            times = 1
            for one in rounds(op, strategy, mesh_shape):
                times = calls(one.ring, one.devices)
            found.append(KernelTime(op.scope, seconds / times))
    return found


def seconds_of_kernel(kernels: Sequence[KernelTime], op_name: str) -> float | None:
    """What a kernel of a module takes; None if the program has none there."""
    fitting = [one for one in kernels if one.may_be(op_name)]
    return max(fitting, key=lambda one: len(one.parts)).seconds if fitting else None
