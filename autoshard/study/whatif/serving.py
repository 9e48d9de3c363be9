"""Serving: decode steps over batches, prefill of prompts, and how much cache fits.

A decode step makes one token for each of `batch` sequences; its time is the latency of a token. A
prefill step reads a prompt; its time is the least time to the first token. Both are programs of
their own, planned by sweeps (`autoshard.study.whatif.sweep`). Where chips take turns with both, a
request of P prompt tokens and G made ones keeps the machine busy for

    prefill(P) / prompts at once  +  G * decode step / batch

seconds, the inverse of which is the requests per second that it can answer.

The largest batch that fits is found by doubling and halving over plans that keep the memory limit,
to an eighth of itself; with the length of the sequences it says how many tokens the cache may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoshard.models.find import size_names
from autoshard.study.whatif.cases import Case, cases_of
from autoshard.study.whatif.kept import default_folder, own_digest
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.served import CacheLimit, Served, Serving
from autoshard.study.whatif.solver import Asked, Solver
from autoshard.study.whatif.sweep import SweepProgress, whatif
from autoshard.study.whatif.table import WhatIf
from autoshard.study.whatif.words import CLUSTER, SweepError, in_full, read_words

BATCH, LENGTH = "batch", "sequence"
LOOSE = 0.5
"""Whether a batch fits does not depend on how good its plan is: a search ends at such a gap."""
FINE = 8
"""Batches are tried in eighths of a power of two."""
MOST_BATCH = 2**24


def serving(
    decode: str | Callable[..., Any],
    sweep: Mapping[str, Any] | Sequence[str],
    *,
    prefill: str | Callable[..., Any] | None = None,
    prompt: int | None = None,
    prompts: int = 1,
    generate: int | None = None,
    latency: float | None = None,
    largest: bool = True,
    prices: Any = None,
    time_limit: float = 60.0,
    gap: float = 0.02,
    workers: int = 0,
    folder: str | Path | None = None,
    keep: bool = True,
    progress: Callable[[SweepProgress], None] | None = None,
) -> Serving:
    """Plan decode steps over batches and lengths, and prefills, on one cluster or several.

    Args:
      decode: the decode step: a reference such as "llama3-8b-decode", or a function whose keyword
        arguments are the sizes, among them `batch`.
      sweep: as of `autoshard.whatif`; it must say `batch`.
      prefill: the prefill step, with sizes `batch` and `sequence`; of a built-in "X-decode" it is
        "X-prefill" by default.
      prompt: tokens of a prompt; without it, prefill is left out.
      prompts: so many are read at once.
      generate: tokens that a request makes.
      latency: seconds that a token may take at most.
      largest: whether to find the largest batch that fits.
      prices: of chips, as of `autoshard.whatif`.
      time_limit, gap, workers, folder, keep, progress: as of `autoshard.whatif`.

    Raises:
      SweepError: the sweep is faulty, or there is no prefill step to find; all faults are named.
      ProgramError, TraceError, NoRuleError: of the programs.
    """
    words = dict(sweep) if isinstance(sweep, Mapping) else read_words(sweep)
    full = in_full(words, size_names(decode))
    if BATCH not in full:
        raise SweepError(f"serving is about batches; sweep {BATCH}=1..256")
    if generate is not None and prompt is None:
        raise SweepError("a request that makes tokens has a prompt; say how long it is")
    common = {"prices": prices, "time_limit": time_limit, "gap": gap, "workers": workers}
    common |= {"folder": folder, "keep": keep, "progress": progress}
    reading = None if prompt is None else _prefill_of(decode, prefill)
    found = whatif(decode, full, latency=latency, objective="step", **common)
    prefills = None
    if reading is not None and not found.interrupted:
        sizes = _prefill_sizes(reading, full, prompts, prompt)
        prefills = whatif(reading, sizes, objective="step", **common)
    limits: list[CacheLimit] = []
    if largest and not found.interrupted:
        place = Path(folder) if folder is not None else default_folder()
        asked = Asked(decode, time_limit, LOOSE, None, place if keep else None, own_digest())
        limits = _limits(Solver(asked), cases_of(full), found.rows)
    rows = tuple(_served(found, row, prefills, prompts, generate) for row in found.rows)
    return Serving(found, prefills, rows, tuple(limits), prompt, prompts, generate, latency)


def _prefill_of(
    decode: str | Callable[..., Any], prefill: str | Callable[..., Any] | None
) -> str | Callable[..., Any]:
    if prefill is not None:
        return prefill
    if isinstance(decode, str) and decode.endswith("-decode"):
        return f"{decode.removesuffix('-decode')}-prefill"
    raise SweepError("which program reads the prompts? name it: --prefill PROGRAM")


def _prefill_sizes(
    prefill: str | Callable[..., Any],
    full: Mapping[str, Any],
    prompts: int,
    prompt: int | None,
) -> dict[str, Any]:
    """The sweep of the prefill step: the clusters and sizes of the decode steps, but for these."""
    names = size_names(prefill)
    lacking = [name for name in (BATCH, LENGTH) if name not in names]
    if lacking:
        raise SweepError(
            f"the prefill step has no size {' and no '.join(lacking)}; give its function "
            "parameters of these names"
        )
    sizes = {name: values for name, values in full.items() if name in CLUSTER or name in names}
    return {**sizes, BATCH: prompts, LENGTH: prompt}


def _served(
    sweep: WhatIf, row: Row, prefills: WhatIf | None, prompts: int, generate: int | None
) -> Served:
    reading = None
    for one in prefills.rows if prefills is not None else ():
        alike = {k: v for k, v in one.sizes.items() if k not in (BATCH, LENGTH)}
        wanted = {k: v for k, v in row.sizes.items() if k in alike}
        if (one.machine, one.limit_bytes, alike) == (row.machine, row.limit_bytes, wanted):
            reading = one
    first = None if reading is None else reading.step_seconds
    requests = None
    if generate is not None and first is not None and row.step_seconds is not None:
        batch = _batch(row)
        requests = 1.0 / (first / prompts + generate * row.step_seconds / batch)
    tokens = row.tokens_per_second if requests is None else requests * (generate or 0)
    hourly = sweep.cost_per_hour(row)
    cost = None if hourly is None or not tokens else hourly / 3600.0 / tokens * 1e6
    return Served(row, first, requests, cost)


def _batch(row: Row) -> int:
    size: Any = row.sizes[BATCH]
    return int(size)


def _limits(solver: Solver, cases: Sequence[Case], rows: Sequence[Row]) -> list[CacheLimit]:
    """For every machine, limit and all sizes but the batch: the largest batch that fits."""
    groups: dict[object, list[tuple[Case, Row]]] = {}
    for case, row in zip(cases, rows, strict=True):
        rest = tuple(pair for pair in case.sizes if pair[0] != BATCH)
        groups.setdefault((case.machine, case.limit, rest), []).append((case, row))
    found = []
    for pairs in groups.values():
        case, row = pairs[0]
        fitting = [_batch(one) for _, one in pairs if one.fits]
        refused = [_batch(one) for _, one in pairs if not one.fits]
        batch, refused_at = _largest(solver, case, max(fitting, default=0), refused)
        sizes = {name: value for name, value in row.sizes.items() if name != BATCH}
        length = sizes.get(LENGTH)
        tokens = None if length is None else batch * int(length)
        found.append(CacheLimit(row.machine, sizes, case.limit, batch, refused_at, tokens))
    return found


def _largest(
    solver: Solver, case: Case, fits: int, refused: Sequence[int]
) -> tuple[int, int | None]:
    """The largest batch known to fit, and the smallest above it known not to."""

    def fitting(batch: int) -> bool:
        sizes = tuple((n, batch if n == BATCH else v) for n, v in case.sizes)
        return solver.row(replace(case, sizes=sizes))[0].fits

    above = [batch for batch in refused if batch > fits]
    least = min(above, default=None)
    while least is None:
        tried = max(2 * fits, 1)
        if tried > MOST_BATCH:
            return fits, None
        if fitting(tried):
            fits = tried
        else:
            least = tried
    while (tried := _between(fits, least)) is not None:
        if fitting(tried):
            fits = tried
        else:
            least = tried
    return fits, least


def _between(low: int, high: int) -> int | None:
    """A batch between two others, in eighths of a power of two; None where there is none."""
    grain = max(1, 2 ** (max(low, 1).bit_length() - 1) // FINE)
    middle = (low + high) // 2 // grain * grain
    if middle <= low:
        middle = (low // grain + 1) * grain
    return middle if low < middle < high else None
