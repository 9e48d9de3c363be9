"""Right files of every kind that the command line reads, and the commands that read them."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.cli.main import main
from autoshard.search.meshes.plan import KIND, SCHEMA_VERSION

PROGRAM = "mlp:tiny"
LAYERS = "llama3-1b:tiny"
"""Of which is chosen what is saved for the backward pass."""
MACHINE = """\
name = "toy"
overlap = 0.8
compiler = "xla:tpu"
chips = 8
[chip]
name = "toy"
vector_flops = 4e12
memory_bytes = 16e9
memory_bandwidth = [7e11, 8e11]
reserve_bytes = 0
launch_seconds = 1e-6
matmul_efficiency = 0.8
memory_efficiency = 0.9
[chip.peak_flops]
bfloat16 = 2e14
float32 = 1e14
[[network]]
kind = "torus"
rank = 2
link_bandwidth = 5e10
hop_seconds = 1e-6
efficiency = 0.9
lengths = [1, 2, 4, 8]
wrap_length = 8
[[network]]
kind = "switch"
chip_bandwidth = 1e10
latency_seconds = 1e-5
efficiency = 0.8
"""
CLUSTER = """\
meshes = ["v5e-4", "v5e-4"]
[link]
bandwidth = 6.25e9
latency = 1e-5
[[links]]
between = [0, 1]
bandwidth = 5e9
latency = 2e-5
"""
PRICES = """\
currency = "USD"
[v5e]
chip_hour = 1.2
watts = 250
[h100]
chip_hour = 3.9
"""
REQUIREMENTS = """\
requirements = ["pin [0].** [data?, ...]", "limit memory 8GiB", "p1: limit all_gather count 90"]
[[logical]]
names = { "[0].**.w1" = ["embed", "mlp"] }
rules = { embed = "data", mlp = ["model"] }
priority = 2
"""
TIMES = """\
kind,m,n,k,dtype,bytes,collective,group_size,seconds
matmul,4096,4096,4096,bfloat16,,,,0.00019
matmul,8192,8192,8192,bfloat16,,,,0.0015
elementwise,,,,,1073741824,,,0.00036
launch,,,,,,,,0.000003
collective,,,,,1073741824,all_gather,8,0.0026
collective,,,,,1048576,all_reduce,8,0.00006
"""
INSTANCE = {
    "name": "toy", "p": 2, "m": 4, "F": [2, 3], "B": [3, 4], "W": [2, 2], "comm": [[0, 1], [1, 0]],
    "mem_F": [1, 2], "mem_B": 0, "mem_W": [-1, -2], "mem_limit": 9, "edges": [[0, 1]],
    "placement": [0, 1], "static_mem": [5, 5], "dev_scale": [1, 1.5], "mem_limits": {"mine": 7},
}  # fmt: skip
VERDICTS = {
    "agrees": False,
    "verdicts": [
        {"judge": "price", "agrees": True, "text": "1.0 ms"},
        {"judge": "numbers", "agrees": False, "text": "loss differs", "data": {"worst": 1.0}},
    ],
}
SWEEP = "--sweep chip=v5e,h100 --sweep chips=8 --sweep batch=64,128 --workers 1 --quiet"
FORMS = {".json": "json", ".toml": "text", ".csv": "text", ".jsonl": "text"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file.

    Attributes:
      name: of the kind.
      file: a right one, in the folder of them.
      commands: that read it; `{}` stands for it, `{of}` for the folder of right files.
      weight: how often it is drawn.
    """

    name: str
    file: str
    commands: tuple[str, ...]
    weight: int = 1

    @property
    def form(self) -> str:
        """How it is spoilt (`mutate.mutated`)."""
        return FORMS[Path(self.file).suffix]


_SEARCH = f"search {PROGRAM} --time-limit 2 --no-baselines --quiet"
KINDS = (
    Kind(
        "plan",
        "plan.json",
        ("show {}", "report {} -o out.html", "report {} --rules out --shardings out2", "check {}",
         f"{_SEARCH} --machine v5e-8 --mesh data=2,model=4 --from {{}}",
         "explain {} [0].layers[0].up --time-limit 2", "annotate {} --quiet", "verify {}"),
        6,
    ),
    Kind(
        "plan that saves",
        "saved.json",
        ("show {}", "report {} -o out.html", "check {}",
         f"search {LAYERS} --time-limit 2 --no-baselines --quiet --machine v5e-8 "
         "--mesh data=2,model=4 --from {}"),
        3,
    ),
    Kind("sweep", "sweep.json", ("report {} -o out.html",), 3),
    Kind("table of a sweep", "sweep.csv", ("report {} -o out.html",), 2),
    Kind("serving", "serving.json", ("report {} -o out.html",), 3),
    Kind("pipeline", "pipeline.json", ("report {} -o out.html --trace out",), 3),
    Kind("schedule", "schedule.json", ("report {} -o out.html --trace out",), 3),
    Kind("instance", "instance.json", ("schedule {} --time-limit 1 --quiet",), 2),
    Kind("verdicts", "verdicts.json", ("report {of}/plan.json -o out.html --verification {}",), 1),
    Kind("ranges", "robust.json", ("report {of}/plan.json -o out.html --robust {}",), 3),
    Kind(
        "prices",
        "prices.toml",
        (f"whatif {PROGRAM} {SWEEP} --keep {{of}}/rows "
         "--prices {} --objective tokens-per-dollar --tokens 64 -o out",),
        2,
    ),
    Kind(
        "machine",
        "machine.toml",
        ("report {of}/plan.json -o out.html --machine {}", f"{_SEARCH} --machine {{}}"),
        3,
    ),
    Kind("cluster", "cluster.toml", (f"{_SEARCH} --meshes {{}}",), 1),
    Kind("requirements", "wishes.toml",
         (f"{_SEARCH} --machine v5e-8 --mesh data=2,model=4 --require {{}}",), 2),
    Kind("times", "times.csv", ("calibrate {} --machine h100-8 --quiet",), 2),
    Kind("contest problem", "contest.json", ("solve {} --time-limit 1 --quiet",), 2),
)  # fmt: skip


