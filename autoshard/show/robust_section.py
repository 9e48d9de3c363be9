"""The section of a report on what is not known of the machine."""

from __future__ import annotations

from autoshard.show.html import Cell, Column, Markup, element, join, table
from autoshard.show.sections import bytes_cell, facts, seconds_cell
from autoshard.study.robust.record import NumberRow, PlanRow, Robust
from autoshard.study.robust.show import after, amount, fits, percent, stays, verdict
from autoshard.units import held_together

NUMBERS = (
    "inside, within: where the plan stays best, none is cheaper by more than this; another plan "
    "saves: the best one known, at the worse end of the range; or at most: no plan saves more "
    "there; regret, once measured: how far the plan of least regret is behind at worst when this "
    "number is known."
)


def robust_section(found: Robust) -> Markup:
    """The answer of `autoshard robust`: in words, by number, by plan."""
    said = element("ul", *(element("li", words) for words in verdict(found)))
    columns = [
        Column("number"),
        Column("taken for", True),
        Column("range"),
        Column("the plan stays best"),
        Column("inside, within", True),
        Column("another plan saves", True),
        Column("or at most", True),
        Column("regret, once measured", True),
        Column("beyond, the best plan", words=True),
    ]
    blocks: list[Markup | None] = [said]
    if found.numbers:
        rows = [_number(row) for row in found.numbers]
        blocks += [table(columns, rows, sorts=True), element("p", NUMBERS, class_="soft")]
    if found.memory:
        rows = [
            (row.name, f"{amount(row, row.taken)}: it fits with {fits(row)}")
            for row in found.memory
        ]
        blocks += [element("h3", "Memory"), facts(list(rows))]
    heads = ["", "mesh", "step", "best machine", "worst machine", "peak", "behind", "at most"]
    heads += ["anywhere", "layouts"]
    blocks += [
        element("h3", "Plans"),
        table(
            [Column(head, 2 <= number <= 8) for number, head in enumerate(heads)],
            [_plan(found, number, row) for number, row in enumerate(found.plans)],
            sorts=True,
        ),
        element(
            "p",
            "behind: the best plan known, at the worst corner of the ranges; at most: at any "
            "corner, proven; anywhere: on any machine that the ranges allow, proven.",
            class_="soft",
        ),
    ]
    return join(*blocks)


def _number(row: NumberRow) -> tuple[Cell | str, ...]:
    return (
        held_together(row.name),
        Cell(amount(row, row.taken), row.taken),
        held_together(f"{amount(row, row.low)} to {amount(row, row.high)}"),
        held_together(stays(row)),
        _share(row.within),
        _share(row.saved),
        _share(row.most_saved),
        _share(row.regret_if_known),
        after(row),
    )


def _plan(found: Robust, number: int, row: PlanRow) -> tuple[Cell | str, ...]:
    marks = [
        words
        for words, one in (("as taken", found.taken), ("least regret", found.least))
        if one == number
    ]
    return (
        ", ".join(marks),
        row.mesh,
        *(seconds_cell(s) for s in (row.step_seconds, row.best_seconds, row.worst_seconds)),
        bytes_cell(row.peak_bytes),
        _share(row.known),
        _share(row.most),
        _share(row.anywhere),
        row.layouts,
    )


def _share(share: float | None) -> Cell:
    return Cell("-" if share is None else percent(share), share)
