"""An example of every command, as `--help` shows it at its end; a test reads each by its parser."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "autoshard search llama3-8b --machine v5p-64 -o plan.json",
        "autoshard report plan.json -o plan.html",
    ),
    "search": (
        "autoshard search llama3-8b --machine v5p-64 -o plan.json",
        "autoshard search model.py:train --machine h100-8 --mesh 2x4 --memory-limit 60GiB",
        "autoshard search llama3-8b --machine h100-8 --require 'pin batch.** [x, ...]' --mesh 8",
        "autoshard search llama3-70b --meshes '4 x v5p-16' --microbatches 8,16",
        "autoshard search 'maxtext:llama3.1-8b?attention=flash' --machine v5p-64 --as maxtext "
        "-o our.yml",
    ),
    "verify": (
        "autoshard verify plan.json",
        "autoshard verify plan.json --compile gpu",
    ),
    "check": ("autoshard check plan.json --machine h200-8",),
    "explain": (
        "autoshard explain plan.json",
        "autoshard explain plan.json 'params.layers[*].w1' --line model.py:41",
        "autoshard explain plan.json --against other.json",
        "autoshard explain plan.json --keep '*ffn*'",
        "autoshard explain pipeline.json 'params.layers.w1' --stage 0",
    ),
    "annotate": ("autoshard annotate plan.json",),
    "whatif": (
        "autoshard whatif llama3-70b --sweep chips=16..512 --sweep chip=v5p,h100",
        "autoshard whatif my.py:f --sweep machine=h100-64 --sweep batch=64..512",
    ),
    "frontier": ("autoshard frontier llama3-8b --machine h100-8 --accumulate 1,2,4",),
    "serving": (
        "autoshard serving llama3-8b-decode --sweep machine=v5e-8,h100-8 --sweep batch=1..256 "
        "--sweep sequence=8192 --prompt 2048 --latency 0.03",
    ),
    "robust": (
        "autoshard robust llama3-8b --machine my.toml -o least-regret.json",
        "autoshard robust llama3-8b --machine h100-64 --range overlap=0..0.5",
    ),
    "calibrate": (
        "autoshard calibrate times.csv --machine h100-64 -o machine.toml",
        "autoshard calibrate --device --table times.csv -o machine.toml",
        "autoshard calibrate --compiled --machine h100-8 -o machine.toml",
        "autoshard search llama3-8b --machine machine.toml",
    ),
    "show": ("autoshard show plan.json --moves 30", "autoshard show sweep.json"),
    "report": (
        "autoshard report plan.json -o plan.html",
        "autoshard report plan.json other.json -o both.html",
        "autoshard report sweep.json -o sweep.html",
    ),
    "solve": ("autoshard solve problem.json.gz -o solution.json",),
    "schedule": ("autoshard schedule line.json vee.json --memory-limit 1f1b --svg order.svg",),
    "programs": ("autoshard programs",),
    "machines": (
        "autoshard machines",
        "autoshard machines v5p-64",
    ),
    "completion": ("autoshard completion bash",),
    "bench": ("autoshard bench plans --machines h100-8",),
    "bench layers": ("autoshard bench layers --model 8b --layers 2,8 --axes 1,2",),
    "bench iopddl": ("autoshard bench iopddl data/iopddl --time-limit contest",),
    "bench solvers": ("autoshard bench solvers llama3-8b@v5p-64@8x8 --time-limit 30",),
    "bench resolve": ("autoshard bench resolve llama3-8b@v5p-64@8x8 --pins 5",),
    "bench fidelity": ("autoshard bench fidelity --programs mlp --machines h100-8 --keep plans",),
    "bench habits": (
        "autoshard bench habits --compile gpu",
        "autoshard bench habits --without all --kept plans",
    ),
    "bench kernels": ("autoshard bench kernels",),
    "bench plans": ("autoshard bench plans --rows llama3-8b:64x4096@h100-64@4,8",),
    "bench measured": ("autoshard bench measured runs.csv --rows 'mt-v5e-*' --ours 60",),
    "bench served": ("autoshard bench served benchmarks/served/points.csv --rows 'nim-*'",),
    "bench schedules": ("autoshard bench schedules instances.json --peers best.json",),
    "bench all": ("autoshard bench all --quick --markdown results.md",),
}
"""By the words of the command."""


def epilog(command: str, more: str = "") -> str:
    """The end of a command's help: its examples, and what else is to be said."""
    lines = EXAMPLES.get(command, ())
    if not lines:
        return more
    title = "example" if len(lines) == 1 else "examples"
    shown = "\n".join(f"  {line}" for line in lines)
    return f"{title}:\n{shown}" + (f"\n\n{more}" if more else "")
