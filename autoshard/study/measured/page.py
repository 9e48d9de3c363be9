"""The page and the plot of `autoshard bench measured`: `docs/results/measured.md`."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from autoshard.study.measured.summary import (
    LATE,
    UNASKED,
    Order,
    beaten,
    grouped,
    held,
    kind_of,
    orders,
    reasons,
    spreads,
)
from autoshard.study.measured.table import HALVES, half
from autoshard.study.measured.unpublished import UNPUBLISHED
from autoshard.units import format_percent

GOOD = 0.9
"""Of an order, and of the share of pairs that are in it."""
WIDTH, HEIGHT, LEFT, BELOW = 640, 480, 60, 40
TEXT = """Published training runs, each priced at its own configuration: mesh, microbatches, remat,
precision and attention as published, on the preset of its machine, with nothing fitted to any
row. Made by `autoshard bench measured TABLE --csv ROWS --markdown PAGE --svg PLOT`. The programs
are decoders of the models' published dimensions (`autoshard.models.decoder`); kernels, routers
and communication of other frameworks are priced as JAX's would be. Numbers of chips are those of
micro-benchmarks where they are known (`autoshard.machine.as_measured`), and XLA:TPU has the
flags of recipes (`autoshard.machine.compiler.FLAGS`), as has XLA:GPU under MaxText, whose
scripts set them. What frameworks but JAX do otherwise, by their documentation, is in
`autoshard.study.measured.eager`, `dispatch` and `tensor_parallel`: collectives of data
parallelism run beside compute, nothing is copied to be kept, tokens go to experts once a place,
tokens come to weights that are cut by tensor parallelism, beside products where the framework
says so, and float8 is cast as its recipe does. What they hold is in
`autoshard.study.measured.saved`. Where MaxText has its layers in no loop, sums of gradients over
copies of the weights wait for all products (`autoshard.study.measured.unrolled`). Pipelines are
made of the prices of their stages (`autoshard.study.measured.stages`). State-space mixers are
products of chunks (`autoshard.models.state_space`), which write out what kernels of Triton do
not. What a policy sends to the host waits there, and its transfers are priced
(`autoshard.cost.transfers`).

