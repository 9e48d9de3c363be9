"""Every built-in, by name: it traces at its real size, and its small copy trains."""

import subprocess
import sys

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import models
from autoshard.models import llama, resnet, training, unet
from autoshard.models.find import ProgramError, find
from tests.helpers import sampled

NAMES = models.names()
TRAINED = [name for name in NAMES if not name.endswith(("-decode", "-prefill"))]

PUBLISHED_PARAMETERS = {
    "llama3-1b": 1.24e9,
    "llama3-8b": 8.03e9,
    "llama3-8b-unrolled": 8.03e9,
    "llama3-8b-decode": 8.03e9,
    "llama3-70b": 70.6e9,
    "llama3-405b": 405.8e9,
    "mixtral-8x7b": 46.7e9,
    "vit-l16": 304e6,
    "resnet50": 25.6e6,
    "unet": 114e6,
}


def parameters(args):
    return args[0].get("params", args[0])


def signature(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), tree)


def scopes(jaxpr):
    found = set()
    for equation in jaxpr.eqns:
        found.add(str(equation.source_info.name_stack))
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found |= scopes(inner)
    return found


def test_names_are_listed_without_importing_jax():
    code = "import sys; from autoshard import models; models.names(); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("function", [models.build, models.tiny])
def test_a_misspelt_name_is_answered_with_the_nearest(function):
    with pytest.raises(ValueError, match="no built-in program") as raised:
        function("llama3-80b-decode")
    assert str(raised.value) == (
        "no built-in program is called 'llama3-80b-decode'; "
        "did you mean llama3-8b-decode or llama3-70b-decode or llama3-405b-decode?"
    )


def test_an_unlike_name_is_answered_with_all():
    with pytest.raises(ValueError, match=r"known: mlp, llama3-1b, .*, gnn\.$"):
        models.build("???")


@pytest.mark.parametrize(
    "name",
    sampled(NAMES, lambda name: not (name.startswith("llama3-") and name.endswith("0b-unrolled"))),
)
def test_the_real_size_traces_and_keeps_its_state(name):
    fn, args, options = models.build(name)
    assert all(type(leaf) is jax.ShapeDtypeStruct for leaf in jax.tree.leaves(args))
    traced, out = jax.make_jaxpr(fn, return_shape=True)(*args)
    assert traced.jaxpr.eqns
    given = [signature(args[number]) for number in options["donate_argnums"]]
    returned = [signature(part) for part in out]
    assert given or name.endswith("-prefill")
    assert all(state in returned for state in given)


@pytest.mark.parametrize("name", TRAINED)
def test_the_loss_is_one_float32(name):
    fn, args, _ = models.tiny(name)
    out = jax.eval_shape(fn, *args)
    losses = [part for part in out if isinstance(part, jax.ShapeDtypeStruct)]
    assert signature(losses) == [((), "float32")]


@pytest.mark.parametrize(("name", "published"), PUBLISHED_PARAMETERS.items())
def test_parameter_counts_are_the_published(name, published):
    _, args, _ = models.build(name)
    assert training.parameter_count(parameters(args)) == pytest.approx(published, rel=0.01)


