"""`autoshard.jit`: planned at the first call with each kind of arguments, else a `jax.jit`."""

import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.machine.file import MachineError
from autoshard.search.search import InfeasibleError

MACHINE = "v5e-8"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "autoshard" / "plans"


def train(weights, batch, rate=1e-2):
    def loss(weights):
        hidden = jnp.tanh(batch["inputs"] @ weights["up"])
        return jnp.mean((hidden @ weights["down"] - batch["targets"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - rate * g, weights, gradients)


def arguments(rows=32):
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {
        "up": jax.random.normal(keys[0], (64, 128)) / 8,
        "down": jax.random.normal(keys[1], (128, 64)) / 8,
    }
    batch = {
        "inputs": np.asarray(jax.random.normal(keys[2], (rows, 64))),
        "targets": np.asarray(jax.random.normal(keys[3], (rows, 64))),
    }
    return weights, batch


def logged(caplog):
    return [one.getMessage() for one in caplog.records if one.name == "autoshard"]


def test_a_training_loop_has_the_numbers_of_jax_jit(caplog):
    caplog.set_level(logging.INFO, "autoshard")
    planned, plain = autoshard.jit(train, machine=MACHINE, donate_argnums=0), jax.jit(train)
    weights, batch = arguments()
    expected = jax.tree.map(jnp.copy, weights)
    for _ in range(3):
        loss, weights = planned(weights, batch)
        wanted, expected = plain(expected, batch)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), weights, expected)
    lowered = planned.planned(*arguments())
    jax.tree.map(
        lambda array, sharding: array.sharding.is_equivalent_to(sharding, array.ndim) or 1 / 0,
        weights,
        lowered.out_shardings[1],
    )
    (line,) = logged(caplog)
    assert line.startswith("planned train on v5e-8, mesh ")


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_another_mesh_may_be_set_around_the_step(kind):
    """As `jax.set_mesh(jax.make_mesh(...))` at the top of a program does, of Explicit axes."""
    loss, weights = jax.jit(train)(*arguments())
    loss, weights = jax.jit(train)(weights, arguments()[1])
    with jax.set_mesh(jax.make_mesh((4, 2), ("rows", "columns"), axis_types=(kind,) * 2)):
        planned = autoshard.jit(train, machine=MACHINE, mesh={"data": 8}, donate_argnums=0)
        _, found = planned(*arguments())
        again, found = planned(found, arguments()[1])
    np.testing.assert_allclose(again, loss, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), found, weights)


def test_donated_arguments_are_gone():
    planned = autoshard.jit(train, machine=MACHINE, donate_argnames="weights")
    weights, batch = arguments()
    _, weights = planned(weights, batch)
    _, again = planned(weights, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(weights))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(again))


def test_each_kind_of_arguments_has_its_plan(caplog):
    caplog.set_level(logging.INFO, "autoshard")
    planned = autoshard.jit(train, machine=MACHINE)
    for rows in (32, 64, 32, 64):
        loss, _ = planned(*arguments(rows))
        np.testing.assert_allclose(loss, train(*arguments(rows))[0], rtol=1e-5)
    assert len(logged(caplog)) == 2


def test_weak_types_have_the_plan_of_strong_ones(caplog):
    caplog.set_level(logging.INFO, "autoshard")

    def step(state, x, rate):
        count = state["count"] + 1
        return {"count": count, "mean": state["mean"] * 0.9 + rate * jnp.mean(x)}, x * state["mean"]

    planned, x = autoshard.jit(step, machine=MACHINE), np.ones((16, 8), np.float32)
    state = wanted = {"count": 0, "mean": 1.0}  # weak, as numbers of Python are
    for rate in (0.5, np.float32(0.25), 0.5):
        state, rows = planned(state, x, rate)
        wanted, expected = jax.jit(step)(wanted, x, rate)
        np.testing.assert_allclose(rows, expected, rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), state, wanted)
    assert len(logged(caplog)) == 1
    assert state["mean"].sharding.mesh.size == 8


def test_weak_types_that_make_another_step_have_their_own_plan(caplog):
    caplog.set_level(logging.INFO, "autoshard")
    planned = autoshard.jit(lambda x, scale: jnp.sin(x * scale), machine=MACHINE)
    x = jnp.ones((16, 8), jnp.bfloat16)
    assert planned(x, 2.0).dtype == jnp.bfloat16
    assert planned(x, np.float32(2.0)).dtype == jnp.float32
    assert planned(x, 2.0).dtype == jnp.bfloat16
    assert len(logged(caplog)) == 2


