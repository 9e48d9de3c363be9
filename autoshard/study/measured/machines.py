"""The machine of a run: a preset by its chip and count, with what the row says otherwise.

    v5p, 128 chips, 2 slices                   2xv5p-64
    TPU7x, 64 chips                            v7x-128: two devices a chip
    A100-40GB, "1600 Gbps node-node"           a100-64 with 25 GB/s a chip between hosts

Chips without a preset are the nearest preset with other numbers, each from its vendor's page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoshard.machine.as_measured import Attention, as_measured
from autoshard.machine.compiler import with_flags
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
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
      name: of the chip, where it reaches others than its preset's (`as_measured.REACHED`).
    """

    preset: str
    other: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    name: str = ""


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
    "B300": Known(
        "b200",
        {
            "chip.memory_bytes": 288e9,
            "chip.peak_flops.float4": 14e15,
            "chip.peak_flops.int8": 0.15e15,
        },
        "nvidia.com/en-us/data-center/dgx-b300; verda.com/blog/gb300-nvl72-architecture",
        "B300",
    ),
    "GB200": Known("gb200-nvl72"),
    "GB300": Known(
        "gb200-nvl72",
        {
            "chip.memory_bytes": 288e9,
            "chip.peak_flops.float4": 15e15,
            "chip.peak_flops.int8": 0.165e15,
        },
        "nvidia.com/en-us/data-center/gb300-nvl72; developer.nvidia.com/blog/"
        "inside-nvidia-blackwell-ultra-the-chip-powering-the-ai-factory-era",
        "GB300",
    ),
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
RECIPE_OVERLAP = 0.25
"""Share of a collective that the solver takes to be hidden by the flags of recipes; as on v5e."""
_BETWEEN = re.compile(r"(\d+) Gbps node-node|(\d+) x (\d+) Gb/s NICs|(\d+) Gb/s per GPU")
_MEMORY = re.compile(r"(\d+) GB HBM\w*, ([\d.]+) TB/s")


def machine_of(run: Run) -> tuple[Machine, tuple[str, ...]]:
    """The machine on which a run was measured, and what of it is not its preset's.

    Raises:
      MachineError: no preset is like its chip, or the preset does not come in so many.
    """
    if run.chip not in CHIPS:
        raise MachineError(f"no preset is a {run.chip}; there are {', '.join(CHIPS)}")
    known = CHIPS[run.chip]
    devices = run.chips * DEVICES.get(run.chip, 1)
    slices = run.units or 1 if known.preset.startswith("v") else 1
    if devices % slices:
        raise MachineError(
            f"{counted(devices, 'device')} of {run.chip} are no {slices} equal slices"
        )
    times = f"{slices}x" if slices > 1 else ""
    machine = load(f"{times}{known.preset}-{devices // slices}")
    values = dict(known.other)
    words = f"{run.topology}; {run.notes}"
    if memory := _MEMORY.search(words):
        values["chip.memory_bytes"] = float(memory[1]) * 2**30
        values["chip.memory_bandwidth"] = float(memory[2]) * 1e12
    between = _BETWEEN.search(words)
    if between is not None and "network[1].chip_bandwidth" in {n.path for n in numbers(machine)}:
        host = (between[1] and float(between[1])) or float(between[2] or 8) * float(
            between[3] or between[4]
        )
        values["network[1].chip_bandwidth"] = host * 1e9 / 8 / machine.network[0].chips
    paths = {one.path for one in numbers(machine)}
    values = {path: value for path, value in values.items() if path in paths}
    notes = [f"{path} {value:.4g}" for path, value in values.items()]
    kernels: list[Attention] = [kind for name, kind in ATTENTION if name in run.framework]
    machine = with_numbers(machine, values)
    if known.name:
        machine = replace(machine, chip=replace(machine.chip, name=known.name))
    machine = as_measured(machine, (*kernels, "cudnn")[0])
    if known.preset.startswith("v"):
        notes.append("flags of recipes")
        compiler = with_flags(machine.chip.compiler, "recipe")
        overlap = max(machine.overlap, RECIPE_OVERLAP)
        machine = replace(machine, chip=replace(machine.chip, compiler=compiler), overlap=overlap)
    return machine, tuple(notes)
