"""The number of microbatches as a choice of a search.

Fewer activations are alive at a time where a step works on microbatches one after another, and
weights are gathered more often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.program.rewritten import in_microbatches
from autoshard.program.trace import Program, TraceError


def microbatches_of(program: Program) -> int:
    """How many microbatches a program works on."""
    return int(program.options.get("microbatches", 1))


def cut_steps(program: Program, counts: Sequence[int]) -> tuple[list[Program], dict[int, str]]:
    """The step in each number of microbatches, fewest first, and why some cannot be had.

    Raises:
      TraceError: none of them can be had.
    """
    steps: list[Program] = []
    refused: dict[int, str] = {}
    for count in sorted(set(counts)):
        try:
            steps.append(program if count == 1 else in_microbatches(program, count))
        except TraceError as error:
            if count == max(counts) and not steps:
                raise
            refused[count] = str(error)
    return steps, refused


def chosen_microbatches(
    best: Program, planned: Mapping[int, str], refused: Mapping[int, str]
) -> list[str]:
    """Notes on what was chosen, and what became of the other numbers."""
    count = microbatches_of(best)
    what = "the step works on its whole batch at once"
    if count > 1:
        what = (
            f"the step works on {count} microbatches one after another, as "
            f"autoshard.accumulate_grads(..., microbatches={count}) does"
        )
    others = {k: " ".join(why.split()) for k, why in planned.items() if k != count}
    listed = "; ".join(f"{k}: {why}" for k, why in others.items())
    if others:
        what += f"; other numbers, on the meshes on which they were planned: {listed}"
    notes = [what]
    for other, why in refused.items():
        notes.append(f"{other} microbatches cannot be had: {' '.join(why.split())}")
    return notes
