"""What a machine is to a compiler: names, device order, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autoshard.compiler import cache
from autoshard.compiler.cache import Answer
from autoshard.compiler.request import Request, versions
from autoshard.compiler.target import (
    GPU_TARGETS,
    TPU_CHIPS,
    CompileError,
    kind_of,
    mesh_coordinates,
    target_of,
    why_missing,
)
from autoshard.cost.collective import MeshTopology
from autoshard.machine.file import MachineError
from autoshard.machine.load import load, presets
from autoshard.machine.network import Torus
from autoshard.plan.plan import MeshShape


def shape(**axes: int) -> MeshShape:
    return MeshShape(tuple(axes), tuple(axes.values()))


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("v5p-64", {"topology_name": "v5p:4x4x4", "wrap": [True, True, True]}),
        ("v5p-8", {"topology_name": "v5p:2x2x2", "wrap": [False, False, False]}),
        ("v5e-16", {"topology_name": "v5e:4x4", "wrap": [False, False, False]}),
        ("v6e-64", {"topology_name": "v6e:8x8"}),
        ("v4-8", {"topology_name": "v4:2x2x2", "chip_config_name": "megacore"}),
        ("v7x-8", {"topology_name": "tpu7x:1x2x2", "chips_per_host_bounds": [1, 2, 1]}),
        ("2xv5e-16", {"topology_name": "v5e:4x4", "num_slices": 2}),
        ("h100-64", {"topology": "1x8x8"}),
        ("h100-8", {"topology": "1x1x8"}),
        ("gb200-nvl72-72", {"topology": "1x1x72"}),
    ],
)
def test_topologies(name, topology):
    machine = load(name)
    target = target_of(machine, shape(x=machine.chips), kind_of(machine))
    found = {key: target.topology[key] for key in topology}
    if "topology_name" in topology and name == "v7x-8":
        sizes = target.topology["topology_name"].partition(":")[2].split("x")
        assert sorted(sizes) == ["1", "2", "2"]
        return
    assert found == topology
    assert len(set(target.devices)) == machine.chips
    assert target.platform == {"tpu": "tpu", "gpu": "cuda"}[target.kind]
    assert (target.clock_hertz is None) == (target.kind == "gpu")
    assert (target.slices is None) == ("num_slices" not in topology)


def test_every_preset_of_a_known_vendor_has_a_compiler():
    unknown = []
    for family in presets():
        chips = 72 if family == "gb200-nvl72" else 8
        machine = load(f"{family}-{chips}")
        kind = kind_of(machine)
        if kind == "cpu":
            unknown.append(family)
            continue
        target = target_of(machine, shape(x=chips), kind)
        if kind == "gpu":
            text = target.topology["target_config"]
            memory = int(text.partition("device_memory_size: ")[2].split()[0])
            assert abs(memory / machine.chip.memory_bytes - 1) < 0.1
            bandwidth = float(text.partition("memory_bandwidth: ")[2].split()[0])
            assert abs(bandwidth / machine.chip.memory_bandwidth - 1) < 0.05
        else:
            # Four units of 128 x 128 a core, or of 256 x 256 in later chips: FLOP per cycle.
            cycle = machine.chip.peak_flops["bfloat16"] / TPU_CHIPS[machine.chip.name].clock_hertz
            assert min(abs(cycle / 2**power - 1) for power in (17, 18, 19)) < 0.01
    assert unknown == ["mi300x"]
    assert {load(f"{f}-8").chip.name for f in ("a100", "h100", "h200", "b200")} < set(GPU_TARGETS)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("v5p-64", shape(x=16, y=4)),
        ("v5p-64", shape(x=4, y=4, z=4)),
        ("v5e-16", shape(x=2, y=8)),
        ("h100-64", shape(x=16, y=4)),
        ("h100-64", shape(x=4, y=16)),
        ("2xv5e-16", shape(x=2, y=16)),
        ("2xv5e-16", shape(x=8, y=4)),
    ],
)
def test_every_position_has_a_place_and_axes_lie_as_they_are_priced(name, mesh):
    machine = load(name)
    coordinates = mesh_coordinates(machine, mesh)
    assert len({tuple(row) for row in coordinates.tolist()}) == machine.chips
    grid = coordinates.reshape(*mesh.sizes, -1)
    levels = [
        (index, dimension)
        for index, level in enumerate(machine.network)
        for dimension in range(len(level.dimensions) if isinstance(level, Torus) else 1)
    ]
    pieces = MeshTopology(machine, mesh.sizes).pieces
    for axis, parts in enumerate(pieces):
        used = {(piece.level, piece.dimension): piece for piece in parts}
        line = np.moveaxis(grid, axis, 0).reshape(mesh.sizes[axis], -1, len(levels))
        for column, key in enumerate(levels):
            values = set((line[:, 0, column] - line[0, 0, column]).tolist())
            piece = used.get(key)
            wanted = {0} if piece is None else {piece.stride * n for n in range(piece.length)}
            assert values == wanted


def test_minor_axes_stay_inside_of_a_host():
    target = target_of(load("h100-64"), shape(x=8, y=8), "gpu")
    assert target.devices == tuple((n,) for n in range(64))


def test_a_compiler_that_does_not_know_the_chip():
    with pytest.raises(CompileError) as caught:
        target_of(load("h100-8"), shape(x=8), "tpu")
    assert str(caught.value) == (
        "h100-8 has chips 'H100 SXM', which the TPU compiler does not know; it knows TPU v4, "
        "TPU v5e, TPU v5p, TPU v6e, TPU7x device. Use --compile gpu"
    )
    with pytest.raises(CompileError, match="Use --compile cpu"):
        target_of(load("mi300x-8"), shape(x=8), "gpu")


def test_a_network_that_the_compiler_does_not_take():
    machine = load("v5e-8")
    odd = replace(machine, network=load("h100-8").network)
    with pytest.raises(CompileError, match="takes one torus of chips, or equal slices of it"):
        target_of(odd, shape(x=8), "tpu")


def test_a_mesh_of_another_size():
    with pytest.raises(MachineError, match="mesh 3 has 3 devices but v5e-8 has 8 chips"):
        target_of(load("v5e-8"), shape(x=3), "tpu")


def test_a_compiler_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("autoshard.compiler.target.util.find_spec", lambda name: None)
    assert why_missing("cpu") == ""
    assert why_missing("tpu") == (
        "the TPU compiler is not installed: pip install 'autoshard[tpu]', "
        "or pip install '.[tpu]' in a clone"
    )
    assert why_missing("gpu") == (
        "the GPU compiler is not installed: pip install 'autoshard[gpu]', "
        "or pip install '.[gpu]' in a clone"
    )


# -- questions and answers ------------------------------------------------------------------------


def test_equal_questions_have_equal_keys_and_others_others(monkeypatch):
    target = target_of(load("v5e-8"), shape(x=2, y=4), "tpu")
    other = target_of(load("v5e-8"), shape(x=4, y=2), "tpu")
    assert other.devices != target.devices
    keys = [
        Request(b"", "module", target).key,
        Request(b"", "another", target).key,
        Request(b"", "module", other).key,
        Request(b"", "module", replace(target, options={"flag": True})).key,
    ]
    assert keys[0] == Request(b"other lines of source", "module", target).key
    assert len(set(keys)) == 4
    assert "jaxlib" in versions()
    monkeypatch.setattr("autoshard.compiler.request.versions", lambda: {"jaxlib": "9"})
    assert Request(b"", "module", target).key not in keys


def test_answers_are_kept_whole_or_not_at_all(tmp_path):
    answer = Answer({"memory": {"peak": 3}}, "HloModule m", schedule="s")
    assert cache.load(tmp_path, "key") is None
    cache.store(tmp_path, "key", answer)
    assert cache.load(tmp_path, "key") == answer
    cache.store(tmp_path, "key", Answer({}, "of somebody else"))
    assert cache.load(tmp_path, "key") == answer
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    (tmp_path / "key" / "final.txt.gz").write_bytes(b"damaged")
    assert cache.load(tmp_path, "key") is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "facts.json").write_text("[]")
    assert cache.load(tmp_path, "empty") is None


def test_the_cache_lies_where_caches_lie(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_folder() == tmp_path / "autoshard" / "compiled"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.default_folder() == tmp_path / "home" / ".cache" / "autoshard" / "compiled"


def test_chips_fill_each_level_once():
    machine = load("h100-64")
    counted = Counter(map(tuple, mesh_coordinates(machine, shape(x=64)).tolist()))
    assert set(counted.values()) == {1}
    assert math.prod(level.chips for level in machine.network) == len(counted)


@pytest.mark.parametrize("sizes", [(64,), (16, 4), (32, 2), (2, 32), (8, 8), (4, 4, 4), (4, 2, 8)])
def test_a_torus_dimension_that_axes_share_stays_in_one(sizes: tuple[int, ...]) -> None:
    """So that all chips, in the order of the mesh, go through the torus dimension by dimension."""
    mesh = MeshShape(tuple("xyz"[: len(sizes)]), sizes)
    coordinates = mesh_coordinates(load("v5p-64"), mesh)
    numbers = np.arange(64)
    strides = [
        next((s for s in (1, 4, 16) if (numbers // s % 4 == column).all()), None)
        for column in coordinates.T[:3]
    ]
    assert sorted(filter(None, strides)) == [1, 4, 16]
