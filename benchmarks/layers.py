"""Planning time against depth: `autoshard bench layers`.

Llama 3 train steps of 8B widths on v5p-64 and of 405B widths on v5p-512, with 2 to 126 layers,
scanned and unrolled, on meshes of one to three axes. Each row is a process of its own:

    trace, build, solve   seconds, from a program in memory to a proven plan; coarser meshes, whose
                          plans are starting points, included
    objective, bound      seconds per step, of the plan and that none in the space can undercut
    peak_gib              of that process

The published figure beside them: AutoParallel (PyTorch) on Llama-3-8B, forward and backward
without an optimizer, on two cores of another machine: 134.8 s end to end for an 8x8 mesh, and no
answer for 4x4x4 (one layer did not finish within 1,500 s).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from functools import partial
from typing import Any

from autoshard.units import format_percent

MACHINES = {"8b": "v5p-64", "405b": "v5p-512"}
MESHES = {
    "8b": {1: (64,), 2: (8, 8), 3: (4, 4, 4)},
    "405b": {1: (512,), 2: (32, 16), 3: (8, 8, 8)},
}
PUBLISHED = {(32, 2): "134.8 s", (32, 3): "no answer"}
COLUMNS = (
    "model", "layers", "form", "mesh", "ops", "trace", "build", "solve", "total",
    "objective", "bound", "gap", "peak_gib", "AutoParallel",
)  # fmt: skip
WIDTHS = (5, 6, 8, 7, 6, 6, 6, 6, 6, 10, 10, 7, 8, 12)


def run(options: argparse.Namespace) -> int:
    """Measure and print all rows."""
    from autoshard.cli.rows import Rows, measure
    from autoshard.terminal import paragraph

    models = ("8b", "405b") if options.model == "both" else (options.model,)
    layers = [int(number) for number in options.layers.split(",")]
    axes = [int(number) for number in options.axes.split(",")]
    rows = Rows(COLUMNS, WIDTHS, {"gap": partial(format_percent, form=".2f")})
    options.told = rows.kept
    for model, count, form, number in itertools.product(
        models, layers, options.forms.split(","), axes
    ):
        row = {"model": model, "layers": count, "form": form, "axes": number}
        row["mesh"] = "x".join(map(str, MESHES[model][number]))
        limits = {"time_limit": options.time_limit, "gap_wanted": options.gap}
        row.update(measure(__file__, {**row, **limits}))
        if model == "8b":
            row["AutoParallel"] = PUBLISHED.get((count, number), "")
        rows.add(row)
    note = (
        "seconds; objective and bound in seconds per step; AutoParallel: published figures of "
        "another machine, without the optimizer (see the docstring of benchmarks/layers.py)"
    )
    print(f"\n{paragraph(note)}")
    rows.write(options.csv)
    return 0


def measure_row(row: dict[str, Any]) -> dict[str, Any]:
    """One row, in this process: what `autoshard search` does, without the schemes."""
    import autoshard
    from autoshard.models.llama import llama

    fn, args, options = llama(
        f"llama3-{row['model']}", layers=row["layers"], scan=row["form"] == "scan"
    )
    spent = {"trace": 0.0, "build": 0.0, "solve": 0.0}
    part, since = "trace", time.perf_counter()

    def turn(to: str) -> None:
        nonlocal part, since
        now = time.perf_counter()
        spent[part] += now - since
        part, since = to, now

    program = autoshard.trace(fn, *args, **options)
    turn("build")
    plan = autoshard.search(
        program,
        MACHINES[row["model"]],
        mesh=dict(zip("xyz", MESHES[row["model"]][row["axes"]], strict=False)),
        time_limit=row["time_limit"],
        gap=row["gap_wanted"],
        baselines=False,
        progress=lambda news: turn("build" if news.phase == "build" else "solve"),
    )
    turn("done")
    return {
        **spent,
        "total": sum(spent.values()),
        "ops": len(program.ops),
        "objective": plan.proof.objective,
        "bound": plan.proof.bound,
        "gap": plan.proof.gap,
    }


if __name__ == "__main__":
    print(json.dumps(measure_row(json.loads(sys.argv[1]))))
