"""Rules of every family of equations: their text, and their truth."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import JaxprEqn
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from autoshard import compat
from autoshard.program.rules import ask_shardy as rules
from autoshard.program.rules.ask_shardy import (
    AMENDMENTS,
    OVERRIDES,
    FactorKind,
    NoRuleError,
    Rule,
    rules_for,
)
from tests.newer_jax import shard_alike
from tests.program.rules.equations import CALLBACKS, equations_of

from .cases import CASES, Case
from .oracle import apply, broken_promise, operand_values

LOCAL = (FactorKind.PASS, FactorKind.REDUCE)


def equation_of(case: Case) -> JaxprEqn:
    generator = np.random.default_rng(0)
    found = equations_of(case.function, *(operand.draw(generator) for operand in case.operands))
    return [e for e in found if e.primitive.name == case.primitive][-1]


def false_promises(function: Any, first: Any, second: Any, primitive: str | None) -> list[str]:
    """What the rules of a function's equations promise and do not keep on two sets of arguments."""
    broken: list[str] = []
    pairs = zip(operand_values(function, first), operand_values(function, second), strict=True)
    for (equation, one), (_, two) in pairs:
        if primitive not in (None, equation.primitive.name):
            continue
        rule = rules_for([equation])[0]
        for index, factor in enumerate(rule.factors):
            if factor.kind in LOCAL and factor.size > 1:
                problem = broken_promise(rule, index, equation, one, two)
                if problem:
                    broken.append(f"{equation.primitive.name} {rule}: {problem}")
    return broken


def known_as(rule: Rule) -> str:
    """The text of a rule, without the kinds of factors of one element, which cannot be cut.

    Shardy says them of a reshape or not, by its version.
    """
    factors = (
        replace(factor, kind=FactorKind.PASS, operator=None) if factor.size == 1 else factor
        for factor in rule.factors
    )
    return str(replace(rule, factors=tuple(factors)))


def test_rules_of_all_families() -> None:
    equations = {name: equation_of(case) for name, case in CASES.items()}
    found = dict(zip(equations, rules_for(list(equations.values())), strict=True))
    others = {name: known_as(rule) for name, rule in found.items()}
    expected = {name: known_as(Rule.parse(case.rule)) for name, case in CASES.items()}
    newer = {name: known_as(Rule.parse(case.newer)) for name, case in CASES.items() if case.newer}
    expected |= {name: text for name, text in newer.items() if text == others[name]}
    assert others == expected


@pytest.mark.parametrize("name", CASES)
def test_rules_keep_their_promises(name: str) -> None:
    case = CASES[name]
    generator = np.random.default_rng(1)
    first, second = ([operand.draw(generator) for operand in case.operands] for _ in range(2))
    assert false_promises(case.function, first, second, case.primitive) == []


OF_TYPES = {"reshard"}
"""Of the types of a trace alone, see tests/lower/test_explicit_axes.py."""


OF_KERNELS = compat.KERNELS
"""See tests/program/kernels, and tests/lower/kernels for plans that cut them."""


@pytest.mark.parametrize(
    "name", sorted({*OVERRIDES, *AMENDMENTS} - CALLBACKS - OF_TYPES - OF_KERNELS)
)
def test_every_hand_written_rule_has_a_case_and_a_need(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case for case in CASES.values() if case.primitive == name]
    if name in ("reduce_window_min", "reduce_window_sum"):
        cases = [case for case in CASES.values() if case.primitive == "reduce_window_max"]
    if name == "shard_alike" and shard_alike is None:
        pytest.skip("jax.experimental.shard_alike is gone from this version of JAX")
    assert cases, f"add a case for {name}"
    monkeypatch.setattr(rules, "AMENDMENTS", {})
    monkeypatch.setattr(rules, "_REMEMBERED", {})
    without = []
    for case in cases:
        try:
            without.append(str(rules_for([equation_of(case)], overrides={})[0]))
        except NoRuleError:
            without.append("none")
    assert without != [case.rule for case in cases], f"Shardy's rule of {name} does"


COMPILED = (
    *("conv_patches", "conv_patches_input_gradient", "conv_1x1_kernel_gradient", "conv_depthwise"),
    *("dot_general", "embedding", "take_along_axis", "scatter_add", "scatter_max"),
    *("reduce_max", "reshape_split", "dynamic_update_slice_one", "cumsum", "sort", "approx_top_k"),
    *("cholesky", "eigh", "random_bits", "broadcast_in_dim", "pool_tiles"),
)


