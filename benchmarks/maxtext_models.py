"""Models of MaxText by name: each is planned, or the reason why not is said.

    python benchmarks/maxtext_models.py gemma-2b qwen3-1.7b --machine v5p-64 --mesh 16x4

Prints the rows of the table "What plans" of `docs/guide/maxtext.md`, one as soon as it is known:
seconds of building, tracing and search, the predicted step and peak of a device, the proven gap.
Without names, all models of MaxText are tried, in one process.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import autoshard
from autoshard.models.find import find
from autoshard.models.maxtext.config import module
from autoshard.models.providers import ProgramError
from autoshard.program.trace import TraceError
from autoshard.search.all_shapes import InfeasibleError
from autoshard.search.search import search
from autoshard.units import format_bytes, format_seconds

SETTINGS = "per_device_batch_size=1&max_target_length=4096&attention=flash"
REFUSALS = ProgramError, TraceError, InfeasibleError
"""What says that there is no plan; all else is a fault."""
HEAD = "| model | machine, mesh | build s | trace s | ops | search s | step | peak | gap |"


def model_names() -> list[str]:
    """The models of which the installed MaxText has a file."""
    package = module("maxtext").__file__
    assert package is not None
    return sorted(one.stem for one in (Path(package).parent / "configs" / "models").glob("*.yml"))


def row(model: str, options: argparse.Namespace) -> str:
    """Plan one model; its row of the table, with the reason where there is no plan."""
    place = f"| {model} | {options.machine}, {options.mesh}"
    sizes = [int(size) for size in options.mesh.split("x")]
    mesh = dict(zip("xyz", sizes, strict=False))
    times = [time.perf_counter()]
    try:
        step = find(f"maxtext:{model}?{options.settings}", machine=options.machine)
        times.append(time.perf_counter())
        program = autoshard.trace(step.fn, *step.args, **step.options)
        times.append(time.perf_counter())
        plan = search(
            program, options.machine, mesh=mesh, baselines=False, time_limit=options.time_limit
        )
    except Exception as error:  # A fault at one model must not end the table: its row names it.
        kind = "refused" if isinstance(error, REFUSALS) else f"fails with {type(error).__name__}"
        seconds = time.perf_counter() - times[0]
        return f"{place} | {kind} after {seconds:.0f} s: {' '.join(str(error).split())} |"
    times.append(time.perf_counter())
    build, trace, solve = (later - sooner for sooner, later in itertools.pairwise(times))
    estimate = plan.estimate
    return (
        f"{place} | {build:.0f} | {trace:.0f} | {len(program.ops):,} | {solve:.0f} | "
        f"{format_seconds(estimate.step_seconds)} | {format_bytes(estimate.peak_bytes)} | "
        f"{plan.proof.gap:.2%} |"
    )


def main() -> None:
    """Read the options and print a row of each model."""
    parser = argparse.ArgumentParser(description="Plan models of MaxText by name.")
    parser.add_argument("models", nargs="*", help="of MaxText (default: all)")
    parser.add_argument("--machine", default="v5p-64")
    parser.add_argument("--mesh", default="16x4")
    parser.add_argument("--settings", default=SETTINGS, help="keys of MaxText's configuration")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of a search")
    options = parser.parse_args()
    print(HEAD, "|---" * 9 + "|", sep="\n", flush=True)
    for model in options.models or model_names():
        print(row(model, options), flush=True)


if __name__ == "__main__":
    main()
