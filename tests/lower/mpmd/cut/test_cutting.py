"""Fragments: together they compute the microbatch, and B and W repeat nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.lower.mpmd.cut.blocks import find_blocks
from autoshard.lower.mpmd.cut.fragments import SHARED
from autoshard.lower.mpmd.cut.graph import run
from autoshard.lower.mpmd.cut.inference import PlacementError
from autoshard.lower.mpmd.cut.stages import StageError
from autoshard.lower.numbers.numeric import compare_outputs
from tests.lower.mpmd.cases import cut_of, run_cut, small_step, taken_apart, tiny_llama


def random_inputs(graph):
    generator = np.random.default_rng(0)
    for value in graph.inputs:
        aval = graph.avals[value]
        whole = jnp.issubdtype(aval.dtype, jnp.integer)
        array = generator.integers(0, 8, aval.shape) if whole else generator.normal(size=aval.shape)
        yield jnp.asarray(array, aval.dtype)


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scan"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["kept", "checkpoint"])
def test_fragments_compute_the_microbatch(scan, checkpoint):
    fn, args, _ = small_step(3, scan=scan, checkpoint=checkpoint)
    step = taken_apart(fn, args)
    cut = cut_of(step, 2)
    inputs = list(random_inputs(step.micro))
    known = dict(zip(step.micro.inputs, inputs, strict=True))
    expected = run(step.micro.nodes, known, step.micro.outputs)
    for fused in (True, False):
        assert compare_outputs(expected, run_cut(cut, inputs, fused=fused)) == []


def mlp(microbatches=2, layers=4, width=8, *, scope=True):
    def loss(params, batch):
        x = batch
        for index, weight in enumerate(params):
            if scope:
                with jax.named_scope(f"layer_{index}"):
                    x = jnp.tanh(x @ weight)
            else:
                x = jnp.tanh(x @ weight)
        with jax.named_scope("head"):
            return jnp.mean(x**2)

    def step(params, batch):
        value, gradients = autoshard.accumulate_grads(loss, microbatches=microbatches)(
            params, batch
        )
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    return step, ([jnp.ones((width, width))] * layers, jnp.ones((4, width)))


def matmuls(fragment):
    return sum(node.name == "dot_general" for node in fragment.nodes)


@pytest.mark.parametrize("scope", [True, False], ids=["scopes", "no scopes"])
def test_b_and_w_repeat_nothing(scope):
    step = taken_apart(*mlp(layers=4, scope=scope))
    cut = cut_of(step, 2)
    # Two layers a stage: two products forward, two for weights, and for inputs two, but in the
    # first stage one: nobody wants the gradient of the data, and one weight alone that of layer 0.
    assert [matmuls(cut.fragments[0, kind]) for kind in ("F", "B", "W", "BW")] == [2, 0, 3, 3]
    assert [matmuls(cut.fragments[1, kind]) for kind in ("F", "B", "W", "BW")] == [2, 2, 2, 4]


def test_residuals_have_bytes():
    cut = cut_of(taken_apart(*mlp(layers=4)), 2)
    activation = 2 * 8 * 4
    # What stage 1 was sent, and tanh and its derivative's factor for both of its layers.
    kept = sorted(cut.graph.bytes(value) for value in cut.kept(1))
    assert kept == [activation] * len(kept)
    assert cut.bytes(cut.kept(1)) == activation * len(kept)
    first = cut.fragments[1, "F"]
    assert {source.stage for source in first.inputs} == {SHARED, 0}
    # Layer by layer, no more than what is read, what is made, and one intermediate value.
    assert cut.peak_bytes(1, "F") >= sum(cut.graph.bytes(s.value) for s in first.inputs)
    assert cut.peak_bytes(1, "F") < cut.peak_bytes(1, "BW")


def test_blocks_are_found():
    def names(fn, args):
        return [block.name for block in find_blocks(taken_apart(fn, args).micro)]

    assert names(*mlp(layers=3)) == ["layer_0", "layer_1", "layer_2"]
    assert names(*mlp(layers=3, scope=False)) == ["block 0", "block 1", "block 2"]
    fn, args, _ = tiny_llama()
    assert names(fn, args) == [f"layers[{k}]" for k in range(4)]
    fn, args, _ = tiny_llama(scan=False)
    assert names(fn, args) == [f"layer_{k}" for k in range(4)]


def test_flax_modules_are_blocks():
    from flax import linen

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.relu(linen.Dense(8)(x))

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            for _ in range(3):
                x = Block()(x)
            return x

    model = Model()
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((4, 8)))

    def step(params, batch):
        loss = lambda params, batch: jnp.mean(model.apply(params, batch) ** 2)  # noqa: E731
        return autoshard.accumulate_grads(loss, microbatches=2)(params, batch)

    taken = taken_apart(step, (params, jnp.ones((4, 8))))
    assert [b.name for b in find_blocks(taken.micro)] == [f"Model/Block_{k}" for k in range(3)]
    assert cut_of(taken, 3).stages.names[1] == ("Model/Block_1",)


def test_stages_by_name():
    fn, args, _ = tiny_llama()
    taken = taken_apart(fn, args)
    cut = cut_of(taken, [("embed", "layers[0]"), ("layers[1:4]", "unembed", "loss")])
    lengths = [
        node.equation.params["length"]
        for stage in (0, 1)
        for node in cut.fragments[stage, "F"].nodes
        if node.name == "scan"
    ]
    assert lengths == [1, 3]


def test_blocks_without_scopes_by_the_names_that_reports_have():
    taken = taken_apart(*mlp(layers=4, scope=False))
    cut = cut_of(taken, [("block 0",), ("block 1", "block 2", "block 3")])
    assert [matmuls(cut.fragments[1, kind]) for kind in ("F", "BW")] == [3, 6]

    def scanned(params, batch):
        def loss(params, batch):
            return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params)[0])

        return autoshard.accumulate_grads(loss, microbatches=2)(params, batch)

    taken = taken_apart(scanned, (jnp.ones((4, 8, 8)), jnp.ones((4, 8))))
    cut = cut_of(taken, [("scan[0]",), ("scan[1:4]",)])
    assert cut.stages.scans == cut_of(taken, (1, 3)).stages.scans
    with pytest.raises(StageError, match=r"iterations \[0, 2, 3\] of scan, which has 4"):
        cut_of(taken, [("scan[0]",), ("scan[2:4]",)])


def test_more_stages_than_blocks():
    with pytest.raises(StageError) as caught:
        cut_of(taken_apart(*mlp(layers=2)), 3)
    assert str(caught.value) == (
        "3 stages were asked for, but the program has 2 repeated blocks (layer_0, layer_1): ask "
        "for 1 to 2 stages, or name the scopes of every stage"
    )


def test_a_name_that_no_op_bears():
    with pytest.raises(StageError) as caught:
        cut_of(taken_apart(*mlp(layers=2)), [("layer_0", "layer_01"), ("tail",)])
    assert str(caught.value) == (
        "the stages do not fit the program:\n"
        "  * 'layer_01' (stage 0) is borne by no op; did you mean layer_1 or layer_0?\n"
        "  * 'tail' (stage 1) is borne by no op; known: head, layer_0, layer_1"
    )


def test_a_scan_must_be_covered():
    fn, args, _ = tiny_llama()
    with pytest.raises(StageError, match=r"iterations \[0, 2, 3\] of layers, which has 4"):
        cut_of(taken_apart(fn, args), [("layers[0]",), ("layers[2:4]",)])


def test_stages_against_the_order_of_data():
    with pytest.raises(PlacementError, match=r"layer_1\) .* is in stage 0 and reads f32\[2,8\]"):
        cut_of(taken_apart(*mlp(layers=2)), [("layer_1",), ("layer_0",)])


def test_a_transfer_that_nobody_asked_for():
    def loss(params, batch):
        with jax.named_scope("first"):
            x = jnp.tanh(batch @ params["a"])
        y = x * 2.0
        with jax.named_scope("second"):
            z = jnp.tanh(x @ params["b"])
        return jnp.mean(z + y)

    def step(params, batch):
        return autoshard.accumulate_grads(loss, microbatches=2)(params, batch)

    params = {"a": jnp.ones((8, 8)), "b": jnp.ones((8, 8))}
    taken = taken_apart(step, (params, jnp.ones((4, 8))))
    stages = [("first",), ("second",)]
    cut_of(taken, stages)
    with pytest.raises(PlacementError, match=r"(?s)transfers are forbidden.*test_cutting.py:\d+"):
        cut_of(taken, stages, infer_transfers=False)
    cut_of(taken_apart(*mlp(layers=2)), [("layer_0",), ("layer_1", "head")], infer_transfers=False)