def test_the_small_unet_has_its_published_parameters_too():
    _, args, _ = unet.unet(unet.CIFAR10)
    assert training.parameter_count(args[0]) == pytest.approx(35.7e6, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_tiny_is_small_and_eight_devices_divide_its_batch(name):
    _, args, _ = models.tiny(name)
    assert training.parameter_count(parameters(args)) < 1e6
    batch = args[2] if name.endswith("-decode") else args[-1]
    assert all(leaf.shape[0] % 8 == 0 for leaf in jax.tree.leaves(batch))


@pytest.mark.parametrize("name", NAMES)
def test_tiny_takes_the_sizes_of_the_real_one(name):
    assert "batch" in models.sizes(name) or name == "gnn"
    if "batch" in models.sizes(name):
        found = find(f"{name}:tiny", {"batch": 24})
        assert {leaf.shape[0] for leaf in jax.tree.leaves(found.args) if leaf.ndim} >= {24}
    with pytest.raises(ProgramError, match=rf"'{name}': .*'depth'.*sizes are those of its factory"):
        find(f"{name}:tiny", {"depth": 3})


@pytest.mark.parametrize("name", NAMES)
def test_concrete_arguments_have_the_shapes_asked_for(name):
    _, args, _ = models.tiny(name)
    first, again = models.concrete(name, args, 3), models.concrete(name, args, 3)
    assert signature(first) == signature(args)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    drawn = [leaf for leaf in jax.tree.leaves(models.concrete(name, args, 4)) if leaf.ndim]
    kept = [leaf for leaf in jax.tree.leaves(first) if leaf.ndim]
    assert any(not np.array_equal(one, two) for one, two in zip(drawn, kept, strict=True))


@pytest.mark.parametrize(
    ("name", "leaf", "bound"),
    [
        ("llama3-8b", "tokens", 128),
        ("mixtral-8x7b", "targets", 128),
        ("vit-l16", "labels", 16),
        ("resnet50", "labels", 16),
        ("unet", "times", 1000),
        ("gnn", "senders", 64),
    ],
)
def test_concrete_integers_fill_their_range(name, leaf, bound):
    _, args, _ = models.tiny(name)
    drawn = models.concrete(name, args)[-1][leaf]
    assert 0 <= drawn.min() <= bound / 4
    assert bound * 3 / 4 <= drawn.max() + 1 <= bound


@pytest.mark.parametrize(
    "name",
    sampled(
        [name for name in TRAINED if not name.startswith("llama3-70b")],
        lambda name: name != "unet" and not name.endswith("-unrolled"),
    ),
)
def test_tiny_steps_lower_the_loss(name, compiled):
    fn, args, options = models.tiny(name)
    values = models.concrete(name, args, 0)
    step = compiled(fn, **options)
    losses = []
    for _ in range(4):
        if len(values) == 2:
            state, loss = step(*values)
            values = (state, values[1])
        else:
            loss, params, opt_state = step(*values)
            values = (params, opt_state, values[2])
        losses.append(float(loss))
    assert np.isfinite(losses).all()
    assert losses == sorted(losses, reverse=True)
    assert losses[0] - losses[-1] > 0.02


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3-8b", ["layers", "attention", "ffn", "embed", "unembed", "loss", "optimizer"]),
        ("llama3-8b-unrolled", ["layer_0", "layer_1", "attention"]),
        ("llama3-8b-decode", ["layers", "attention", "ffn"]),
        ("mixtral-8x7b", ["experts", "router"]),
        ("resnet50", ["stem", "stage_1/block_0", "classify"]),
        ("unet", ["down_0", "middle/block_1", "up_1", "attention"]),
        ("gnn", ["encode", "edges", "nodes", "decode"]),
    ],
)
def test_scopes_name_the_modules(name, expected):
    fn, args, _ = models.tiny(name)
    found = "\n".join(scopes(jax.make_jaxpr(fn)(*args).jaxpr))
    assert [scope for scope in expected if scope not in found] == []


def test_tree_paths_are_readable():
    def paths(name):
        _, args, _ = models.tiny(name)
        return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(args)}

    assert "[0]['layers']['wq']" in paths("llama3-8b")
    assert "[1][0].mu['layers'][1]['wq']" in paths("llama3-8b-unrolled")
    assert "[1]['keys']" in paths("llama3-8b-decode")
    assert "[0]['params']['stages'][1][0]['spatial']['kernel']" in paths("resnet50")


def test_tiny_llamas_of_8b_and_70b_are_one_program():
    """So that training one of them above is enough."""
    one, two = (models.tiny(name).args for name in ("llama3-8b", "llama3-70b"))
    assert signature(one) == signature(two)
    assert llama.CONFIGS["llama3-8b"].theta == llama.CONFIGS["llama3-70b"].theta


def test_weights_are_float32_and_computed_with_in_bfloat16():
    fn, args, _ = models.tiny("llama3-8b")
    assert {leaf.dtype for leaf in jax.tree.leaves(args[0])} == {jnp.dtype("float32")}
    text = str(jax.make_jaxpr(fn)(*args))
    assert "bf16[8,16,128] = dot_general" in text
    assert " f32[8,16,128] = dot_general" not in text


def test_resnet_statistics_have_the_paths_of_their_parameters():
    params, statistics = resnet.weights(resnet.ResNet())
    assert set(statistics) == {"stem", "stages"}
    for stage, blocks in enumerate(statistics["stages"]):
        for index, block in enumerate(blocks):
            assert set(block) == set(params["stages"][stage][index])
