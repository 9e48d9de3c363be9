"""Predicted against compiled: `autoshard bench fidelity`.

Every group is a program on a machine under one mesh; its plans are those of
`benchmarks/variants.py`: the best, the well-known schemes, and odd ones. Each plan is lowered
and compiled by the machine's own compiler, without the device, and what the cost model says stands
beside what the compiler says:

    step        seconds: XLA:GPU's own timeline with overlap; XLA:TPU's cycles and the machine's
                prices of collectives
    peak        bytes of arguments, results and temporaries
    wire        bytes that a device sends: planned, right after partitioning, in the final program
    unplanned   collectives right after partitioning that the plan does not have

At the end stand rank correlations and errors per program, over all, and for each group whether the
plan that the model calls best is the compiler's best.

With `--keep FOLDER` the plans stay there, and are taken from there the next time: priced anew, they
show what a change of the cost model does, and compilers are asked nothing twice. Each group is a
process of its own (`benchmarks/fidelity_group.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GROUP = Path(__file__).with_name("fidelity_group.py")
COLUMNS = (
    "program", "machine", "mesh", "plan", "step", "compiled", "ratio", "peak_gib", "compiled_gib",
    "peak_ratio", "wire_gb", "made_gb", "final_gb", "unplanned", "missing", "compile_s",
)  # fmt: skip
WIDTHS = (24, 9, 8, 24, 8, 8, 6, 8, 12, 10, 8, 8, 8, 9, 7, 9)


@dataclass(frozen=True, slots=True)
class Case:
    """A built-in program with arguments of its factory, a machine, and meshes."""

    program: str
    machine: str
    meshes: tuple[tuple[int, ...], ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The program and what is not as built in."""
        changed = (f"{key}={value}" for key, value in self.arguments.items())
        return ",".join([self.program, *changed])


GPU_CASES = (
    Case("llama3-8b", "h100-64", ((64,), (16, 4), (8, 8), (4, 4, 4))),
    Case("llama3-8b", "h100-64", ((16, 4), (8, 8)), {"batch": 16}),
    Case("llama3-8b", "h100-8", ((8,), (2, 4)), {"batch": 8}),
    Case("llama3-8b", "a100-16", ((16,), (4, 4)), {"batch": 16}),
    Case("llama3-1b", "h100-8", ((8,), (2, 4)), {"batch": 32, "sequence": 2048}),
    Case("llama3-1b", "b200-16", ((4, 4),), {"batch": 64, "sequence": 2048}),
    Case("llama3-8b", "h100-8", ((8,), (2, 4)), {"batch": 32, "mode": "decode"}),
    Case("llama3-70b", "h100-64", ((8, 8), (64,))),
    Case("mixtral-8x7b", "h100-64", ((8, 8), (64,))),
    Case("vit-l16", "h100-8", ((8,), (2, 4))),
    Case("vit-l16", "h100-64", ((64,), (16, 4))),
    Case("resnet50", "h100-8", ((8,), (4, 2)), {"batch": 256}),
    Case("unet", "h100-8", ((8,), (4, 2)), {"batch": 64}),
    Case("gnn", "h100-8", ((8,), (4, 2))),
    Case("mlp", "h100-8", ((8,), (2, 4))),
    Case("mlp", "a100-16", ((16,), (4, 4))),
    Case("mlp", "b200-16", ((16,), (4, 4))),
)
TPU_CASES = (
    Case("mlp", "v5e-16", ((16,), (4, 4))),
    Case("mlp", "v6e-64", ((8, 8),)),
    Case("llama3-1b", "v5p-8", ((8,), (2, 4)), {"batch": 16, "sequence": 2048, "layers": 4}),
    Case("vit-l16", "v5e-16", ((16,), (4, 4)), {"batch": 256, "layers": 4}),
)


def run(options: argparse.Namespace) -> int:
    """Measure and print all rows, then what they say together."""
    from autoshard.cli.rows import Rows, measure
    from autoshard.study.fidelity import draw, summary

    rows = Rows(COLUMNS, WIDTHS)
    options.told = rows.kept
    try:
        for case, sizes in _groups(options.compiler, options.programs, options.machines):
            question = {
                "program": case.program,
                "arguments": dict(case.arguments),
                "machine": case.machine,
                "mesh": list(sizes),
                "time_limit": options.time_limit,
                "distortions": options.distortions,
            }
            named = {
                "program": case.name,
                "machine": case.machine,
                "mesh": "x".join(map(str, sizes)),
            }
            with tempfile.TemporaryDirectory() as folder:
                question["answers"] = str(Path(folder) / "rows.jsonl")
                kept = Path(options.keep or folder) / "-".join(named.values())
                question["plans"] = str(kept)
                answer = measure(str(GROUP), question)
                place = Path(question["answers"])
                for line in place.read_text().splitlines() if place.exists() else ():
                    rows.add({**named, **json.loads(line)})
            if "error" in answer:
                rows.add({**named, "plan": "-", "error": answer["error"]})
            rows.write(options.csv, quiet=True)  # so that nothing is lost, however it ends
    except KeyboardInterrupt:
        print("\ninterrupted: what follows is of the rows above", file=sys.stderr)
    rows.write(options.csv)
    print(f"\n{summary(rows.kept)}")
    if options.svg:
        draw(rows.kept, options.svg)
        print(f"autoshard: wrote {options.svg}", file=sys.stderr)
    return 0


def _groups(
    compiler: str, programs: str | None, machines: str | None
) -> list[tuple[Case, tuple[int, ...]]]:
    cases = {"gpu": GPU_CASES, "tpu": TPU_CASES, "all": GPU_CASES + TPU_CASES}[compiler]
    wanted = programs.split(",") if programs else None
    there = machines.split(",") if machines else None
    return [
        (case, sizes)
        for case in cases
        if wanted is None or case.program in wanted
        if there is None or case.machine in there
        for sizes in case.meshes
    ]
