"""How the answer of `autoshard robust` looks as text."""

from __future__ import annotations

from autoshard.machine.numbers import unit_of
from autoshard.study.robust.record import MemoryRow, NumberRow, Robust
from autoshard.terminal import paragraph, table
from autoshard.units import counted, format_bytes, format_percent, format_seconds, format_unit


def format_robust(found: Robust) -> str:
    """The whole answer: in a few lines, then by number and by plan."""
    said = "\n".join(paragraph(one, hanging=2) for one in verdict(found))
    sections = [said, _numbers(found), _memory(found), _plans(found)]
    return "\n\n".join(section for section in sections if section) + "\n"


def verdict(found: Robust) -> list[str]:
    """What follows, in sentences."""
    taken, least = found.plans[found.taken], found.plans[found.least]
    step = format_seconds(taken.step_seconds)
    count = len(found.numbers) + len(found.memory)
    said = [
        f"{found.program} on {found.machine}: {counted(count, 'number')} with ranges; "
        f"{step} a step on the "
        "machine as it is taken"
    ]
    if found.to_measure:
        first = found.to_measure[0]
        others = ", ".join(row.name for row in found.to_measure[1:])
        said.append(
            f"measure first: {first.name}, which may save {percent(first.saved)} by another plan"
            + (f"; then {others}" if others else "")
        )
    elif all(row.stays for row in found.numbers):
        said.append(
            "no measurement of one number changes the plan: it stays best in all ranges, within "
            f"{percent(found.tolerance)}"
        )
    else:
        said.append("no known plan is better anywhere in a range of one number")
    if taken.most is not None and least.most is not None and least.anywhere is not None:
        most = percent(taken.most)
        said.append(f"this plan is at most {most} behind the best at any corner of the ranges")
        if found.least == found.taken:
            said[-1] += ": it is the plan of least regret"
        else:
            said.append(
                f"the plan of least regret is at most {percent(least.most)} behind; as things are "
                f"taken it costs {percent(least.step_seconds / taken.step_seconds - 1)} more"
            )
        said[-1] += (
            f"; no plan's regret is below {percent(found.least_bound)}; between corners it is at "
            f"most {percent(least.anywhere)}"
        )
    asked = found.plan.requirements
    if asked:
        kept = sum(one["kept"] for one in asked)
        said.append(
            f"keeps {kept} of {counted(len(asked), 'requirement')}, whatever the machine "
            "proves to be"
        )
    if found.limit_hit is not None:
        said.append(f"ended by {found.limit_hit}: with more time more is proven")
    return said


def percent(share: float) -> str:
    """A share, as percent; what is less than a millionth is rounding."""
    if abs(share) < 1e-6:
        return "0 %"
    return format_percent(share, ".2g") if abs(share) < 0.1 else format_percent(share, ".3g")


def amount(row: NumberRow | MemoryRow, value: float) -> str:
    """A value that a number of a machine may have, in its unit."""
    return format_unit(value, unit_of(row.path))


def stays(row: NumberRow) -> str:
    """Where the plan is proven to stay best."""
    if row.stays:
        return "in all of it"
    if row.proven_low == row.proven_high == row.taken:
        return "not proven"
    return f"{amount(row, row.proven_low)} to {amount(row, row.proven_high)}"


def after(row: NumberRow) -> str:
    """Where another plan takes over."""
    parts = []
    if row.lost_low is not None:
        parts.append(f"below {amount(row, row.lost_low)}: {row.then_low}")
    if row.lost_high is not None:
        parts.append(f"above {amount(row, row.lost_high)}: {row.then_high}")
    return "; ".join(parts)


def _numbers(found: Robust) -> str:
    if not found.numbers:
        return ""
    head = ["number", "taken for", "range", "stays best", "between", "saved", "at most"]
    rows = [head]
    for row in found.numbers:
        rows.append(
            [
                row.name,
                amount(row, row.taken),
                f"{amount(row, row.low)} to {amount(row, row.high)}",
                stays(row),
                percent(row.within),
                percent(row.saved),
                percent(row.most_saved),
            ]
        )
    lines = [table(rows, right=[1, 4, 5, 6], indent=0)]
    for row in found.numbers:
        if row.decides:
            lines.append(paragraph(f"{row.name} {after(row)}", indent=2, hanging=4))
    tolerance = percent(found.tolerance)
    said = (
        f"stays best: no plan is cheaper by more than {tolerance} at both values, nor by more than "
        "`between` between them; saved: by the best plan known, at the worse end"
    )
    lines.append(paragraph(said))
    return "\n".join(lines)


def _memory(found: Robust) -> str:
    rows = [
        [
            row.name,
            amount(row, row.taken),
            f"{amount(row, row.low)} to {amount(row, row.high)}",
            fits(row),
        ]
        for row in found.memory
    ]
    head = ["memory", "taken for", "range", "the plan fits with"]
    return table([head, *rows], right=[1], indent=0) if rows else ""


def fits(row: MemoryRow) -> str:
    """Up to where the plan fits, and whether that is all of the range."""
    words = "at least" if row.path == "chip.memory_bytes" else "at most"
    whole = row.fits_to <= row.low if words == "at least" else row.fits_to >= row.high
    return f"{words} {amount(row, row.fits_to)}{', so in all of it' if whole else ''}"


def _plans(found: Robust) -> str:
    rows = [
        ["", "mesh", "step", "best", "worst", "peak", "behind", "at most", "anywhere", "layouts"]
    ]
    ranked = sorted(
        enumerate(found.plans), key=lambda pair: (pair[1].most is None, pair[1].most or 0.0)
    )
    for number, row in ranked:
        marks = ("t" if number == found.taken else "") + ("r" if number == found.least else "")
        rows.append(
            [
                marks,
                row.mesh,
                *(
                    format_seconds(s)
                    for s in (row.step_seconds, row.best_seconds, row.worst_seconds)
                ),
                format_bytes(row.peak_bytes),
                percent(row.known),
                "-" if row.most is None else percent(row.most),
                "-" if row.anywhere is None else percent(row.anywhere),
                row.layouts,
            ]
        )
    said = (
        "t: for the machine as it is taken; r: of least regret; behind: the best plan known, at "
        "the worst corner; at most: at any corner; anywhere: in the ranges"
    )
    return table(rows, right=[2, 3, 4, 5, 6, 7, 8], indent=0) + "\n" + paragraph(said)
