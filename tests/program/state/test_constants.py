"""Leaves that are not arrays: they stay as they are, and tell one tree from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.lower.numbers.unsharded import numeric_differences
from autoshard.program.state.constants import Constant, hold, holds_constants, release
from autoshard.program.trace import TraceError, trace


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    weight: Any
    activation: Any
    name: str = "layer"


@jax.tree_util.register_pytree_with_keys_class
class Box:
    """An object that may change."""

    def __init__(self, weight, activation):
        self.weight, self.activation = weight, activation

    def tree_flatten_with_keys(self):
        key = jax.tree_util.GetAttrKey
        return ((key("weight"), self.weight), (key("activation"), self.activation)), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def layers():
    first, second = jnp.eye(16) / 2, jnp.eye(16) / 3
    return {"first": Layer(first, jnp.tanh), "second": Layer(second, jax.nn.relu, "last")}


def forward(layers, x, mode="train"):
    for layer in layers.values():
        assert isinstance(layer.name, str)
        x = layer.activation(x @ layer.weight)
    return x


def train(layers, x, mode):
    assert mode == "train"
    arrays = {name: layer.weight for name, layer in layers.items()}

    def loss(arrays):
        new = {
            name: Layer(w, layers[name].activation, layers[name].name) for name, w in arrays.items()
        }
        return jnp.mean((forward(new, x) - 1) ** 2)

    value, gradients = jax.value_and_grad(loss)(arrays)
    stepped = {
        name: Layer(layer.weight - 0.1 * gradients[name], layer.activation, layer.name)
        for name, layer in layers.items()
    }
    return value, stepped, mode


def test_held_and_released_trees_are_the_same():
    tree = {"a": layers(), "b": ["text", None, 3, 2.5, np.ones(2)]}
    held = hold(tree)
    assert [type(leaf).__name__ for leaf in jax.tree.leaves(held["b"])] == [
        "int",
        "float",
        "ndarray",
    ]
    assert jax.tree.structure(held) != jax.tree.structure(tree)
    again = release(held)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    assert all(a is b for a, b in zip(*map(jax.tree.leaves, (tree, again)), strict=True))
    assert hold(held) is not None
    assert jax.tree.structure(hold(held)) == jax.tree.structure(held)
    assert holds_constants(jax.tree.structure(held))
    assert not holds_constants(jax.tree.structure({"w": 1.0}))


def test_trees_with_other_constants_are_other_trees():
    def structure(value):
        return jax.tree.structure(hold([value, jnp.ones(2)]))

    assert structure("a") == structure("a")
    assert structure("a") != structure("b")
    assert structure(jnp.tanh) == structure(jnp.tanh) != structure(jax.nn.relu)
    unhashable = {1, 2}
    assert structure(unhashable) == structure(unhashable) != structure({1, 2})
    assert hash(structure("a")) == hash(structure("a"))
    assert repr(Constant("a")) == "Constant('a')"


class Variable:
    """Has an array, as a variable of Keras has."""

    def __init__(self, value):
        self.value, self.shape, self.dtype = value, value.shape, value.dtype

    def __jax_array__(self):
        return self.value


def test_leaves_that_have_an_array_are_given_as_it():
    def step(weights, x):
        return [weights[0] - (x @ weights[0]).mean(), Variable(weights[1] + 1.0)]

    weights, x = [Variable(jnp.ones((8, 8))), Variable(jnp.ones(8))], jnp.ones((16, 8))
    plan = autoshard.search(trace(step, weights, x), "v5e-8")
    lowered = autoshard.lower(plan, step, weights, x)
    new = lowered.jit()(*lowered.shard(weights, x))
    assert new[0].sharding.num_devices == 8
    np.testing.assert_allclose(new[0], np.full((8, 8), -7.0))
    np.testing.assert_allclose(new[1], np.full(8, 2.0))
    again = autoshard.jit(step, machine="v5e-8")(weights, x)
    np.testing.assert_allclose(again[1], new[1])


def test_a_tree_of_arrays_stays_itself():
    tree = {"w": jnp.ones(2), "n": [np.float32(1), jax.ShapeDtypeStruct((2,), jnp.float32)]}
    assert hold(tree) is tree
    assert release(tree) is tree


def test_a_step_of_such_arguments_and_results_is_planned_and_run():
    args = (layers(), jnp.ones((8, 16)), "train")
    program = trace(train, *args, donate_argnums=0)
    assert program.input_paths == ("[0]['first'].weight", "[0]['second'].weight", "[1]")
    assert dict(program.ties) == {0: 1, 1: 2}
    plan = autoshard.search(program, "v5e-8", mesh={"data": 8}, requirements=["pin x [data, ...]"])
    lowered = autoshard.lower(plan, train, *args)
    assert numeric_differences(lowered, train, args) == []
    wanted, new, _ = train(*args)
    step, placed = lowered.jit(), lowered.shard(*args)
    loss, stepped, mode = step(*placed)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    assert mode == "train"
    assert stepped["first"].activation is jnp.tanh
    assert stepped["second"].name == "last"
    np.testing.assert_allclose(stepped["first"].weight, new["first"].weight, rtol=1e-5)
    loss, *_ = step(stepped, placed[1], "train")
    assert loss < wanted
    assert step.lower(stepped, placed[1], "train").compile() is not None
    with pytest.raises(ValueError, match=r"with metadata\s+'eval'"):
        step(stepped, placed[1], "eval")


def test_what_is_no_array_of_an_object_that_changes_is_refused():
    def step(box, labels, x):
        box.weight = box.weight + 1
        return box.activation(x @ box.weight)

    odd = np.array(["a", "b"])
    with pytest.raises(TraceError) as caught:
        trace(step, Box(jnp.eye(4), jnp.tanh), odd, jnp.ones((2, 4)))
    message = str(caught.value)
    assert message.startswith("step is given what is not an array of JAX:\n  [0].activation is ")
    assert "\n  [1] is ndarray array(['a', 'b'], dtype='<U1')\n" in message
    assert message.endswith(
        "make it a static field of its class (metadata, aux_data), or close over it"
    )


def test_modules_of_equinox_keep_their_settings():
    eqx = pytest.importorskip("equinox")

    class Model(eqx.Module):
        linear: eqx.nn.Linear
        dropout: eqx.nn.Dropout

        def __call__(self, x):
            return self.dropout(jax.vmap(self.linear)(x))

    model = Model(eqx.nn.Linear(16, 16, key=jax.random.key(0)), eqx.nn.Dropout(0.5, inference=True))

    @eqx.filter_jit
    def step(model, x, rate):
        loss, gradients = eqx.filter_value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        return loss, eqx.apply_updates(model, jax.tree.map(lambda g: -rate * g, gradients))

    args = (model, jnp.ones((8, 16)), jnp.float32(0.1))
    program = trace(step, *args)
    assert len(program.inputs) == 4  # two arrays of the model, x, and the rate
    lowered = autoshard.lower(autoshard.search(program, "v5e-8"), step, *args)
    assert numeric_differences(lowered, step, args) == []
    _, stepped = lowered.jit()(*args)
    assert stepped.dropout.inference is True
    assert stepped.dropout.p == 0.5


def test_a_state_that_is_empty_is_named():
    """As an optimizer's is, of a model of shapes in which arrays are looked for."""

    def step(weights, state, x):
        return jnp.sum(x @ weights["w"]) + sum(0.9 * one for one in state["trace"].values())

    weights = {"w": jax.ShapeDtypeStruct((4, 4), jnp.float32)}
    with pytest.raises(TraceError) as caught:
        trace(step, weights, {"trace": {"v": None, "w": None}}, weights["w"])
    assert str(caught.value).endswith(
        "unsupported operand type(s) for *: 'float' and 'NoneType'\n"
        "state.trace.v (and 1 more) is None; an optimizer's state of a model of shapes is empty "
        "where only arrays are asked for: make model and state in one eval_shape"
    )
