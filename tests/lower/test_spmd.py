"""What a lowered step can do: run, donate, be differentiated, exported and printed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autoshard
from autoshard import compat
from autoshard.lower.numbers.numeric import require_same_outputs
from autoshard.lower.spmd import lower
from autoshard.lower.verify import verify
from autoshard.machine.compiler import FLAGS
from autoshard.plan.plan import Plan, PlanError
from autoshard.program.rules.ask_shardy import FactorKind, UserRule
from tests.helpers import MESHES, case, concrete_like, random_plan

F32 = jnp.float32


def f(*shape):
    return jax.ShapeDtypeStruct(shape, F32)


def step(params, x):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((jax.nn.relu(x @ p) @ p.T) ** 2))(params)
    return loss, params - 0.1 * grads


STEP = (f(16, 32), f(8, 16))


@pytest.fixture(scope="module")
def lowered():
    given = case(step, *STEP, mesh=MESHES["2x4"], donate_argnums=(0,))
    return lower(random_plan(given, 0), step, *STEP)


def test_donated_state_is_gone_and_lies_where_its_successor_does(lowered):
    params, x = jax.device_put(concrete_like(STEP), lowered.in_shardings)
    expected = step(*concrete_like(STEP))
    loss, new = lowered.jit()(params, x)
    assert params.is_deleted()
    assert not x.is_deleted()
    assert new.sharding == lowered.in_shardings[0]
    require_same_outputs(expected, (loss, new), tolerances={"float32": 1e-4})
    aliased = lowered.lower().compile().memory_analysis().alias_size_in_bytes
    assert aliased == new.addressable_shards[0].data.nbytes


def test_exported_bytes_run_on_eight_devices(lowered):
    data = lowered.export(platforms=("cpu",))
    again = jax.export.deserialize(bytearray(data))
    assert again.nr_devices == 8
    arguments = jax.device_put(concrete_like(STEP), lowered.in_shardings)
    result = jax.jit(again.call)(*arguments)
    require_same_outputs(step(*concrete_like(STEP)), result, tolerances={"float32": 1e-4})


def test_the_module_as_text_names_the_mesh_and_the_constraints(lowered):
    text = lowered.mlir_text()
    assert 'sdy.mesh @mesh = <["x"=2, "y"=4]>' in text
    assert "sdy.sharding_constraint" in text


def test_another_program_is_refused(lowered):
    with pytest.raises(PlanError, match="search again"):
        lower(lowered.plan, lambda p, x: step(p, x * 2), *STEP)


def test_another_tree_of_arguments_is_refused(lowered):
    with pytest.raises(TypeError, match="was planned for arguments"):
        lowered.fn((jnp.ones((16, 32)), jnp.ones((8, 16))))


def test_too_few_devices_are_refused(lowered):
    with pytest.raises(ValueError, match="needs 8 devices, but 4 were given"):
        lower(lowered.plan, step, *STEP, devices=jax.devices()[:4])


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


def loss_of_layers(weights, x):
    @jax.checkpoint
    def layer(h, w):
        return clipped(jax.nn.silu(h @ w)) + jax.nn.relu(h), None

    return jnp.sum(lax.scan(layer, x, weights)[0] ** 2)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_go_through_a_lowered_function(seed):
    args = f(3, 16, 16), f(8, 16)
    plan = random_plan(case(loss_of_layers, *args, mesh=MESHES["2x4"]), seed)
    lowered = lower(plan, loss_of_layers, *args)
    weights, x = concrete_like(args)
    expected = jax.jit(jax.grad(loss_of_layers, argnums=(0, 1)))(weights, x)
    actual = jax.jit(jax.grad(lowered.fn, argnums=(0, 1)))(weights, x)
    require_same_outputs(expected, actual, tolerances={"float32": 1e-4})


def kernel_step(x, w):
    from jax.experimental import pallas as pl

    def double_kernel(source, target):
        target[...] = source[...] * 2

    return pl.pallas_call(double_kernel, out_shape=f(8, 16), interpret=True)(x) @ w


RULES = {"double_kernel": UserRule("i j -> i j")}


def test_a_kernel_of_one_block_stays_whole_whatever_its_rule_says():
    """The space holds what lowering can do."""
    args = f(8, 16), f(16, 8)
    given = case(kernel_step, *args, mesh=MESHES["2x4"], user_rules=RULES)
    number = next(op.index for op in given.program.ops if op.primitive == "pallas_call")
    factors = given.program.ops[number].rule.factors
    assert {factor.kind for factor in factors} == {FactorKind.REPLICATE}
    plan = random_plan(given, 0)
    checked = verify(plan, kernel_step, *args, concrete=concrete_like(args))
    assert checked.agrees, str(checked)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_plan_compiles_for_a_topology_without_devices(monkeypatch):
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4")
    given = case(step, *STEP, mesh=MESHES["2x4"])
    lowered = lower(random_plan(given, 0), step, *STEP, devices=topology.devices)
    assert lowered.lower().compile().memory_analysis().argument_size_in_bytes > 0


def test_inputs_keep_their_planned_places(lowered):
    spec = lowered.plan.specs["inputs"]["[0]"]
    assert lowered.in_shardings[0].spec == spec
    assert np.prod(lowered.mesh.devices.shape) == 8


def small_step(weights, batch):
    return jax.tree.map(lambda w: w - 0.1 * jnp.mean(batch @ w), weights)


COUNTED = np.arange(64, dtype=np.float32).reshape(8, 8)
WEIGHTS = {"up": COUNTED, "down": COUNTED + 1}
BATCH = np.ones((16, 8), np.float32)


@pytest.fixture(scope="module")
def placed():
    program = autoshard.trace(small_step, WEIGHTS, BATCH)
    requirements = ["pin weights.up [data, ...]", "pin batch [data, ...]"]
    plan = autoshard.search(program, "v5e-8", mesh={"data": 8}, requirements=requirements)
    return autoshard.lower(plan, small_step, WEIGHTS, BATCH)


def test_arguments_are_laid_out_as_planned(placed):
    weights, batch = placed.shard(WEIGHTS, BATCH)
    assert weights["up"].sharding == placed.in_shardings[0]["up"]
    assert weights["up"].addressable_shards[0].data.shape == (1, 8)
    assert batch.sharding == placed.in_shardings[1]
    alone = placed.shard(WEIGHTS)
    np.testing.assert_array_equal(alone["down"], WEIGHTS["down"])
    results = placed.jit()(alone, batch)
    np.testing.assert_allclose(results["up"], small_step(WEIGHTS, BATCH)["up"], rtol=1e-6)


def test_what_is_no_argument_of_the_step_is_refused(placed):
    with pytest.raises(TypeError, match="small_step takes 2 arguments, not 3"):
        placed.shard(WEIGHTS, BATCH, BATCH)
    said = (
        r"small_step was planned for other arguments: \[0\]\['down'\] is missing; search for a plan"
    )
    with pytest.raises(TypeError, match=said):
        placed.shard({"up": WEIGHTS["up"]})


def test_what_is_no_array_may_be_made_anew_for_arguments_to_be_laid_out():
    """As the functions of an optimizer are, of which a plan was made from shapes alone."""

    @partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["update"])
    @dataclass
    class State:
        arrays: Any
        update: Any

    def made():
        return State(WEIGHTS, lambda gradients: gradients)

    def step(state, batch):
        return small_step(state.arrays, batch)

    plan = autoshard.search(autoshard.trace(step, made(), BATCH), "v5e-8", mesh={"data": 8})
    lowered = autoshard.lower(plan, step, made(), BATCH)
    state = made()
    laid = lowered.shard(state)
    assert laid.update is state.update
    assert laid.arrays["up"].sharding == lowered.in_shardings[0].arrays["up"]


def test_a_checkpoint_is_restored_into_the_plans_shardings(placed, tmp_path):
    checkpoint = pytest.importorskip("orbax.checkpoint")
    saved = checkpoint.StandardCheckpointer()
    saved.save(tmp_path / "weights", jax.tree.map(jnp.asarray, WEIGHTS))
    saved.wait_until_finished()
    restored = saved.restore(tmp_path / "weights", placed.in_abstract[0])
    for name, array in restored.items():
        assert array.sharding == placed.in_shardings[0][name]
        np.testing.assert_array_equal(array, WEIGHTS[name])


def test_flags_of_the_plans_machine_are_passed_on():
    """Pipelined collectives, which XLA:CPU takes for flags that it has no use for."""

    def step(stack, x):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]

    args = jnp.ones((4, 16, 16)), jnp.ones((32, 16))
    told = {}
    for name in ("h100-8", "h100-8@recipe"):
        plan = autoshard.search(
            autoshard.trace(step, *args), name, mesh={"x": 8}, time_limit=5.0, baselines=False
        )
        again = Plan.from_json(plan.to_json())
        lowered = autoshard.lower(again, step, *args)
        told[name] = lowered.compiler_options
        given = lowered.shard(*args)
        np.testing.assert_allclose(lowered.jit()(*given), step(*args), rtol=1e-5)
        assert (again.flags == "recipe") == ("recipe flags" in again.belief)
    assert told["h100-8"] == {}
    known = compat.known_flags(FLAGS["xla:gpu", "recipe"])
    assert told["h100-8@recipe"] == known
    assert known["xla_gpu_enable_while_loop_double_buffering"] is True
    assert len([one for one in known if "pipeline" in one]) == 3
