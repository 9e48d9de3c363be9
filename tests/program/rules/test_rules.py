"""Rules of every family of equations: their text, their truth, their speed, and their errors."""

from __future__ import annotations

import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback, pallas
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import JaxprEqn
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from autoshard.compat import LoweredModule, LoweredOp
from autoshard.program.rules import ask_shardy as rules
from autoshard.program.rules.ask_shardy import (
    AMENDMENTS,
    OVERRIDES,
    Factor,
    FactorKind,
    NoRuleError,
    Override,
    Rule,
    UserRule,
    rules_for,
)
from autoshard.program.rules.join import join_rules

from .cases import CASES, Case
from .oracle import apply, broken_promise, operand_values

CALLBACKS = {"pure_callback", "io_callback", "debug_callback", "debug_print"}
LOCAL = (FactorKind.PASS, FactorKind.REDUCE)


def equations_of(function: Any, *arguments: Any) -> list[JaxprEqn]:
    """The equations of a function, calls inlined."""
    found: list[JaxprEqn] = []

    def walk(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            if equation.primitive.name in ("jit", "custom_jvp_call", "custom_vjp_call"):
                walk(body.jaxpr)
            else:
                found.append(equation)

    walk(jax.make_jaxpr(function)(*arguments).jaxpr)
    return found


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


# -- what the rules are ------------------------------------------------------------------------


def test_rules_of_all_families() -> None:
    equations = {name: equation_of(case) for name, case in CASES.items()}
    found = dict(zip(equations, rules_for(list(equations.values())), strict=True))
    assert {name: str(rule) for name, rule in found.items()} == {
        name: case.rule for name, case in CASES.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_rules_keep_their_promises(name: str) -> None:
    case = CASES[name]
    generator = np.random.default_rng(1)
    first, second = ([operand.draw(generator) for operand in case.operands] for _ in range(2))
    assert false_promises(case.function, first, second, case.primitive) == []


@pytest.mark.parametrize("name", sorted({*OVERRIDES, *AMENDMENTS} - CALLBACKS))
def test_every_hand_written_rule_has_a_case_and_a_need(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case for case in CASES.values() if case.primitive == name]
    if name in ("reduce_window_min", "reduce_window_sum"):
        cases = [case for case in CASES.values() if case.primitive == "reduce_window_max"]
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
    *("dot_general", "conv_groups", "embedding", "take_along_axis", "scatter_add", "scatter_max"),
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


# -- joining -----------------------------------------------------------------------------------


def joined(shapes: list[tuple[int, ...]], ops: list[LoweredOp], result: int) -> str:
    """The rule of one equation: value 0 is its operand, `result` its result."""
    module = LoweredModule(tuple(ops), tuple(shapes), ((0,),), ((result,),))
    return str(join_rules(module)[0])


def op(name: str, operands: tuple[int, ...], result: int, rule: str | None = None, **facts: Any):
    return LoweredOp(f"stablehlo.{name}", operands, (result,), rule, **facts)


def test_a_factor_is_split_where_ops_see_a_dimension_differently() -> None:
    ops = [
        op("exponential", (0,), 1, "([i])->([i]) {i=12}"),
        op("reshape", (1,), 2, "([ij])->([i, j]) {i=3, j=4}"),
    ]
    assert joined([(12,), (12,), (3, 4)], ops, 2) == "([ij])->([i, j]) {i=3, j=4}"


def test_no_common_split_means_replication() -> None:
    ops = [
        op("reshape", (0,), 1, "([i, j])->([ij]) {i=2, j=3}"),
        op("reshape", (1,), 2, "([ij])->([i, j]) {i=3, j=2}"),
    ]
    assert joined([(2, 3), (6,), (3, 2)], ops, 2) == (
        "([k, l])->([i, j]) {i=3, j=2, k=2, l=3} need_replication={i, j, k, l}"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [("negate", "reduction={j}"), ("exponential", "need_replication={j}")],
)
def test_partial_sums_pass_through_linear_ops_only(name: str, kind: str) -> None:
    ops = [
        op("constant", (), 1, splat=0.0),
        op("reduce", (0, 1), 2, "([i, j], [])->([i]) {i=4, j=8} reduction={j}", operator="sum"),
        op(name, (2,), 3, "([i])->([i]) {i=4}"),
    ]
    assert joined([(4, 8), (), (4,), (4,)], ops, 3) == f"([i, j])->([i]) {{i=4, j=8}} {kind}"


def test_a_sum_that_is_used_beside_its_summands_must_be_whole() -> None:
    ops = [
        op("constant", (), 1, splat=0.0),
        op("reduce", (0, 1), 2, "([i, j], [])->([i]) {i=4, j=8} reduction={j}", operator="sum"),
        op("broadcast_in_dim", (2,), 3, "([i])->([i, j]) {i=4, j=8}"),
        op("multiply", (0, 3), 4, "([i, j], [i, j])->([i, j]) {i=4, j=8}"),
    ]
    assert joined([(4, 8), (), (4,), (4, 8), (4, 8)], ops, 4) == (
        "([i, j])->([i, j]) {i=4, j=8} need_replication={j}"
    )


def test_constants_tie_nothing_together() -> None:
    same = "([i, j], [i, j])->([i, j]) {i=4, j=4}"
    ops = [
        op("iota", (), 1),
        op("add", (0, 1), 2, same),
        op("transpose", (1,), 3, "([i, j])->([j, i]) {i=4, j=4}"),
        op("add", (2, 3), 4, same),
    ]
    assert joined([(4, 4)] * 5, ops, 4) == "([i, j])->([i, j]) {i=4, j=4}"


def test_a_factor_on_two_dimensions_of_one_value_must_be_whole() -> None:
    ops = [
        op("transpose", (0,), 1, "([i, j])->([j, i]) {i=4, j=4}"),
        op("add", (0, 1), 2, "([i, j], [i, j])->([i, j]) {i=4, j=4}"),
    ]
    assert joined([(4, 4)] * 3, ops, 2) == (
        "([i, k])->([i, j]) {i=4, j=4, k=4} need_replication={i, j, k}"
    )


def test_ops_of_which_nothing_is_known_need_all_of_their_operands() -> None:
    ops = [op("while", (0,), 1), op("custom_call", (1,), 2, "([i])->([i]) {i=4}")]
    assert joined([(4,)] * 3, ops, 2) == "([j])->([i]) {i=4, j=4} need_replication={i, j}"


# -- records -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "([i, k], [k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}",
        "([i, jk])->([ij, k]) {i=4, j=2, k=6}",
        "([])->([])",
        "()->([i]) {i=4}",
        "([i, 1], [1])->([i]) {i=4}",
        "([i, j])->([i]) {i=2, j=3} reduction={j:max}",
        "([<batch heads>, i])->([batch, heads, i]) {batch=2, heads=3, i=4} permutation={i}",
        "([i, z_1z_12])->([i, z_1, z_12]) {i=2, z_1=3, z_12=4} blocked_propagation={z_12}",
    ],
)
def test_rules_can_be_read_back(text: str) -> None:
    assert str(Rule.parse(text)) == text
    assert Rule.parse(str(Rule.parse(text))) == Rule.parse(text)


