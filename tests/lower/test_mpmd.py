"""Steps on several meshes are the step: losses, gradients, and three optimizer steps."""

from __future__ import annotations

import jax
import pytest

from tests.mpmd.cases import small_step, tiny_llama
from tests.mpmd.runs import lowered_and_differences, meshes_of

V = {"stages": 4, "placement": (0, 1, 1, 0)}

# options of the step, meshes, schedule, options of the lowering
SMALL = [
    ({}, (2, 1), "gpipe", {}),
    ({"scan": True}, (4, 2), "1f1b", {}),
    ({"scan": True, "clip": 0.1}, (1, 1), "circular", {"stages": 4}),
    ({"clip": 0.1}, (2, 2), "interleaved", {"stages": 4}),
    ({"checkpoint": True}, (1, 2, 1, 1), "zb-h1", {}),
    ({"scan": True, "checkpoint": True}, (2, 2, 2, 2), "zb-h2", {}),
    ({"clip": 0.1}, (4, 2), "zb-v", V),
    ({"scan": True, "layers": 5}, (1, 1), "dualpipe-v", V),
]


@pytest.mark.parametrize(("sizes", "meshes", "schedule", "options"), SMALL)
def test_three_steps_are_those_of_one_device(sizes, meshes, schedule, options):
    if len(jax.devices()) < sum(meshes):
        pytest.skip(f"needs {sum(meshes)} devices")
    step = small_step(**sizes)
    _, differences = lowered_and_differences(step, meshes_of(*meshes), schedule=schedule, **options)
    assert differences == []


def test_a_built_in_model():
    step = tiny_llama(layers=2)
    lowered, differences = lowered_and_differences(step, meshes_of(2, 1), steps=2)
    assert differences == []
    assert "stage 1 (layers[1])" in str(lowered)
