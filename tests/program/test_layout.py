"""Layouts against brute force and against JAX's own `NamedSharding`."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.program import layout as lay

NAMES = ("pod", "data", "model")
SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 64]), min_size=1, max_size=4).map(tuple)
MESHES = st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3).map(tuple)


def brute_force(shape, mesh_shape):
    for layout in itertools.product(range(-1, len(shape)), repeat=len(mesh_shape)):
        counts = [1] * len(shape)
        for axis, dimension in enumerate(layout):
            if dimension >= 0:
                counts[dimension] *= mesh_shape[axis]
        redundant = any(d >= 0 and mesh_shape[axis] == 1 for axis, d in enumerate(layout))
        if not redundant and all(size % n == 0 for size, n in zip(shape, counts, strict=True)):
            yield layout, counts


@settings(deadline=None)
@given(SHAPES, MESHES)
def test_table_lists_exactly_the_layouts_that_divide(shape, mesh_shape):
    expected = dict(brute_force(shape, mesh_shape))
    table = lay.layout_table(shape, 2, mesh_shape)
    assert list(table.layouts) == sorted(expected)
    assert lay.layouts(shape, mesh_shape) == sorted(expected)
    for row, layout in enumerate(table.layouts):
        assert table.index(layout) == row
        assert table.shards[row].tolist() == expected[layout]
        assert tuple(table.dimensions[row]) == layout
        assert table.local_bytes[row] == lay.local_bytes(shape, 2, layout, mesh_shape)
        assert lay.divides(shape, layout, mesh_shape)


@settings(deadline=None)
@given(SHAPES, st.data())
def test_local_shape_and_spec_agree_with_jax(shape, data):
    mesh_shape = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=3, max_size=3).map(tuple))
    layout = data.draw(st.sampled_from(lay.layouts(shape, mesh_shape)))
    spec = lay.to_partition_spec(layout, NAMES, len(shape))
    mesh = AbstractMesh(mesh_shape, NAMES, axis_types=(AxisType.Auto,) * 3)
    assert NamedSharding(mesh, spec).shard_shape(shape) == lay.local_shape(
        shape, layout, mesh_shape
    )
    assert lay.from_partition_spec(spec, NAMES, len(shape)) == layout


def test_only_the_given_dimensions_are_sharded():
    table = lay.layout_table((8, 8, 8), 4, (2, 4), dimensions=(1,))
    assert set(np.unique(table.dimensions)) == {-1, 1}
    assert len(table) == 4


def test_half_byte_types_and_empty_values():
    assert lay.local_bytes((8, 3), 0.5, (0,), (8,)) == 2
    assert lay.local_bytes((0, 8), 4, (0, 1), (2, 4)) == 0
    assert lay.layouts((), (2, 4)) == [(-1, -1)]


def test_axes_of_size_one_are_the_same_layout():
    table = lay.layout_table((8,), 4, (2, 1))
    assert table.index((0, 0)) == table.index((0, -1))


@pytest.mark.parametrize(
    ("dtype", "layout", "printed"),
    [
        ("bfloat16", (-1, -1, 0), "bf16[4096@model, 8]"),
        ("float32", (-1, 0, 0), "f32[4096@(data,model), 8]"),
        ("int8", (1, -1, -1), "i8[4096, 8@pod]"),
        ("bool", None, "bool[4096, 8]"),
        ("float8_e4m3fn", (-1, -1, -1), "f8_e4m3fn[4096, 8]"),
        (np.dtype("complex64"), (-1, -1, 1), "c64[4096, 8@model]"),
        (jax.numpy.uint32.dtype, None, "u32[4096, 8]"),
    ],
)
def test_types_print_as_in_jax(dtype, layout, printed):
    assert lay.format_type(dtype, (4096, 8), layout, NAMES) == printed


def test_shapes_that_do_not_divide_are_named_all_at_once():
    with pytest.raises(lay.LayoutError) as caught:
        lay.local_shape((6, 10, 8), (0, 1, 2), (4, 3, 2))
    assert str(caught.value) == (
        "layout (0, 1, 2) on mesh (4, 3, 2) does not divide (6, 10, 8):\n"
        "  dimension 0 has size 6, cut into 4 parts\n"
        "  dimension 1 has size 10, cut into 3 parts\n"
        "Shard another dimension, or pad these to a multiple."
    )


def test_faulty_specs_are_named_all_at_once():
    spec = PartitionSpec(("model", "data"), "rows", "data", PartitionSpec.UNCONSTRAINED, None)
    with pytest.raises(lay.LayoutError) as caught:
        lay.from_partition_spec(spec, NAMES, 4)
    assert str(caught.value).split("\n")[1:] == [
        "  * it has 5 entries for a value of rank 4; remove the rest",
        "  * dimension 0: axes ('model', 'data') are not in mesh order; write ('data', 'model'), "
        "or reorder the mesh",
        "  * dimension 1: no mesh axis 'rows' in ('pod', 'data', 'model')",
        "  * dimension 2: axis 'data' already shards dimension 0",
        "  * dimension 3: UNCONSTRAINED is not a mesh axis; name it or use None",
    ]


def test_layouts_of_another_mesh_or_rank_are_refused():
    with pytest.raises(lay.LayoutError, match=r"has 2 entries but the mesh \(4,\) has 1 axis"):
        lay.shard_counts(2, (0, 1), (4,))
    with pytest.raises(lay.LayoutError, match="mesh axis 0 on dimension 2 of a value of rank 2"):
        lay.shard_counts(2, (2,), (4,))
    with pytest.raises(lay.LayoutError, match="is not among the 2 layouts of this table"):
        lay.layout_table((4, 4), 4, (2,), dimensions=(0,)).index((1,))


def test_local_bytes_multiply_to_the_whole_on_a_fully_sharded_mesh():
    assert math.prod((2, 4)) * lay.local_bytes((64, 32), 2, (0, 1), (2, 4)) == 64 * 32 * 2
