"""Collectives: laws on every preset, published worked problems, and a simulation of the links."""

import dataclasses
import itertools
import math
from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.collective import KINDS, MeshTopology
from autoshard.cost.combined import latency_share
from autoshard.cost.placement import place, runs
from autoshard.machine.machine import Machine, MachineError, Switch, Torus, load, presets
from tests.helpers import case

MACHINES = tuple(
    load(name)
    for name in (
        *(f"{family}-{64 if 'nvl72' not in family else 72}" for family in presets()),
        "v5p-512",
        "v5e-256",
        "2xv5p-64",
        "4xv6e-16",
        "gb200-nvl72-144",
        "v7x-32",
    )
)


@st.composite
def meshes(draw, axes=4):
    """A machine, and a mesh of it with random axis sizes."""
    machine = draw(st.sampled_from(MACHINES))
    sizes = [1] * draw(st.integers(1, axes))
    rest = machine.chips
    for prime in (2, 3):
        while rest % prime == 0:
            rest //= prime
            sizes[draw(st.integers(0, len(sizes) - 1))] *= prime
    return MeshTopology(machine, tuple(sizes))


@st.composite
def groups(draw):
    topology = draw(meshes())
    axes = st.sets(st.integers(0, len(topology.mesh_shape) - 1), min_size=1)
    return topology, tuple(sorted(draw(axes)))


