"""A file of every kind that commands write or read, as the commands write them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from autoshard.cli.main import main

WRITTEN = {
    "page.html": "report plan.json -o",
    "sweep.html": "report sweep.json -o",
    "trace.json": "report plan.json mlp:tiny --trace",
    "graph.json": "report plan.json mlp:tiny --model-explorer",
    "nodes.json": "report plan.json mlp:tiny --node-data",
    "rules.yml": "report plan.json mlp:tiny --rules",
    "shardings.json": "report plan.json mlp:tiny --shardings",
    "machine.toml": "calibrate times.csv --machine h100-8 -o",
    "sweep.csv": "whatif mlp:tiny --sweep chips=4,8 --quiet --csv",
    "serving.csv": "serving llama3-1b-decode:tiny --sweep chips=4 --quiet --csv",
    "robust.csv": "robust mlp:tiny --machine v5e-8 --range overlap=0..1 --quiet --csv",
    "bench.csv": "bench layers --model 8b --layers 32 --axes 2 --forms scan --csv",
    "habits.csv": "bench habits --compile gpu --only gpu.products-* --csv",
    "measured.csv": "bench measured runs.csv --csv",
    "served.csv": "bench served points.csv --csv",
    "figures.csv": "bench all --parts iopddl --csv",
    "results.md": "bench all --parts iopddl --markdown",
    "results.html": "bench all --parts iopddl -o",
    "order.svg": "schedule instance.json --quiet --svg",
}
"""By the file: the command that writes it."""
PRINTED = {
    "check-answer.json": "check plan.json mlp:tiny --json",
    "explanation.json": "explain plan.json --program mlp:tiny --json",
    "lines.json": "annotate plan.json mlp:tiny --quiet --json",
    "lines.txt": "annotate plan.json mlp:tiny --quiet",
    "report.txt": "show plan.json",
    "calibration.json": "calibrate times.csv --machine h100-8 --json",
    "machine.json": "machines v5p-64 --json",
    "machines.json": "machines --json",
    "programs.json": "programs --json",
    "wrote.json": "report plan.json -o page.html --json",
    "rows.json": "bench layers --model 8b --layers 32 --axes 2 --forms scan --json",
    "completion.bash": "completion bash",
    "completion.json": "completion bash --json",
}
"""By the file: the command whose output it is."""
BY_HAND = {
    "requirements.toml": 'requirements = ["pin batch.** [x, ...]"]\n',
    "logical.toml": '[[logical]]\nnames = { "weights.up" = ["embed", "mlp"] }\n',
    "prices.toml": "[v5e]\nchip_hour = 1.20\n",
    "meshes.toml": 'meshes = ["v5e-4", "v5e-4"]\n',
    "own.yml": "# autoshard: the best plan that this file can say\nmodel_name: llama3.1-8b\n",
    "steps.py": "def step(x):\n    return x\n",
    "cut.json": '{"schema_version": 3, "mesh": {"x": 2',
    "empty.txt": "",
    "notes.txt": "what I have written, in ten years\n",
}
"""What people write, and what is damaged."""
KINDS = {
    "a page": ("page.html", "sweep.html", "results.html"),
    "a drawing": ("order.svg",),
    "a plan for several meshes": ("pipeline.json",),
    "a schedule": ("schedule.json",),
    "an answer about serving": ("serving.json",),
    "a sweep": ("sweep.json", "sweep.csv", "serving.csv"),
    "an answer about ranges": ("robust.json",),
    "a front of memory and time": ("frontier.json",),
    "verdicts": ("verdicts.json",),
    "a solution": ("solution.json",),
    "a plan": ("plan.json",),
    "a trace": ("trace.json",),
    "a graph": ("graph.json",),
    "times of a graph's nodes": ("nodes.json",),
    "a list of layouts": ("shardings.json",),
    "logical axis rules": ("rules.yml",),
    "a framework's own file": ("own.yml",),
    "an answer about a plan": ("check-answer.json",),
    "a list of lines": ("lines.json",),
    "an explanation": ("explanation.json",),
    "what a calibration came to": ("calibration.json",),
    "a machine's numbers": ("machine.json",),
    "what was written": ("wrote.json",),
    "a completion script as JSON": ("completion.json",),
    "rows of a benchmark": ("rows.json",),
    "the list of machines": ("machines.json",),
    "the list of programs": ("programs.json",),
    "a choice problem": ("problem.json",),
    "a schedule problem": ("instance.json",),
    "a list of schedule problems": ("instances.json",),
    "a machine file": ("machine.toml",),
    "a file of requirements": ("requirements.toml", "logical.toml"),
    "a file of prices": ("prices.toml",),
    "a file of meshes": ("meshes.toml",),
    "a table of times": ("times.csv",),
    "what numbers decide": ("robust.csv",),
    "a table of figures": ("figures.csv",),
    "a table of served points": ("points.csv", "served.csv"),
    "a table of runs": ("runs.csv", "measured.csv"),
    "a table": ("bench.csv", "habits.csv"),
    "a page of results": ("results.md",),
    "a completion script": ("completion.bash",),
    "Python": ("steps.py",),
    "": ("cut.json", "empty.txt", "notes.txt", "lines.txt", "report.txt"),
}
"""The files of each kind; those of none under an empty name."""


def write_every_file() -> None:
    """Write them into the working directory, which holds `tests.cli.known.write_files` already."""
    for name, line in WRITTEN.items():
        _printed(f"{line} {name}")
    for name, line in PRINTED.items():
        Path(name).write_text(_printed(line))
    for name, text in BY_HAND.items():
        Path(name).write_text(text)


def _printed(line: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line.split())
    assert code == 0, f"{line}: {err.getvalue()}"
    return out.getvalue()
