"""The machine of a run: a preset by its chip and count, with what the row says otherwise.

    v5p, 128 chips, 2 slices                   2xv5p-64
    TPU7x, 64 chips                            v7x-128: two devices a chip
    A100-40GB, "1600 Gbps node-node"           a100-64 with 25 GB/s a chip between hosts
    H100, "16 x A3 (h100-80gb-8)"              h100-128 with the network of a3-highgpu-8g

Chips without a preset are the nearest preset with other numbers, each from its vendor's page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoshard.machine.as_measured import Attention, as_measured
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.machine.machine import Machine, under_flags
from autoshard.machine.names import machine_types
from autoshard.machine.numbers import numbers, with_numbers
from autoshard.study.measured.table import Run
from autoshard.units import counted

DEVICES = {"TPU7x": 2}
"""Devices of one chip as JAX counts them, where it is not one."""


@dataclass(frozen=True, slots=True)
class Known:
    """A chip of a table.

    Attributes:
      preset: whose numbers it has.
      other: numbers that are others.
      source: of these.
    """

    preset: str
    other: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


CHIPS = {
    **{name: Known(name) for name in ("v4", "v5e", "v5p", "v6e")},
    "TPU7x": Known("v7x"),
    "A100-40GB": Known(
        "a100",
        {"chip.memory_bytes": 40 * 2**30, "chip.memory_bandwidth": 1.555e12},
        "nvidia.com/en-us/data-center/a100",
    ),
    "A100-80GB": Known("a100"),
    "H100": Known("h100"),
    "H200": Known("h200"),
    "GH200-96GB": Known(
        "h100",
        {"chip.memory_bytes": 96e9, "chip.memory_bandwidth": 4e12},
        "nvidia.com/en-us/data-center/grace-hopper-superchip",
    ),
    "B200": Known("b200"),
    "B300": Known("b300"),
    "GB200": Known("gb200-nvl72"),
    "GB300": Known("gb300-nvl72"),
    "MI300X": Known("mi300x"),
    "MI325X": Known(
        "mi300x",
        {"chip.memory_bytes": 256 * 2**30, "chip.memory_bandwidth": 6e12},
        "amd.com/en/products/accelerators/instinct/mi300/mi325x.html",
    ),
    **{
        name: Known(
            "mi300x",
            {
                "chip.memory_bytes": 288e9,
                "chip.memory_bandwidth": 8e12,
                "chip.peak_flops.bfloat16": bfloat16,
                "chip.peak_flops.float8": 2 * bfloat16,
                "network[0].chip_bandwidth": 5.376e11,
                "network[0].pair_bandwidth": 7.68e10,
            },
            f"amd.com/en/products/accelerators/instinct/mi350/{name.lower()}.html",
        )
        for name, bfloat16 in (("MI350X", 2.31e15), ("MI355X", 2.5166e15))
    },
}
"""Chips that tables name."""
ATTENTION: tuple[tuple[str, Attention], ...] = (
    # github.com/mosaicml/llm-foundry, scripts/train/benchmarking/submit_benchmarks.py: Triton's
    ("llm-foundry", "flash-1"),
    # docs.pytorch.org, scaled_dot_product_attention: FlashAttention-2
    ("torchtitan", "flash-2"),
    ("PyTorch FSDP", "flash-2"),
    ("transformers", "flash-2"),
)
"""Kernels of attention by the name of the framework; of others cuDNN's."""
TYPES = {"h100-80gb-8": "a3-highgpu-8g", "h100-mega-80gb-8": "a3-megagpu-8g"}
"""Machine types by what xpk calls them (github.com/AI-Hypercomputer/xpk, src/xpk/core/
system_characteristics.py); others by their own names."""
FLAGGED = {"xla:tpu": "", "xla:gpu": "MaxText"}
"""By compiler, the framework whose runs have the flags of public recipes; empty for all. All of
MaxText's scripts for GPUs set them (github.com/AI-Hypercomputer/maxtext, configs/gpu/a3, and
gpu-recipes, training/*/*/maxtext-pretraining-gke/values.yaml). AXLearn sets flags of TPUs alone
(github.com/apple/axlearn, common/compiler_options.py). Layers that are in no loop have nothing to
pipeline, and hide as much without: 70 % of the collectives of llama2-7b on 128 H100s by XLA:GPU's
own timeline (JAX 0.12.0.1), see `autoshard.machine.compiler.PIPELINED`."""
TPU_OVERLAP = 0.25
"""Share of a collective that the solver takes to be hidden by the flags of recipes for TPUs; as on
v5e."""
_BETWEEN = re.compile(r"(\d+) Gbps node-node|(\d+) x (\d+) Gb/s NICs|(\d+) Gb/s per GPU")
_MEMORY = re.compile(r"(\d+) GB HBM\w*, ([\d.]+) TB/s")


def machine_of(run: Run) -> tuple[Machine, tuple[str, ...]]:
    """The machine on which a run was measured, and what of it is not its preset's.

    Raises:
      MachineError: no preset is like its chip, or the preset does not come in so many.
    """
    if run.chip not in CHIPS:
        raise MachineError(f"no preset is a {run.chip}; known: {', '.join(CHIPS)}")
    known = CHIPS[run.chip]
    devices = run.chips * DEVICES.get(run.chip, 1)
    slices = run.units or 1 if known.preset.startswith("v") else 1
    if devices % slices:
        raise MachineError(
            f"{counted(devices, 'device')} of {run.chip} do not make {slices} equal slices"
        )
    times = f"{slices}x" if slices > 1 else ""
    machine = load(f"{times}{known.preset}-{devices // slices}")
    values = dict(known.other)
    words = f"{run.topology}; {run.notes}"
    if memory := _MEMORY.search(words):
        values["chip.memory_bytes"] = float(memory[1]) * 2**30
        values["chip.memory_bandwidth"] = float(memory[2]) * 1e12
    if between := _between(run, machine):
        values["network[1].chip_bandwidth"] = between
    paths = {one.path for one in numbers(machine)}
    values = {path: value for path, value in values.items() if path in paths}
    notes = [f"{path} {value:.4g}" for path, value in values.items()]
    kernels: list[Attention] = [kind for name, kind in ATTENTION if name in run.framework]
    machine = with_numbers(machine, values)
    machine = as_measured(machine, (*kernels, "cudnn")[0])
    compiler = machine.chip.compiler
    if compiler.name in FLAGGED and FLAGGED[compiler.name] in run.framework:
        notes.append("flags of recipes")
        machine = under_flags(machine, "recipe")
        hidden = 0.0 if machine.chip.compiler.pipelines else TPU_OVERLAP
        machine = replace(machine, overlap=max(machine.overlap, hidden))
    return machine, tuple(notes)


def _between(run: Run, machine: Machine) -> float | None:
    """What the row says that a chip sends to another host, bytes/s.

    That of a machine type that it names goes before what its notes say.
    """
    xpk = {known: name for name, known in TYPES.items()}
    for name, host in machine_types().items():
        called = "|".join(re.escape(word) for word in (name, xpk.get(name)) if word)
        if host.between and re.search(rf"\b({called})\b", run.topology.lower()):
            return host.between
    found = _BETWEEN.search(f"{run.topology}; {run.notes}")
    if found is None:
        return None
    host_gigabits = float(found[1] or 0) or float(found[2] or 8) * float(found[3] or found[4])
    return host_gigabits * 1e9 / 8 / machine.network[0].chips