BYTES = st.floats(1, 1e11)


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
    if is_whole_torus(topology, axes):
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
        ("2xv5p-64", (0, 1), "all_gather", False),
    ],
)
def test_sums_over_a_whole_torus_are_made_and_then_sliced(name, axes, like, whole):
    """As XLA:TPU compiles a `psum_scatter` over these axes."""
    machine = load(name)
    size = 2 ** (int(math.log2(machine.chips)) // 2)
    topology = MeshTopology(machine, (machine.chips // size, size))
    assert topology.rate("reduce_scatter", axes) == topology.rate(like, axes)
    assert topology.leaves_whole(axes) == whole


@pytest.mark.parametrize(
    ("name", "axis", "rows", "together"),
    [
        ("v5p-64", 0, 1024, True),  # over 4x4 of 4x4x4 chips
        ("v5p-64", 1, 1024, False),  # over 4 in a row
        ("v5p-64", 0, 65536, False),  # two of 256 MiB
        ("h100-64", 0, 1024, False),
    ],
)
def test_sums_that_are_combined_over_several_dimensions_are_made_whole(name, axis, rows, together):
    def step(x, y):
        return jax.lax.scan(lambda c, _: (c + 1.0, (x.T @ y, y.T @ x)), 0.0, length=2)[1]

    array = (
        jax.ShapeDtypeStruct((64, rows), np.float32),
        jax.ShapeDtypeStruct((64, 1024), "float32"),
    )
    given = case(step, *array, mesh={"x": 16, "y": 4}, machine=load(name))
    prices = given.built.prices
    op = next(op for op in given.program.ops if op.primitive == "dot_general")
    size = np.array([rows * 1024 * 4.0])
    stored = np.where(np.arange(2) == axis, 0, -1)[None]
    found = prices.settled_seconds(op, "reduce_scatter", (axis,), size, stored)
    kind, parts = ("all_reduce", 1) if together else ("reduce_scatter", (16, 4)[axis])
    share = latency_share(2, size / parts, prices.machine.chip)
    rate = prices.topology.rate(kind, (axis,))
    assert found == pytest.approx(share * rate.latency_seconds + rate.seconds_per_byte * size)


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


@given(meshes())
def test_pieces_are_a_placement_of_every_device(topology):
    """Reading the pieces as digits numbers all chips of every physical dimension, once each."""
    for axis, size in enumerate(topology.mesh_shape):
        assert math.prod(piece.length for piece in topology.pieces[axis]) == size
    everything = [piece for parts in topology.pieces for piece in parts]
    for index, level in enumerate(topology.machine.network):
        sizes = level.dimensions if isinstance(level, Torus) else (level.size,)
        for dimension, size in enumerate(sizes):
            digits = [p for p in everything if (p.level, p.dimension) == (index, dimension)]
            places = [range(0, p.length * p.stride, p.stride) for p in digits]
            assert sorted(map(sum, itertools.product(*places))) == list(range(size))


def test_whole_torus_dimensions_first_as_jax_does():
    def factors(name, mesh):
        machine = load(name)
        return [
            sorted((piece.dimension, piece.length) for piece in parts)
            for parts in place(machine, mesh)
        ]

    assert factors("v5p-64", (4, 4, 4)) == [[(0, 4)], [(1, 4)], [(2, 4)]]
    assert factors("v5p-64", (4, 16)) == [[(0, 4)], [(1, 4), (2, 4)]]
    assert factors("v5e-16", (4, 4)) == [[(0, 4)], [(1, 4)]]
    assert factors("v5p-512", (8, 64)) == [[(0, 8)], [(1, 8), (2, 8)]]


def test_minor_axes_lie_within_the_host():
    assert [[(p.level, p.length) for p in parts] for parts in place(load("h100-64"), (4, 16))] == [
        [(1, 4)],
        [(0, 8), (1, 2)],
    ]


def ideal(name, **changes):
    """A machine at its full rates and without latencies."""
    machine = load(name)
    network = tuple(
        dataclasses.replace(
            level,
            efficiency=1.0,
            **(
                {"hop_seconds": 0.0}
                if isinstance(level, Torus)
                else {"latency_seconds": 0.0, "start_seconds": 0.0}
            ),
            **changes,
        )
        for level in machine.network
    )
    chip = dataclasses.replace(machine.chip, launch_seconds=1e-30)
    return dataclasses.replace(machine, network=network, chip=chip)


class TestPublished:
    """Worked problems of https://jax-ml.github.io/scaling-book, chapters 3 and 12."""

    def test_pop_quiz_all_gather_on_a_line_of_v5e(self):
        machine = dataclasses.replace(
            ideal("v5e-32", link_bandwidth=4.5e10), name="v5e 4x8 at the book's 45 GB/s"
        )
        topology = MeshTopology(machine, (8, 4))
        seconds = topology.collective_seconds("all_gather", (1,), 2048 * 8192 * 2)
        assert seconds == pytest.approx(560e-6, rel=0.01)

    def test_a_ring_takes_bytes_over_twice_the_link(self):
        topology = MeshTopology(ideal("v5p-4096"), (16, 16, 16))
        assert topology.collective_seconds("all_gather", (0,), 1e9) == pytest.approx(
            1e9 / 2e11 * 15 / 16
        )

    def test_several_axes_add_their_bandwidth(self):
        topology = MeshTopology(ideal("v5p-4096"), (16, 16, 16))
        assert topology.collective_seconds("all_gather", (0, 1), 1e9) == pytest.approx(
            1e9 / 4e11 * 255 / 256
        )

    def test_all_to_all_is_a_quarter_of_an_all_gather(self):
        topology = MeshTopology(ideal("v5p-4096"), (16, 16, 16))
        whole = 1e9
        assert topology.collective_seconds("all_to_all", (0,), whole / 16) == pytest.approx(
            whole / 2e11 / 4
        )

    def test_pop_quiz_all_gather_within_an_h100_host(self):
        topology = MeshTopology(ideal("h100-8"), (8,))
        seconds = topology.collective_seconds("all_gather", (0,), 2 * 1024 * 16384)
        assert seconds == pytest.approx(65e-6, rel=0.01)

    def test_across_hosts_every_gpu_drives_its_own_card(self):
        machine = ideal("h100-256")
        inner, outer = machine.network
        pipelined = replace(machine, network=(inner, replace(outer, pipelined=1.0)))
        rate = MeshTopology(pipelined, (32, 8)).rate("all_gather", (0, 1))
        assert 1 / rate.seconds_per_byte == pytest.approx(413e9, rel=0.001)

    def test_one_level_after_the_other_takes_the_sum(self):
        machine = ideal("h100-256")
        inner, outer = machine.network
        in_turn = replace(machine, network=(inner, replace(outer, pipelined=0.0)))
        topology = MeshTopology(in_turn, (32, 8))
        whole = topology.rate("all_gather", (0, 1)).seconds_per_byte
        across = topology.rate("all_gather", (0,)).seconds_per_byte / 8
        within = topology.rate("all_gather", (1,)).seconds_per_byte
        assert whole == pytest.approx(across + within)

    def test_all_to_all_across_hosts_falls_to_the_card(self):
        topology = MeshTopology(ideal("h100-16"), (2, 8))
        local = 1e9
        assert topology.collective_seconds("all_to_all", (0, 1), local) == pytest.approx(
            local * (2 - 1) / 2 / 50e9
        )

    def test_pairs_with_wires_of_their_own_share_nothing(self):
        two = MeshTopology(ideal("mi300x-8"), (4, 2)).rate("all_gather", (1,))
        eight = MeshTopology(ideal("mi300x-8"), (8,)).rate("all_gather", (0,))
        assert two.seconds_per_byte == pytest.approx(1 / 2 / 64e9)
        assert eight.seconds_per_byte == pytest.approx(7 / 8 / 448e9)


def torus(dimensions, wraps):
    chip = load("v5p-1").chip
    network = (Torus(dimensions, wraps, 1.0, 0.0, 1.0),)
    return Machine("torus", "torus", dataclasses.replace(chip, launch_seconds=1e-30), network, 0.0)


def busiest_link(dimensions, wraps, messages):
    """Send messages one dimension after the other on shortest ways; return the largest load.

    `messages` yields (from, to, bytes). Where both ways round a ring are as long, half goes each.
    """
    loads = Counter()
    for start, end, size in messages:
        here = list(start)
        for dimension, (length, wrap) in enumerate(zip(dimensions, wraps, strict=True)):
            forward = (end[dimension] - here[dimension]) % length
            backward = length - forward
            if not wrap:
                ways = [(1 if end[dimension] > here[dimension] else -1, 1.0)]
            elif forward == backward:
                ways = [(1, 0.5), (-1, 0.5)]
            else:
                ways = [(1 if forward < backward else -1, 1.0)]
            for direction, share in ways:
                at = list(here)
                while at[dimension] != end[dimension]:
                    loads[*at, dimension, direction] += size * share
                    at[dimension] = (at[dimension] + direction) % length
            here[dimension] = end[dimension]
    return max(loads.values(), default=0.0)


@pytest.mark.parametrize(
    ("dimensions", "wraps"),
    [
        ((4, 4), (True, True)),
        ((4, 8), (False, True)),
        ((2, 4, 4), (False, False, False)),
        ((4, 4, 4), (True, True, True)),
        ((3, 4), (False, True)),
    ],
)
def test_all_to_all_loads_the_busiest_link_as_a_simulation_does(dimensions, wraps):
    topology = MeshTopology(torus(dimensions, wraps), dimensions)
    chips = list(itertools.product(*map(range, dimensions)))
    for axes in itertools.chain.from_iterable(
        itertools.combinations(range(len(dimensions)), count) for count in (1, 2)
    ):
        used = [
            next(
                axis
                for axis in range(len(dimensions))
                if any(piece.dimension == dimension for piece in topology.pieces[axis])
            )
            for dimension in range(len(dimensions))
        ]
        fixed = [dimension for dimension, axis in enumerate(used) if axis not in axes]
        size = topology.group_size(axes)
        messages = [
            (start, end, 1 / size)
            for start in chips
            for end in chips
            if all(start[dimension] == end[dimension] for dimension in fixed)
        ]
        assert topology.collective_seconds("all_to_all", axes, 1.0) == pytest.approx(
            busiest_link(dimensions, wraps, messages)
        )


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("length", [4, 8])
def test_a_strided_part_of_a_dimension_shares_its_wires(length, wrap):
    """A mesh axis that splits a dimension: its groups interleave, and the simulation agrees."""
    topology = MeshTopology(torus((length,), (wrap,)), (2, length // 2))
    (piece,) = topology.pieces[0]
    assert piece.stride == length // 2
    messages = [((x,), ((x + piece.stride) % length,), 0.5) for x in range(length)]
    assert topology.collective_seconds("all_to_all", (0,), 1.0) == pytest.approx(
        busiest_link((length,), (wrap,), messages)
    )


@given(groups())
def test_no_gather_beats_what_the_links_of_a_chip_can_receive(group):
    topology, axes = group
    size = topology.group_size(axes)
    pieces = [piece for axis in axes for piece in topology.pieces[axis]]
    most = 0.0
    for index, level in enumerate(topology.machine.network):
        here = [piece for piece in pieces if piece.level == index]
        if isinstance(level, Switch):
            most += level.chip_bandwidth * level.efficiency * bool(here)
        else:
            links = sum(
                2 if span.ring else 1 for spans in runs(here, level).values() for span in spans
            )
            most += links * level.link_bandwidth * level.efficiency
    if size > 1:
        rate = topology.rate("all_gather", axes)
        fastest = (size - 1) / size / most
        if len({piece.level for piece in pieces}) == 1:
            assert rate.seconds_per_byte >= fastest * (1 - 1e-12)


def test_meshes_that_do_not_fit_are_refused():
    with pytest.raises(MachineError) as caught:
        MeshTopology(load("v5p-64"), (4, 8))
    assert str(caught.value) == (
        "mesh 4x8 has 32 devices but v5p-64 has 64 chips; choose sizes whose product is 64, "
        "or load a machine of 32 chips"
    )


def test_unknown_kinds_and_axes_are_refused():
    topology = MeshTopology(load("h100-8"), (2, 4))
    with pytest.raises(ValueError, match="no collective 'broadcast'; use one of all_gather, "):
        topology.rate("broadcast", (0,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no axis \[2\] in the mesh \(2, 4\)"):
        topology.rate("all_gather", (2,))


def test_axes_of_size_one_cost_nothing():
    topology = MeshTopology(load("h100-8"), (1, 8))
    for kind in KINDS:
        assert topology.collective_seconds(kind, (0,), 1e9) == 0.0
        assert topology.rate(kind, (0, 1)) == topology.rate(kind, (1,))
        assert topology.rate(kind, (1, 0)) == topology.rate(kind, (1,))
