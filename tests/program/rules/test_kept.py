"""The user's rules in a plan: texts, rules of JAX's own, what functions said; what is not kept."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule

from autoshard import compat
from autoshard.lower.spmd import lower
from autoshard.plan.plan import Plan
from autoshard.program.rules.kept import Lost, read_rules
from autoshard.program.rules.record import Factor, FactorKind, Rule
from autoshard.program.rules.user import NoRuleError
from autoshard.program.trace import Program, trace
from autoshard.search.search import search
from tests.helpers import toy_machine

TALL = jax.ShapeDtypeStruct((16, 8), jnp.float32)


def called(x: Any, rows: int, scale: int = 1) -> Any:
    """Rows of a target of the user's."""
    shape = jax.ShapeDtypeStruct((rows, x.shape[1]), x.dtype)
    return jax.ffi.ffi_call("rows", shape)(x, scale=scale)


def step(x: Any) -> Any:
    """The first call keeps all rows, the second one sums them up."""
    return called(jnp.sin(x), 16) * 2, called(x + 1, 1)


def alike(x: Any) -> Any:
    """Two calls whose arrays have equal shapes."""
    return called(jnp.sin(x), 16) * 2, called(x + 1, 16, scale=2)


def by_shape(equation: Any) -> Rule:
    """Whole rows where they are kept; sums over them. Its names are not Shardy's."""
    rows, columns = equation.invars[0].aval.shape
    kept = equation.outvars[0].aval.shape[0] == rows
    kind, operator = (FactorKind.PASS, None) if kept else (FactorKind.REDUCE, "sum")
    factors = Factor("row, of x", rows, kind, operator), Factor("column", columns)
    return Rule(factors, (((0,), (1,)),), (((0,) if kept else (), (1,)),))


def by_scale(equation: Any) -> Rule:
    """Another rule where an attribute is another one."""
    scaled = dict(equation.params["attributes"])["scale"] == 2
    kind = FactorKind.REPLICATE if scaled else FactorKind.PASS
    factors = Factor("i", 16, kind), Factor("j", 8)
    return Rule(factors, (((0,), (1,)),), (((0,), (1,)),))


def read_back(fn: Any, rules: Any) -> tuple[Program, Plan]:
    program = trace(fn, TALL, user_rules=rules)
    plan = search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    return program, Plan.from_json(json.loads(json.dumps(plan.to_json())))


def foreign(program: Program) -> list[Rule]:
    return [op.rule for op in program.ops if op.primitive == compat.FFI]


def test_what_a_function_said_is_kept_by_the_shapes_of_arrays() -> None:
    program, plan = read_back(step, {"rows": by_shape})
    assert plan.options["user_rules"]["rows"] == {
        "said": [
            [[[16, 8]], [[16, 8]], "([i, j])->([i, j]) {i=16, j=8}"],
            [[[16, 8]], [[1, 8]], "([i, j])->([1, j]) {i=16, j=8} reduction={i}"],
        ]
    }
    again = lower(plan, step, TALL).program
    assert again.fingerprint == program.fingerprint
    assert again.options == plan.options
    texts = [str(rule) for rule in foreign(again)]
    assert texts == [one[2] for one in plan.options["user_rules"]["rows"]["said"]]
    other = jax.ShapeDtypeStruct((16, 4), jnp.float32)
    with pytest.raises(NoRuleError, match=r"of \(\[16, 8\] -> \[16, 8\]\), .* here 'rows' is "):
        lower(plan, step, other)


def test_rules_of_jax_are_kept_as_texts() -> None:
    """What operands alone have stays whole, as JAX says; names are the user's."""
    mappings = (ArrayMapping("k", "j"),), (ArrayMapping("i", "j"),)
    rules = {"rows": SdyShardingRule(*mappings, permutation_factors=("j",))}
    program, plan = read_back(step, rules)
    assert plan.options["user_rules"]["rows"] == {
        "text": "k j -> i j",
        "reduction": {},
        "replicate": ["k"],
        "permute": ["j"],
        "sizes": {},
    }
    assert list(map(str, foreign(program))) == [
        "([k, j])->([i, j]) {i=16, j=8, k=16} need_replication={k} permutation={j}",
        "([k, j])->([i, j]) {i=1, j=8, k=16} need_replication={k} permutation={j}",
    ]
    assert foreign(lower(plan, step, TALL).program) == foreign(program)


def test_what_no_plan_can_keep_is_named_when_the_step_is_traced_by_it() -> None:
    program, plan = read_back(alike, {"rows": by_scale})
    assert [rule.factors[0].kind for rule in foreign(program)] == [
        FactorKind.PASS,
        FactorKind.REPLICATE,
    ]
    with pytest.raises(NoRuleError) as caught:
        lower(plan, alike, TALL)
    assert str(caught.value) == (
        "the rule of 'rows' with which the plan was made is a function that says "
        "([i, j])->([i, j]) {i=16, j=8} and ([i, j])->([i, j]) {i=16, j=8} need_replication={i} "
        "of ops ([16, 8] -> [16, 8]), which no plan keeps: give it as a text or an autoshard "
        "UserRule, and search again"
    )
    open_one = SdyShardingRule((ArrayMapping("…", "j"),), (ArrayMapping("j"),))
    kept = trace(lambda x: jnp.sin(x), TALL, user_rules={"rows": open_one}).options["user_rules"]
    assert kept["rows"] == {
        "lost": "'... j -> j', where ... stands for dimensions of operands alone"
    }
    assert isinstance(read_rules(kept)["rows"][0], Lost)


def test_a_function_that_returns_no_rule_is_named() -> None:
    def nothing(_: Any) -> Any:
        return None

    with pytest.raises(NoRuleError) as caught:
        trace(step, TALL, user_rules={"rows": nothing})
    assert "is a function that returned None; it must return a rule" in str(caught.value)
    assert "test_kept.py" in str(caught.value)
