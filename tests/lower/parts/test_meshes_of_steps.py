"""Steps that name a mesh of their own, of Auto axes: their plans run, written out or not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives, verify_written
from autoshard.program.trace import trace
from tests.problem.requirements.programs import array, plan_of

SIZES = {"data": 2, "model": 4}
AUTO = (AxisType.Auto,) * 2
W, X = array(16, 32), array(8, 16)


def abstract():
    return AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=AUTO)


def concrete():
    return jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=AUTO)


def descended(forward):
    def step(w, x):
        return w - jax.grad(lambda w: jnp.sum(forward(w, x) ** 2))(w)

    return step


def constrained(mesh):
    """Types of what is computed behind a constraint name its mesh."""

    def forward(w, x):
        hidden = jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P("data", "model")))
        return jnp.tanh(hidden) * 2.0

    return descended(forward)


def solved(mesh):
    """A solve holds four functions in a tuple of names."""

    def forward(w, x):
        put = jax.lax.with_sharding_constraint(x[:, :8], NamedSharding(mesh, P("data")))
        return jnp.linalg.solve(put + 9.0 * jnp.eye(8), w[:8]) * 2.0

    return forward


def mapped(mesh):
    norm = jax.shard_map(
        lambda x: x / (1.0 + jnp.sum(x * x, -1, keepdims=True)),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
    )
    return descended(lambda w, x: norm(x) @ w)


def placed(mesh):
    """As optimizer states are that lie in the memory of hosts."""

    def on(x, kind):
        return jax.device_put(x, NamedSharding(mesh, P("data", "model"), memory_kind=kind))

    return lambda w, x: (on(on(w, "device") * 2.0, "pinned_host"), on(x, None))


@pytest.mark.parametrize("explicit", [False, True], ids=["annotated", "written"])
@pytest.mark.parametrize(
    ("make", "mesh"),
    [(constrained, concrete), (mapped, abstract), (placed, abstract), (solved, abstract)],
)
def test_plans_run_whatever_mesh_the_step_names(make, mesh, explicit):
    step = make(mesh())
    plan = plan_of(trace(step, W, X), mesh=SIZES)
    assert all(one["kept"] for one in plan.requirements)
    lowered = lower(plan, step, W, X, explicit=explicit)
    found = (verify_written if explicit else verify_collectives)(lowered)
    assert found.agrees, str(found)
    rng = np.random.default_rng(0)
    arrays = tuple(jnp.asarray(rng.normal(size=one.shape), "float32") for one in (W, X))
    assert numeric_differences(lowered, step, arrays) == []


def test_where_an_array_is_put_is_asked_for():
    plan = plan_of(trace(placed(abstract()), W, X), mesh=SIZES)
    assert set(plan.specs["outputs"].values()) == {P("data", "model")}
    assert len(plan.requirements) == 3
