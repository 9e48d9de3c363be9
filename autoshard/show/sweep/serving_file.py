"""An answer of `autoshard serving` read back from the JSON that it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from autoshard.files import Count, FileError, NotNegative, json_of, typed
from autoshard.show.sweep.file import SweepFileError, WrittenSweep, require_version, sweep_of
from autoshard.study.whatif.served import CacheLimit, Served, Serving
from autoshard.study.whatif.serving import BATCH

Prompts = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True, slots=True)
class WrittenServing:
    """The content of the file; see `Serving`."""

    schema_version: Literal[1]
    serving: str
    rows: tuple[dict[str, Any], ...]
    prefills: tuple[dict[str, Any], ...]
    limits: tuple[CacheLimit, ...]
    prompt: Count | None
    prompts: Prompts
    generate: Count | None
    latency_seconds: NotNegative | None
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Request:
    """The columns of a decode step on what else a request takes."""

    first_seconds: NotNegative | None
    requests_per_second: NotNegative | None
    cost_per_million_tokens: NotNegative | None


def is_serving(text: str) -> bool:
    """Whether a file is an answer of `autoshard serving`."""
    try:
        written = json_of(text, "the answer")
    except FileError:
        return False
    return isinstance(written, dict) and "serving" in written and "rows" in written


def read_serving(text: str) -> Serving:
    """The answer in a file.

    Raises:
      SweepFileError: it is none, or one of another version.
    """
    data = json_of(text, "the answer", error=SweepFileError)
    require_version(data)
    written = typed(data, WrittenServing, name="the answer", error=SweepFileError)
    name, currency = written.serving, written.currency
    decode = sweep_of(WrittenSweep(written.rows, program=name, currency=currency))
    prefill = None
    if written.prefills:
        prefill = sweep_of(WrittenSweep(written.prefills, program=name, currency=currency))
    batches = [row.sizes.get(BATCH) for row in decode.rows]
    for number, batch in enumerate(batches):
        if isinstance(batch, bool) or not isinstance(batch, int):
            raise SweepFileError(f"the answer: rows[{number}].{BATCH} must be a whole number")
    return Serving(
        decode,
        prefill,
        tuple(map(_served, decode.rows, written.rows, range(len(written.rows)))),
        written.limits,
        written.prompt,
        written.prompts,
        written.generate,
        written.latency_seconds,
    )


def _served(row: Any, record: dict[str, Any], number: int) -> Served:
    parts = {name: record[name] for name in Request.__slots__ if name in record}
    request = typed(parts, Request, name=f"the answer: rows[{number}]", error=SweepFileError)
    return Served(
        row, request.first_seconds, request.requests_per_second, request.cost_per_million_tokens
    )
