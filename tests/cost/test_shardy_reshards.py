"""Shardy as the oracle of reshards: every step is one of its collectives, and it finds no cheaper.

A value is constrained to the states of a path one after the other; Shardy's passes must turn each
constraint into exactly the collective that was priced, over the same axes and bytes.
"""

import itertools

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.cost.collective import MeshTopology
from autoshard.cost.reshard import ReshardCache
from autoshard.cost.states import state_of
from autoshard.lower.collectives import explicit_collectives
from tests.helpers import wires

SHAPE = (64, 64)
CASES = [("v5p-16", (2, 2, 4)), ("h100-64", (4, 2, 8)), ("2xv5p-8", (2, 2, 4))]


def sharding(mesh, state):
    names = [tuple(mesh.axis_names[axis] for axis in places) or None for places in state]
    return NamedSharding(mesh, PartitionSpec(*names))


def collectives_along(mesh, paths):
    """Return, per path of states, Shardy's collectives for constraining a value along it."""

    def walk(values):
        results = []
        for value, path in zip(values, paths, strict=True):
            for state in path[1:]:
                value = jax.lax.with_sharding_constraint(value, sharding(mesh, state))
            results.append(value)
        return results

    arguments = [
        jax.ShapeDtypeStruct(SHAPE, jax.numpy.float32, sharding=sharding(mesh, path[0]))
        for path in paths
    ]
    ends = [sharding(mesh, path[-1]) for path in paths]
    lowered = jax.jit(walk, out_shardings=ends).trace(arguments).lower(lowering_platforms=("tpu",))
    return explicit_collectives(lowered)


@pytest.mark.parametrize(("name", "mesh_shape"), CASES)
def test_every_step_is_one_collective_of_shardy(name, mesh_shape):
    table = ReshardCache(MeshTopology(wires(name), mesh_shape)).table(SHAPE, 4)
    mesh = AbstractMesh(mesh_shape, ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
    steps = sorted(
        {
            (step.kind, step.axes, step.from_state, step.to_state, step.bytes)
            for i, j in itertools.permutations(range(len(table)), 2)
            for step in table.path(i, j)
        }
    )
    assert {step[0] for step in steps} >= {"all_gather", "all_slice", "all_to_all"}
    found = collectives_along(mesh, [(step[2], step[3]) for step in steps])
    assert len(found) == len(steps)
    for step, collective in zip(steps, found, strict=True):
        kind, axes, _, _, size = step
        assert (collective.kind, collective.bytes) == (kind, size), step
        if kind != "collective_permute":
            assert sorted(collective.axes) == [mesh.axis_names[axis] for axis in axes], step


def gathers_seconds(topology, axes, size, before):
    """HLO gathers one dimension after the other; in the cheapest order."""
    parts = [tuple(a for a in places if a in axes) for places in before]
    parts = [part for part in parts if part]
    if sorted(sum(parts, ())) != sorted(axes):
        parts = [axes]  # moved before, so that they may lie in one dimension
    totals = []
    for order in itertools.permutations(parts):
        left, total = size, 0.0
        for part in reversed(order):
            total += topology.collective_seconds("all_gather", part, left)
            left /= topology.group_size(part)
        totals.append(total)
    return min(totals)


@pytest.mark.parametrize("name", ["v5p-64", "h100-64", "2xv5p-32"])
def test_shardy_finds_no_cheaper_way(name):
    """Axes of one size: Shardy then has no use for parts of axes, which the table leaves out."""
    mesh_shape = (4, 4, 4)
    topology = MeshTopology(wires(name), mesh_shape)
    table = ReshardCache(topology).table(SHAPE, 4)
    mesh = AbstractMesh(mesh_shape, ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
    pairs = list(itertools.permutations(range(len(table)), 2))[::7]
    dearer = 0
    for i, j in pairs:
        ends = [state_of(len(SHAPE), table.layouts[k]) for k in (i, j)]
        found = collectives_along(mesh, [ends])
        seconds = 0.0
        for collective in found:
            axes = tuple(mesh.axis_names.index(axis) for axis in collective.axes)
            if collective.kind == "collective_permute":
                axes = tuple(axis for places in sum(ends, ()) for axis in places)
            if collective.kind == "all_gather":
                seconds += gathers_seconds(topology, axes, collective.bytes, ends[0])
            else:
                seconds += topology.collective_seconds(collective.kind, axes, collective.bytes)
        assert table.seconds[i, j] <= seconds + 1e-11, (table.layouts[i], table.layouts[j])
        dearer += table.seconds[i, j] < seconds * 0.99
    assert 0 < dearer < len(pairs)
