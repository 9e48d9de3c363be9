"""Every machine, and random meshes of them and groups of their axes."""

from hypothesis import strategies as st

from autoshard.cost.collective import MeshTopology
from autoshard.machine.load import load, presets

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
