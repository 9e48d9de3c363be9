"""What a machine is to a compiler: its topology, the order of its devices, and options.

XLA:TPU and XLA:GPU compile for devices that are not there, given a topology:

    v5p-64    tpu   v5p:4x4x4, rings closed in all dimensions
    2xv5e-16  tpu   v5e:4x4 in two slices
    h100-64   cuda  1x8x8: one slice, 8 hosts of 8 GPUs, and XLA's description of an H100
    any       cpu   as many fake CPU devices as the mesh has

Positions of the mesh are put on the wires as `autoshard.cost.placement` prices them. A TPU device
is named by (slice, x, y, z, core), a GPU by its number, host by host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources, util
from typing import Any, Literal

import numpy as np

from autoshard import compat
from autoshard.cost.collective import MeshTopology
from autoshard.extras import install_line
from autoshard.machine.compiler import told_microseconds
from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch, Torus
from autoshard.plan.plan import MeshShape

Kind = Literal["tpu", "gpu", "cpu"]
KINDS: tuple[Kind, ...] = ("tpu", "gpu", "cpu")


class CompileError(ValueError):
    """A plan that cannot be compiled for its machine: says what is missing, and the repair."""


@dataclass(frozen=True, slots=True)
class TpuChip:
    """How libtpu names a chip.

    Attributes:
      name: the family in a topology's name.
      clock_hertz: of its cores, to which the compiler's cycle estimates refer.
      cores_as_devices: whether its two cores are devices of their own.
      options: further options of its topology.
    """

    name: str
    clock_hertz: float
    cores_as_devices: bool = False
    options: tuple[tuple[str, Any], ...] = ()


# v4: Jouppi et al., "TPU v4", ISCA 2023, table 4. v5e, v5p: scaling-book/tpus, appendix. v6e and
# v7x: peak bfloat16 FLOP/s over the 524,288 FLOP per cycle of four 256 x 256 matrix units; the
# compiler's own estimates of a matmul of 8192^3 come up to 369,000 and 422,000 of these.
TPU_CHIPS: Mapping[str, TpuChip] = {
    "TPU v4": TpuChip("v4", 1.05e9, options=(("chip_config_name", "megacore"),)),
    "TPU v5e": TpuChip("v5e", 1.5e9),
    "TPU v5p": TpuChip("v5p", 1.75e9),
    "TPU v6e": TpuChip("v6e", 1.75e9),
    "TPU7x device": TpuChip("tpu7x", 2.2e9, cores_as_devices=True),
}

GPU_TARGETS: Mapping[str, str] = {
    "A100 SXM 80GB": "a100",
    "H100 SXM": "h100",
    "H200 SXM": "h200",
    "B200": "b200",
    "GB200": "gb200",
    "B300": "b300",
    "GB300": "gb300",
}
"""XLA's description of a chip, by the chip's name; files in `targets`."""

_PLATFORMS: Mapping[Kind, str] = {"tpu": "tpu", "gpu": "cuda", "cpu": "cpu"}
_GPU_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a module is compiled for.

    Attributes:
      kind: "tpu", "gpu" or "cpu".
      topology: keyword arguments of `jax.experimental.topologies.get_topology_desc`; none for cpu.
      devices: for every position of the mesh, in row-major order, the device that is there.
      options: of the compiler.
      clock_hertz: of a TPU's cores.
      flags: what XLA takes from its environment only.
    """

    kind: Kind
    topology: Mapping[str, Any]
    devices: tuple[tuple[int, ...], ...]
    options: Mapping[str, Any]
    clock_hertz: float | None = None
    flags: tuple[str, ...] = ()

    @property
    def platform(self) -> str:
        """The platform for which the module is lowered."""
        return _PLATFORMS[self.kind]

    @property
    def slices(self) -> tuple[int, ...] | None:
        """For every position of the mesh its slice, where there are several."""
        if self.kind != "tpu" or self.topology.get("num_slices", 1) == 1:
            return None
        return tuple(device[0] for device in self.devices)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "kind": self.kind,
            "topology": dict(self.topology),
            "devices": [list(device) for device in self.devices],
            "options": dict(self.options),
            "flags": list(self.flags),
        }


def kind_of(machine: Machine) -> Kind:
    """The compiler that a machine's chips are for; "cpu" where neither knows them."""
    if machine.chip.name in TPU_CHIPS:
        return "tpu"
    return "gpu" if machine.chip.name in GPU_TARGETS else "cpu"


def target_of(machine: Machine, mesh: MeshShape, kind: Kind) -> Target:
    """The target of a plan with this mesh on `machine`.

    Raises:
      CompileError: the compiler does not know the machine's chip or network.
      MachineError: the mesh has not as many devices as the machine.
    """
    coordinates = mesh_coordinates(machine, mesh)
    if kind == "cpu":
        return Target("cpu", {}, tuple((n,) for n in range(math.prod(mesh.sizes))), {})
    known = TPU_CHIPS if kind == "tpu" else GPU_TARGETS
    if machine.chip.name not in known:
        other = kind_of(machine)
        raise CompileError(
            f"{machine.name} has chips {machine.chip.name!r}, which the {kind.upper()} compiler "
            f"does not know; it knows {', '.join(known)}. Use --compile {other}"
        )
    return (_tpu if kind == "tpu" else _gpu)(machine, coordinates)


