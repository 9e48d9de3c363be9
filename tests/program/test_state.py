"""Inputs and outputs by their paths, and which of them are the state that a step hands on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from autoshard.program.trace import trace
from tests.program.steps import f, i, of_kind

TREE = {"w": f(8, 4), "b": f(4)}


def test_inputs_and_outputs_are_named_by_their_tree_paths() -> None:
    def fn(params, batch, scale):
        return {"loss": jnp.sum(batch[0] @ params["w"]) * scale, "parts": [params["b"], batch[1]]}

    program = trace(fn, TREE, (f(2, 8), i(3)), f())
    assert program.input_paths == ("[0]['b']", "[0]['w']", "[1][0]", "[1][1]", "[2]")
    assert program.output_paths == ("['loss']", "['parts'][0]", "['parts'][1]")
    assert trace(jnp.sin, f(8)).output_paths == ("",)


STATE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any, dict[str, str]]] = {
    "a tree that comes back is state": (
        lambda p, x: (jnp.sum(x), p),
        (TREE, f(8)),
        (),
        {"[0]['b']": "[1]['b']", "[0]['w']": "[1]['w']"},
    ),
    "two equal-shaped trees are matched in order": (
        lambda p, average: (p, average),
        (TREE, TREE),
        (),
        {
            "[0]['b']": "[0]['b']",
            "[0]['w']": "[0]['w']",
            "[1]['b']": "[1]['b']",
            "[1]['w']": "[1]['w']",
        },
    ),
    "parameters do not take the place of a moment": (
        lambda p, moments: (jnp.sum(p["b"]), moments, p),
        (TREE, (TREE, TREE)),
        0,
        {
            "[0]['b']": "[2]['b']",
            "[0]['w']": "[2]['w']",
            "[1][0]['b']": "[1][0]['b']",
            "[1][0]['w']": "[1][0]['w']",
            "[1][1]['b']": "[1][1]['b']",
            "[1][1]['w']": "[1][1]['w']",
        },
    ),
    "a single leaf that is not donated is not tied": (lambda x: (x, 1), (f(8),), (), {}),
    "a donated leaf is tied": (lambda x: (jnp.sum(x), x), (f(8),), (0,), {"[0]": "[1]"}),
    "a donated leaf with no result like it": (lambda x: jnp.sum(x), (f(8),), 0, {}),
    "a tree of other shapes is not state": (
        lambda p: jax.tree.map(lambda leaf: leaf[None], p),
        (TREE,),
        (),
        {},
    ),
    "a tree of another type is not state": (
        lambda p: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), p),
        (TREE,),
        (),
        {},
    ),
    "state within a tuple": (
        lambda state, x: ((state[0], x), jnp.sum(x)),
        ((TREE, f(3)), f(5)),
        (),
        {"[0][0]['b']": "[0][0]['b']", "[0][0]['w']": "[0][0]['w']"},
    ),
}


@pytest.mark.parametrize("name", STATE)
def test_state_ties(name: str) -> None:
    fn, args, donate, expected = STATE[name]
    program = trace(fn, *args, donate_argnums=donate)
    inputs, outputs = program.input_paths, program.output_paths
    assert {inputs[source]: outputs[result] for source, result in program.ties} == expected


def test_donated_inputs_are_all_leaves_of_the_argument() -> None:
    program = trace(lambda x, p, y: x, f(8), TREE, f(3), donate_argnums=(1, 2))
    assert program.donated == {1, 2, 3}
    assert trace(lambda x: x, f(8)).donated == frozenset()


def test_a_training_step_with_adamw() -> None:
    optimizer = optax.adamw(1e-3)

    def loss_of(params, x):
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - x) ** 2)

    def train(params, state, x):
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        updates, state = optimizer.update(gradients, state, params)
        return loss, optax.apply_updates(params, updates), state

    params = {"up": f(8, 32), "down": f(32, 8)}
    state = jax.eval_shape(optimizer.init, params)
    program = trace(train, params, state, f(4, 8), donate_argnums=(0, 1))
    leaves = len(jax.tree.leaves((params, state)))
    assert program.ties == tuple((k, k + 1) for k in range(leaves))
    assert program.donated == frozenset(range(leaves))
    products = of_kind(program, "dot_general")
    assert [op.backward for op in products] == [False, False, True, True, True]
    assert [op.flops for op in products] == [2 * 4 * 8 * 32] * 5
    assert "[1][0].mu['down']" in program.input_paths
    assert "[2][0].nu['up']" in program.output_paths
    first = train.__code__.co_firstlineno
    after = [op for op in program.ops if op.line in (f"test_state.py:{first + n}" for n in (2, 3))]
    assert {op.line for op in after} == {f"test_state.py:{first + n}" for n in (2, 3)}
    assert not any(op.backward for op in after)
