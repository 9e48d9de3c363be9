"""Steps that are not written in microbatches are cut into them, and then into stages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autoshard.lower.mpmd.cut.loop import LoopError
from autoshard.lower.mpmd.partition import trace_step
from autoshard.models import training
from tests.lower.mpmd.cases import small_step, tiny_llama, tiny_vit
from tests.lower.mpmd.cut.test_saving import differences


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(
    "step",
    [
        tiny_llama(4, microbatches=None),
        tiny_llama(4, microbatches=None, scan=False),
        tiny_vit(4, microbatches=None),
    ],
    ids=["loop", "unrolled", "images"],
)
def test_a_step_is_cut_as_on_one_mesh(step, schedule):
    traced = trace_step(step.fn, *step.args, **step.options, microbatches=4)
    assert traced.step.microbatches == 4
    partition = traced.cut((2, 2))
    assert [len(names) for names in partition.cut.stages.names] == [2, 2]
    assert differences(step, partition, schedule) == []


def test_a_step_that_is_written_in_microbatches_is_cut_no_more():
    step = small_step()
    with pytest.raises(LoopError) as caught:
        trace_step(step.fn, *step.args, **step.options, microbatches=2)
    assert str(caught.value) == (
        "the step is written in microbatches, and not cut into 2 more: leave --accumulate out"
    )


def test_what_cannot_be_cut_is_named():
    def step(weights, batch):
        def loss(weights):
            hidden = batch @ weights
            return jnp.sum((hidden - jnp.max(hidden, axis=0)) ** 2)

        value, gradient = jax.value_and_grad(loss)(weights)
        return value, weights - 0.1 * gradient

    shapes = training.abstract(8, 8), training.abstract(16, 8)
    with pytest.raises(LoopError, match=r"cannot be cut into 4 microbatches:.*\n.*reduce_max"):
        trace_step(step, *shapes, donate_argnums=(0,), microbatches=4)
    with pytest.raises(LoopError, match="or have a search cut it"):
        trace_step(step, *shapes, donate_argnums=(0,))