def mesh_coordinates(machine: Machine, mesh: MeshShape) -> np.ndarray:
    """Where every position of the mesh, in row-major order, stands in each physical dimension.

    Columns are the dimensions of the machine's levels, innermost level first; a switch has one.
    """
    columns: dict[tuple[int, int], int] = {}
    for index, level in enumerate(machine.network):
        for dimension in range(len(level.dimensions) if isinstance(level, Torus) else 1):
            columns[index, dimension] = len(columns)
    pieces = MeshTopology(machine, mesh.sizes).pieces
    count = math.prod(mesh.sizes)
    found = np.zeros((count, len(columns)), dtype=np.int64)
    positions = np.unravel_index(np.arange(count), mesh.sizes or (1,))
    for axis, parts in enumerate(pieces):
        left = np.array(positions[axis])
        for piece in parts:  # inner levels are the minor part of an axis
            found[:, columns[piece.level, piece.dimension]] += piece.stride * (left % piece.length)
            left //= piece.length
    return found


def why_missing(kind: Kind) -> str:
    """What to install for a compiler, or an empty string where it is there."""
    if kind == "tpu" and util.find_spec("libtpu") is None:
        return f"the TPU compiler is not installed: {install_line('tpu')}"
    if kind == "gpu" and not any(_has(name) for name in _GPU_PLUGINS):
        return f"the GPU compiler is not installed: {install_line('gpu')}"
    return ""


def _has(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _tpu(machine: Machine, coordinates: np.ndarray) -> Target:
    chip = TPU_CHIPS[machine.chip.name]
    levels = list(machine.network)
    cores = slices = np.zeros(len(coordinates), dtype=np.int64)
    columns = list(coordinates.T)
    if chip.cores_as_devices and isinstance(levels[0], Switch) and levels[0].size == 2:
        cores = columns.pop(0)
        levels.pop(0)
    count = 1
    if len(levels) > 1 and isinstance(levels[-1], Switch):
        slices = columns.pop()
        count = levels.pop().chips
    if len(levels) != 1 or not isinstance(levels[0], Torus):
        raise CompileError(
            f"{machine.name} is {', then '.join(map(str, machine.network))}; the TPU compiler "
            "takes one torus of chips, or equal slices of it"
        )
    torus = levels[0]
    sizes = (*torus.dimensions, 1, 1)[:3]
    wraps = [*torus.wraps, False, False][:3]
    options = {
        "platform": "tpu",
        "topology_name": f"{chip.name}:{'x'.join(map(str, torus.dimensions))}",
        "chips_per_host_bounds": [math.gcd(2, sizes[0]), math.gcd(2, sizes[1]), 1],
        "wrap": wraps,
        **dict(chip.options),
    }
    if count > 1:
        options["num_slices"] = count
    while len(columns) < 3:
        columns.append(np.zeros(len(coordinates), dtype=np.int64))
    named = np.stack([slices, *columns, cores], axis=1)
    told = compat.taken_on_tpu(machine.chip.compiler.options, machine.chip.name)
    return Target("tpu", options, _rows(named), told, chip.clock_hertz)


def _gpu(machine: Machine, coordinates: np.ndarray) -> Target:
    name = GPU_TARGETS[machine.chip.name]
    levels = [level.chips for level in machine.network]
    folder = resources.files("autoshard") / "compiler" / "targets"
    options = {
        "platform": "cuda",
        "topology_name": "",
        "topology": f"1x{math.prod(levels[1:])}x{levels[0]}",
        "target_config": (folder / f"{name}.txtpb").read_text(encoding="utf-8"),
    }
    strides = [math.prod(levels[:index]) for index in range(len(levels))]
    numbers = (coordinates * np.array(strides)).sum(axis=1)
    compiler = {
        # There is no device on which anything could be tried out. Products go to cuBLAS: untried,
        # Triton's tiles are never split along the contraction, so that a weight's gradient can
        # come out 16 times slower than either does it on a device.
        "xla_gpu_autotune_level": 0,
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_enable_analytical_sol_latency_estimator": True,
        "xla_dump_latency_hiding_schedule": True,
        # Sums within a host by NCCL: of those by a kernel of its own its timeline knows no time.
        "xla_gpu_experimental_use_collective_kernels": "",
        **machine.chip.compiler.options,
    }
    known = compat.known_flags(compiler)
    return Target("gpu", options, _rows(numbers[:, None]), known, flags=_network(machine))


def _network(machine: Machine) -> tuple[str, ...]:
    """The machine's network between hosts, for XLA:GPU's own timeline and schedule.

    By itself it takes every cluster for one of its own making: 25 GB/s between GPUs of different
    hosts, and 0.3 ms to 2 ms for every collective between them. Times within a host are those of a
    table that was measured.
    """
    if len(machine.network) < 2:
        return ()
    outer = machine.network[1]
    assert isinstance(outer, Switch)
    figures = {
        "gpus_per_node": machine.network[0].chips,
        "partition_size": machine.network[0].chips,  # its name for the same since jaxlib 0.11
        "nic_speed_gbps": f"{outer.efficiency * outer.chip_bandwidth / 1e9:g}",  # in GB/s
        "rtt_us": told_microseconds(outer.latency_seconds),
        "nccl_op_launch_us": told_microseconds(machine.chip.launch_seconds),
        # It does not believe this one: `autoshard.xla.forecast.gpu_collective_estimate`.
        "chunk_prep_us": 0,
    }
    text = ",".join(f"{name}={figure}" for name, figure in figures.items())
    return (f"--xla_gpu_analytical_latency_estimator_options={text}",)


def _rows(named: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(number) for number in row) for row in named)
