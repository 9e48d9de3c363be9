"""Models of MaxText by name: each is planned, or the reason why not is said.

    python benchmarks/maxtext_files/models.py gemma-2b qwen3-vl-2b --page docs/results/maxtext.md

Makes the rows of the two tables of that page, each as soon as it is known: seconds of building,
tracing and search, the predicted step and peak of a device, and the proven gap; or the reason why
there is no plan. Without names, all models of MaxText are tried, in one process.

A model is built with `SETTINGS` on v5p-64 and the mesh 16x4, but for what `models.toml`
says of it. `--machine`, `--mesh`, `--settings` (added to the others) and `--time-limit` go before
that file.
"""

from __future__ import annotations

import argparse
import itertools
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import autoshard
from autoshard.models.find import find
from autoshard.models.maxtext.config import module
from autoshard.models.providers import ProgramError
from autoshard.program.trace import TraceError
from autoshard.search.all_shapes import InfeasibleError
from autoshard.search.search import search
from autoshard.units import format_bytes, format_percent, format_seconds

SETTINGS = "per_device_batch_size=1&max_target_length=4096&attention=flash"
USUAL = {"machine": "v5p-64", "mesh": "16x4", "settings": "", "seconds": 60.0}
OWN = Path(__file__).with_suffix(".toml")
"""What models need beside what is usual."""
REFUSALS = ProgramError, TraceError, InfeasibleError
"""What says that there is no plan; all else is a fault."""
PLANNED = "| model | machine, mesh | build s | trace s | ops | search s | step | peak | gap |"
REFUSED = "| model | machine, mesh | why |"


@dataclass(frozen=True, slots=True)
class Asked:
    """A model, and how it is planned.

    Attributes:
      model: its name in MaxText.
      machine: to plan for.
      mesh: its sizes, as `16x4`.
      settings: keys of its configuration beside `SETTINGS`, or in their place.
      seconds: of the search.
    """

    model: str
    machine: str
    mesh: str
    settings: str
    seconds: float

    @property
    def program(self) -> str:
        """The reference to its step."""
        return f"maxtext:{self.model}?{merged(SETTINGS, self.settings)}"

    @property
    def cells(self) -> str:
        """The first cells of its row."""
        said = [self.model, *(f"`{one}`" for one in self.settings.split("&") if one)]
        return f"| {', '.join(said)} | {self.machine}, {self.mesh} |"


def asked(model: str, own: Mapping[str, Any], said: Mapping[str, Any]) -> Asked:
    """A model as it is planned: as is usual, but for its own words, but for what is said."""
    found = {**USUAL, **own.get(model, {}), **{k: v for k, v in said.items() if v is not None}}
    found["settings"] = merged(own.get(model, {}).get("settings", ""), said.get("settings") or "")
    return Asked(model, **found)


def merged(*settings: str) -> str:
    """Settings of which the later ones go before.

    >>> merged("attention=flash&steps=2", "attention=dot_product")
    'attention=dot_product&steps=2'
    """
    words = dict(pair for one in settings for pair in parse_qsl(one))
    return "&".join(f"{key}={value}" for key, value in words.items())


def model_names() -> list[str]:
    """The models of which the installed MaxText has a file."""
    package = module("maxtext").__file__
    assert package is not None
    return sorted(one.stem for one in (Path(package).parent / "configs" / "models").glob("*.yml"))


def row(one: Asked) -> str:
    """Plan one model; its row of the table of plans, or of the other one the reason."""
    mesh = dict(zip("xyz", (int(size) for size in one.mesh.split("x")), strict=False))
    times = [time.perf_counter()]
    try:
        step = find(one.program, machine=one.machine)
        times.append(time.perf_counter())
        program = autoshard.trace(step.fn, *step.args, **step.options)
        times.append(time.perf_counter())
        plan = search(program, one.machine, mesh=mesh, baselines=False, time_limit=one.seconds)
    except Exception as error:  # A fault at one model must not end the table: its row names it.
        why = " ".join(str(error).split()).removeprefix(f"{one.program}: ").replace("|", "\\|")
        kind = "" if isinstance(error, REFUSALS) else f"fails with {type(error).__name__}: "
        return f"{one.cells} {kind}{why} |"
    times.append(time.perf_counter())
    build, trace, solve = (later - sooner for sooner, later in itertools.pairwise(times))
    estimate = plan.estimate
    return (
        f"{one.cells} {build:.0f} | {trace:.0f} | {len(program.ops):,} | {solve:.0f} | "
        f"{format_seconds(estimate.step_seconds)} | {format_bytes(estimate.peak_bytes)} | "
        f"{format_percent(plan.proof.gap, '.2f')} |"
    )


def model_of(row: str) -> str:
    """The model of a row.

    >>> model_of("| gemma4-e2b, `scan_layers=false` | v5p-64, 16x4 | 90 | 36 |")
    'gemma4-e2b'
    """
    return row.split("|")[1].split(",")[0].strip()


def with_rows(page: str, rows: Iterable[str]) -> str:
    """A page with rows in its two tables, in the order of names, in place of older ones.

    Raises:
      ValueError: the page lacks one of the tables.
    """
    new = {model_of(one): one for one in rows}
    lines = page.split("\n")
    for head in (PLANNED, REFUSED):
        if head not in lines:
            raise ValueError(f"the page has no table that begins with {head}")
        width, first = head.count("|"), lines.index(head) + 2
        end = next(at for at in range(first, len(lines)) if not lines[at].startswith("|"))
        kept = [one for one in lines[first:end] if model_of(one) not in new]
        kept += [one for one in new.values() if one.replace("\\|", "").count("|") == width]
        lines[first:end] = sorted(kept, key=model_of)
    return "\n".join(lines)


def main() -> None:
    """Read the options, and make the row of each model."""
    parser = argparse.ArgumentParser(description="Plan models of MaxText by name.")
    parser.add_argument("models", nargs="*", help="of MaxText (default: all)")
    parser.add_argument("--machine", help="of all models, as v5p-64")
    parser.add_argument("--mesh", help="of all models, as 16x4")
    parser.add_argument("--settings", help="more keys of MaxText's configuration")
    parser.add_argument("--time-limit", type=float, dest="seconds", help="of a search")
    parser.add_argument("--page", type=Path, help="put the rows into the tables of this page")
    options = vars(parser.parse_args())
    own = tomllib.loads(OWN.read_text())
    models, page = options.pop("models") or model_names(), options.pop("page")
    for model in models:
        made = row(asked(model, own, options))
        print(made, flush=True)
        if page is not None:
            page.write_text(with_rows(page.read_text(), [made]))


if __name__ == "__main__":
    main()
