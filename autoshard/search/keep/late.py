"""Sums over devices after the loops that make their parts, as a choice of a search.

A turn of a loop that sums gradients of norms and biases over devices waits for the network, however
short they are. Ended after the loop (`autoshard.program.keep.late_sums`) they are summed for all
turns at once; for this each device holds its own sums while the loop runs, which are as short. What
a step saves is chosen first, and then tried with sums that end late, cut as the dimensions of its
plan are, on the mesh of that.

Prices count on other work to hide half of the wait, which XLA:GPU has not in the last ops of a turn
(ViT-L/16 on h100-64 with early casts, JAX 0.12: 0.0261 s predicted either way, 0.0479 s compiled
with sums in turns and 0.0446 s with late ones). So it is enough that the plan is no dearer by them.

Nothing is tried where flags have sums run a turn behind, beside the next turn (the same with cuDNN
and the flags of recipes: 0.0268 s compiled with sums in turns, 0.0280 s with late ones), nor for
XLA:TPU (ViT-L/16 on v5e-16: 0.3481 and 0.3472 s).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.machine.compiler import Compiler
from autoshard.plan.plan import Plan
from autoshard.program.rewritten import summing_late
from autoshard.program.trace import Op, Program, TraceError
from autoshard.search.keep.early import Beside, best_with_plan, cast_early_note, rewritten
from autoshard.search.keep.pads import early_pads_note
from autoshard.search.keep.trials import Trial

LATE = "sums over devices after their loops"


def sum_after(trials: Sequence[Trial], compiler: Compiler) -> list[Beside]:
    """The best choice in each number of microbatches, with sums that end late, and its trial.

    None of those that have no plan, no sums over devices in loops, or late ones already.
    """
    if compiler.name == "xla:tpu" or compiler.pipelines:
        return []
    made = []
    for one in best_with_plan(trials):
        assert one.plan is not None
        parts = parts_of(one.program, one.plan)
        if not parts or "late_sums" in one.program.options:
            continue
        try:
            step = summing_late(one.base, parts)
        except TraceError:
            continue
        made.append(rewritten(one, step, LATE, scheduled=False))
    return made


def parts_of(program: Program, plan: Plan) -> list[int]:
    """Over how many devices the first dimension of sums in loops lies at most, the second, ...

    Empty where nothing in a loop is summed over devices.
    """
    found: list[int] = []
    for op in program.ops:
        assigned = plan.decisions.assignment[op.index]
        if op.primitive != "reduce_sum" or op.trips < 2 or assigned is None:
            continue
        for place, count in enumerate(_shards(op, assigned, plan.mesh.sizes)):
            found += [1] * (place + 1 - len(found))
            found[place] = max(found[place], count)
    while found and found[-1] == 1:
        found.pop()
    return found


def _shards(op: Op, assigned: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Over how many devices each summed dimension of a sum lies, in order."""
    kept = {factor for dimension in op.rule.results[0] for factor in dimension}
    return [
        math.prod(size for size, factor in zip(sizes, assigned, strict=True) if factor in dimension)
        for dimension in op.rule.operands[0]
        if not kept.intersection(dimension)
    ]


def beside_loops(program: Program) -> list[str]:
    """Notes on casts, pads and sums that run elsewhere; none where there are none."""
    notes = [*cast_early_note(program), *early_pads_note(program)]
    if "late_sums" not in program.options:
        return notes
    cut = " x ".join(map(str, program.options["late_sums"]))
    return [
        *notes,
        f"{LATE}: each turn sums {cut} parts of what it stacks of sums, in place of the whole, as "
        "x.reshape(PARTS, -1, ...).sum((1, ...)) does, and .sum(1) of the stack ends them",
    ]
