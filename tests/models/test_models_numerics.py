"""What the built-ins compute, against independent and simpler computations of the same."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from autoshard.models import (
    graph_network,
    llama,
    mixtral,
    mlp,
    resnet,
    training,
    transformer,
    unet,
    vision_transformer,
)
from autoshard.models.attention import plain
from tests.helpers import sampled

SMALL_LLAMA = llama.Llama(2, 32, 8, 4, 64, vocabulary=64)
SMALL_MIXTRAL = mixtral.Mixtral(
    layers=2, width=32, heads=4, kv_heads=2, hidden=32, vocabulary=64, group=8
)
SMALL_VISION = vision_transformer.VisionTransformer(2, 32, 4, 64, patch=4, image=8, classes=8)
SMALL_GRAPH = graph_network.GraphNetwork(32, 64, 8, 8, 8, width=16, rounds=2)

FACTORIES = {
    "mlp": (lambda **how: mlp.mlp(8, 16, 32, 2, **how), mlp, "layers"),
    "llama": (lambda **how: llama.llama(SMALL_LLAMA, 2, 8, **how), llama, "layers"),
    "mixtral": (lambda **how: mixtral.mixtral(SMALL_MIXTRAL, 2, 16, **how), mixtral, "layers"),
    "vision": (
        lambda **how: vision_transformer.vision_transformer(SMALL_VISION, 4, **how),
        vision_transformer,
        "layers",
    ),
    "graph": (
        lambda **how: graph_network.graph_network(SMALL_GRAPH, **how),
        graph_network,
        "rounds",
    ),
}


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def unstacked(tree, layers):
    return [jax.tree.map(lambda leaf, at=index: leaf[at], tree) for index in range(layers)]


@pytest.mark.parametrize("name", sampled(list(FACTORIES), lambda name: name in ("llama", "graph")))
def test_unrolled_layers_compute_what_the_scan_computes(name, compiled):
    factory, module, repeated = FACTORIES[name]
    scanned, unrolled = factory(scan=True), factory(scan=False, checkpoint=False)
    params, opt_state, batch = module.sample(scanned.args, 0)
    loss, updated, _ = compiled(scanned.fn)(params, opt_state, batch)

    flat = {**params, repeated: unstacked(params[repeated], 2)}
    _, flat_state, _ = module.sample(unrolled.args, 0)
    flat_loss, flat_updated, _ = compiled(unrolled.fn)(flat, flat_state, batch)

    assert float(loss) == pytest.approx(float(flat_loss), rel=2e-3)
    assert jax.tree.structure(flat) == jax.tree.structure(unrolled.args[0])
    # Adam's first step is the sign of the gradient times the rate, so a change in the sign of a
    # gradient near zero is a difference of two rates: compare the directions of all of them.
    again = {**updated, repeated: unstacked(updated[repeated], 2)}
    steps = [
        np.concatenate([np.ravel(one - two) for one, two in zip(*leaves, strict=True)])
        for leaves in (
            (jax.tree.leaves(again), jax.tree.leaves(flat)),
            (jax.tree.leaves(flat_updated), jax.tree.leaves(flat)),
        )
    ]
    cosine = np.dot(*steps) / np.prod([np.linalg.norm(step) for step in steps])
    assert cosine > 0.97


def test_cross_entropy_is_that_of_optax():
    logits = 10 * normal(0, 4, 6, 32)
    targets = jax.random.randint(jax.random.key(1), (4, 6), 0, 32)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
    assert float(training.cross_entropy(logits, targets)) == pytest.approx(float(expected))
    gradient = jax.grad(training.cross_entropy)(logits, targets)
    shares = jax.nn.softmax(logits) - jax.nn.one_hot(targets, 32)
    np.testing.assert_allclose(gradient, shares / 24, atol=1e-7)


def test_cross_entropy_bears_large_logits():
    logits = jnp.array([[0.0, 1e4], [1e4, 0.0]])
    assert float(training.cross_entropy(logits, jnp.array([1, 1]))) == pytest.approx(5e3)


def test_layer_norm_leaves_zero_mean_and_unit_variance():
    out = training.layer_norm(3 * normal(0, 8, 64) + 5, jnp.ones(64), jnp.zeros(64))
    np.testing.assert_allclose(out.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(out.var(-1), 1, rtol=1e-4)


def test_rms_norm_leaves_unit_mean_square():
    out = transformer.rms_norm(3 * normal(0, 8, 64) + 5, 2 * jnp.ones(64))
    np.testing.assert_allclose(jnp.square(out).mean(-1), 4, rtol=1e-4)


def test_look_up_is_one_gather_whose_gradient_is_one_scatter():
    table, indices = normal(0, 8, 4), jnp.array([[1, 7], [1, 0]])
    np.testing.assert_array_equal(training.look_up(table, indices), np.asarray(table)[indices])

    def total(table):
        return training.look_up(table, indices).sum()

    np.testing.assert_array_equal(jax.grad(total)(table)[:, 0], [1, 2, 0, 0, 0, 0, 0, 1])
    names = [equation.primitive.name for equation in jax.make_jaxpr(jax.grad(total))(table).eqns]
    assert names.count("gather") == names.count("scatter-add") == 1
    assert not {"clamp", "lt", "select_n"} & set(names)


def test_attention_is_that_of_jax(compiled):
    queries, keys, values = normal(0, 2, 8, 8, 16), normal(1, 2, 8, 2, 16), normal(2, 2, 8, 2, 16)
    theirs = compiled(functools.partial(jax.nn.dot_product_attention, is_causal=True))
    ours = compiled(plain)
    np.testing.assert_allclose(
        ours(queries, keys, values, 0), theirs(queries, keys, values), rtol=1e-4, atol=1e-5
    )


def test_rotated_products_depend_on_the_distance_alone():
    one, two = normal(0, 1, 1, 1, 16), normal(1, 1, 1, 1, 16)

    def product(left, right):
        angles = [transformer.rotary_angles(jnp.array([at]), 16, 1e4) for at in (left, right)]
        return float(
            jnp.sum(transformer.rotate(one, angles[0]) * transformer.rotate(two, angles[1]))
        )

    assert product(3, 1) == pytest.approx(product(12, 10), abs=1e-5)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-2)
    assert product(0, 0) == pytest.approx(float(jnp.sum(one * two)), abs=1e-5)


@pytest.mark.parametrize(
    ("tied", "scan"),
    sampled(
        [(True, True), (True, False), (False, True), (False, False)],
        lambda one: one == (True, True),
    ),
)
def test_decoding_token_by_token_has_the_loss_of_training(scan, tied, compiled):
    config = llama.Llama(2, 32, 8, 4, 64, vocabulary=64, tied=tied)
    train = llama.llama(config, 2, 8, scan=scan)
    decode = llama.llama(config, 2, 8, scan=scan, mode="decode")
    params, opt_state, batch = llama.sample(train.args, 0)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    _, cache, _, _ = llama.sample(decode.args, 0)
    step = compiled(decode.fn, **decode.options)
    logits = []
    for position in range(8):
        out, cache = step(params, cache, batch["tokens"][:, position], jnp.int32(position))
        logits.append(out)
    decoded = training.cross_entropy(jnp.stack(logits, 1), batch["targets"])
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    loss, _, _ = compiled(train.fn)(wide, opt_state, batch)
    assert float(decoded) == pytest.approx(float(loss), rel=5e-3)


@pytest.mark.parametrize("scan", [True, False])
def test_a_prefill_leaves_what_decoding_token_by_token_does(scan, compiled):
    config = llama.Llama(2, 32, 8, 4, 64, vocabulary=64)
    prefill = llama.llama(config, 2, 8, scan=scan, mode="prefill")
    decode = llama.llama(config, 2, 8, scan=scan, mode="decode")
    params, tokens = llama.sample(prefill.args, 0)
    _, cache, _, _ = llama.sample(decode.args, 0)
    step, decoded = compiled(decode.fn, **decode.options), None
    for position in range(8):
        decoded, cache = step(params, cache, tokens[:, position], jnp.int32(position))
    logits, filled = compiled(prefill.fn)(params, tokens)
    np.testing.assert_allclose(
        np.asarray(logits, np.float32), np.asarray(decoded, np.float32), atol=0.05
    )
    stacked = cache if scan else jax.tree.map(lambda *leaves: jnp.stack(leaves), *cache)
    for name in ("keys", "values"):
        np.testing.assert_allclose(
            np.asarray(filled[name], np.float32), np.asarray(stacked[name], np.float32), atol=0.05
        )


@pytest.mark.parametrize("scan", [True, False])
def test_decoding_updates_its_cache_in_place(scan, compiled):
    config = llama.Llama(8, 32, 4, 1, 32, vocabulary=32)
    decode = llama.llama(config, 4, 1024, scan=scan, mode="decode")
    # The CPU makes copies of narrow types and of several heads for its products.
    args = jax.tree.map(
        lambda leaf: leaf.update(dtype=jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf,
        decode.args,
    )
    memory = compiled(decode.fn, **decode.options).lower(*args).compile().memory_analysis()
    cache_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(args[1]))
    assert memory.alias_size_in_bytes == cache_bytes
    # Unrolled, it makes what its products read of all layers at once; a cache that is copied to be
    # updated comes on top.
    assert memory.temp_size_in_bytes < (1.0 if scan else 1.5) * cache_bytes


def test_the_depth_of_a_llama_is_free():
    _, args, _ = llama.llama("llama3-405b", 8, 128, layers=2)
    assert args[0]["layers"]["wq"].shape == (2, 16384, 128, 128)
    _, args, _ = llama.llama("llama3-405b", 8, 128, layers=3, scan=False)
    assert len(args[0]["layers"]) == 3


def test_an_unknown_mode_is_refused():
    with pytest.raises(
        ValueError, match="mode is 'serve'; it must be 'train', 'prefill' or 'decode'"
    ):
        llama.llama("llama3-1b", mode="serve")  # pyright: ignore[reportArgumentType]


def routed_by_loops(config, probabilities):
    """The combine tensor of one group, one token at a time."""
    tokens = probabilities.shape[0]
    combine = np.zeros((tokens, config.experts, config.capacity))
    order = np.argsort(-probabilities, axis=-1)[:, : config.active]
    used = np.zeros(config.experts, int)
    for choice, token in itertools.product(range(config.active), range(tokens)):
        expert = order[token, choice]
        if used[expert] < config.capacity:
            share = probabilities[token, expert] / probabilities[token, order[token]].sum()
            combine[token, expert, used[expert]] = share
        used[expert] += 1
    return combine


@pytest.mark.parametrize(("active", "tight"), [(1, False), (2, False), (2, True), (3, True)])
def test_routing_is_that_of_a_loop_over_tokens(active, tight):
    config = mixtral.Mixtral(
        experts=4, active=active, group=32, capacity_factor=0.5 if tight else 4.0
    )
    logits = 2 * normal(active, 2, 3, 32, 4)
    combine, balance = mixtral.route(config, logits)
    probabilities = np.asarray(jax.nn.softmax(logits))
    for sequence, group in itertools.product(range(2), range(3)):
        expected = routed_by_loops(config, probabilities[sequence, group])
        np.testing.assert_allclose(combine[sequence, group], expected, atol=1e-6)
    kept = np.asarray(combine).sum((-1, -2))
    assert (kept.min() < 0.99) == tight
    assert kept.max() == pytest.approx(1, abs=1e-5)
    first = np.bincount(probabilities.argmax(-1).ravel(), minlength=4) / (2 * 3 * 32)
    assert float(balance) == pytest.approx(
        4 * (first * probabilities.mean((0, 1, 2))).sum(), rel=1e-5
    )


@pytest.mark.parametrize("layer", [mixtral.experts, mixtral.dropless])
def test_experts_with_room_for_all_are_a_weighted_sum_of_dense_layers(layer):
    config = mixtral.Mixtral(width=16, hidden=32, experts=4, group=8, capacity_factor=4.0)
    weights = {
        "router": normal(0, 16, 4),
        "gate": normal(1, 4, 16, 32),
        "up": normal(2, 4, 16, 32),
        "down": normal(3, 4, 32, 16),
    }
    x = normal(4, 2, 16, 16)
    out, balance = layer(config, weights, x)
    probabilities = jax.nn.softmax(x @ weights["router"])
    shares, chosen = jax.lax.top_k(probabilities, 2)
    shares = shares / shares.sum(-1, keepdims=True)
    dense = jnp.stack(
        [
            transformer.swiglu({name: weights[name][expert] for name in ("gate", "up", "down")}, x)
            for expert in range(4)
        ],
        axis=2,
    )
    picked = jnp.take_along_axis(dense, chosen[..., None], axis=2)
    np.testing.assert_allclose(out, (picked * shares[..., None]).sum(2), rtol=2e-3, atol=1e-2)
    first = jax.nn.one_hot(chosen[..., 0], 4).mean((0, 1))
    assert float(balance) == pytest.approx(
        float(4 * (first * probabilities.mean((0, 1))).sum()), rel=1e-5
    )


def test_groups_must_divide_the_sequence():
    with pytest.raises(ValueError, match="groups of 1024 tokens do not divide a sequence of 1000"):
        mixtral.mixtral(batch=8, sequence=1000)


def test_more_experts_are_a_choice_of_the_record():
    _, args, _ = mixtral.mixtral(mixtral.Mixtral(experts=64, hidden=1024), layers=2)
    assert args[0]["layers"]["gate"].shape == (2, 64, 4096, 1024)


def test_running_statistics_move_towards_those_of_the_batch(compiled):
    step = resnet.resnet(resnet.ResNet(blocks=(1,), width=8, image=8, classes=8), 8)
    state, batch = resnet.sample(step.args, 0)
    updated, _ = compiled(step.fn)(state, batch)
    out = jax.lax.conv_general_dilated(
        batch["images"],
        state["params"]["stem"]["kernel"],
        (2, 2),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    stem = updated["statistics"]["stem"]
    np.testing.assert_allclose(stem["mean"], 0.1 * out.mean((0, 1, 2)), atol=2e-3)
    np.testing.assert_allclose(stem["variance"], 0.9 + 0.1 * out.var((0, 1, 2)), rtol=2e-2)


def test_segment_sums_are_those_of_numpy():
    rows, segments = normal(0, 32, 4), jax.random.randint(jax.random.key(1), (32,), 0, 8)
    expected = np.zeros((8, 4), np.float32)
    np.add.at(expected, np.asarray(segments), np.asarray(rows))
    np.testing.assert_allclose(graph_network.sum_into(rows, segments, 8), expected, rtol=1e-5)


def test_the_order_of_edges_does_not_matter(compiled):
    step = graph_network.graph_network(SMALL_GRAPH)
    params, opt_state, batch = graph_network.sample(step.args, 0)
    order = np.random.default_rng(0).permutation(SMALL_GRAPH.edges)
    turned = {name: batch[name][order] for name in ("edges", "senders", "receivers")}
    run = compiled(step.fn)
    one, two = run(params, opt_state, batch)[0], run(params, opt_state, {**batch, **turned})[0]
    assert float(one) == pytest.approx(float(two), rel=1e-4)
    wrong = {**batch, "senders": batch["senders"][order]}
    assert float(one) != pytest.approx(float(run(params, opt_state, wrong)[0]), rel=1e-4)


def test_the_signal_share_is_a_product_over_steps():
    expected, share = [], 1.0
    for step in range(unet.DIFFUSION_STEPS):
        share *= 1 - (1e-4 + (0.02 - 1e-4) * step / (unet.DIFFUSION_STEPS - 1))
        expected.append(share)
    shares = unet.signal_share(jnp.arange(unet.DIFFUSION_STEPS))
    np.testing.assert_allclose(shares, expected, rtol=1e-3)
    assert math.isclose(shares[-1], 4e-5, rel_tol=0.1)


def test_parameter_count_multiplies_and_adds():
    tree = {"a": training.abstract(3, 4), "b": [training.abstract(5), training.abstract()]}
    assert training.parameter_count(tree) == 18
