"""Which devices hold which part: as JAX says, and as text and SVG."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from autoshard.program.layout import LayoutError
from autoshard.show.layout import layout_grid, runs, svg
from tests.show.reading import read

SPECS = [
    ((8, 4), PartitionSpec("x", "y")),
    ((8, 4), PartitionSpec(None, "y")),
    ((8,), PartitionSpec(("y", "x"))),
    ((4, 2, 8), PartitionSpec("y", "x")),
    ((4, 4, 8), PartitionSpec("y", None, "x")),
    ((), PartitionSpec()),
]


@pytest.mark.parametrize(("shape", "spec"), SPECS)
def test_it_is_what_jax_does(shape, spec):
    if len(jax.devices()) != 8:
        pytest.skip("needs eight devices")
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    grid = layout_grid(shape, spec, mesh.shape)
    number = {device: k for k, device in enumerate(mesh.devices.flat)}
    indices = NamedSharding(mesh, spec).devices_indices_map(shape)
    held: dict[str, list[int]] = {}
    for device, index in indices.items():
        key = str([part.indices(size) for part, size in zip(index, shape, strict=True)])
        held.setdefault(key, []).append(number[device])
    cells = [cell for row in grid.devices for cell in row]
    assert sorted(sorted(devices) for devices in held.values()) == sorted(map(list, cells))
    assert np.shape(grid.devices)[:2] == (len(grid.rows), len(grid.columns))


def test_as_text():
    assert str(layout_grid((8, 4), PartitionSpec("x", "y"), {"x": 2, "y": 2})) == (
        "f32[8@x, 4@y] over x=2, y=2\n         0:2  2:4\n    0:4    0    1\n    4:8    2    3"
    )
    assert str(layout_grid((8,), (), {"x": 4}, dtype="bfloat16")) == (
        "bf16[8] over x=4\n      whole\n        0-3"
    )


def test_three_dimensions_that_are_cut():
    grid = layout_grid((4, 6, 8), PartitionSpec("x", "y", "z"), {"x": 2, "y": 3, "z": 2})
    assert grid.rows == ("0:2, 0:2", "0:2, 2:4", "0:2, 4:6", "2:4, 0:2", "2:4, 2:4", "2:4, 4:6")
    assert grid.columns == ("0:4", "4:8")
    assert grid.devices[4] == ((8,), (9,))


def test_long_ones_are_folded():
    grid = layout_grid((512, 512), PartitionSpec("x", "y"), {"x": 64, "y": 64})
    assert len(str(grid).split("\n")) == 1 + 1 + 17
    assert max(map(len, str(grid).split("\n"))) < 120
    found = read(svg(grid))
    assert found.tags.count("rect") == 16 * 12
    assert "devices 4095" in found.all_text()


def test_svg_names_all_devices():
    found = read(layout_grid((8, 4), PartitionSpec("x"), {"x": 2, "y": 32})._repr_html_())
    assert "devices 0-31" in found.all_text()
    assert "devices 32-63" in found.all_text()


def test_runs():
    assert runs((0, 1, 2, 4, 8, 9)) == "0-2, 4, 8-9"


def test_what_does_not_fit_is_named_all_at_once():
    with pytest.raises(LayoutError) as error:
        layout_grid((7, 4), ("x", "q", "x"), {"x": 2})
    assert str(error.value) == (
        "(7, 4) cannot be laid out as ('x', 'q', 'x') over x=2:\n"
        "  - 3 entries for 2 dimensions\n"
        "  - no axis 'q' in the mesh\n"
        "  - axis 'x' is used twice"
    )
    with pytest.raises(LayoutError, match="dimension 0 of size 7 is cut into 2 parts"):
        layout_grid((7, 4), ("x",), {"x": 2})
