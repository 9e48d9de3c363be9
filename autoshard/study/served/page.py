"""The page and the plot of `autoshard bench served`: `docs/results/served.md`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from autoshard.study.measured.page import plot as measured_plot
from autoshard.study.measured.table import HALVES, half
from autoshard.study.served.summary import MEASURES, Ratios, memory_ratios, ratio, ratios
from autoshard.units import counted

Row = Mapping[str, Any]
TEXT = """Published points of serving engines, each bounded from below at
its own configuration: ranks of tensor and expert parallelism, dtypes of weights and cache, batch
and lengths as published, with nothing fitted to any point. Made by `autoshard bench served TABLE
--csv ROWS --markdown PAGE --svg PLOT`; the points, with their sources, are in
`benchmarks/served/points.csv`.

The steps are those of an engine (`autoshard.models.engine`): products with weights, and one
kernel each for what engines write by hand. They are planned under the layout of the point and
priced as any other program; seconds are those of kernels one after another. Products reach what
the best size of a micro-benchmark does, attention what was measured of its kernels
(`autoshard.machine.as_measured`), collectives what engines' own do
(`autoshard.study.served.collectives`); experts are read as far as some token of the batch uses
them. A first token takes a prefill, each further one a decode step at the mean length of the
cache, and tokens a second are made by decode steps and prefills in turn.

Ratios are predicted over measured; of tokens a second, measured over predicted. **At most 1 is a
bound that holds.** What engines add is not predicted, and so is the distance to 1:

- their schedulers, tokenizers, servers and sampling run on hosts between two steps;
- kernels are started one by one from the host, or a step in one CUDA graph, whose kernels follow
  one another by a microsecond or two that are in the price (`launch_seconds`);
- prompts of others are read in chunks between two decode steps of requests that come one by one;
- products of few rows or narrow parts occupy few multiprocessors, and reach neither the memory's
  rate nor that of products (a library made for them takes 0.9 to 1.5 times what is priced, see
  `tests/study/served`);
- heads of queries that share keys may each read them (TensorRT-LLM 0.7 decodes Llama-70B up to 2.4
  times as fast as 0.5 by other kernels of them); with one sequence, few heads of keys on a chip are
  read by few of its multiprocessors;
- logits are gathered, penalised and sampled; the busiest rank of experts has more than the mean.

