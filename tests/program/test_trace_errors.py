"""What the tracer says when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import autoshard
from autoshard.program.rules.ask_shardy import FactorKind, NoRuleError, UserRule
from autoshard.program.trace import TraceError, trace
from tests.program.functions import base
from tests.program.steps import f, lines_of, of_kind


def does_not_multiply(x):
    y = jnp.sin(x)
    return y @ x


def asks_for_a_number(x):
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("fn", "offset", "kind"),
    [(does_not_multiply, 2, "TypeError"), (asks_for_a_number, 1, "TracerBoolConversionError")],
)
def test_a_function_that_does_not_trace(fn: Callable[..., Any], offset: int, kind: str) -> None:
    with pytest.raises(TraceError) as caught:
        autoshard.trace(fn, f(8, 4))
    where = f"{__file__}:{lines_of(fn)[offset]}"
    cause = caught.value.__cause__
    assert type(cause).__name__ == kind
    assert str(caught.value) == f"{fn.__name__} does not trace at {where}: {kind}: {cause}"


@pytest.mark.parametrize(("donate", "named"), [(2, 2), (-3, -3), ((0, 5), 5)])
def test_donating_an_argument_that_is_not_there(donate: Any, named: int) -> None:
    with pytest.raises(TraceError) as caught:
        trace(base, f(8, 16), f(16, 4), donate_argnums=donate)
    assert str(caught.value) == (
        f"donate_argnums holds {named}, but the function is given 2 arguments"
    )


@pytest.mark.parametrize("donate", ["x", 0.5, (0, None)])
def test_donating_what_is_no_position(donate: Any) -> None:
    with pytest.raises(TraceError) as caught:
        trace(base, f(8, 16), f(16, 4), donate_argnums=donate)
    assert str(caught.value) == (
        f"donate_argnums is {donate!r}, neither a position of an argument nor a sequence of "
        "positions"
    )


def rotated(x, y):
    rotate = jax.ffi.ffi_call("rotate", f(8, 4))
    return rotate(x) + rotate(y), jax.ffi.ffi_call("fold", f(8))(x)


def test_an_op_without_a_rule_says_how_to_add_one() -> None:
    with pytest.raises(NoRuleError) as caught:
        trace(rotated, f(8, 4), f(8, 4))
    line = lines_of(rotated)[2]
    assert str(caught.value) == (
        "no sharding rule for 3 equations:\n"
        f"  - ffi_call 'rotate': (float32[8,4]) -> (float32[8,4]) at test_trace_errors.py:{line}: "
        "what it computes inside is opaque (2 times)\n"
        f"  - ffi_call 'fold': (float32[8,4]) -> (float32[8]) at test_trace_errors.py:{line}: "
        "what it computes inside is opaque\n"
        "Say for each which dimensions may be split, with one name per dimension and the same "
        "name where dimensions go together. With these every dimension stays whole until you say "
        "otherwise:\n"
        "user_rules={\n"
        '    "rotate": UserRule("d0 d1 -> d2 d3", replicate=("d0", "d1", "d2", "d3")),\n'
        '    "fold": UserRule("d0 d1 -> d2", replicate=("d0", "d1", "d2")),\n'
        "}"
    )


def test_the_rule_that_the_message_proposes_is_taken() -> None:
    rules = {
        "rotate": UserRule("d0 d1 -> d2 d3", replicate=("d0", "d1", "d2", "d3")),
        "fold": UserRule("row column -> row", reduction={"column": "sum"}),
    }
    program = trace(rotated, f(8, 4), f(8, 4), user_rules=rules)
    first, second, fold = of_kind(program, "ffi_call")
    assert first.rule == second.rule
    assert {factor.kind for factor in first.rule.factors} == {FactorKind.REPLICATE}
    assert [(f.size, f.kind) for f in fold.rule.factors] == [
        (8, FactorKind.PASS),
        (4, FactorKind.REDUCE),
    ]


def test_a_failure_within_a_library_names_its_line():
    with pytest.raises(TraceError, match=r"apply_updates does not trace at optax/\S+\.py:\d+: "):
        trace(optax.apply_updates, 1.0, {"a": 1.0})


def test_a_method_of_a_keras_model_is_answered_with_what_to_write():
    class Model:
        def train_step(self, state, data):
            a, b, c, d = state
            return a + b + c + d, data

    Model.__module__ = "keras.src.models.model"
    with pytest.raises(TraceError) as caught:
        trace(Model().train_step, jnp.zeros(3), jnp.zeros(3))
    said = str(caught.value)
    assert "too many values to unpack" in said or "not enough values to unpack" in said
    assert "train_step is a method of a Keras model" in said
    assert "stateless_call and its optimizer's stateless_apply" in said


class Tensor:
    """As PyTorch's: it has a shape and a dtype, prints itself on lines, and is no array."""

    shape, dtype = (4,), "torch.float32"

    def __repr__(self):
        return "tensor([1., 2.,\n        3., 4.])"


Tensor.__module__ = "torch"


@pytest.mark.parametrize("plan", [trace, lambda fn, *args: autoshard.jit(fn)(*args)])
def test_tensors_of_pytorch_are_answered_with_how_they_become_arrays(plan):
    def step(weights, x):
        return x * weights["w"]

    with pytest.raises(TraceError) as caught:
        plan(step, {"w": Tensor()}, jnp.ones(4))
    assert str(caught.value) == (
        "step is given what is not an array of JAX:\n"
        "  [0]['w'] is Tensor tensor([1., 2., 3., 4.])\n"
        "tensors of PyTorch become arrays by torchax: extract_jax makes of a module its arrays and "
        "a function of JAX, interop.jax_view of a step and its tensors the same of JAX "
        "(docs/start/torchax.md)"
    )


def test_a_module_of_pytorch_is_answered_with_torchax():
    def linear(x):
        raise TypeError(f"linear(): argument 'input' must be Tensor, not {type(x).__name__} Tracer")

    class Module:
        def __call__(self, x):
            raise TypeError("no such layer")

    Module.__module__ = "torch.nn.modules.linear"
    for step in (linear, Module()):
        with pytest.raises(TraceError) as caught:
            trace(step, jnp.zeros(3))
        assert str(caught.value).endswith(
            "\na module of PyTorch takes tensors, not arrays: torchax.extract_jax makes of it its "
            "arrays and a function of JAX (docs/start/torchax.md)"
        )


def test_a_value_that_an_earlier_trace_left_behind_is_named():
    key = jax.random.key(0)

    def step(x):
        nonlocal key
        key, mine = jax.random.split(key)
        return x * jax.random.bernoulli(mine, 0.5, x.shape)

    assert trace(step, jnp.ones((4, 4))).name == "step"
    with pytest.raises(TraceError) as caught:
        trace(step, jnp.ones((4, 4)))
    assert str(caught.value) == (
        "step reads what is traced outside of it: key<fry>[]. What it calls keeps a value between "
        "calls (a random key, a counter), or it closes over a value of a function that is being "
        "traced; pass such values as arguments, and return those that change"
    )
    with pytest.raises(TraceError, match=r"reads what is traced outside of it: float32\[4\]\. "):
        jax.jit(lambda x: trace(lambda y: x + y, jnp.ones(4)))(jnp.ones(4))
