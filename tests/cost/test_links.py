"""Collectives against a simulation of the links, and against what links can carry at most."""

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import given

from autoshard.cost.collective import MeshTopology
from autoshard.cost.placement import runs
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch, Torus
from tests.cost.meshes import groups


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
