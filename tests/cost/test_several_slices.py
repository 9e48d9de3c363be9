"""Collectives of XLA:TPU in programs that run on several slices."""

from __future__ import annotations

import pytest

from autoshard.cost.collective import MeshTopology
from autoshard.cost.several_slices import axes_between, crosses, is_padded
from autoshard.machine.load import load
from tests.helpers import with_compiler

BYTES = 2**28


@pytest.mark.parametrize(
    ("machine", "shape"),
    [("2xv5e-16", (2, 16)), ("2xv6e-16", (2, 16)), ("2xv5p-32", (2, 32)), ("4xv5e-16", (4, 16))],
)
def test_a_scatter_across_slices_takes_as_long_as_the_sum(machine, shape):
    topology = MeshTopology(load(machine), shape)

    def seconds(kind, axes):
        return topology.collective_seconds(kind, axes, BYTES)

    assert seconds("reduce_scatter", (0, 1)) == seconds("all_reduce", (0, 1))
    assert seconds("reduce_scatter", (0, 1)) > 1.5 * seconds("all_gather", (0, 1))
    assert topology.leaves_whole((0, 1))
    plain = MeshTopology(
        with_compiler(load(machine), without=frozenset({"tpu.no-scatter-across-slices"})), shape
    )
    assert plain.collective_seconds("reduce_scatter", (0, 1), BYTES) == seconds(
        "all_gather", (0, 1)
    )


def test_an_axis_may_lead_through_slices_and_between_them():
    machine = load("2xv5e-16")
    one, two, three = (MeshTopology(machine, shape) for shape in ((32,), (2, 16), (2, 4, 4)))
    assert axes_between(one) == axes_between(two) == axes_between(three) == (0,)
    assert crosses(one, (0,))
    assert [crosses(two, axes) for axes in ((0,), (1,), (0, 1))] == [False, False, True]
    assert [crosses(three, axes) for axes in ((1, 2), (0, 2), (0, 1, 2))] == [False, True, True]


@pytest.mark.parametrize("machine", ["h100-16", "v5e-16", "v7x-16"])
def test_chips_without_slices_have_none_of_it(machine):
    topology = MeshTopology(load(machine), (2, 8))
    assert axes_between(topology) == ()
    assert not crosses(topology, (0, 1))
    assert not is_padded(topology, (0, 1))


@pytest.mark.parametrize(
    ("machine", "shape", "axes", "expected"),
    [
        ("2xv5p-64", (2, 64), (1,), True),
        ("2xv5p-64", (2, 64), (0, 1), True),
        ("2xv5p-64", (2, 16, 4), (1, 2), True),
        ("2xv5p-64", (2, 16, 4), (1,), False),  # a part of a slice
        ("2xv5p-64", (128,), (0,), True),
        ("2xv5p-32", (2, 32), (1,), False),  # 2 x 4 x 4: two chips are not a ring
        ("2xv4-64", (2, 64), (1,), True),
        ("2xv5e-64", (2, 64), (1,), False),
        ("v5p-64", (64,), (0,), False),
    ],
)
def test_gathers_over_cubes_are_sums_among_zeros(machine, shape, axes, expected):
    topology = MeshTopology(load(machine), shape)
    assert is_padded(topology, axes) is expected
    other = MeshTopology(
        with_compiler(
            load(machine), without=frozenset({"tpu.gathers-over-cubes-of-several-are-sums"})
        ),
        shape,
    )
    ours, plain = (one.collective_seconds("all_gather", axes, BYTES) for one in (topology, other))
    if not expected:
        assert ours == plain
    elif 0 not in axes or (len(shape) > 1 and axes == (1,)):
        zeros = BYTES / topology.machine.chip.memory_rate
        assert ours == pytest.approx(2 * plain + zeros, rel=0.01)
        # A sum within a slice is one kernel, and no gather follows it.
        assert topology.rate("all_reduce", axes) == other.rate("all_reduce", axes)
    else:
        assert plain < ours < 2.1 * plain + BYTES / topology.machine.chip.memory_rate


@pytest.mark.parametrize("family", ["v4", "v5e", "v5p", "v6e", "v7x"])
def test_levels_take_turns_as_each_reads_what_the_other_has_made(family):
    """As libtpu 0.0.42.1 compiles it: a scatter, a transfer between hosts, and a gather."""
    machine = load(f"2x{family}-16")
    topology = MeshTopology(machine, (2, 16))
    slope = topology.rate("all_reduce", (0, 1)).seconds_per_byte
    within, across = (topology.rate("all_reduce", (axis,)).seconds_per_byte for axis in (1, 0))
    assert slope == pytest.approx(within + across / 16)
