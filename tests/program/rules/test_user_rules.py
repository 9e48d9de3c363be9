"""Rules of the user for opaque calls, and what is said where one is missing or does not fit."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from jax.experimental.custom_partitioning import SdyShardingRule, custom_partitioning

from autoshard.program.rules.ask_shardy import FactorKind, NoRuleError, UserRule, rules_for
from tests.program.kernels.functions import row_softmax
from tests.program.rules.equations import OPERAND, equations_of


def kernel(a: Any) -> Any:
    def body(operand: Any, result: Any) -> None:
        result[...] = operand[...]

    return pallas.pallas_call(body, out_shape=OPERAND, name="copy_kernel")(a)


def foreign(a: Any) -> Any:
    return jax.ffi.ffi_call("my_target", OPERAND)(a)


def other(a: Any) -> Any:
    return jax.ffi.ffi_call("other_target", OPERAND)(a)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (kernel, "copy_kernel"),
        (kernel, "pallas_call"),
        (foreign, "my_target"),
        (foreign, "ffi_call"),
    ],
)
def test_user_rules_by_primitive_and_by_name(function: Any, name: str) -> None:
    """A kernel of one block stays whole; of an FFI call the user's word is all there is."""
    equations = equations_of(function, OPERAND)
    found = rules_for(equations, user_rules={name: "row column -> row column"})
    whole = " need_replication={row, column}" if function is kernel else ""
    assert str(found[0]) == f"([row, column])->([row, column]) {{row=8, column=6}}{whole}"


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


def test_a_user_rule_keeps_of_a_kernel_what_it_names() -> None:
    """No rule makes a kernel run on parts that its blocks do not know of."""
    equations = equations_of(row_softmax, jax.ShapeDtypeStruct((16, 8), jnp.float32))
    derived, both, rows, columns = (
        str(rules_for(equations, user_rules=rules)[0])
        for rules in (
            {},
            {"row_softmax": "r c -> r c"},
            {"row_softmax": UserRule("r c -> r c", replicate=("c",))},
            {"row_softmax": UserRule("r c -> r c", replicate=("r",))},
        )
    )
    assert derived == (
        "([il, m])->([ij, k]) {i=8, j=2, k=8, l=2, m=8} need_replication={j, k, l, m}"
    )
    assert derived == both == rows
    assert columns == "([r, c])->([r, c]) {r=16, c=8} need_replication={r, c}"


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


@pytest.mark.parametrize("made", ["text", "text and factors", "record"])
def test_a_function_makes_the_rule_of_custom_partitioning(made: str) -> None:
    """It is told the types, as JAX tells them, and may name factors beside the text."""

    def rule(mesh: Any, operands: Any, results: Any) -> Any:
        assert [len(one.shape) for one in (*operands, *results)] == [2, 2, 2]
        text = "i k, k j -> i j"
        if made == "text and factors":
            return text, {"reduction_factors": ("k",)}
        if made == "text":
            return text
        record: Any = SdyShardingRule
        return record((("i", "k"), ("k", "j")), (("i", "j"),))

    multiply = custom_partitioning(lambda a, c: a @ c)
    multiply.def_partition(partition=lambda *_: None, sharding_rule=rule)
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 6), (6, 4))]
    (found,) = rules_for(equations_of(multiply, *operands))
    kind = "reduction" if made == "text and factors" else "need_replication"
    assert str(found) == f"([i, k], [k, j])->([i, j]) {{i=8, j=4, k=6}} {kind}={{k}}"


def test_a_function_that_makes_no_rule_is_named() -> None:
    def rule(mesh: Any, operands: Any, results: Any) -> Any:
        return f"i j -> i ({mesh.shape['x']} j)"

    copy = custom_partitioning(lambda a: a)
    copy.def_partition(partition=lambda *_: None, sharding_rule=rule)
    with pytest.raises(NoRuleError, match=r"cannot be read \(KeyError: 'x'\); give a rule in user"):
        rules_for(equations_of(copy, OPERAND))


def test_user_rules_that_do_not_fit() -> None:
    equations = equations_of(kernel, OPERAND)
    with pytest.raises(NoRuleError, match="k: in operands only; say how parts are combined"):
        rules_for(equations, user_rules={"copy_kernel": "i k -> i j"})
    rule = UserRule("(a c) j -> (a c) j", sizes={"a": 2, "c": 2})
    with pytest.raises(NoRuleError, match="does not fit pallas_call") as error:
        rules_for(equations, user_rules={"copy_kernel": rule})
    assert re.sub(r"at \S+:\d+", "at LINE", str(error.value)) == (
        "the user rule '(a c) j -> (a c) j' does not fit pallas_call at LINE:\n"
        "  - operand 0 of shape (8, 6): (a c) has 4 elements, the dimension 8\n"
        "  - result 0 of shape (8, 6): (a c) has 4 elements, the dimension 8\n"
        "Name each dimension of each operand and result once, or start with '...'."
    )
    with pytest.raises(NoRuleError, match=re.escape("the user rule 'i - i' cannot be read: ")):
        rules_for(equations, user_rules={"copy_kernel": "i - i"})


