"""Steps written for Explicit mesh axes: what they say is asked for, and their plans run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, auto_axes, reshard
from jax.sharding import PartitionSpec as P

from autoshard.lower.mpmd.cut.loop import LoopError
from autoshard.lower.mpmd.partition import trace_step
from autoshard.lower.parts.cut import LoweringError
from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from autoshard.problem.requirements.from_program import constraints_of
from autoshard.program.select import RequirementError
from autoshard.program.trace import trace
from autoshard.study.annotate.fewest import fewest
from tests.problem.requirements.programs import array, plan_of

SIZES = {"data": 2, "model": 4}
W = {"a": array(256, 1024), "b": array(1024, 256)}
X = array(64, 256)


def mesh_of(*kinds):
    return jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=kinds)


EXPLICIT = AxisType.Explicit, AxisType.Explicit
MIXED = AxisType.Explicit, AxisType.Auto


def train(forward):
    def step(w, x, y):
        loss, grads = jax.value_and_grad(lambda w: jnp.mean((forward(w, x) - y) ** 2))(w)
        return jax.tree.map(lambda a, b: a - 1e-2 * b, w, grads), loss

    return step


@train
def plain(w, x):
    return jax.nn.gelu(x @ w["a"]) @ w["b"]


@train
def told(w, x):
    hidden = jnp.einsum("bd,df->bf", x, w["a"], out_sharding=P("data", "model"))
    return jnp.einsum("bf,fd->bd", jax.nn.gelu(hidden), w["b"], out_sharding=P("data"))


@train
def resharded(w, x):
    x, a, b = reshard(x, P("data")), reshard(w["a"], P(None, "model")), reshard(w["b"], P("model"))
    return jnp.einsum("bf,fd->bd", jax.nn.gelu(x @ a), b, out_sharding=P("data"))


@train
def in_a_loop(w, x):
    def block(h, _):
        h = jnp.einsum("bd,df->bf", h, w["a"], out_sharding=P("data", "model"))
        return jnp.einsum("bf,fd->bd", jnp.tanh(h), w["b"], out_sharding=P("data")), None

    return jax.lax.scan(jax.checkpoint(block), reshard(x, P("data")), None, length=3)[0]


@train
def shaped(w, x):
    x = x.reshape(8, 8, 256, out_sharding=P("data"))
    return (jnp.tanh(x @ w["a"]) @ w["b"]).reshape(64, 256, out_sharding=P("data"))


def asked(program):
    """What a program asks for, and by what."""
    return [
        (one.source.split(" at ")[0].split(" of the argument ")[0], str(one.layout))
        for one in constraints_of(program)
    ]


def typed(mesh):
    def argument(shape, *entries):
        return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P(*entries)))

    w = {"a": argument((256, 1024), None, "model"), "b": argument((1024, 256), "model")}
    return w, argument((64, 256), "data"), argument((64, 256), "data")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (plain, []),
        (told, [("out_sharding", "[data, model]"), ("out_sharding", "[data, None]")]),
        (
            resharded,
            [
                ("reshard", "[data, None]"),
                ("reshard", "[None, model]"),
                ("reshard", "[model, None]"),
                ("out_sharding", "[data, None]"),
            ],
        ),
        (shaped, [("out_sharding", "[data, None, None]"), ("out_sharding", "[data, None]")]),
    ],
)
def test_what_the_user_says_is_asked_for_and_what_follows_is_not(step, expected):
    """Neither types that JAX works out nor those of cotangents are."""
    with jax.set_mesh(mesh_of(*EXPLICIT)):
        program = trace(step, W, X, X)
    assert program.explicit
    assert asked(program) == expected


def test_shardings_of_arguments_are_asked_for():
    mesh = mesh_of(*EXPLICIT)
    with jax.set_mesh(mesh):
        program = trace(told, *typed(mesh))
    assert asked(program)[2:] == [
        ("sharding", layout)
        for layout in ("[None, model]", "[model, None]", "[data, None]", "[data, None]")
    ]


def test_of_auto_axes_beside_explicit_ones_types_say_nothing():
    """And constraints say nothing of the Explicit axes."""
    mesh = mesh_of(*MIXED)

    def step(x, w):
        hidden = jnp.einsum("bd,df->bf", x, w, out_sharding=P("data", None))
        hidden = jax.lax.with_sharding_constraint(hidden, P(None, "model"))
        return jnp.tanh(hidden)

    with jax.set_mesh(mesh):
        x = jax.ShapeDtypeStruct((64, 256), "float32", sharding=NamedSharding(mesh, P("data")))
        program = trace(step, x, W["a"])
        plan = plan_of(program, mesh=SIZES)
        assert [one["kept"] for one in plan.requirements] == [True] * 3
        assert plan.specs["outputs"][""] == P("data", "model")
        lowered = lower(plan, step, x, W["a"])
        assert verify_collectives(lowered).agrees


@pytest.mark.parametrize("step", [plain, told, resharded, in_a_loop, shaped])
@pytest.mark.parametrize("explicit", [False, True], ids=["annotated", "written"])
def test_plans_run_on_explicit_meshes(step, explicit):
    mesh = mesh_of(*EXPLICIT)
    with jax.set_mesh(mesh):
        plan = plan_of(trace(step, W, X, X, donate_argnums=0), mesh=SIZES)
        assert all(one["kept"] for one in plan.requirements)
        lowered = lower(plan, step, W, X, X, explicit=explicit)
        assert lowered.mesh == mesh
        rng = np.random.default_rng(0)
        concrete = jax.tree.map(
            lambda one: rng.normal(size=one.shape).astype(one.dtype) * 0.1, (W, X, X)
        )
        assert numeric_differences(lowered, step, concrete) == []
        results = lowered.jit()(*jax.device_put(concrete, lowered.in_shardings))
        kinds = {one.sharding.mesh.axis_types for one in jax.tree.leaves(results)}
        assert kinds == {EXPLICIT}
        if not explicit:
            assert verify_collectives(lowered).agrees


def test_a_plan_on_another_mesh_than_the_one_that_is_set_is_judged_too():
    with jax.set_mesh(mesh_of(*EXPLICIT)):
        plan = plan_of(trace(plain, W, X, X), mesh={"x": 8})
        lowered = lower(plan, plain, W, X, X)
        assert verify_collectives(lowered).agrees
        ones = jax.tree.map(lambda one: np.ones(one.shape, one.dtype) * 0.01, (W, X, X))
        assert numeric_differences(lowered, plain, ones) == []


def test_a_part_in_auto_mode_asks_for_its_result_alone():
    """`.at[].get(out_sharding=)` is such a part."""

    def step(table, ids):
        return table.at[ids].get(out_sharding=P("data", None))

    def inside(x):
        return auto_axes(lambda y: jnp.cumsum(y, 0), out_sharding=P(None, "model"))(x)

    with jax.set_mesh(mesh_of(*EXPLICIT)):
        looked_up = trace(step, array(512, 64), jax.ShapeDtypeStruct((32,), "int32"))
        summed = trace(inside, X)
    assert asked(looked_up) == [("reshard", "[data, None]")]
    assert asked(summed) == [("reshard", "[None, model]")]


def test_unreduced_types_are_refused_with_their_line():
    def step(x, w):
        x, w = reshard(x, P(None, "model")), reshard(w, P("model", None))
        summed = jnp.einsum("bd,df->bf", x, w, out_sharding=P(unreduced={"model"}))
        return reshard(summed, P())

    with jax.set_mesh(mesh_of(*EXPLICIT)):
        program = trace(step, X, W["a"])
    with pytest.raises(RequirementError, match=r"out_sharding at .*test_explicit_axes\.py:\d+: .*"):
        constraints_of(program)


def test_what_is_for_auto_axes_alone_says_so():
    with jax.set_mesh(mesh_of(*EXPLICIT)):
        plan = plan_of(trace(told, W, X, X), mesh=SIZES)
        lowered = lower(plan, told, W, X, X)
        with pytest.raises(LoweringError, match="written for Explicit mesh axes"):
            fewest(lowered, told)
        with pytest.raises(LoopError, match="written for the Explicit axes of one mesh"):
            trace_step(told, W, X, X)
