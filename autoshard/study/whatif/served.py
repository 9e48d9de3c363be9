"""What serving costs, as records: a row per decode step, the best within a latency, what fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from autoshard.files import Count, NotNegative
from autoshard.study.whatif.row import SCHEMA_VERSION, Row, Size
from autoshard.study.whatif.show import copies
from autoshard.study.whatif.table import WhatIf
from autoshard.terminal import paragraph, shorten, table
from autoshard.units import counted, format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class Served:
    """A decode step with what else a request takes. What is not known, or not so, is None.

    Attributes:
      row: of the decode step; its seconds are the latency of a token.
      first_seconds: of the prefill on the same machine: the least time to a first token.
      requests_per_second: that the machine can answer, taking turns.
      cost_per_million_tokens: that are made; with prefill where `requests_per_second` is known.
    """

    row: Row
    first_seconds: float | None
    requests_per_second: float | None
    cost_per_million_tokens: float | None


@dataclass(frozen=True, slots=True)
class CacheLimit:
    """The largest batch that fits, to an eighth of itself.

    Attributes:
      machine, sizes, limit_bytes: of the question; `sizes` without the batch.
      batch: the largest that was found to fit; 0 where none does.
      refused: the smallest above it that was found not to, if one was.
      tokens: that the cache then holds, where the length of sequences is a size.
    """

    machine: str
    sizes: Mapping[str, Size]
    limit_bytes: NotNegative
    batch: Count
    refused: Count | None
    tokens: Count | None


@dataclass(frozen=True, slots=True)
class Serving:
    """The answer of `autoshard serving`.

    Attributes:
      decode, prefill: the sweeps behind it.
      rows: one per decode step, in the order of the sweep.
      limits: how large a batch fits.
      prompt, prompts, generate: tokens of a prompt, prompts read at once, tokens made per request.
      latency: seconds that a token may take at most, or None.
    """

    decode: WhatIf
    prefill: WhatIf | None
    rows: tuple[Served, ...]
    limits: tuple[CacheLimit, ...]
    prompt: int | None = None
    prompts: int = 1
    generate: int | None = None
    latency: float | None = None

    def within(self, latency: float | None) -> list[Served]:
        """For every machine and all sizes but the batch: the row of most tokens/s within it."""
        most = float("inf") if latency is None else latency
        best: dict[object, Served] = {}
        for one in self.rows:
            row = one.row
            if row.step_seconds is None or row.step_seconds > most:
                continue
            rest = tuple(pair for pair in row.sizes.items() if pair[0] != "batch")
            key = row.machine, row.limit_bytes, rest
            if key not in best or _rate(one) > _rate(best[key]):
                best[key] = one
        return sorted(best.values(), key=lambda one: -_rate(one) / one.row.chips)

    def records(self) -> list[dict[str, Any]]:
        """One flat record per decode step: those of the sweep, and what a request takes."""
        chosen = {id(one) for one in self.within(self.latency)}
        return [
            {
                **record,
                "latency_seconds": one.row.step_seconds,
                "first_seconds": one.first_seconds,
                "requests_per_second": one.requests_per_second,
                "cost_per_million_tokens": one.cost_per_million_tokens,
                "best_within_latency": id(one) in chosen,
            }
            for record, one in zip(self.decode.records(), self.rows, strict=True)
        ]

    def frame(self) -> DataFrame:
        """A `pandas.DataFrame` with one line per decode step: see `records`."""
        from pandas import DataFrame

        return DataFrame.from_records(self.records())

    def to_json(self) -> dict[str, Any]:
        """Plain data with a schema version."""
        return {
            "schema_version": SCHEMA_VERSION,
            "serving": self.decode.program,
            "currency": self.decode.prices.currency,
            "prompt": self.prompt,
            "prompts": self.prompts,
            "generate": self.generate,
            "latency_seconds": self.latency,
            "rows": self.records(),
            "prefills": [] if self.prefill is None else self.prefill.records(),
            "limits": [asdict(one) for one in self.limits],
        }

    def save(self, path: str) -> None:
        """Write the JSON to a file."""
        from autoshard.files import write_whole

        write_whole(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())

    def __str__(self) -> str:
        told = copies(one.row for one in self.rows)
        sections = [_verdict(self), _rows(self), told, _limits(self), _unfit(self)]
        return "\n\n".join(section for section in sections if section) + "\n"


def _rate(one: Served) -> float:
    return one.row.tokens_per_second or 0.0


def others(row: Row) -> str:
    """The sizes but for the batch."""
    return " ".join(f"{name}={value}" for name, value in row.sizes.items() if name != "batch")


def _verdict(found: Serving) -> str:
    fits = sum(one.row.fits for one in found.rows)
    text = f"{found.decode.program}: {counted(len(found.rows), 'decode step')}, {fits} with a plan"
    best = found.within(found.latency)
    limit = "" if found.latency is None else f" within {format_seconds(found.latency)} a token"
    if not best:
        return f"{text}; none{limit}"
    lines = [text, f"most tokens/s/chip{limit}:"]
    for one in best:
        row = one.row
        step = format_seconds(row.step_seconds or 0.0)
        where = " ".join(filter(None, (row.machine, others(row))))
        line = f"{where}: batch {row.sizes['batch']}, {step} a token, "
        line += f"{_rate(one):,.0f} tokens/s, {_rate(one) / row.chips:,.0f} a chip"
        if one.first_seconds is not None:
            line += f"; first token after {format_seconds(one.first_seconds)}"
        lines.append(paragraph(line, indent=2, hanging=2))
    return "\n".join(lines)


def _rows(found: Serving) -> str:
    priced = any(one.cost_per_million_tokens is not None for one in found.rows)
    asked = any(one.requests_per_second is not None for one in found.rows)
    read = any(one.first_seconds is not None for one in found.rows)
    chosen = {id(one) for one in found.within(found.latency)}
    head = ["", "machine", "sizes", "batch", "a token", "tokens/s", "/chip", "memory", "gap"]
    head += ["first token"] if read else []
    head += ["requests/s"] if asked else []
    head += [f"{found.decode.prices.currency}/Mtok"] if priced else []
    lines = [[*head, "binds", "mesh"]]
    for one in found.rows:
        row = one.row
        if row.step_seconds is None:
            continue
        cells = [
            "*" if id(one) in chosen else "",
            row.machine,
            others(row),
            str(row.sizes["batch"]),
            format_seconds(row.step_seconds),
            f"{_rate(one):,.0f}",
            f"{_rate(one) / row.chips:,.0f}",
            format_bytes(row.peak_bytes or 0),
            format_percent(row.gap or 0.0),
        ]
        if read:
            first = one.first_seconds
            cells.append("-" if first is None else format_seconds(first))
        if asked:
            cells.append(_number(one.requests_per_second))
        if priced:
            cells.append(_number(one.cost_per_million_tokens))
        lines.append([*cells, row.binds or "", row.mesh or ""])
    if len(lines) == 1:
        return ""
    note = "\n* most tokens/s of its machine and sizes"
    note += "" if found.latency is None else f" within {format_seconds(found.latency)} a token"
    return table(lines, right=range(3, len(head)), indent=0) + note


def _limits(found: Serving) -> str:
    rows = [["largest batch", "", "that fits", "tokens cached", "does not fit"]]
    for one in found.limits:
        words = " ".join(f"{name}={value}" for name, value in one.sizes.items())
        words = f"{words} limit={format_bytes(one.limit_bytes)}".strip()
        tokens = "-" if one.tokens is None else f"{one.tokens:,}"
        refused = "-" if one.refused is None else f"{one.refused:,}"
        rows.append([f"  {one.machine}", words, f"{one.batch:,}", tokens, refused])
    return table(rows, right=(2, 3, 4), indent=0) if len(rows) > 1 else ""


def _unfit(found: Serving) -> str:
    rows = [*found.decode.rows, *(found.prefill.rows if found.prefill is not None else ())]
    lines = [shorten(f"  {row}: {row.why}") for row in rows if not row.fits]
    return "\n".join(["without a plan:", *lines]) if lines else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