def make(folder: Path, names: Sequence[str]) -> None:
    """Put right files of these kinds into a folder, and what their commands need beside them."""
    wanted = set(names)
    for name, text in (
        ("machine.toml", MACHINE),
        ("cluster.toml", CLUSTER),
        ("prices.toml", PRICES),
        ("wishes.toml", REQUIREMENTS),
        ("times.csv", TIMES),
        ("instance.json", json.dumps(INSTANCE)),
        ("verdicts.json", json.dumps(VERDICTS)),
    ):
        (folder / name).write_text(text)
    run(f"search {PROGRAM} --machine v5e-8 --mesh data=2,model=4 --quiet -o {folder}/plan.json")
    if "plan that saves" in wanted:
        words = "--machine v5e-8 --mesh data=2,model=4 --quiet --no-baselines --remat search"
        run(f"search {LAYERS} {words} --time-limit 9 -o {folder}/saved.json")
    if wanted & {"sweep", "table of a sweep", "prices"}:
        words = f"{SWEEP} --keep {folder}/rows -o {folder}/sweep.json"
        run(f"whatif {PROGRAM} {words} --csv {folder}/sweep.csv")
    if "serving" in wanted:
        run(
            "serving llama3-1b-decode:tiny --sweep chip=v5e --sweep chips=8 --sweep batch=8,16 "
            f"--no-largest --workers 1 --quiet --no-cache -o {folder}/serving.json"
        )
    if "pipeline" in wanted:
        (folder / "pipeline.json").write_text(json.dumps(_pipeline()))
    if "schedule" in wanted:
        run(f"schedule {folder}/instance.json --time-limit 5 --quiet -o {folder}/schedule.json")
    if "ranges" in wanted:
        words = "--machine v5e-8 --mesh data=2,model=4 --spread 0.1 --time-limit 20 --quiet"
        run(f"robust {PROGRAM} {words} --record {folder}/robust.json")
    if "contest problem" in wanted:
        problem = {
            "name": "toy",
            "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3, 4]],
                      "usages": [[5, 6], [7, 8]]},
            "edges": {"nodes": [[0, 1]], "costs": [[0, 1, 2, 3]]},
            "usage_limit": 15,
        }  # fmt: skip
        (folder / "contest.json").write_text(json.dumps({"problem": problem}))


def _pipeline() -> dict[str, Any]:
    """A plan for two meshes, written by hand: to find one takes longer than to spoil it."""
    return {
        "kind": KIND, "schema_version": SCHEMA_VERSION, "program": "toy", "cluster": "2 x h100-8",
        "described": "2 x h100-8", "machines": ["h100-8", "h100-8"],
        "shapes": [{"x": 8}, {"x": 4, "y": 2}], "microbatches": 2, "mesh_of": [0, 1],
        "stages": [["layer_0"], ["layer_1"]], "placement": "v1", "mode": "fused",
        "step_seconds": 0.2, "bound": 0.1, "order_bound": 0.1, "gap": 0.5,
        "outer_seconds": [0.005, 0.006], "dispatch_seconds": [0.0, 0.0],
        "memory_limit": [1e10, 1e10], "fixed_bytes": [6e9, 6e9], "peak_bytes": [9e9, 9e9],
        "instance": {
            "p": 2, "m": 2, "F": [10000000, 20000000], "B": [20000000, 40000000], "W": [0, 0],
            "comm": [[0, 2000000], [2000000, 0]], "mem_F": [1e9, 1e9], "mem_B": [-1e9, -1e9],
            "mem_W": [0, 0], "placement": [0, 1],
        },
        "order": {
            "0": [["F", 0, 0], ["F", 0, 1], ["BW", 0, 0], ["BW", 0, 1]],
            "1": [["F", 1, 0], ["BW", 1, 0], ["F", 1, 1], ["BW", 1, 1]],
        },
        "shardings": [
            [{"group": "state", "value": 0, "stage": -1, "path": "params.w1", "spec": ["x"]}],
            [{"group": "sent", "value": 1, "stage": 0, "path": "", "spec": [["x", "y"], None]}],
        ],
        "choices": [
            {"name": "v1, fused", "stages": 2, "microbatches": 2, "step_seconds": 0.2,
             "bound": 0.1, "note": ""},
            {"name": "loop", "stages": 4, "microbatches": 2, "step_seconds": None, "bound": None,
             "note": "no"},
        ],
        "one_mesh": {"machine": "h100-16", "step_seconds": 0.25, "peak_bytes": 7e9,
                     "mesh": "x=16", "microbatches": 2, "note": ""},
        "limit_hit": None, "seconds": 1.0,
    }  # fmt: skip


def run(words: str) -> None:
    """Run a command that must succeed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(words.split())
    if code != 0:
        raise RuntimeError(f"autoshard {words}: exit code {code}\n{said.getvalue()}")
