"""When a layout is bound by communication: worked problems of the scaling book, chapter 5.

https://jax-ml.github.io/scaling-book/training/ takes a forward pass of `x @ w1 @ w2` (width D,
hidden width F, B tokens) at peak FLOP/s and full bandwidth, without latencies, on TPU v5p with
4.59e14 FLOP/s and 1.8e11 bytes/s an axis, both ways. So do these tests, by our cost functions; a
ring of n chips sends (n - 1) / n of an array, which the book rounds up to all of it.
"""

from __future__ import annotations

import dataclasses
import math

import pytest

from autoshard.cost.collective import MeshTopology
from autoshard.cost.roofline import op_seconds
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.machine.network import Torus

D, F = 8192, 30_000
POD = (16, 16, 16)


def v5p(chips: int = 4096) -> Machine:
    """The book's v5p."""
    machine = load(f"v5p-{chips}")
    (torus,) = machine.network
    assert isinstance(torus, Torus)
    links = dataclasses.replace(torus, link_bandwidth=9e10, hop_seconds=0.0, efficiency=1.0)
    chip = dataclasses.replace(
        machine.chip, matmul_efficiency=1.0, memory_efficiency=1.0, launch_seconds=1e-30
    )
    return dataclasses.replace(machine, chip=chip, network=(links,))


def products(machine: Machine, tokens: float, hidden: float = F) -> float:
    """Seconds of both products on a chip that has so much of the tokens and of the hidden width."""
    return op_seconds(machine.chip, 2 * 2 * tokens * D * hidden, 0.0)


def gathers(topology: MeshTopology, axes: tuple[int, ...], hidden: float = F) -> float:
    """Seconds to gather both weights over mesh axes that cut them."""
    return 2 * topology.collective_seconds("all_gather", axes, 2.0 * D * hidden)


def sums(topology: MeshTopology, axes: tuple[int, ...], tokens: float) -> float:
    """Seconds to gather the activations before the products and to scatter them behind."""
    size = 2.0 * tokens * D
    return topology.collective_seconds("all_gather", axes, size) + topology.collective_seconds(
        "reduce_scatter", axes, size
    )


@pytest.mark.parametrize(("axes", "tokens"), [((0,), 2550), ((0, 1), 1275), ((0, 1, 2), 850)])
def test_fsdp_is_compute_bound_from_so_many_tokens_a_chip(axes, tokens):
    machine = v5p()
    topology = MeshTopology(machine, POD)
    chips = math.prod(POD[axis] for axis in axes)
    exact = tokens * (chips - 1) / chips
    assert (
        products(machine, 1.01 * exact) > gathers(topology, axes) > products(machine, 0.99 * exact)
    )


@pytest.mark.parametrize(("axes", "ways"), [((0,), 11), ((0, 1), 22)])
def test_tensor_parallelism_is_compute_bound_up_to_so_many_ways(axes, ways):
    """Y < axes * F / 2550, whatever the batch: 11 on one axis, 22 on two for Llama-3 70B."""
    machine, hidden = v5p(), 28_672
    topology = MeshTopology(machine, POD)
    chips = math.prod(POD[axis] for axis in axes)
    taken = sums(topology, axes, 1000) * chips / (chips - 1)
    assert (
        products(machine, 1000, hidden / ways)
        > taken
        > products(machine, 1000, hidden / (ways + 1))
    )


def test_which_mesh_for_llama2_13b():
    """3M tokens on 4,096 chips, 732 a chip: FSDP alone would need 850 to be bound by compute.

    FSDP and tensor parallelism together are, if FSDP takes about (2 * 3e6 * 4096 / 13824)**0.5 =
    1,333 ways: with 1,024 and 4, and not with 256 and 16.
    """
    machine, hidden, tokens = v5p(), 13_824, 3e6
    assert (2 * tokens * 4096 / hidden) ** 0.5 == pytest.approx(1333, abs=1)
    needed = products(machine, tokens / 4096, hidden)
    assert gathers(MeshTopology(machine, POD), (0, 1, 2), hidden) > needed

    def both(shape: tuple[int, int, int]) -> float:
        """FSDP over the first two dimensions of such a torus, tensor parallelism over the last."""
        (torus,) = machine.network
        shaped = dataclasses.replace(torus, dimensions=shape)
        topology = MeshTopology(dataclasses.replace(machine, network=(shaped,)), shape)
        ways = shape[2]
        return gathers(topology, (0, 1), hidden / ways) + sums(topology, (2,), tokens * ways / 4096)

    assert both((32, 32, 4)) < needed < both(POD)


def test_days_of_llama3_70b():
    """15T tokens on 8,960 v5p at 40 % take 44 days, by 6 FLOP for each parameter and token."""
    peak = load("v5p-64").chip.matmul_flops("bfloat16")
    assert 6 * 70e9 * 15e12 / (8960 * peak * 0.4) / 86_400 == pytest.approx(44, abs=0.5)