Numbers come from micro-benchmarks and laws, none from a run. Which laws were missing was found by
looking at the half of the runs that is called seen, by a hash of model and chip; the other half is
blind, but for 51 runs of both that an earlier version of this page had, for LLAMA3.1_405B on GB300,
where the numbers of B300 and GB300 were chosen while its runs were looked at, and for torchtitan's
8B and 70B, Qwen3_235B on GB200 and Megatron's GPT-3, whose ratios were seen while the terms of
other frameworks were written. None is fitted to them. Peaks of memory were all seen while the laws
of `autoshard.study.measured.saved` were written: those of Megatron-LM are themselves counted and
not measured, by the paper whose equations the law is, and that torchtitan keeps of products in
float8 what it keeps of those in bfloat16 is said by the page whose runs are held to it. Ratios of
Nemotron 3, of both halves, were seen once its model had been written, and changed nothing. Pairs
out of order were looked at in both halves; what changed by them are the terms of `tensor_parallel`,
of torchtitan alone, of `unrolled`, of MaxText's 7B on H100 alone, and what a mesh is taken to be
that its source does not say (`autoshard.study.measured.unpublished`), of three runs of AXLearn's
paper. That transfers to the host run beside whole turns of their loops was looked at in all runs
that have some, of both halves. Runs of torchtitan with tensor parallelism in rowwise float8 are
slower than in bfloat16, which its own issue 1207 calls a defect: no term is for that."""
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")


def page(rows: Sequence[Mapping[str, Any]], plot: str) -> str:
    """The figures of a table of answers as Markdown, with the name of its plot."""
    priced = [row for row in rows if row.get("predicted_seconds") and row.get("measured_seconds")]
    families = _halves(_families(priced))
    lines = [
        "# Beside runs on real machines",
        "",
        *TEXT.split("\n"),
        "",
        f"![Predicted over measured seconds]({plot})",
        "",
        *_table("runs", families, held),
        "",
        *_asked(rows, len(priced)),
        "",
        "## By chip",
        "",
        *_table("chip", _by(priced, lambda row: str(row["chip"])), held),
        "",
        "## By kind of parallelism",
        "",
        *_table("mesh", _by(priced, kind_of), held),
        "",
        "## Order within a model and chip",
        "",
        *_orders(rows),
        "",
    ]
    memory = held(rows, of="gib")
    if memory.runs:
        lines += [
            "## Memory",
            "",
            f"Peaks of devices: {memory}, within 10 %: {format_percent(memory.close, '.0f')}.",
        ]
        lines += ["", "| run | mesh | measured GiB | predicted GiB | ratio |"]
        lines += ["|---|---|---|---|---|", *_memory(rows), ""]
    lines += [*_ours(priced), *_compiled(priced)]
    lines += ["## Not priced", "", "| runs | reason |", "|---|---|"]
    lines += [f"| {count} | {_cell(why)} |" for why, count in reasons(rows).most_common()]
    lines += ["", "## All priced runs", "", *_rows(priced), ""]
    return "\n".join(lines)


def _orders(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How far configurations of one model on one chip are predicted in their order."""
    found, known = orders(rows), list(spreads(rows).values())
    yield "Runs of one configuration count once, with the median of what was measured."
    if not found:
        return
    good = sum(one.correlation >= GOOD for one in found.values())
    yield f"The rank correlation is at least {GOOD} in {good} of {len(found)} groups."
    said = [row for row in _jax(rows) if UNPUBLISHED not in row.get("status", "")]
    whose = "Of runs of JAX frameworks of quality A and B alone"
    for words, some in ((whose, _jax(rows)), (f"{whose} whose source says their mesh", said)):
        if jax := orders(some):
            good = sum(one.correlation >= GOOD for one in jax.values())
            yield (
                f"{words} it is in {good} of {len(jax)}: "
                + ", ".join(f"{name} {one.correlation:.2f}" for name, one in jax.items())
                + "."
            )
    if known:
        apart, right = (sum(getattr(one, w) for one in found.values()) for w in ("apart", "right"))
        each = [one.right / one.apart for one in found.values() if one.apart]
        good = sum(share >= GOOD for share in each)
        yield (
            "Runs of one configuration differ themselves, by "
            f"{format_percent(statistics.median(known))} in the median of {len(known)} groups and "
            f"by {format_percent(max(known), '.0f')} at most. Of {apart} pairs that differ by more "
            "than their group's runs of one configuration do, or by more than that median, "
            f"{right} ({format_percent(right / max(apart, 1), '.0f')}) are predicted in their "
            f"order; in {good} of the {len(each)} groups that have such pairs, "
            f"{format_percent(GOOD, '.0f')} or more of them."
        )
    yield ""
    yield "| model and chip | configurations | rank correlation | pairs apart | in order |"
    yield "|---|---|---|---|---|"
    for name, one in found.items():
        yield (
            f"| {name} | {one.configurations} | {one.correlation:.2f} | {one.apart} | {one.right} |"
        )
    yield from _swaps({name: one for name, one in found.items() if one.correlation < GOOD})


def _swaps(found: Mapping[str, Order]) -> Iterator[str]:
    """Pairs that are in the other order, of groups that are not well ordered, and what is known."""
    if not found:
        return
    yield from ("", "### Out of order", "")
    pairs = [(name, swap) for name, one in found.items() for swap in one.swaps]
    near = sum(swap.measured <= swap.spread for _, swap in pairs)
    open_ = sum(swap.measured > swap.spread and not swap.published for _, swap in pairs)
    yield (
        f"Of {len(pairs)} pairs in groups below {GOOD}, {near} are nearer than runs of one "
        f"configuration are to each other, and of {open_} others the source of one does not say "
        "its mesh, or those of both."
    )
    yield "By how much the slower takes longer, and by how much runs of one configuration differ:"
    yield from ("", "| model and chip | faster | slower | measured | predicted | runs of one |")
    yield "|---|---|---|---|---|---|"
    for name, swap in pairs:
        note = "" if swap.published else "; mesh not published"
        yield (
            f"| {name} | {swap.faster} | {swap.slower} | {format_percent(swap.measured)}{note} | "
            f"{format_percent(swap.predicted)} | {format_percent(swap.spread)} |"
        )