First tokens of requests that come one by one, several at once, wait for each other and are not
held to anything. Which laws were missing was looked for in the half of the points that is called
seen, by a hash of model and chip: there an A100's sums over ranks got the time that was measured of
them. Ratios of the other half were first computed after that; kernels of experts were then written
anew, so that they compute what they are priced for, and no law was changed."""


def page(rows: Sequence[Row], plot: str, made: str) -> str:
    """The figures of rows as Markdown.

    Args:
      rows: points as the table has them, with `predicted_*` of each.
      plot: the name of its plot.
      made: when and by what versions, in words.
    """
    priced = [row for row in rows if row["status"] == "priced"]
    lines = [
        "# Beside serving engines",
        "",
        *TEXT.split("\n"),
        "",
        made,
        "",
        f"![Predicted over measured seconds]({plot})",
        "",
        f"Of {counted(len(rows), 'point')} {len(priced)} are priced.",
        "",
        *_table("points", _halves(priced)),
        "",
    ]
    for name, word in (("chip", "chip"), ("engine", "engine"), ("model", "model")):
        lines += [f"## By {name}", "", *_table(name, _by(priced, lambda row, w=word: row[w])), ""]
    lines += ["## By batch", "", *_table("batch", _by(priced, _batch, order=_BATCHES)), ""]
    memory = Ratios.of(memory_ratios(priced))
    if memory is not None:
        lines += ["## Memory", ""]
        lines += [f"Weights and a full cache over the published peak of a chip: {memory}. Engines"]
        lines += ["also hold activations, workspaces and buffers of collectives.", ""]
    lines += [*_ours(priced), *_unpriced(rows), "## All points", "", *_rows(rows), ""]
    return "\n".join(lines)


def _halves(rows: Sequence[Row]) -> dict[str, Sequence[Row]]:
    return {"all": rows, **{word: [row for row in rows if half(row) == word] for word in HALVES}}


_BATCHES = ("1", "2 to 15", "16 to 127", "128 and more")


def _batch(row: Row) -> str:
    return _BATCHES[sum(int(row["batch"]) >= least for least in (2, 16, 128))]


def _by(
    rows: Sequence[Row], word: Callable[[Row], str], order: Sequence[str] = ()
) -> dict[str, list[Row]]:
    names = order or sorted({word(row) for row in rows})
    return {name: [row for row in rows if word(row) == name] for name in names}


def _table(name: str, groups: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    yield f"| {name} | measure | count | bound holds | median ratio | least | most |"
    yield "|---|---|---|---|---|---|---|"
    for word, rows in groups.items():
        for measure, words in MEASURES.items():
            one = Ratios.of(ratios(rows, measure))
            if one is not None:
                yield (
                    f"| {word} | {words} | {one.count} | {one.holding} | {one.median:.2f} | "
                    f"{one.least:.2f} | {one.most:.2f} |"
                )


def _ours(rows: Sequence[Row]) -> Iterator[str]:
    """Our own plans beside the points' own."""
    found = [row for row in rows if row.get("ours")]
    if not found:
        return
    shares = [float(row["ours"]) for row in found]
    faster = sum(share < 0.995 for share in shares)
    yield from ("## Our own plans", "")
    yield (
        f"Of a decode step with at most four layers of each kind, on the same chips, with mesh and "
        f"layouts free: predicted faster in {faster} of {counted(len(found), 'point')}, the median "
        f"takes {statistics.median(shares):.2f} of the point's own layout. Where the share is 1.00 "
        "the engine's tensor parallelism is the best that the search knows."
    )
    yield from ("", "| point | its own mesh | our mesh | share |", "|---|---|---|---|")
    for row, share in zip(found, shares, strict=True):
        yield f"| {row['id']} | {row['mesh']} | {row['ours_mesh']} | {share:.2f} |"
    yield ""


def _unpriced(rows: Sequence[Row]) -> Iterator[str]:
    reasons = Counter(
        row["status"].removeprefix("unreachable: ") for row in rows if row["status"] != "priced"
    )
    if reasons:
        yield from ("## Not priced", "", "| points | reason |", "|---|---|")
        for reason, count in reasons.most_common():
            yield f"| {count} | {reason.replace('|', '/')} |"
        yield ""


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        "| point | chips | dtypes | batch | in, out | first ms | ratio | further ms | ratio | "
        "tokens/s | ratio |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        experts = f", experts {row['experts']}" if row.get("experts") else ""
        cells = []
        for measure in MEASURES:
            name = "tokens_per_s" if measure == "rate" else f"{measure}_ms"
            value, found = row.get(name), ratio(row, measure)
            shown = "" if not value else f"{float(value):.4g}"
            cells += [shown, "" if found is None else f"{found:.2f}"]
        yield (
            f"| {row['id']} | {row['chips']} {row['chip']} | {row['weights']}, cache "
            f"{row['cache']}{experts} | {row['batch']} | {row['input']}, {row['output']} | "
            f"{' | '.join(cells)} |"
        )


def plot(rows: Sequence[Row]) -> str:
    """Predicted over measured seconds of first and further tokens, a colour for each chip; SVG."""
    points = [
        {
            "chip": row["chip"],
            "measured_seconds": float(row[f"{measure}_ms"]) / 1e3,
            "predicted_seconds": float(row[f"predicted_{measure}_ms"]) / 1e3,
        }
        for row in rows
        for measure in ("ttft", "tpot")
        if ratio(row, measure) is not None
    ]
    return measured_plot(points)
