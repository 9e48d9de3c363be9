"""Plans on coarser and finer mesh shapes: two neighbouring axes merged into one, or one split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoshard.cost.step_prices import StepPrices, step_prices
from autoshard.machine.machine import Machine
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import Evaluation, evaluate
from autoshard.plan.plan import MeshShape
from autoshard.program.trace import Program

AXIS_NAMES = ("x", "y", "z")


def coarser_shapes(sizes: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
    """Return the shapes with two neighbouring axes merged, and the position of the merged axis."""
    return [
        ((*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]), axis)
        for axis in range(len(sizes) - 1)
    ]


def split_axis(decisions: Decisions, axis: int) -> Decisions:
    """Return the decisions of a coarse mesh on the finer mesh that has its axis `axis` split.

    The finer mesh has the axes `axis` and `axis + 1` in place of the merged one.
    """
    memo: dict[tuple[int, ...], tuple[int, ...]] = {}

    def longer(item: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if item is None:
            return None
        if item not in memo:
            memo[item] = (*item[: axis + 1], item[axis], *item[axis + 1 :])
        return memo[item]

    return replace(
        decisions,
        stored=tuple(map(longer, decisions.stored)),
        copy=tuple(map(longer, decisions.copy)),
        assignment=tuple(map(longer, decisions.assignment)),
    )


def coarsest_form(
    program: Program,
    machine: Machine,
    prices: StepPrices,
    decisions: Decisions,
    shape: MeshShape,
    evaluation: Evaluation,
) -> tuple[Decisions, MeshShape, StepPrices, Evaluation]:
    """Return the plan with neighbouring axes merged that it always uses together.

    Two axes are merged only if the merged plan costs no more.
    """
    axis = 0
    while axis + 1 < len(shape.sizes):
        merged = merge_axis(decisions, axis)
        if merged is not None:
            sizes = (
                *shape.sizes[:axis],
                shape.sizes[axis] * shape.sizes[axis + 1],
                *shape.sizes[axis + 2 :],
            )
            coarse = MeshShape(AXIS_NAMES[: len(sizes)], sizes)
            coarse_prices = step_prices(
                program, prices.dataflow, machine, sizes, prices.corrections
            )
            again = evaluate(coarse_prices, merged, coarse.names)
            slack = 1 + 1e-6
            if again.estimate.step_seconds <= evaluation.estimate.step_seconds * slack:
                decisions, shape, prices, evaluation = merged, coarse, coarse_prices, again
                continue
        axis += 1
    return decisions, shape, prices, evaluation


def merge_axis(decisions: Decisions, axis: int) -> Decisions | None:
    """Return `decisions` with `axis` and `axis + 1` merged, or None if some tuple uses them apart.

    A tuple uses the axes apart if its two entries differ.
    """
    memo: dict[tuple[int, ...], tuple[int, ...]] = {}

    def shorten(
        items: Sequence[tuple[int, ...] | None],
    ) -> tuple[tuple[int, ...] | None, ...] | None:
        result: list[tuple[int, ...] | None] = []
        for item in items:
            if item is None:
                result.append(None)
                continue
            if item[axis] != item[axis + 1]:
                return None
            if item not in memo:
                memo[item] = (*item[: axis + 1], *item[axis + 2 :])
            result.append(memo[item])
        return tuple(result)

    parts = [shorten(items) for items in (decisions.stored, decisions.copy, decisions.assignment)]
    if any(part is None for part in parts):
        return None
    stored, copy, assignment = parts
    assert stored is not None
    assert copy is not None
    assert assignment is not None
    return replace(decisions, stored=stored, copy=copy, assignment=assignment)
