"""The sweep: all rows, over the workers, with news as they come.

Rows of as many chips form a group, which one worker answers in order, so that each search begins
where the last one ended. How they are handed out is in `autoshard.study.whatif.answering`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from autoshard.models.find import size_names
from autoshard.study.whatif.answering import Answers, SweepProgress
from autoshard.study.whatif.cases import Case, cases_of
from autoshard.study.whatif.kept import default_folder, own_digest
from autoshard.study.whatif.prices import Prices, prices_of, read_prices
from autoshard.study.whatif.solver import Asked
from autoshard.study.whatif.table import OBJECTIVES, WhatIf
from autoshard.study.whatif.words import SweepError, in_full, read_words
from autoshard.study.whatif.workers import seats


def whatif(
    program: str | Callable[..., Any],
    sweep: Mapping[str, Any] | Sequence[str],
    *,
    objective: str = "step",
    prices: Prices | Mapping[str, Any] | str | Path | None = None,
    tokens: int | Sequence[str] | None = None,
    time_limit: float = 60.0,
    gap: float = 0.02,
    train_tokens: float | None = None,
    latency: float | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    folder: str | Path | None = None,
    keep: bool = True,
    progress: Callable[[SweepProgress], None] | None = None,
) -> WhatIf:
    """Plan a program on many clusters and at many sizes.

    Args:
      program: a reference such as "llama3-70b" or "module:function", or a function whose keyword
        arguments are the sizes and which returns `(fn, args)` or `(fn, args, options)`.
      sweep: names and values, such as `{"chip": ["v5p", "h100"], "chips": [64, 128]}`, or words
        (`autoshard.study.whatif.words`). All combinations are rows.
      objective: what rows are ranked by; one of `autoshard.study.whatif.table.OBJECTIVES`.
      prices: of chip-hours, and the watts of chips (`autoshard.study.whatif.prices`).
      tokens: in one step: a number, or names of sizes that multiply to it; by default the elements
        of the input called `tokens`.
      time_limit: seconds for the search of one row.
      gap: a row's search stops when its plan is proven to be within this fraction of the best.
      train_tokens: of a whole training run; rows then say how long it takes, and what it costs.
      latency: seconds that a step may take; slower rows are not ranked.
      workers: processes to share the rows among; 0 is this process alone. Processes start anew, so
        a function must be importable, and a script's entry guarded by `__main__`.
      scheduler: address of a Dask scheduler, whose workers answer instead.
      folder: where rows are kept as they come, and found again (`autoshard.study.whatif.kept`).
      keep: whether they are.
      progress: called as rows come in. An interrupt (Ctrl-C) ends the sweep with what there is.

    Raises:
      SweepError: the sweep is faulty, or the objective lacks prices; all faults are named.
      ProgramError, TraceError, NoRuleError: of the program.
    """
    if not isinstance(sweep, Mapping):
        sweep = read_words(sweep)
    names = size_names(program)
    cases = cases_of(in_full(sweep, names))
    table = _prices(prices)
    if objective not in OBJECTIVES:
        raise SweepError(f"there is no objective {objective!r}; known: {', '.join(OBJECTIVES)}")
    if objective in ("tokens-per-dollar", "energy"):
        what = "chip_hour" if objective == "tokens-per-dollar" else "watts"
        table.require((case.chip for case in cases), what, objective)
    counted = tokens if tokens is None or isinstance(tokens, int) else tuple(tokens)
    if isinstance(counted, tuple):
        unswept = [name for name in counted if name not in dict(cases[0].sizes)]
        if unswept:
            raise SweepError(
                f"tokens: {', '.join(unswept)} must be in the sweep; there one value will do"
            )
    place = Path(folder) if folder is not None else default_folder()
    asked = Asked(program, time_limit, gap, counted, place if keep else None, own_digest())
    with seats(asked, workers, scheduler) as seated:
        rows, ended = Answers(cases, _groups(cases), seated, progress).found()
    found = WhatIf(
        asked.name,
        tuple(rows),
        objective,
        table,
        len(cases),
        bool(ended),
        train_tokens,
        latency,
        ended,
    )
    if (objective != "step" or train_tokens is not None) and any(
        row.fits and row.tokens is None for row in rows
    ):
        raise SweepError(
            f"the objective {objective} counts tokens, but {asked.name} has no input called "
            "`tokens`; say how many a step takes: --tokens batch*sequence, or a number"
        )
    return found


def _prices(given: Prices | Mapping[str, Any] | str | Path | None) -> Prices:
    if given is None:
        return Prices()
    if isinstance(given, Prices):
        return given
    if isinstance(given, Mapping):
        return prices_of(dict(given), where="prices")
    return read_prices(given)


def _groups(cases: Sequence[Case]) -> list[list[int]]:
    """Numbers of cases, in groups of as many chips.

    Kinds of chips that are alike follow each other, then machines, then sizes: problems of
    neighbours differ in prices and bytes alone, and what does not change with the sizes (the
    parameters' part) costs the same. From one machine to the next the sizes turn round, so that
    neighbours differ in one of both. The highest limit of a machine comes first, because its
    answer may be that of lower ones.
    """
    groups: dict[int, list[int]] = {}
    first: dict[object, int] = {}
    for number, case in enumerate(cases):
        groups.setdefault(case.machine.chips, []).append(number)
        for key in (_kind(case), case.sizes, case.machine):
            first.setdefault(key, number)

    def machine(number: int) -> tuple[int, int]:
        case = cases[number]
        return first[_kind(case)], first[case.machine]

    def size(number: int) -> int:
        return first[cases[number].sizes]

    def room(number: int) -> float:
        return cases[number].limit

    ordered = []
    for chips in sorted(groups, reverse=True):
        rows: list[int] = []
        by_machine = groupby(sorted(groups[chips], key=machine), machine)
        for turn, (_, ones) in enumerate(by_machine):
            falling = sorted(ones, key=room, reverse=True)
            rows += sorted(falling, key=size, reverse=bool(turn % 2))
        ordered.append(rows)
    return ordered


def _kind(case: Case) -> object:
    """What chips have in common for which a program is likely to be compiled alike."""
    chip = case.machine.chip
    own, again = chip.compiler, round(chip.exponential_bytes, 6)
    return (
        own.name,
        own.heap_overhead,
        own.name == "xla:gpu" and own.hides_collectives,
        chip.transaction_bytes,
        again,
    )
