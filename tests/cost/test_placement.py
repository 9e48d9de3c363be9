"""Where the axes of a mesh lie on a machine, and which meshes and axes are refused."""

import itertools
import math

import pytest
from hypothesis import given

from autoshard.cost.collective import MeshTopology
from autoshard.cost.placement import place
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.machine.network import Torus
from tests.cost.meshes import meshes


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
