"""A sweep in five answers: what fits, how fast, how sure, what binds, what would help most."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.show.verdict import Answer, Verdict, near_best
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.table import WhatIf
from autoshard.units import counted, format_bytes, format_percent, format_seconds

NOTHING = 5e-4
"""A saving below this share of the step is none."""
CLOSE = 0.02
"""A gap up to this is good news: that at which sweeps stop by themselves."""


def sweep_verdict(sweep: WhatIf) -> Verdict:
    """The verdict on a sweep: about all rows, and about the best by the objective."""
    best = sweep.best
    fits = _fits(sweep)
    if best is None:
        return Verdict(f"{_counted(sweep)}: none can be recommended.", (fits,))
    least = float("inf") if sweep.latency is None else sweep.latency
    fastest = sweep.objective == "step"  # others may do more work a chip-second; else none does
    quick = [row for row in sweep.rows if fastest and (row.step_seconds or 0.0) <= least]
    answers = (fits, _fast(sweep, best), sure(best), _binds(sweep, best), helps(best, quick))
    line = f"{_counted(sweep)}; best by {sweep.objective}: {best}, {answers[1].said} a step"
    cost = sweep.cost_per_million_tokens(best)
    if cost is not None:
        line += f", {cost:.3g} {sweep.prices.currency} a million tokens"
    return Verdict(
        f"{line}, {answers[2].said}, bound by {best.binds or 'what is not known'}.", answers
    )


def _counted(sweep: WhatIf) -> str:
    text = f"{sum(row.fits for row in sweep.rows)} of {len(sweep.rows)} rows have a plan"
    if sweep.interrupted:
        text += f" ({sweep.asked - len(sweep.rows)} more were not answered)"
    return text


def _fits(sweep: WhatIf) -> Answer:
    fits = [row for row in sweep.rows if row.fits]
    said = f"{len(fits)} of {counted(len(sweep.rows), 'row')}"
    if not fits:
        return Answer("What fits?", said, sweep.rows[0].why or "", False)
    least = min(fits, key=lambda row: (row.chips, row.step_seconds or 0.0))
    detail = f"the fewest chips: {least}"
    if sweep.latency is not None:
        slow = sum((row.step_seconds or 0.0) > sweep.latency for row in fits)
        detail += f"; {slow} are slower than {format_seconds(sweep.latency)} a step"
    return Answer("What fits?", said, detail, True)


def _fast(sweep: WhatIf, best: Row) -> Answer:
    said = format_seconds(best.step_seconds or 0.0)
    detail = f"best by {sweep.objective}: {best} on mesh {best.mesh}"
    if best.tokens_per_second_per_chip:
        detail += f"; {best.tokens_per_second_per_chip:,.0f} tokens/s/chip"
    if best.utilisation is not None:
        detail += f", {format_percent(best.utilisation)} model FLOP utilisation"
    days = sweep.days(best)
    if days is not None:
        detail += f"; the training run takes {days:,.1f} days"
        cost = sweep.run_cost(best)
        detail += "" if cost is None else f" and {cost:,.0f} {sweep.prices.currency}"
    return Answer("How fast?", said, detail)


def sure(best: Row) -> Answer:
    """How near the plan of a row is to the best of the space."""
    gap = best.gap or 0.0
    lower, upper = best.lower_seconds or 0.0, best.upper_seconds or 0.0
    detail = (
        f"between {format_seconds(lower)} and {format_seconds(upper)}, with all and with no "
        "collectives hidden"
    )
    if best.status == "optimal" or gap <= 0:
        return Answer("How sure?", "proven best", detail, True)
    return Answer("How sure?", near_best(gap), detail, True if gap <= CLOSE else None)


def _binds(sweep: WhatIf, best: Row) -> Answer:
    counts: dict[str, int] = {}
    for row in sweep.rows:
        if row.binds:
            counts[row.binds] = counts.get(row.binds, 0) + 1
    ranked = sorted(counts, key=lambda name: -counts[name])
    others = ", ".join(f"{name} ({counts[name]})" for name in ranked)
    return Answer("What binds?", best.binds or "not known", f"over all rows: {others}")


def helps(best: Row, rows: Sequence[Row] = ()) -> Answer:
    """What would help a row most: another row that differs in one size, or more of a resource.

    Args:
      best: the row.
      rows: that may be recommended in its place.
    """
    question, step = "What would help most?", best.step_seconds or 0.0
    shares = {name: seconds / step for name, seconds in best.saved_seconds.items() if step > 0}
    ranked = sorted(shares, key=lambda name: -shares[name])
    more = [f"{_more(name)} ({format_percent(shares[name])})" for name in ranked[:2]]
    memory = (
        f"; memory is full to {format_percent((best.peak_bytes or 0) / best.limit_bytes, '.0f')}"
        if best.limit_bytes > 0
        else ""
    )
    if best.seconds_per_gib:
        memory += (
            f", {format_bytes(2**30)} more saves at most {format_seconds(best.seconds_per_gib)}"
        )
    nothing = not ranked or shares[ranked[0]] < NOTHING
    other = max(_neighbours(best, rows), key=_rate, default=None)
    if other is not None and _rate(other) > (1 + CLOSE) * _rate(best) > 0:
        said = ", ".join(f"{name}={value}" for name, value in _apart(best, other))
        detail = (
            f"{_rate(other) / _rate(best):.2f} times the tokens/s of a chip, "
            f"{format_seconds(other.step_seconds or 0.0)} a step"
        )
        if not nothing:
            detail += f"; of the machine, with the plan as it is, {more[0]}"
        return Answer(question, said, detail + memory)
    if nothing:
        return Answer(question, "no part of the machine by itself", memory.removeprefix("; "))
    detail = f"saves {format_percent(shares[ranked[0]])} of the step with the plan as it is"
    if ranked[1:] and shares[ranked[1]] >= NOTHING:
        detail += f"; then {more[1]}"
    return Answer(question, _more(ranked[0]), detail + memory)


def _more(resource: str) -> str:
    """A tenth more of a resource, in words."""
    return f"{resource} 10 % faster" if resource.startswith("the ") else f"10 % more {resource}"


def _rate(row: Row) -> float:
    return row.tokens_per_second_per_chip or 0.0


def _asked(row: Row) -> dict[str, object]:
    return {"limit": format_bytes(row.limit_bytes), **row.sizes}


def _apart(first: Row, second: Row) -> list[tuple[str, object]]:
    """In what the second row differs, and what it has there."""
    here = _asked(first)
    return [(name, value) for name, value in _asked(second).items() if here.get(name) != value]


def _neighbours(best: Row, rows: Sequence[Row]) -> list[Row]:
    """Rows with a plan on the same machine that differ from one in one size."""
    alike = [row for row in rows if row.fits and row.machine == best.machine]
    return [row for row in alike if len(_apart(best, row)) == 1]
