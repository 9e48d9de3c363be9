"""`autoshard programs` and `autoshard machines`: list the names that the command line accepts."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autoshard.terminal import paragraph, table

if TYPE_CHECKING:
    from autoshard.show.sources import Figure

_PROGRAMS = {
    "mlp": "residual multilayer perceptron, AdamW",
    "llama3": "Llama 3, AdamW on 64 x 4,096 tokens; layers scanned",
    "-unrolled": "the same, layers unrolled",
    "-prefill": "prompts of 8,192 tokens, into a key/value cache",
    "-decode": "one token per sequence, with a key/value cache",
    "mixtral": "mixture of 8 experts, routed by top-2 with capacity, AdamW",
    "vit": "vision transformer, AdamW",
    "resnet50": "convolutions and batch normalisation, momentum",
    "unet": "U-Net with convolutions and attention",
    "gnn": "message passing on a graph",
}


def programs_command(options: argparse.Namespace) -> int:
    """Print the built-in programs."""
    from autoshard import models
    from autoshard.models import providers

    rows = []
    for name in models.names():
        known = [key for key in _PROGRAMS if name.startswith(key) or name.endswith(key)]
        rows.append((name, _PROGRAMS[known[-1]] if known else ""))
    if options.json:
        print(json.dumps([{"program": name, "about": about} for name, about in rows]))
        return 0
    print(table([("program", "a step of"), *rows], indent=0))
    print("\nNAME:tiny is the same code at sizes that run anywhere.")
    for entry in providers.entries():
        package = entry.dist.name if entry.dist is not None else entry.value
        print(f"{entry.name}:... is a program of the package {package}.")
    return 0


def machines_command(options: argparse.Namespace) -> int:
    """Print the presets, with the numbers of one chip, and the names that others give them."""
    if options.machine is not None:
        print(_as_data(options.machine) if options.json else _machine(options.machine))
        return 0
    from autoshard.machine.file import MachineError
    from autoshard.machine.load import load, presets
    from autoshard.machine.names import google_name, machine_types

    found: list[dict[str, Any]] = []
    for family in presets():
        for size in (64, 72, 8):
            try:
                machine = load(f"{family}-{size}")
            except MachineError:
                continue
            chip = machine.chip
            found.append(
                {
                    "machine": machine.name,
                    "google_name": google_name(family, size),
                    "chips": machine.chips,
                    "chip": chip.name,
                    "bf16_flops_per_second": chip.matmul_flops("bfloat16"),
                    "memory_bytes": chip.memory_bytes,
                    "memory_bytes_per_second": chip.memory_bandwidth,
                    "network": [str(level) for level in machine.network],
                }
            )
            break
    if options.json:
        print(json.dumps(found))
        return 0
    figures = ("chip", "bf16", "memory", "bandwidth", "network, innermost first")
    rows = [("machine", "Google's name", *figures), *map(_preset, found)]
    print(table(rows, right=(3, 4, 5), indent=0))
    sizes = (
        "Other sizes: FAMILY-CHIPS, FAMILY:4x4x8 for a torus, 2xFAMILY-CHIPS for two slices, "
        "FAMILY-128-cores where cores are counted, 8xH100, 4x8xH100 (four hosts), 8xA100-40GB or "
        "gb200-nvl72 for GPUs, 4xgpu:h100:8 for nodes of SLURM, or a TOML file."
    )
    print(f"\n{paragraph(sizes)}")
    print("\nHosts of these types, by name, and 4xTYPE for four of them:")
    for name, host in machine_types().items():
        print(f"  {name:<28}{host.chips} x {host.family}")
    return 0


def _preset(one: Mapping[str, Any]) -> tuple[str, ...]:
    """The row of a preset."""
    return (
        one["machine"],
        one["google_name"],
        one["chip"],
        f"{one['bf16_flops_per_second'] / 1e12:,.0f} TFLOP/s",
        f"{one['memory_bytes'] / 2**30:,.0f} GiB",
        f"{one['memory_bytes_per_second'] / 1e9:,.0f} GB/s",
        ", then ".join(one["network"]),
    )


def _as_data(name: str) -> str:
    """Every number of a machine as JSON, in its unit without a prefix."""
    from autoshard.cli.search import find_machine
    from autoshard.machine.names import google_name, two_meanings
    from autoshard.machine.numbers import numbers, unit_of
    from autoshard.show.sources import figures, machine_text

    machine = find_machine(name)
    said = _sources(figures(machine_text(name)))
    ranges = {one.path: [one.low, one.high] for one in machine.ranges}
    rows = [
        {
            "number": one.path,
            "about": one.name,
            "value": one.value if math.isfinite(one.value) else None,
            "unit": unit_of(one.path),
            "range": ranges.get(one.path),
            "source": said.get(one.path, ""),
        }
        for one in numbers(machine)
    ]
    about = {
        "machine": machine.name,
        "google_name": google_name(machine.family, machine.chips),
        "two_meanings": two_meanings(name),
        "chips": machine.chips,
        "sources": list(machine.sources),
    }
    return json.dumps({**about, "numbers": rows})


def _machine(name: str) -> str:
    """Every number of a machine, with what its file says of it."""
    from autoshard.cli.search import find_machine
    from autoshard.machine.names import two_meanings
    from autoshard.machine.numbers import numbers, unit_of
    from autoshard.show.sources import figures, machine_text
    from autoshard.units import format_unit

    machine = find_machine(name)
    said = _sources(figures(machine_text(name)))
    ranges = {one.path: one for one in machine.ranges}
    rows = [("number", "", "is", "source")]
    for one in numbers(machine):
        unit = unit_of(one.path)
        value = format_unit(one.value, unit)
        if found := ranges.get(one.path):
            value += f" ({format_unit(found.low, unit)} to {format_unit(found.high, unit)})"
        rows.append((one.path, one.name, value, said.get(one.path, "")))
    levels = [f"  {level}" for level in machine.network]
    meanings = two_meanings(name)
    sources = [f"  {source}" for source in machine.sources]
    return "\n".join(
        [
            f"{machine.name}: {machine.chips} x {machine.chip.name}, for {machine.chip.compiler}",
            *levels,
            *(["", paragraph(f"note: {meanings}")] if meanings else []),
            "",
            table(rows, right=(2,), indent=0),
            *(["", "sources", *sources] if sources else []),
        ]
    )


def _sources(entries: Sequence[Figure]) -> dict[str, str]:
    """What a machine file says of its entries, by the paths of its numbers."""
    found: dict[str, str] = {}
    level, seen = 0, set[str]()
    for entry in entries:
        at = f"{entry.table}.{entry.key}" if entry.table else entry.key
        if entry.table == "network":
            if entry.key in seen:
                level, seen = level + 1, set()
            seen.add(entry.key)
            at = f"network[{level}].{entry.key}"
        found[at] = entry.source
    return found