@pytest.mark.parametrize("given", ["i -> i j", ["i j -> i j", "i -> i j"]])
def test_a_rule_of_a_signature_that_no_op_of_its_name_has_is_refused(given: Any) -> None:
    with pytest.raises(NoRuleError) as error:
        rules_for(equations_of(kernel, OPERAND), user_rules={"copy_kernel": given})
    assert re.sub(r"at \S+:\d+", "at LINE", str(error.value)) == (
        "these user rules have other numbers of dimensions, of operands or of results than what "
        "they are given for:\n"
        "  - 'i -> i j' for 'copy_kernel' says (1 -> 2), but 'copy_kernel' has (2 -> 2) (at LINE)\n"
        "Name each dimension of each operand and result once, or start with '...'."
    )


def several(a: Any) -> Any:
    """Ops of one name and four signatures, as a call and its derivatives are."""

    def call(operands: list[Any], *shapes: tuple[int, ...]) -> Any:
        out = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        return jax.ffi.ffi_call("several", out)(*operands)

    (forward,) = call([a], (8, 6))
    loss, kept = call([forward, a], (), (8,))
    (back,) = call([loss, kept], (8, 6))
    (made,) = call([], (6,))
    return back + made


def test_of_several_rules_the_one_with_the_signature_is_taken() -> None:
    equations = [one for one in equations_of(several, OPERAND) if one.primitive.name == "ffi_call"]
    summed = UserRule("i j, i j -> , i", replicate=("j",))
    rules = ["i j -> i j", summed, UserRule(", i -> i j"), "-> i"]
    found = rules_for(equations, user_rules={"several": rules})
    assert [str(rule).split(" {")[0] for rule in found] == [
        "([i, j])->([i, j])",
        "([i, j], [i, j])->([], [i])",
        "([], [i])->([i, j])",
        "()->([i])",
    ]


@pytest.mark.parametrize(
    ("function", "given", "cut"),
    [
        (several, {}, set()),
        (several, {"several": "i j -> i j"}, {"i", "j"}),
        (several, {"several": ["i j -> i j", UserRule(", i -> i j")]}, {"i", "j"}),
        (lambda a: foreign(kernel(a)), {}, set()),
        (lambda a: foreign(other(a)), {"my_target": "... -> ..."}, {"batch_0", "batch_1"}),
    ],
)
def test_what_the_message_proposes_can_be_pasted(function: Any, given: Any, cut: Any) -> None:
    """Rules that were given already stand in it too, so that it may take their place."""
    equations = [
        one
        for one in equations_of(function, OPERAND)
        if one.primitive.name in ("ffi_call", "pallas_call", "shard_map")
    ]
    with pytest.raises(NoRuleError, match="no sharding rule") as error:
        rules_for(equations, user_rules=given)
    code = str(error.value).split("user_rules=")[1]
    pasted = eval(code, {"UserRule": UserRule})
    found = rules_for(equations, user_rules={**given, **pasted})
    factors = [factor for rule in found for factor in rule.factors]
    assert {one.name for one in factors if one.kind is not FactorKind.REPLICATE} == cut


def test_equations_without_a_rule_are_all_listed() -> None:
    def function(a: Any) -> Any:
        return foreign(foreign(kernel(a)) + 1)

    with pytest.raises(NoRuleError) as error:
        rules_for(equations_of(function, OPERAND))
    message = re.sub(r"at \S+:\d+", "at LINE", str(error.value))
    assert message == (
        "no sharding rule for 2 equations:\n"
        "  - ffi_call 'my_target': (float32[8,6]) -> (float32[8,6]) at LINE: "
        "what it computes inside is opaque (2 times)\n"
        "Say for each which dimensions may be split, with one name per dimension and the same "
        "name where dimensions go together. With these every dimension stays whole until you say "
        "otherwise:\n"
        "user_rules={\n"
        '    "my_target": UserRule("d0 d1 -> d2 d3", replicate=("d0", "d1", "d2", "d3")),\n'
        "}"
    )
    assert "test_user_rules.py:" in str(error.value)