def test_wrong_records_are_refused() -> None:
    with pytest.raises(ValueError, match="factor i of kind REDUCE has operator None"):
        Factor("i", 4, FactorKind.REDUCE)
    i = Factor("i", 4)
    with pytest.raises(ValueError, match="factor names must differ, but are i, i"):
        Rule((i, i), (((0,),),), (((1,),),))
    with pytest.raises(ValueError, match=re.escape("a tensor uses a factor twice: [i, i]")):
        Rule((i,), (((0,), (0,)),), ())
    with pytest.raises(ValueError, match=r"factor index out of range 0\.\.0"):
        Rule((i,), (((1,),),), ())
    with pytest.raises(ValueError, match=re.escape("cannot read the rule 'i j -> k'")):
        Rule.parse("i j -> k")


# -- opaque calls ------------------------------------------------------------------------------

MESH = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
OPERAND = jax.ShapeDtypeStruct((8, 6), jnp.float32)


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
    assert "test_rules.py:" in str(error.value)


def test_the_example_of_the_error_is_a_rule() -> None:
    rule = UserRule("d0 d1 -> d2 d3", replicate=("d0", "d1", "d2", "d3"))
    found = rules_for(equations_of(kernel, OPERAND), user_rules={"copy_kernel": rule})
    assert {factor.kind for factor in found[0].factors} == {FactorKind.REPLICATE}


# -- the rest ----------------------------------------------------------------------------------


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


def test_a_train_step_in_a_fraction_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_REMEMBERED", {})
    equations = train_step_equations(layers=4)
    start = time.perf_counter()
    found = rules_for(equations)
    seconds = time.perf_counter() - start
    assert len(equations) > 1000
    assert len({id(rule) for rule in found}) < 200, "equal equations share a rule"
    # 0.06 s measured; the limit leaves room for a busy machine.
    assert seconds < 1.0
    blocked = [
        f"{equation.primitive.name} {rule}"
        for equation, rule in zip(equations, found, strict=True)
        for factor in rule.factors
        if factor.kind is FactorKind.REPLICATE and factor.size > 1
    ]
    assert blocked == [], "every dimension of a transformer may be split"
