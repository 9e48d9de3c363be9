"""Stages that save otherwise compute what the plain step does, whatever the schedule."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.lower.mpmd.cut.saving import StageChoice, bare
from autoshard.lower.mpmd.partition import trace_step
from autoshard.lower.mpmd.place import place_partition
from autoshard.lower.mpmd.runtime import Controller
from autoshard.lower.numbers.double import wide, widened
from autoshard.lower.numbers.numeric import Difference, compare_outputs
from autoshard.models import training
from tests.lower.mpmd.cases import small_step, tiny_llama
from tests.lower.mpmd.runs import BOUNDS, FLOOR, meshes_of
from tests.search.meshes.chains import chains


def differences(step, partition, schedule: str) -> list[Difference]:
    """Where the step, lowered in double precision, differs from the plain one."""
    args = training.sample(step.args, 0, BOUNDS)
    lowered = place_partition(
        partition,
        meshes_of(2, 2),
        schedule=schedule,
        otherwise=lambda program, shapes: widened(program, *shapes),
    )
    double = widened(step.fn, *args)
    with jax.enable_x64(True):
        expected = jax.jit(double)(*jax.tree.map(lambda leaf: leaf + 0, wide(args)))
        result = lowered.run(*jax.tree.map(lambda leaf: leaf + 0, wide(args)))
        return compare_outputs(expected, lowered.whole(result), floor=FLOOR)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(
    "step",
    [small_step(4, checkpoint=True), tiny_llama(4, scan=False)],
    ids=["layers", "llama in bfloat16"],
)
def test_unrolled_layers_under_checkpoints_save_what_is_chosen(step, schedule):
    traced, found = trace_step(step.fn, *step.args, **step.options), []

    def saved(staged):
        found.append(staged)
        every = (frozenset(bare(v.name) for v in one.values) for one in staged.residuals)
        nothing, everything = frozenset[str](), next(every)
        return [StageChoice(everything), StageChoice(nothing)]

    plain, other = traced.cut((2, 2)), traced.cut((2, 2), saved=saved)
    first, second = ([bare(v.name) for v in one.values] for one in found[0].residuals)
    assert all(name.startswith(("layer_0/", "layer_1/", "backward/")) for name in first)
    assert all(name.startswith(("layer_2/", "layer_3/", "backward/")) for name in second)
    assert other.cut.bytes(other.cut.kept(0)) > plain.cut.bytes(plain.cut.kept(0))
    flops = [[one.cut.fragments[s, "BW"].flops for s in (0, 1)] for one in (plain, other)]
    assert flops[1][0] < flops[0][0]
    assert flops[1][1] == pytest.approx(flops[0][1], rel=0.01)
    assert differences(step, other, schedule) == []


def test_checkpoints_may_have_loops_that_are_not_cut():
    def layer(x, weight):
        turn = lambda x, _: (jnp.tanh(x @ weight), None)  # noqa: E731
        return jax.lax.scan(turn, x, None, length=3)[0] @ weight

    def loss(params, batch):
        for number in range(4):
            with jax.named_scope(f"layer_{number}"):
                batch = jax.checkpoint(layer)(batch, params[number])
        return jnp.mean(batch**2)

    def step(params, batch):
        value, gradients = autoshard.accumulate_grads(loss, microbatches=2)(params, batch)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    shapes = [training.abstract(8, 8)] * 4, training.abstract(8, 8)
    step = training.Step(step, shapes, {"donate_argnums": (0,)})
    traced, found = trace_step(step.fn, *step.args, **step.options), []

    def saved(staged):
        found.append(staged)
        return [
            StageChoice(frozenset(bare(v.name) for v in one.values)) for one in staged.residuals
        ]

    partition = traced.cut((2, 2), saved=saved)
    assert all(one.values for one in found[0].residuals)
    assert differences(step, partition, "1f1b") == []


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("prefetch", [False, True])
def test_stacks_wait_on_the_host(schedule, prefetch):
    step, found = chains(4, rows=64), set()
    args = training.sample(step.args, 0, {})

    def saved(staged):
        carried = staged.residuals[0]
        stacks = carried.stacks(carried.saved_as_written())
        more = frozenset(["layers/tanh", "layers/tanh#3"])
        return [
            StageChoice(None, frozenset(map(bare, stacks)), prefetch),
            StageChoice(more, frozenset(["layers/tanh#3"]), prefetch),
        ]

    with jax.enable_x64(True):
        fn, args = widened(step.fn, *args), wide(args)
        partition = trace_step(fn, *args, **step.options).cut((4, 4), saved=saved)
        lowered = place_partition(partition, meshes_of(2, 2), schedule=schedule, merge=())
        expected = jax.jit(fn)(*jax.tree.map(lambda leaf: leaf + 0, args))

        class Seen(Controller):
            def do(self, one) -> None:
                super().do(one)
                found.update(
                    (slot.mesh, array.shape, len(array.sharding.device_set))
                    for slot, array in self.slots.items()
                    if array.sharding.memory_kind == "pinned_host"
                )

        result = Seen(lowered).step(tuple(args))
        assert compare_outputs(expected, lowered.whole(result), floor=FLOOR) == []
    assert found == {(0, (4, 64, 16), 2), (1, (4, 64, 16), 2)}