def test_a_module_as_a_function_of_its_arrays_by_dotted_names():
    """Of the form that `torchax.extract_jax` returns; torchax itself is not run here."""
    arrays = arguments()[0]
    state = {"layers.0.weight": arrays["up"].T, "layers.1.weight": arrays["down"].T}

    def apply(state, args):
        (x,) = args
        return jnp.tanh(x @ state["layers.0.weight"].T) @ state["layers.1.weight"].T

    def step(state, x):
        loss = lambda state: jnp.mean((apply(state, (x,)) - x) ** 2)  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(state)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, state, gradients)

    planned, x = autoshard.jit(step, machine=MACHINE), arguments()[1]["inputs"]
    value, new = planned(state, x)
    wanted, expected = jax.jit(step)(state, x)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), new, expected)
    inputs = planned.planned(state, x).plan.specs["inputs"]
    assert "[0]['layers.0.weight']" in inputs


def test_a_kept_plan_is_used_and_a_damaged_one_is_made_anew(caplog, folder):
    caplog.set_level(logging.INFO, "autoshard")
    first = autoshard.jit(train, machine=MACHINE).planned(*arguments()).plan
    (file,) = folder.iterdir()
    again = autoshard.jit(train, machine=MACHINE).planned(*arguments()).plan
    assert again == first
    assert len(logged(caplog)) == 1
    autoshard.jit(train, machine="h100-8").planned(*arguments())
    autoshard.jit(train, machine=MACHINE, memory_limit=2**30).planned(*arguments())
    assert len(list(folder.iterdir())) == 3
    file.write_text("{")
    anew = autoshard.jit(train, machine=MACHINE).planned(*arguments()).plan
    assert anew.decisions == first.decisions
    assert "planned anew, since the plan that was kept is damaged" in logged(caplog)[-2]
    autoshard.jit(train, machine=MACHINE, mesh={"a": 8}, keep=False).planned(*arguments())
    assert len(list(folder.iterdir())) == 3


def test_static_arguments_and_keywords():
    @autoshard.jit(machine=MACHINE, static_argnames="power", static_argnums=-1)
    def scaled(x, *rows, scale, power=2, mode="sum"):
        total = getattr(jnp, mode)(x + sum(rows), axis=0)
        return scale * total**power

    x, row = jnp.ones((8, 16)), jnp.ones((16,))
    one = scaled(x, row, row, scale=2.0)
    np.testing.assert_allclose(one, 2.0 * 24.0**2 * np.ones(16))
    np.testing.assert_allclose(scaled(x, scale=3.0, power=1), 24.0 * np.ones(16))
    np.testing.assert_allclose(scaled(x, scale=1.0, power=1, mode="max"), np.ones(16))
    assert scaled.__name__ == "scaled"


def test_arguments_that_lie_elsewhere_are_laid_out_as_planned():
    planned = autoshard.jit(train, machine=MACHINE, mesh={"data": 8})
    weights, batch = arguments()
    auto = (jax.sharding.AxisType.Auto,) * 2
    other = jax.make_mesh((4, 2), ("a", "b"), axis_types=auto)
    strange = jax.NamedSharding(other, jax.P("b", "a"))
    weights = jax.device_put(weights, strange)
    batch = jax.device_put(batch, jax.devices()[3])
    for _ in range(2):
        loss, _ = planned(weights, batch)
        np.testing.assert_allclose(loss, train(*arguments())[0], rtol=1e-5)


def test_a_step_is_compiled_once_though_its_first_arguments_lie_on_one_device(caplog):
    planned = autoshard.jit(train, machine=MACHINE, mesh={"data": 8}, donate_argnums=0)
    weights, batch = arguments()
    assert not weights["up"].committed
    traced = []
    with jax.log_compiles():
        for _ in range(3):
            caplog.clear()
            _, weights = planned(weights, batch)
            traced.append(sum("Compiling jit(train)" in one.message for one in caplog.records))
    assert traced == [1, 0, 0]