def _asked(rows: Sequence[Mapping[str, Any]], priced: int) -> Iterator[str]:
    """How many runs were asked, and what became of those that have no price or an earlier one."""
    lost = len(rows) - priced
    slow = [row["id"] for row in rows if LATE in row["status"]]
    unasked = sum(row["status"] == UNASKED for row in rows)
    never = lost - len(slow) - unasked
    yield (
        f"Of {len(rows)} runs {lost} are not held to a time: {never} "
        f"({format_percent(never / len(rows))}) are out of reach, by the reasons below"
        + (f", {unasked} were not asked" if unasked else "")
        + (f", and {len(slow)} ran out of time: {', '.join(slow)}." if slow else ".")
    )
    made = Counter(row.get("version") or "one that is not known" for row in rows)
    if len(made) > 1:
        words = ", ".join(f"{count} of {name}" for name, count in made.most_common())
        yield f"Answers are of several versions of the model: {words}."


def _memory(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row.get("measured_gib") and row.get("predicted_gib"):
            measured, predicted = float(row["measured_gib"]), float(row["predicted_gib"])
            yield (
                f"| {row['id']} | {row['parallelism']} | {measured:.1f} | {predicted:.1f} | "
                f"{predicted / measured:.2f} |"
            )


def _families(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    others = [row for row in rows if row.get("jax") != "yes"]
    pipelines = [row for row in others if "pipeline" in row["parallelism"]]
    return {
        "JAX (MaxText, AXLearn), quality A or B": _jax(rows),
        "other frameworks, one mesh": [row for row in others if row not in pipelines],
        "other frameworks, pipelines": pipelines,
        "all": list(rows),
    }


def _jax(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs of JAX frameworks whose settings are exact."""
    return [row for row in rows if row.get("jax") == "yes" and row["quality"][:1] in "AB"]


def _halves(
    families: Mapping[str, list[Mapping[str, Any]]],
) -> dict[str, list[Mapping[str, Any]]]:
    found = {}
    for name, rows in families.items():
        found[name] = rows
        for word in HALVES:
            found[f"{name}: {word}"] = [row for row in rows if half(row) == word]
    return found


def _ours(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Our own plans beside the runs' configurations, both as predicted."""
    ratios = beaten(rows)
    if not ratios:
        return
    faster = sum(ratio < 1 for ratio in ratios.values())
    tenth = sum(ratio <= 0.9 for ratio in ratios.values())
    yield from ("## Our own plans", "")
    yield (
        f"Of the same program on the same machine, with its batch, precision and flags, within the "
        f"memory that the run's own configuration takes. The mesh is free, and what is kept, what "
        f"of it waits on the host, and how many microbatches there are; of a run in a pipeline "
        f"also its stages and their schedule, priced as the run's are. Predicted faster than it "
        f"in {faster} of {len(ratios)} runs, by a tenth or more in {tenth}; "
        f"{statistics.median(ratios.values()):.2f} of its seconds in the median. Both are as one "
        "compiler runs them. Searches had little time."
    )
    yield from (
        "",
        "| run | its own mesh | our mesh | beside it | its own s | ours s | ratio |",
    )
    yield "|---|---|---|---|---|---|---|"
    for row in (one for one in rows if one["id"] in ratios):
        own = float(row.get("own_seconds") or row["predicted_seconds"])
        yield (
            f"| {row['id']} | {row['parallelism']} | {_cell(row['ours_mesh'])} | "
            f"{_cell(row.get('ours_choices') or '')} | {own:.4g} | "
            f"{float(row['ours_seconds']):.4g} | {ratios[row['id']]:.2f} |"
        )
    yield ""


def _compiled(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Runs whose own configuration and our plan were compiled: which is faster, by whom."""
    judged = [row for row in rows if row.get("own_compiled") and row.get("ours_compiled")]
    if not judged:
        return
    ratios = beaten(judged)
    said = {row["id"]: float(row["ours_compiled"]) / float(row["own_compiled"]) for row in judged}
    agree = sum((ratios[name] < 1) == (ratio < 1) for name, ratio in said.items())
    yield from ("### As compilers say", "")
    yield (
        f"Both lowered and compiled without devices: of {len(said)} runs the compiler's schedule "
        f"agrees in {agree} on which is faster; ours takes "
        f"{statistics.median(said.values()):.2f} of its compiled seconds in the median."
    )
    yield from ("", "| run | chip | its own s | ours s | ratio | predicted | GiB | ours GiB |")
    yield "|---|---|---|---|---|---|---|---|"
    for row in judged:
        own, ours = float(row["own_compiled"]), float(row["ours_compiled"])
        memory = [float(row[name]) for name in ("own_compiled_gib", "ours_compiled_gib")]
        yield (
            f"| {row['id']} | {row['chip']} | {own:.4g} | {ours:.4g} | {ours / own:.2f} | "
            f"{ratios[row['id']]:.2f} | {memory[0]:.1f} | {memory[1]:.1f} |"
        )
    yield ""


def _by(
    rows: Sequence[Mapping[str, Any]], word: Callable[[Mapping[str, Any]], str]
) -> dict[str, list[Mapping[str, Any]]]:
    return grouped(rows, word)


def _table(
    name: str, groups: Mapping[str, Sequence[Mapping[str, Any]]], held: Callable[..., Any]
) -> Iterator[str]:
    yield f"| {name} | runs | median error | predicted / measured | within 25 % |"
    yield "|---|---|---|---|---|"
    for word, rows in groups.items():
        found = held(rows)
        if found.runs:
            yield (
                f"| {_cell(word)} | {found.runs} | {format_percent(found.median)} | "
                f"{found.bias:.2f} | {format_percent(found.within, '.0f')} |"
            )


def _rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| run | model | chips | mesh | measured s | predicted s | ratio | GiB | ours s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        measured, predicted = float(row["measured_seconds"]), float(row["predicted_seconds"])
        gib = f"{float(row['predicted_gib']):.1f}" if row.get("predicted_gib") else ""
        ours = f"{float(row['ours_seconds']):.3g}" if row.get("ours_seconds") else ""
        yield (
            f"| {row['id']} | {_cell(row['model'])} | {row['chips']} {row['chip']} | "
            f"{row['parallelism']} | {measured:.4g} | {predicted:.4g} | "
            f"{predicted / measured:.2f} | {gib} | {ours} |"
        )


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "/").split())


def plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Predicted over measured seconds, both logarithmic, a colour for each chip; SVG."""
    points = [
        (float(row["measured_seconds"]), float(row["predicted_seconds"]), str(row["chip"]))
        for row in rows
        if row.get("predicted_seconds") and row.get("measured_seconds")
    ]
    ends = [value for one in points for value in one[:2]] or [1.0]
    low, high = 0.8 * min(ends), 1.25 * max(ends)
    span = math.log(high / low)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 130) * math.log(value / low) / span

    def y(value: float) -> float:
        return (HEIGHT - BELOW) - (HEIGHT - BELOW - 20) * math.log(value / low) / span

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for share, style in ((1.0, ""), (1.25, "4 4"), (0.75, "4 4")):
        start, end = max(low, low / share), min(high, high / share)
        parts.append(
            f'<line x1="{x(start):.1f}" y1="{y(start * share):.1f}" x2="{x(end):.1f}" '
            f'y2="{y(end * share):.1f}" stroke="#999" stroke-dasharray="{style}"/>'
        )
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        value = 10.0**power
        parts.append(
            f'<text x="{x(value):.1f}" y="{HEIGHT - BELOW + 16}" text-anchor="middle">'
            f"{value:g}</text>"
        )
        parts.append(
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    chips = sorted({chip for _, _, chip in points})
    for measured, predicted, chip in points:
        parts.append(_mark(chips.index(chip), x(measured), y(predicted)))
    for number, chip in enumerate(chips):
        height = 30 + 18 * number
        parts.append(_mark(number, WIDTH - 110, height - 4))
        parts.append(f'<text x="{WIDTH - 100}" y="{height}">{chip}</text>')
    parts.append(
        f'<text x="{(WIDTH - 70) / 2}" y="{HEIGHT - 6}" text-anchor="middle">measured seconds '
        "(lines: equal, and 25 % off)</text>"
    )
    parts.append(
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">predicted '
        "seconds</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def _mark(chip: int, x: float, y: float) -> str:
    """The mark of a chip by its number: a disc of one colour each, then a square, then a ring."""
    shape, colour = divmod(chip, len(COLOURS))
    style = f'fill="{COLOURS[colour]}" fill-opacity="0.7"'
    if shape == 1:
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" {style}/>'
    if shape > 1:
        style = f'fill="none" stroke="{COLOURS[colour]}"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" {style}/>'
