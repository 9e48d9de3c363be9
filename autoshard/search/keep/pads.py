"""Pads before the products that make what is padded, as a choice of a search.

XLA:TPU runs a pad in the product that reads it; a pad of what a product makes is a kernel of its
own, which goes tile by tile (ViT-L/16 on v5e-16, whose 196 positions splash attention takes as 256,
JAX 0.12: 0.65 ms for each of seven pads a layer that move 0.16 ms of bytes). Before the product
(`autoshard.program.keep.early_pads`) it costs the product's part of added rows: that step compiles
to 0.358 s with full recompute where it took 0.455 s. What a step saves is chosen first, and then
tried with its pads moved; the search tries other choices with them then, as stacks are wider.

For XLA:GPU nothing is tried: there a product takes no operand that is not written.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.machine.compiler import Compiler
from autoshard.program.keep.early_pads import SCOPE
from autoshard.program.rewritten import padding_early
from autoshard.program.trace import Program, TraceError
from autoshard.search.keep.early import Beside, best_with_plan, rewritten
from autoshard.search.keep.trials import Trial
from autoshard.units import counted

PADS = "pads before products"


def pad_before(trials: Sequence[Trial], compiler: Compiler) -> list[Beside]:
    """The best choice in each number of microbatches, with pads moved, and its trial.

    None of those that have no plan, nothing to pad so, or early pads already.
    """
    if not compiler.has("tpu.pads-run-in-readers"):
        return []
    made = []
    for one in best_with_plan(trials):
        if "early_pads" in one.program.options:
            continue
        try:
            step = padding_early(one.base)
        except TraceError:
            continue
        made.append(rewritten(one, step, PADS))
    return made


def early_pads_note(program: Program) -> list[str]:
    """A note on the pads that a program has before its products; none where there are none."""
    if "early_pads" not in program.options:
        return []
    moved = [op for op in program.ops if op.primitive == "pad" and SCOPE in op.scope.split("/")]
    lines = dict.fromkeys(op.line for op in moved if op.line)
    where = f" at {', '.join(lines)}" if lines else ""
    return [
        f"{PADS}: {counted(len(moved), 'array')}{where}, as jnp.pad(x) @ w; where jnp.pad(x @ w) "
        "was, jnp.where puts what it had into the rows that are added"
    ]
