"""Ops that are none to a compiler: bitcasts, constraints, and where loops begin and end."""

from __future__ import annotations

from autoshard.program.facts import Facts
from autoshard.program.graph import Op, Program
from autoshard.program.vocabulary import RESHARDS, TRANSFERS

MOVES_NOTHING = frozenset(
    {
        *("enter", "carry", "yield", "join", "return"),
        *("shard_alike", "optimization_barrier", *RESHARDS),
        # Bitcasts, and slices, unless they are copied (`Facts.copied`).
        *("reshape", "squeeze", "expand_dims", "scan_slice", "dynamic_slice"),
        *TRANSFERS,  # over another link, see `autoshard.cost.transfers`
    }
)


def moves_nothing(program: Program, flow: Facts, op: Op) -> bool:
    """Whether an op takes no time: nothing runs, or what runs is counted elsewhere.

    Where a fused kernel ends in such an op, its result is what the kernel writes.
    """
    if op.index in flow.accumulated:
        return True  # the product does it
    if op.primitive == "scan_stack" and program.values[op.outputs[0]].host:
        return True  # the transfer does it
    if op.primitive not in MOVES_NOTHING or op.index in flow.copied:
        return False
    written = flow.materialised
    is_end = any(written[value] for value in op.outputs) and any(
        value >= 0 and not written[value] and not program.values[value].free for value in op.inputs
    )
    return not is_end