def test_an_array_that_stands_twice_is_copied_where_it_is_overwritten():
    def step(weights, averaged, batch):
        loss, weights = train(weights, batch)
        return loss, weights, jax.tree.map(lambda a, w: 0.9 * a + 0.1 * w, averaged, weights)

    planned = autoshard.jit(step, machine=MACHINE, mesh={"data": 8}, donate_argnums=(0, 1))
    weights, batch = arguments()
    averaged, expected = weights, [jax.tree.map(jnp.copy, weights)] * 2
    for _ in range(2):
        _, weights, averaged = planned(weights, averaged, batch)
        expected = step(*expected, batch)[1:]
    for made, wanted in zip((weights, averaged), expected, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), made, wanted)

    weights, batch = arguments()
    lowered = planned.planned(weights, weights, batch)
    loss, _, averaged = lowered.jit()(*lowered.shard(weights, weights, batch))
    np.testing.assert_allclose(loss, train(*arguments())[0], rtol=1e-5)


def test_it_can_be_lowered_and_differentiated_as_jax_jit_can():
    @autoshard.jit(machine=MACHINE)
    def total(x, w):
        return jnp.sum(jnp.sin(x @ w))

    x, w = jnp.ones((16, 8)), jnp.full((8, 8), 0.1)
    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in (x, w)]
    assert total.lower(*shapes).compile().cost_analysis()["flops"] > 0
    assert total.eval_shape(x, w).shape == ()
    np.testing.assert_allclose(
        jax.grad(total, argnums=1)(x, w), jax.grad(total.__wrapped__, argnums=1)(x, w), rtol=1e-5
    )


def test_a_loop_over_objects_that_change_in_place():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    def step(model, optimizer, x):
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(model)
        optimizer.update(model, gradients)
        return loss

    def losses(step):
        model = nnx.Sequential(
            nnx.Linear(16, 32, rngs=nnx.Rngs(0)), jax.nn.relu, nnx.Linear(32, 16, rngs=nnx.Rngs(1))
        )
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        return [float(step(model, optimizer, jnp.ones((8, 16)))) for _ in range(4)]

    planned = autoshard.jit(step, machine=MACHINE, mesh={"data": 2, "model": 4})
    np.testing.assert_allclose(losses(planned), losses(nnx.jit(step)), rtol=1e-4)
    np.testing.assert_allclose(losses(autoshard.jit(nnx.jit(step), machine=MACHINE))[-1], 0, atol=1)


def test_averaged_weights_of_objects_may_begin_as_the_arrays_of_the_weights():
    nnx = pytest.importorskip("flax.nnx")

    def step(model, averaged, x):
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(model)
        weights = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients))
        averaged = jax.tree.map(
            lambda a, w: 0.9 * a + 0.1 * w, averaged, nnx.state(model, nnx.Param)
        )
        return loss, averaged

    def last(step):
        model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
        averaged = jax.tree.map(lambda leaf: leaf, nnx.state(model, nnx.Param))
        for _ in range(3):
            loss, averaged = step(model, averaged, jnp.ones((8, 16)))
        return float(loss), np.asarray(averaged["kernel"][...])

    planned, plain = last(autoshard.jit(step, machine=MACHINE, mesh={"data": 8})), last(step)
    np.testing.assert_allclose(planned[0], plain[0], rtol=1e-5)
    np.testing.assert_allclose(planned[1], plain[1], rtol=1e-5)


def test_the_preset_without_its_size_is_for_the_devices_that_are_there():
    plan = autoshard.jit(train, machine="v5e", keep=False).planned(*arguments()).plan
    assert plan.machine == "v5e-8"
    assert math.prod(plan.mesh.sizes) == 8


def test_what_goes_wrong_says_so():
    with pytest.raises(MachineError, match="kind 'cpu': name the machine to plan for"):
        autoshard.jit(train)(*arguments())
    with pytest.raises(InfeasibleError):
        autoshard.jit(train, machine=MACHINE, memory_limit=1000)(*arguments())
    with pytest.raises(ValueError, match=r"donate_argnums holds 7; train has \['weights', 'batch'"):
        autoshard.jit(train, machine=MACHINE, donate_argnums=7)
    with pytest.raises(ValueError, match=r"static_argnames holds \['speed'\]; train has"):
        autoshard.jit(train, machine=MACHINE, static_argnames="speed")
    with pytest.raises(TypeError, match="memory_limits"):
        autoshard.jit(train, machine=MACHINE, memory_limits=3)
    with pytest.raises(TypeError, match="missing a required argument: 'batch'"):
        autoshard.jit(train, machine=MACHINE)(arguments()[0])

    def faulty(x):
        raise ValueError("no such thing")

    with pytest.raises(autoshard.program.trace.TraceError, match="no such thing"):
        autoshard.jit(faulty, machine=MACHINE)(jnp.ones(8))
