"""Rules of the user for opaque calls, and what is said where one is missing or does not fit."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import PartitionSpec

from autoshard.program.rules.ask_shardy import FactorKind, NoRuleError, UserRule, rules_for
from tests.program.rules.equations import MESH, OPERAND, equations_of


def kernel(a: Any) -> Any:
    def body(operand: Any, result: Any) -> None:
        result[...] = operand[...]

    return pallas.pallas_call(body, out_shape=OPERAND, name="copy_kernel")(a)


def manual(a: Any) -> Any:
    spec = PartitionSpec("x")

    def double(part: Any) -> Any:
        return part * 2

    return jax.shard_map(double, mesh=MESH, in_specs=spec, out_specs=spec)(a)


def foreign(a: Any) -> Any:
    return jax.ffi.ffi_call("my_target", OPERAND)(a)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (kernel, "copy_kernel"),
        (kernel, "pallas_call"),
        (manual, "shard_map"),
        (manual, "double"),
        (foreign, "my_target"),
        (foreign, "ffi_call"),
    ],
)
def test_user_rules_by_primitive_and_by_name(function: Any, name: str) -> None:
    equations = equations_of(function, OPERAND)
    found = rules_for(equations, user_rules={name: "row column -> row column"})
    assert str(found[0]) == "([row, column])->([row, column]) {row=8, column=6}"


def test_user_rules_with_kinds_sizes_and_leading_dimensions() -> None:
    equations = equations_of(lambda a, c: jnp.einsum("bik,bkj->bij", a, c), *two(4, 6, 8, 2))
    rule = UserRule("... i k, ... k j -> ... i j", reduction={"k": "max"}, permute=("i",))
    found = rules_for(equations[-1:], user_rules={"dot_general": rule})
    assert str(found[0]) == (
        "([batch_0, i, k], [batch_0, k, j])->([batch_0, i, j]) "
        "{batch_0=4, i=6, j=2, k=8} reduction={k:max} permutation={i}"
    )
    merged = equations_of(lambda a: a.reshape(48), OPERAND)
    rule = UserRule("rows columns -> (rows columns)", sizes={})
    found = rules_for(merged, user_rules={"reshape": rule})
    assert str(found[0]) == "([rows, columns])->([<rows columns>]) {rows=8, columns=6}"


def two(b: int, i: int, k: int, j: int) -> list[Any]:
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((b, i, k), (b, k, j))]


def test_custom_partitioning_carries_its_rule() -> None:
    @custom_partitioning
    def multiply(a: Any, c: Any) -> Any:
        return a @ c

    multiply.def_partition(
        partition=lambda *_: None, sharding_rule="i k, k j -> i j", reduction_factors=("k",)
    )
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 6), (6, 4))]
    found = rules_for(equations_of(multiply, *operands))
    assert str(found[0]) == "([i, k], [k, j])->([i, j]) {i=8, j=4, k=6} reduction={k}"


def test_user_rules_that_do_not_fit() -> None:
    equations = equations_of(kernel, OPERAND)
    with pytest.raises(ValueError, match="does not fit pallas_call") as error:
        rules_for(equations, user_rules={"copy_kernel": "i -> i j"})
    assert re.sub(r"at \S+:\d+", "at LINE", str(error.value)) == (
        "the user rule 'i -> i j' does not fit pallas_call at LINE:\n"
        "  - operand 0 of shape (8, 6) has 1 dimensions in the rule\n"
        "Name each dimension of each operand and result once, or start with '...'."
    )
    with pytest.raises(ValueError, match="2 operands in the rule, 1 in the equation"):
        rules_for(equations, user_rules={"copy_kernel": "i j, i j -> i j"})
    with pytest.raises(ValueError, match="k: in operands only; say how parts are combined"):
        rules_for(equations, user_rules={"copy_kernel": "i k -> i j"})
    rule = UserRule("(a c) j -> (a c) j", sizes={"a": 2, "c": 2})
    with pytest.raises(ValueError, match=re.escape("(a c) has 4 elements, the dimension 8")):
        rules_for(equations, user_rules={"copy_kernel": rule})


def test_equations_without_a_rule_are_all_listed() -> None:
    def function(a: Any) -> Any:
        return foreign(kernel(manual(kernel(a))) + 1)

    with pytest.raises(NoRuleError) as error:
        rules_for(equations_of(function, OPERAND))
    message = re.sub(r"at \S+:\d+", "at LINE", str(error.value))
    assert message == (
        "no sharding rule for 4 equation(s):\n"
        "  - pallas_call 'copy_kernel': (float32[8,6]) -> (float32[8,6]) at LINE: "
        "what it computes inside is opaque (2 times)\n"
        "  - shard_map 'double': (float32[8,6]) -> (float32[8,6]) at LINE: "
        "what it computes inside is opaque\n"
        "  - ffi_call 'my_target': (float32[8,6]) -> (float32[8,6]) at LINE: "
        "what it computes inside is opaque\n"
        "Say for each which dimensions may be split, with one name per dimension and the same "
        'name where dimensions go together, for example user_rules={"copy_kernel": '
        'UserRule("d0 d1 -> d2 d3", replicate=("d0", "d1", "d2", "d3"))}, where every dimension '
        "must stay whole until you say otherwise."
    )
    assert "test_user_rules.py:" in str(error.value)


def test_the_example_of_the_error_is_a_rule() -> None:
    rule = UserRule("d0 d1 -> d2 d3", replicate=("d0", "d1", "d2", "d3"))
    found = rules_for(equations_of(kernel, OPERAND), user_rules={"copy_kernel": rule})
    assert {factor.kind for factor in found[0].factors} == {FactorKind.REPLICATE}
