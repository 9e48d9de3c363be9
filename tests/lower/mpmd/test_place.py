"""Steps on several meshes are the step: losses, gradients, and three optimizer steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.lower.interpret import LoweringError
from autoshard.lower.mpmd.cut.inference import PlacementError
from autoshard.models import training
from autoshard.search.meshes.lower_step import lower_mpmd
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.task import Task
from tests.lower.mpmd.cases import small_step, tiny_llama
from tests.lower.mpmd.runs import lowered_and_differences, meshes_of

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


HOMES = [
    ({}, {"params.embedding": 1, "params.layers[*]": 1}, {"result[0]": 0}),
    ({"scan": True}, {"params.layers": 0, "batch.**": 2}, {"result[0]": 1}),
    ({"clip": 0.1}, {"**.embedding": 2}, {"result[1].layers[3]": 0}),
]


@pytest.mark.parametrize(("sizes", "inputs", "outputs"), HOMES)
def test_inputs_and_results_are_where_the_user_wants_them(sizes, inputs, outputs):
    lowered, differences = lowered_and_differences(
        small_step(**sizes), meshes_of(2, 2, 1), inputs=inputs, outputs=outputs, steps=2
    )
    assert differences == []
    usual, _ = lowered_and_differences(small_step(**sizes), meshes_of(2, 2, 1), steps=0)
    partition, moved = lowered.partition, 0
    for position, mesh in partition.homes.inputs.items():
        for slots in lowered.script.inputs[position]:
            assert [slot.mesh for slot in slots] == [mesh]
        moved += lowered.script.inputs[position] != usual.script.inputs[position]
    for position, mesh in partition.homes.outputs.items():
        assert {slot.mesh for slot in lowered.script.outputs[position]} == {mesh}
        moved += lowered.script.outputs[position] != usual.script.outputs[position]
    assert moved


def test_homes_that_cannot_be():
    step = small_step()
    with pytest.raises(PlacementError) as caught:
        lower_mpmd(
            step.fn,
            *step.args,
            meshes=meshes_of(1, 1),
            donate_argnums=(0, 1),
            inputs={"params.embeding": 0, "params.layers[0]": 2, "params.layers[1]": 0},
            outputs={"result[1].layers[1]": 1, "result[0]": 0, "result.**": 1},
        )
    message = str(caught.value)
    assert "'params.embeding' names nothing; did you mean params.embedding" in message
    assert "'params.layers[0]': there is no mesh 2, but meshes 0 to 1" in message
    assert "result[0] is given mesh 0, and mesh 1 by 'result.**'" in message
    assert "params.layers[1] is put on mesh 0, and what replaces it" in message


def test_a_built_in_model():
    step = tiny_llama(layers=2)
    lowered, differences = lowered_and_differences(step, meshes_of(2, 1), steps=2)
    assert differences == []
    assert "stage 1 (layers[1])" in str(lowered)


def test_what_a_cut_scan_tells_of_every_layer():
    """Auxiliary values of layers in several stages, of all microbatches."""

    def loss(weights, batch):
        def layer(x, weight):
            x = jnp.tanh(x @ weight)
            return x, jnp.mean(x**2)

        x, squares = jax.lax.scan(layer, batch["images"], weights)
        return jnp.mean(x**2), {"squares": squares, "last": x}

    def step(weights, batch):
        accumulated = autoshard.accumulate_grads(loss, microbatches=2, has_aux=True)
        (value, told), gradients = accumulated(weights, batch)
        return {"loss": value, **told}, jax.tree.map(lambda w, d: w - 0.1 * d, weights, gradients)

    args = training.abstract(5, 8, 8), {"images": training.abstract(8, 8)}
    plain = training.Step(step, args, {"donate_argnums": (0,)})
    lowered, differences = lowered_and_differences(plain, meshes_of(2, 1))
    assert differences == []
    assert lowered.partition.cut.stages.names[1] == ("scan[3]", "scan[4]")


def test_meshes_that_share_devices():
    step = small_step(2)
    mesh = meshes_of(1)[0]
    with pytest.raises(LoweringError, match=r"is in mesh 0 and in mesh 1"):
        lower_mpmd(step.fn, *step.args, meshes=[mesh, mesh])


def test_an_order_that_leaves_tasks_out():
    step = small_step(2, microbatches=1)
    order = ((Task("F", 0, 0), Task("BW", 0, 0)), (Task("F", 1, 0),))
    with pytest.raises(ScheduleError, match=r"stage 1, microbatch 0 has F"):
        lower_mpmd(step.fn, *step.args, meshes=meshes_of(1, 1), schedule=order)


def test_an_order_in_which_meshes_wait_for_each_other():
    step = small_step(2, microbatches=1)
    order = ((Task("BW", 0, 0), Task("F", 0, 0)), (Task("F", 1, 0), Task("BW", 1, 0)))
    with pytest.raises(ScheduleError, match=r"(?s)wait for each other.*mesh 1: F0@1 waits"):
        lower_mpmd(step.fn, *step.args, meshes=meshes_of(1, 1), schedule=order)


def test_other_arguments_are_refused():
    step = small_step(2)
    lowered = lower_mpmd(step.fn, *step.args, meshes=meshes_of(1, 1))
    with pytest.raises(TypeError, match="was lowered for arguments"):
        lowered.run(step.args[0])
