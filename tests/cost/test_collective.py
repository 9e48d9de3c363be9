"""Collectives: laws of their times on every preset, and what a sum over a torus is made of."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoshard.cost.collective import KINDS, MeshTopology
from autoshard.cost.several_slices import crosses, is_padded
from autoshard.machine.load import load
from autoshard.machine.network import Switch, Torus
from tests.cost.meshes import BYTES, groups


@given(groups(), st.sampled_from(KINDS), BYTES, BYTES)
def test_positive_and_monotone_in_bytes(group, kind, some, more):
    topology, axes = group
    some, more = sorted((some, more))
    fewer = topology.collective_seconds(kind, axes, some)
    assert fewer <= topology.collective_seconds(kind, axes, more)
    assert (fewer > 0) == (topology.group_size(axes) > 1)


def is_whole_torus(topology, axes):
    """Whether the group is all chips of a torus of several dimensions, and more than 2x2."""
    level = topology.machine.network[0]
    if any(piece.level for axis in axes for piece in topology.pieces[axis] if piece.length > 1):
        return False
    sides = [side for side in level.dimensions if side > 1] if isinstance(level, Torus) else []
    return topology.group_size(axes) == math.prod(sides) > 4 and len(sides) > 1


@given(groups(), BYTES)
def test_all_reduce_is_reduce_scatter_and_all_gather(group, size):
    topology, axes = group
    parts = [
        topology.collective_seconds(kind, axes, size) for kind in ("reduce_scatter", "all_gather")
    ]
    assume(not is_padded(topology, axes))  # see test_several_slices.py
    if is_whole_torus(topology, axes) or crosses(topology, axes):
        parts = [parts[1], parts[1]]  # the reduce-scatter takes as long as both
    together = topology.collective_seconds("all_reduce", axes, size)
    if all(isinstance(level, Switch) and level.reduces for level in topology.machine.network):
        latency = topology.rate("all_gather", axes).latency_seconds
        assert together == pytest.approx(sum(parts) - latency)
    elif not any(isinstance(level, Switch) and level.reduces for level in topology.machine.network):
        assert together == pytest.approx(sum(parts))
    assert together <= sum(parts) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("name", "axes", "like", "whole"),
    [
        ("v5e-16", (0, 1), "all_reduce", True),  # 4x4
        ("v6e-64", (0, 1), "all_reduce", True),  # 8x8
        ("v5p-64", (0, 1), "all_reduce", True),  # 4x4x4
        ("v5p-16", (0, 1), "all_reduce", True),  # 2x2x4
        ("v5e-32", (0, 1), "all_reduce", False),  # 4x8: one ring
        ("v5e-4", (0, 1), "all_gather", False),  # 2x2
        ("v5p-64", (0,), "all_gather", False),
        ("h100-64", (0, 1), "all_gather", False),
        ("2xv5p-64", (0, 1), "all_reduce", True),  # each slice gathers what slices added up
    ],
)
def test_sums_over_a_whole_torus_are_made_and_then_sliced(name, axes, like, whole):
    """As XLA:TPU compiles a `psum_scatter` over these axes."""
    machine = load(name)
    size = 2 ** (int(math.log2(machine.chips)) // 2)
    topology = MeshTopology(machine, (machine.chips // size, size))
    assert topology.rate("reduce_scatter", axes) == topology.rate(like, axes)
    assert topology.leaves_whole(axes) == whole


def test_a_collective_starts_once_and_a_switch_that_reduces_does_both_halves_in_one():
    host = Switch(8, 1e11, latency_seconds=2e-6, efficiency=1.0, start_seconds=1e-5, reduces=True)
    hosts = Switch(4, 1e10, latency_seconds=5e-6, efficiency=1.0, start_seconds=3e-6)
    machine = dataclasses.replace(load("h100-32"), network=(host, hosts))
    launch = machine.chip.launch_seconds
    topology = MeshTopology(machine, (4, 2, 4))

    def latency(kind, *axes):
        return topology.rate(kind, axes).latency_seconds - launch

    assert latency("all_gather", 2) == pytest.approx(1e-5 + 2 * 2e-6)
    assert latency("all_gather", 1, 2) == pytest.approx(1e-5 + 3 * 2e-6)
    assert latency("all_to_all", 2) == latency("reduce_scatter", 2) == latency("all_gather", 2)
    assert latency("collective_permute", 2) == pytest.approx(1e-5 + 2e-6)
    # Within the host once; with the hosts, which do not reduce, out and back.
    assert latency("all_reduce", 2) == pytest.approx(latency("all_gather", 2))
    assert latency("all_reduce", 0) == pytest.approx(2 * (3e-6 + 2 * 5e-6) + launch)
    both = 1e-5 + 2 * 2e-6 + 2 * 5e-6
    assert latency("all_gather", 0, 2) == pytest.approx(both)
    assert latency("all_reduce", 0, 2) == pytest.approx(2 * both + launch)


@given(groups(), st.integers(0, 3), BYTES)
def test_more_axes_are_no_faster_for_the_same_shard(group, axis, shard):
    topology, axes = group
    more = tuple(sorted({*axes, axis % len(topology.mesh_shape)}))
    small = topology.collective_seconds("all_gather", axes, shard * topology.group_size(axes))
    large = topology.collective_seconds("all_gather", more, shard * topology.group_size(more))
    assert large >= small * (1 - 1e-12)
    for kind in ("all_to_all", "collective_permute"):
        assert topology.collective_seconds(kind, more, shard) >= (
            topology.collective_seconds(kind, axes, shard) * (1 - 1e-12)
        )


@given(groups(), BYTES)
def test_gathering_in_two_steps_is_no_faster_than_in_one(group, size):
    topology, axes = group
    # A sum among zeros, which XLA:TPU makes of a gather, is slower than two gathers would be.
    assume(not is_padded(topology, axes))
    whole = topology.rate("all_gather", axes).seconds_per_byte * size
    for first in axes:
        rest = tuple(axis for axis in axes if axis != first)
        before = topology.rate("all_gather", (first,)).seconds_per_byte
        after = topology.rate("all_gather", rest).seconds_per_byte
        assert whole <= (before * size / topology.group_size(rest) + after * size) * (1 + 1e-12)


@given(groups(), st.sampled_from(KINDS))
def test_arrays_of_bytes_are_priced_one_by_one(group, kind):
    topology, axes = group
    sizes = np.array([0.0, 1.0, 1e3, 1e9])
    together = topology.collective_seconds(kind, axes, sizes)
    assert together.tolist() == [topology.collective_seconds(kind, axes, x) for x in sizes]


@given(groups(), BYTES)
def test_faster_links_are_no_slower(group, size):
    topology, axes = group
    machine = topology.machine
    fast = tuple(dataclasses.replace(level, efficiency=1.0) for level in machine.network)
    faster = MeshTopology(dataclasses.replace(machine, network=fast), topology.mesh_shape)
    for kind in KINDS:
        assert faster.collective_seconds(kind, axes, size) <= topology.collective_seconds(
            kind, axes, size
        )


def test_axes_of_size_one_cost_nothing():
    topology = MeshTopology(load("h100-8"), (1, 8))
    for kind in KINDS:
        assert topology.collective_seconds(kind, (0,), 1e9) == 0.0
        assert topology.rate(kind, (0, 1)) == topology.rate(kind, (1,))
        assert topology.rate(kind, (1, 0)) == topology.rate(kind, (1,))
