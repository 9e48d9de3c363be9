"""The machine that devices make up."""

import itertools
from types import SimpleNamespace

import jax
import pytest

import autoshard
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.search.meshes.devices import this_machine


def tpus(kind, lengths, *, slices=1, cores=1):
    places = itertools.product(range(slices), *map(range, lengths), range(cores))
    return [
        SimpleNamespace(
            platform="tpu",
            device_kind=kind,
            slice_index=number,
            coords=tuple([*where, 0, 0][:3]),
            process_index=0,
        )
        for number, *where, _ in places
    ]


def gpus(kind, hosts, each):
    return [
        SimpleNamespace(platform="gpu", device_kind=kind, process_index=host)
        for host in range(hosts)
        for _ in range(each)
    ]


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (tpus("TPU v5 lite", (4, 4)), "v5e-4x4"),
        (tpus("TPU v5 lite", (4, 2)), "v5e-2x4"),
        (tpus("TPU v5", (8, 4, 4)), "v5p-4x4x8"),
        (tpus("TPU v4", (2, 2, 4)), "v4-2x2x4"),
        (tpus("TPU v5", (2, 2, 1)), "v5p-1x2x2"),
        (tpus("TPU v6 lite", (4, 4), slices=2), "2xv6e-4x4"),
        (tpus("TPU7x", (2, 2, 4), cores=2), "v7x-2x2x4"),
        (gpus("NVIDIA H100 80GB HBM3", 1, 8), "h100-8"),
        (gpus("NVIDIA H100 80GB HBM3", 1, 4), "h100-4"),
        (gpus("NVIDIA A100-SXM4-80GB", 4, 8), "a100-32"),
        (gpus("NVIDIA A100-SXM4-40GB", 1, 8), "8xa100-40gb"),
        (gpus("NVIDIA GB200", 18, 4), "gb200-nvl72-72"),
    ],
)
def test_devices_are_the_machine_of_their_kind_and_wiring(devices, name):
    assert this_machine(devices).network == load(name).network
    assert this_machine(devices).chip == load(name).chip


def test_what_no_preset_is_like_says_what_to_write():
    with pytest.raises(MachineError, match="kind 'cpu': name the machine to plan for, or"):
        autoshard.this_machine(jax.devices())
    with pytest.raises(MachineError, match="kind 'NVIDIA L4': name the machine"):
        this_machine(gpus("NVIDIA L4", 1, 4))
    with pytest.raises(MachineError, match="kind 'NVIDIA H100 PCIe': name the machine"):
        this_machine(gpus("NVIDIA H100 PCIe", 1, 4))
    said = (
        r"hosts of 4 devices .* the preset h100 has 8: name the machine .* as 4xh100-4 where each"
    )
    with pytest.raises(MachineError, match=said):
        this_machine(gpus("NVIDIA H100 80GB HBM3", 4, 4))