@pytest.mark.parametrize("name", COMPILED)
def test_the_compiler_agrees(name: str) -> None:
    """XLA sends nothing for a factor that passes through, and combines once for a reduction."""
    case, devices = CASES[name], jax.devices()[:2]
    mesh = Mesh(np.array(devices), ("x",), axis_types=(AxisType.Auto,))
    equation = equation_of(case)
    rule = rules_for([equation])[0]
    operands = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    for index, factor in enumerate(rule.factors):
        if factor.kind not in LOCAL or factor.size % 2:
            continue
        tensors = (*rule.operands, *rule.results)
        if any(index in dimension[1:] for tensor in tensors for dimension in tensor):
            continue  # a minor factor has no layout of its own in XLA's plain shardings
        operand_shardings, result_shardings = (
            [
                NamedSharding(mesh, PartitionSpec(*("x" if index in d else None for d in tensor)))
                for tensor in side
            ]
            for side in (rule.operands, rule.results)
        )
        compiled = jax.jit(
            lambda *values: apply(equation, values),
            in_shardings=operand_shardings,
            out_shardings=result_shardings,
        )
        text = compiled.lower(*operands).compile().as_text()
        collectives = re.findall(
            r"= \S+ (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)\(", text
        )
        expected = ["all-reduce"] if factor.kind is FactorKind.REDUCE else []
        assert collectives == expected, f"{rule}, factor {factor.name}"


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_random_programs_keep_their_promises(data: st.DataObject) -> None:
    """Elementwise, dot, transpose, reshape and reduce on random shapes, chained."""
    sizes = st.sampled_from([2, 4, 6])
    shape = tuple(data.draw(st.lists(sizes, min_size=2, max_size=3), label="shape"))
    steps = data.draw(
        st.lists(
            st.sampled_from(["exp", "scale", "dot", "transpose", "merge", "sum", "max", "add"]),
            min_size=1,
            max_size=4,
        ),
        label="steps",
    )

    def function(a: Any, weights: Any) -> Any:
        for step in steps:
            if step == "exp":
                a = jnp.exp(-a)
            elif step == "scale":
                a = a * 0.5
            elif step == "add":
                a = a + a[..., :1]
            elif step == "transpose":
                a = a.T
            elif step == "merge":
                a = a.reshape(-1, a.shape[-1]) if a.ndim else a
            elif step == "dot" and a.ndim:
                a = a @ weights[: a.shape[-1], :4] if a.shape[-1] <= 6 else a
            elif step in ("sum", "max") and a.ndim > 1:
                a = a.sum(-1) if step == "sum" else a.max(0)
        return a

    generator = np.random.default_rng(2)
    first, second = (
        [jnp.asarray(generator.uniform(0.1, 1, s), jnp.float32) for s in (shape, (6, 6))]
        for _ in range(2)
    )
    assert false_promises(function, first, second, None) == []


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("([i, j])->([i, j]) {i=4, j=8}", lambda a: lax.cumsum(a, 1)),
        ("([i, j])->([i]) {i=4, j=8} reduction={j}", lambda a: lax.reduce_max(a, (1,))),
        ("([i, j])->([i]) {i=4, j=8} reduction={j:max}", lambda a: lax.reduce_sum(a, (1,))),
        ("([i, j])->([i]) {i=4, j=8} reduction={j:prod}", lambda a: lax.reduce_sum(a, (1,))),
        ("([i, j])->([i, j]) {i=4, j=8}", lambda a: lax.rev(a, (0,))),
        ("([i, jk])->([i, k, j]) {i=4, j=2, k=4}", lambda a: a.reshape(4, 4, 2)),
    ],
)
def test_the_oracle_finds_false_rules(text: str, function: Any) -> None:
    generator = np.random.default_rng(3)
    pairs = [
        operand_values(function, [jnp.asarray(generator.random((4, 8)), jnp.float32)])[-1]
        for _ in range(2)
    ]
    rule = Rule.parse(text)
    (equation, first), (_, second) = pairs
    found = [
        broken_promise(rule, index, equation, first, second) for index in range(len(rule.factors))
    ]
    assert any(found)
