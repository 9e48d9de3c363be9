"""The devices that are there, and a machine of them where no preset is known.

A preset gives a known device its data-sheet rates. Of an unknown one only what was measured is
known: the peak is the rate of the best matmul, the bandwidth that of the best copy, the network's
that of the best collective; `fit` then finds what programs reach of them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.machine.chip import Chip
from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch
from autoshard.study.calibrate.laws import row_work
from autoshard.study.calibrate.table import Row
from autoshard.units import counted

_FAMILIES = (
    ("gb300", "gb300-nvl72"),
    ("gb200", "gb200-nvl72"),
    ("b300", "b300"),
    ("b200", "b200"),
    ("h200", "h200"),
    ("h100", "h100"),
    ("a100", "a100"),
    ("mi300x", "mi300x"),
    ("tpu7x", "v7x"),
    ("tpu v6", "v6e"),
    ("tpu v5 lite", "v5e"),
    ("tpu v5e", "v5e"),
    ("tpu v5", "v5p"),
    ("tpu v4", "v4"),
)


class UnmeasuredError(ValueError):
    """A table that lacks what a machine of its own needs."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of one kind that JAX sees.

    Attributes:
      kind: as JAX calls them, such as "NVIDIA H200" or "cpu".
      platform: "cpu", "gpu" or "tpu".
      count: how many.
      memory_bytes: of each, as the runtime says; on a CPU its part of the host's memory.
    """

    kind: str
    platform: str
    count: int
    memory_bytes: float

    @property
    def preset(self) -> str | None:
        """The preset machine that they are, or None."""
        kind = self.kind.lower()
        found = [family for word, family in _FAMILIES if word in kind]
        return f"{found[0]}-{self.count}" if found else None

    @property
    def machine_name(self) -> str:
        """The name of a machine made of them."""
        return f"{re.sub(r'[^a-z0-9]+', '-', self.kind.lower()).strip('-')}-{self.count}"


def devices_here() -> tuple[Devices, Sequence[Any]]:
    """Return what JAX sees, and the devices themselves."""
    import jax

    found = jax.devices()
    first = found[0]
    stats = first.memory_stats() or {}
    memory = stats.get("bytes_limit")
    if memory is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(found)
    return Devices(first.device_kind, first.platform, len(found), float(memory)), found


def machine_of(devices: Devices, rows: Sequence[Row]) -> tuple[Machine, dict[str, str]]:
    """Return a machine made of what was measured, and a comment on each of its numbers.

    Args:
      devices: what was measured.
      rows: the checked table; it needs rows of kind matmul and elementwise.

    Raises:
      UnmeasuredError: it has none of those.
    """
    matmuls = [row for row in rows if row.kind == "matmul"]
    copies = [row for row in rows if row.kind in ("elementwise", "memory")]
    missing = [kind for kind, found in (("matmul", matmuls), ("elementwise", copies)) if not found]
    if missing:
        raise UnmeasuredError(
            f"a machine of {devices.kind} needs rows of kind {' and '.join(missing)}, and none was "
            "measured; allow larger arrays and more runs, or name a machine to start from"
        )
    vector = [row for row in rows if row.kind == "compute" and row.cells["unit"] == "vector"]
    launches = [row for row in rows if row.kind == "launch"] or matmuls + copies
    peaks = {
        dtype: _rounded(max(_rate(row, "flops") for row in matmuls if row.cells["dtype"] == dtype))
        for dtype in dict.fromkeys(row.cells["dtype"] for row in matmuls)
    }
    # Caches hold small arrays.
    largest = max(row.cells["bytes"] for row in copies)
    streamed = [row for row in copies if 16 * row.cells["bytes"] >= largest]
    bandwidth = _rounded(max(_rate(row, "bytes") for row in streamed))
    steps = any(row.kind == "step" for row in rows)
    chip = Chip(
        name=devices.kind,
        peak_flops=peaks,
        vector_flops=_rounded(
            max((_rate(row, "flops") for row in vector), default=min(peaks.values()))
        ),
        memory_bytes=devices.memory_bytes,
        memory_bandwidth=bandwidth,
        reserve_bytes=0.0,
        launch_seconds=float(f"{min(row.seconds for row in launches):.4g}"),
        matmul_efficiency=1.0,
        memory_efficiency=1.0,
    )
    notes = {
        "chip.memory_bytes": "as the runtime says",
        "chip.memory_bandwidth": f"the best of {len(streamed)} on large arrays",
        "chip.vector_flops": (
            f"the best of {len(vector)} measured" if vector else "not measured: as a matmul"
        ),
        "chip.reserve_bytes": "nothing is known of it",
        **{f"chip.peak_flops.{dtype}": "the best matmul measured" for dtype in peaks},
    }
    level, of_level = _network(devices, rows, bandwidth)
    if not steps:
        notes["overlap"] = "not measured: nothing is taken to hide"
    machine = Machine(
        name=devices.machine_name,
        family=devices.machine_name,
        chip=chip,
        network=(level,),
        overlap=0.5 if steps else 0.0,
        sources=(f"measured on {devices.count} x {devices.kind}",),
    )
    return machine, {**notes, **{f"network[0].{key}": note for key, note in of_level.items()}}


def _network(
    devices: Devices, rows: Sequence[Row], bandwidth: float
) -> tuple[Switch, dict[str, str]]:
    """One level that joins all devices, and comments."""
    moves = [row for row in rows if row.kind == "collective" and row.cells["bytes"] > 0]
    name = "between devices"
    if not moves:
        why = "one device" if devices.count == 1 else "no collective"
        note = f"not measured ({why}): as memory"
        return Switch(devices.count, bandwidth, 0.0, 1.0, name=name), {"chip_bandwidth": note}
    rates = [_wire_bytes(row, devices.count) / row.seconds for row in moves]
    latency = float(f"{min(row.seconds for row in moves):.4g}")
    switch = Switch(devices.count, _rounded(max(rates)), latency, 1.0, name=name)
    return switch, {"chip_bandwidth": f"the best of {counted(len(moves), 'collective')}"}


def _wire_bytes(row: Row, count: int) -> float:
    """Bytes that a device sends in one collective through a switch."""
    cells = row.cells
    if "mesh" in cells:
        group = math.prod(cells["mesh"][axis] for axis in set(cells["axes"]))
    else:
        group = min(cells["group_size"], count)
    part = {"all_reduce": 2 * (group - 1) / group, "collective_permute": 1.0, "all_slice": 0.0}
    return cells["bytes"] * part.get(cells["collective"], (group - 1) / group)


def _rate(row: Row, what: str) -> float:
    flops, size = row_work(row)
    return (flops if what == "flops" else size) / row.seconds


def _rounded(number: float) -> float:
    """Four digits, upwards, so that no rate measured is above it."""
    digits = 3 - math.floor(math.log10(number))
    return float(f"{math.ceil(number * 10.0**digits) / 10.0**digits:.4g}")
