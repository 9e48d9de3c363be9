"""Rules of equations that need a care of their own, and of a whole train step at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.extend.core import JaxprEqn
from jax.sharding import NamedSharding, PartitionSpec

from autoshard.program.rules import ask_shardy as rules
from autoshard.program.rules.ask_shardy import FactorKind, Override, Rule, rules_for
from tests.program.rules.equations import CALLBACKS, MESH, OPERAND, equations_of


def test_callbacks_see_whole_arrays() -> None:
    def function(a: Any) -> Any:
        jax.debug.callback(lambda _: None, a)
        jax.debug.print("{}", a)
        a = io_callback(lambda x: x, OPERAND, a)
        return jax.pure_callback(lambda x: x, OPERAND, a)

    equations = equations_of(function, OPERAND)
    assert {equation.primitive.name for equation in equations} == CALLBACKS
    found = rules_for(equations)
    assert {factor.kind for rule in found for factor in rule.factors} == {FactorKind.REPLICATE}


def test_constraints_and_names_are_the_identity() -> None:
    def function(a: Any) -> Any:
        a = lax.with_sharding_constraint(a, NamedSharding(MESH, PartitionSpec("x")))
        return checkpoint_name(jax.device_put(a), "kept")

    found = rules_for(equations_of(function, OPERAND))
    assert {str(rule) for rule in found} == {"([i, j])->([i, j]) {i=8, j=6}"}


def test_arrays_that_are_put_together_are_cut_by_themselves() -> None:
    found = rules_for(equations_of(lambda a: jax.device_put((a, a.sum(0))), OPERAND))
    assert str(found[-1]) == "([i, j], [k])->([i, j], [k]) {i=8, j=6, k=6}"


def test_random_bits_that_are_not_computed_one_by_one() -> None:
    def bits(implementation: str) -> str:
        key = jax.random.key(0, impl=implementation)
        return str(rules_for(equations_of(lambda k: jax.random.bits(k, (4, 8)), key))[0])

    whole = "([])->([i, j]) {i=4, j=8} need_replication={i, j}"
    assert bits("threefry2x32") == "([])->([i, j]) {i=4, j=8}"
    assert bits("rbg") == whole
    with jax.threefry_partitionable(False):
        assert bits("threefry2x32") == whole


def test_overrides_can_be_given() -> None:
    equations = equations_of(lambda a: a + 1, OPERAND)
    whole = Override("for the test", lambda _: Rule.parse("([i, j], [])->([i, j]) {i=8, j=6}"))
    assert rules_for(equations, overrides={"add": whole})[0] == whole.rule(equations[0])


def test_dropped_results_and_literals_have_their_places() -> None:
    def function(a: Any) -> Any:
        return lax.top_k(a * 2.0, 3)[0]

    equations = jax.make_jaxpr(function)(OPERAND).jaxpr.eqns
    scale, largest = rules_for(equations)
    assert str(scale) == "([i, j], [])->([i, j]) {i=8, j=6}"
    assert len(largest.results) == 2


def train_step_equations(layers: int) -> list[JaxprEqn]:
    """A loss with attention, its gradient, and AdamW, unrolled."""
    width, heads, length = 64, 4, 32

    def normalise(x: Any, scale: Any) -> Any:
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def loss(parameters: Any, tokens: Any) -> Any:
        x = parameters["embedding"][tokens]
        mask = jnp.tril(jnp.ones((length, length), bool))
        for layer in parameters["layers"]:
            y = normalise(x, layer["scale"])
            q, k, v = (jnp.einsum("bsd,dhk->bshk", y, layer[name]) for name in "qkv")
            scores = jnp.where(mask, jnp.einsum("bshk,bthk->bhst", q, k), -1e9)
            mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores), v)
            x = x + jnp.einsum("bshk,hkd->bsd", mixed, layer["o"])
            x = x + jax.nn.silu(normalise(x, layer["scale"]) @ layer["up"]) @ layer["down"]
        logits = jax.nn.log_softmax(x @ parameters["embedding"].T)
        return -jnp.take_along_axis(logits, tokens[..., None], -1).mean()

    optimizer = optax.adamw(1e-3)

    def step(parameters: Any, state: Any, tokens: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(parameters, tokens)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    def struct(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layer = {
        "scale": struct(width),
        **dict.fromkeys("qkv", struct(width, heads, 16)),
        "o": struct(heads, 16, width),
        "up": struct(width, 256),
        "down": struct(256, width),
    }
    parameters = {"embedding": struct(512, width), "layers": [layer] * layers}
    state = jax.eval_shape(optimizer.init, parameters)
    return equations_of(step, parameters, state, jax.ShapeDtypeStruct((4, length), jnp.int32))


def test_equal_equations_of_a_train_step_share_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_REMEMBERED", {})
    equations = train_step_equations(layers=4)
    found = rules_for(equations)
    assert len(equations) > 1000
    assert len({id(rule) for rule in found}) < 200, "equal equations share a rule"
    blocked = [
        f"{equation.primitive.name} {rule}"
        for equation, rule in zip(equations, found, strict=True)
        for factor in rule.factors
        if factor.kind is FactorKind.REPLICATE and factor.size > 1
    ]
    assert blocked == [], "every dimension of a transformer may be split"
