"""A plan as a `LayoutMap` of Keras."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest

from autoshard.plan.keras_layouts import KerasLayoutError, keras_layouts
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import toy_machine


@dataclass
class Variable:
    """What of a Keras variable is read."""

    path: str
    shape: tuple[int, ...]


SHAPES = (64, 128), (128,), ()
PATHS = "dense/kernel", "dense/bias", "scale"
VARIABLES = [Variable(path, shape) for path, shape in zip(PATHS, SHAPES, strict=True)]


def planned(mesh, layout):
    def step(weights, x):
        kernel, bias, scale = weights
        return jnp.tanh(x @ kernel + bias).sum() * scale

    weights = [jax.ShapeDtypeStruct(shape, "float32") for shape in SHAPES]
    program = trace(step, weights, jax.ShapeDtypeStruct((32, 64), "float32"))
    asked = [f"pin weights[0] {layout}", "pin weights[1] [None]"]
    options = {"mesh": mesh, "requirements": asked, "baselines": False, "gap": 0.5}
    return search(program, toy_machine(8), **options)


def test_each_variable_has_an_axis_for_each_dimension():
    found = keras_layouts(planned({"x": 4, "y": 2}, "[y, x]"), VARIABLES)
    assert found == {"dense/kernel": ("y", "x"), "dense/bias": (None,), "scale": ()}


def test_what_keras_cannot_say_is_refused():
    plan = planned({"x": 4, "y": 2}, "[None, (x, y)]")
    with pytest.raises(KerasLayoutError) as raised:
        keras_layouts(plan, VARIABLES, None, VARIABLES[:1])
    assert str(raised.value).splitlines() == [
        "Keras cannot lay these out as planned:",
        "  - dense/kernel: a dimension is cut over x and y",
        "  - the plan has no input [2][0], for dense/kernel",
        "a layout of Keras has one mesh axis for a dimension: search with a mesh of one axis, as "
        "--mesh 8",
    ]


@pytest.mark.long
def test_keras_takes_them(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    mesh = keras.distribution.DeviceMesh((4, 2), ("x", "y"), [f"cpu:{k}" for k in range(8)])
    layouts = keras.distribution.LayoutMap(mesh)
    for path, axes in keras_layouts(planned({"x": 4, "y": 2}, "[y, x]"), VARIABLES).items():
        layouts[path] = axes
    spec = layouts["dense/kernel"].backend_layout.spec
    assert spec == jax.sharding.PartitionSpec("y", "x")
