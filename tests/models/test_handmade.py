"""Shardings by hand: names of dimensions, rules for them, and steps that compute the same."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from autoshard import models
from autoshard.lower.collectives import Collective, explicit_collectives
from autoshard.lower.compare import normalise
from autoshard.machine.load import load
from autoshard.models.annotate import (
    LogicalAxes,
    Rules,
    RulesError,
    active,
    constrain,
    lower,
    shardings,
)
from autoshard.models.by_hand import HAND_MADE, HandMade, chips_of_a_host
from autoshard.models.training import Step, abstract
from tests.helpers import sampled
from tests.models.conftest import QUICKLY

NAMED = ("llama3-8b", "llama3-8b-unrolled", "mixtral-8x7b", "vit-l16")
FSDP = Rules({"fsdp": 8}, {"embed": "fsdp"}, {"batch": "fsdp"})


def by_hand(name: str) -> HandMade:
    (found,) = (plan for plan in HAND_MADE if plan.name == name)
    return found


def text(step: Step) -> str:
    # A function of its own: JAX keeps what it has traced by function.
    return str(jax.make_jaxpr(lambda *args: step.fn(*args))(*step.args))


def specs(tree: Any) -> dict[str, P]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf.spec for path, leaf in leaves}


@pytest.mark.parametrize("name", sampled(NAMED, lambda name: name in ("llama3-8b", "vit-l16")))
def test_rules_leave_no_trace_where_they_are_not_active(name):
    step = models.tiny(name)
    before = text(step)
    assert "sharding_constraint" not in before
    module = lower(step, models.logical_axes(name), FSDP, platforms=("cpu",)).as_text()
    assert module.count("sdy.sharding_constraint") >= 8
    assert text(step) == before
    again = lower(step, models.logical_axes(name), FSDP, platforms=("cpu",)).as_text()
    assert again == module
    silent = Rules(FSDP.mesh, FSDP.parameters, FSDP.activations, constrains=False)
    module = lower(step, models.logical_axes(name), silent, platforms=("cpu",)).as_text()
    assert "sdy.sharding_constraint" not in module


def test_constrain_is_the_identity_without_rules():
    x = object()
    assert constrain(x, "batch") is x  # type: ignore[arg-type]


def test_parameters_state_and_data_lie_by_their_names():
    step = models.tiny("llama3-8b")
    rules = by_hand("FSDP x TP").rules(8, 8, 2)
    found = specs(shardings(step.args, models.logical_axes("llama3-8b"), rules))
    for tree in ("[0]", "[1][0].mu", "[1][0].nu"):
        assert found[f"{tree}['embedding']"] == P("tensor", "fsdp")
        assert found[f"{tree}['layers']['wk']"] == P(None, "fsdp", "tensor", None)
        assert found[f"{tree}['layers']['down']"] == P(None, "tensor", "fsdp")
        assert found[f"{tree}['layers']['ffn_norm']"] == P(None, None)
    assert found["[1][0].count"] == P()
    assert found["[2]['tokens']"] == P("fsdp", None)


def test_an_axis_is_laid_once_on_an_array():
    step = models.tiny("mixtral-8x7b")
    rules = by_hand("FSDP x expert").rules(16, 8, 0)
    assert rules.mesh == {"fsdp": 2, "expert": 8}
    found = specs(shardings(step.args[0], models.logical_axes("mixtral-8x7b"), rules))
    assert found["['layers']['gate']"] == P(None, "expert", "fsdp", None)
    assert found["['layers']['wq']"] == P(None, ("fsdp", "expert"), None, None)


def test_an_unrolled_step_lies_as_the_scanned_one():
    step = models.tiny("llama3-8b-unrolled")
    found = specs(shardings(step.args, models.logical_axes("llama3-8b-unrolled"), FSDP))
    assert found["[0]['layers'][1]['wq']"] == P("fsdp", None, None)


CASES = [
    ("llama3-8b", "FSDP x TP x sequence"),
    ("mixtral-8x7b", "FSDP x expert"),
]


@pytest.mark.parametrize(("name", "plan"), sampled(CASES, lambda one: one[0] != "llama3-8b"))
def test_a_step_by_hand_computes_what_it_does_unsharded(name, plan, compiled):
    devices = jax.devices("cpu")[:8]
    step, axes = models.tiny(name), models.logical_axes(name)
    rules = by_hand(plan).rules(8, 8, 2)
    arguments = jax.device_put(
        models.concrete(name, step.args, 0),
        shardings(step.args, axes, rules, rules.make_mesh(devices)),
    )
    run = lower(step, axes, rules, devices=devices).compile(compiler_options=QUICKLY)
    loss, params, _ = run(*arguments)
    expected, expected_params, _ = compiled(step.fn)(*models.concrete(name, step.args, 0))
    assert float(loss) == pytest.approx(float(expected), rel=2e-3)
    for one, other in zip(*map(jax.tree.leaves, (params, expected_params)), strict=True):
        # One step of AdamW moves a weight by the learning rate, whatever the gradient's size.
        np.testing.assert_allclose(one, other, atol=7e-4)


def moved(name: str, plan: str, degree: int) -> list[Collective]:
    rules = by_hand(plan).rules(8, 8, degree)
    lowered = lower(models.tiny(name), models.logical_axes(name), rules, platforms=("tpu",))
    return normalise(explicit_collectives(lowered))


def test_fsdp_gathers_parameters_and_scatters_gradients():
    """Beside that, rows that were looked up move to where they are needed; the rest is small."""
    step = models.tiny("llama3-8b")
    sizes = {math.prod(leaf.shape) for leaf in jax.tree.leaves(step.args[0])}
    layer = {size // 2 for size in sizes}
    found = moved("llama3-8b", "FSDP", 0)
    gathered = [one for one in found if one.kind == "all_gather" and "layers" in one.scope]
    assert {one.bytes for one in gathered} <= {2 * size for size in layer}
    scattered = [one for one in found if one.kind == "reduce_scatter"]
    assert {one.bytes for one in scattered} <= {2 * size for size in sizes | layer}
    # Seven matrices a layer: forwards and backwards, and the gradient of each; one beside them.
    assert sum(one.count for one in gathered) >= 2 * 7 * 2
    assert sum(one.count for one in scattered) == 2 * 7 + 1
    rest = [one for one in found if one not in gathered and one not in scattered]
    others = {one.kind for one in rest if "embed" not in one.scope and one.bytes > 256}
    assert others == set()


def test_experts_are_reached_by_all_to_all():
    found = moved("mixtral-8x7b", "FSDP x expert", 0)
    there = [one for one in found if one.kind == "all_to_all" and "experts" in one.scope]
    assert {one.axes for one in there} == {("expert",)}
    # There and back, forwards and backwards, and there again for the backward pass: two layers.
    assert sum(one.count for one in there) >= 5 * 2


# -- what is refused -------------------------------------------------------------------------------


def refusal(function: Any, *args: Any, **options: Any) -> list[str]:
    with pytest.raises(RulesError) as caught:
        function(*args, **options)
    return str(caught.value).split("\n")


def test_rules_name_axes_that_are_there():
    said = refusal(Rules, {"x": 2}, {"embed": ("x", "y")}, {"batch": "z"})
    assert said == ["rules name axes that the mesh x=2 has not:", "  embed: y", "  batch: z"]


def test_all_arguments_that_do_not_divide_are_named():
    step = models.tiny("llama3-8b")
    rules = Rules({"x": 3, "y": 5}, {"kv_heads": ("x", "y")}, {"batch": "x", "length": "y"})
    said = refusal(lower, step, models.logical_axes("llama3-8b"), rules, platforms=("cpu",))
    assert said[0] == "the rules do not suit these arrays:"
    assert (
        said[1]
        == "  [0]['layers']['wk'] (2, 64, 4, 8): kv_heads of 4 does not divide over x=3, y=5"
    )
    assert said[-1] == (
        "  [2]['tokens'] (8, 16): batch of 8 does not divide over x=3; "
        "length of 16 does not divide over y=5"
    )
    assert len(said) == 1 + 3 * 2 + 2


def test_all_activations_that_do_not_divide_are_named():
    step = models.tiny("vit-l16")
    rules = Rules({"x": 32}, {}, {"length": "x", "mlp": "x"})
    said = refusal(lower, step, models.logical_axes("vit-l16"), rules, platforms=("cpu",))
    assert said[0] == "the rules do not divide these activations:"
    assert "  (16, 16, 32) (batch, length, embed): length of 16 does not divide over x=32" in said
    assert len(said) == len(set(said)) == 4


def test_leaves_without_names_are_named():
    axes = LogicalAxes({"up": ("embed", "mlp")}, {})
    tree = {"up": abstract(2, 3, 4, 5), "down": [abstract(4)], "count": abstract()}
    assert refusal(shardings, tree, axes, FSDP) == [
        "the rules do not suit these arrays:",
        "  ['down'][0] (4,): 'down' has no logical names",
        "  ['up'] (2, 3, 4, 5): 'up' has the names embed, mlp",
    ]


def test_every_dimension_has_a_name():
    with (
        active(FSDP),
        pytest.raises(ValueError, match=r"has 2 dimensions, but 1 name: \('batch',\)"),
    ):
        jax.eval_shape(lambda x: constrain(x, "batch"), abstract(8, 8))


def test_programs_without_names_are_refused():
    with pytest.raises(ValueError, match="have no logical names") as caught:
        models.logical_axes("llama3-8b-decode")
    assert str(caught.value) == (
        "the dimensions of 'llama3-8b-decode' have no logical names; those of llama3-1b, "
        "llama3-1b-unrolled, llama3-8b, llama3-8b-unrolled, llama3-70b, llama3-70b-unrolled, "
        "llama3-405b, llama3-405b-unrolled, mixtral-8x7b, mixtral-8x7b-unrolled, vit-l16 have"
    )
    with pytest.raises(ValueError, match="the dimensions of 'unet' have no logical names"):
        models.logical_axes("unet")


def test_plans_suit_machines_and_programs():
    def suiting(name: str, machine: str) -> list[str]:
        found = load(machine)
        axes, host = models.logical_axes(name), chips_of_a_host(found)
        return [plan.name for plan in HAND_MADE if plan.suits(axes, found.chips, host)]

    everywhere = [
        "parameters only", "FSDP", "FSDP x TP", "FSDP x TP x embed", "FSDP x TP x sequence",
        "FSDP x context",
    ]  # fmt: skip
    assert suiting("vit-l16", "h100-8") == everywhere
    assert suiting("llama3-8b", "v5p-64") == everywhere
    assert set(suiting("llama3-8b", "h100-64")) == {*everywhere, "HSDP"}
    assert set(suiting("mixtral-8x7b", "v5e-16")) == {*everywhere, "FSDP x expert"}


@pytest.mark.parametrize("plan", HAND_MADE, ids=lambda plan: plan.name)
def test_every_plan_lowers_at_the_real_size(plan):
    rules = plan.rules(16, 8, 4)
    assert math.prod(rules.mesh.values()) == 16
    axes = models.logical_axes("mixtral-8x7b")
    module = lower(models.build("mixtral-8x7b"), axes, rules, platforms=("cuda",)).as_text()
    assert ("sdy.sharding_constraint" in module) == rules.constrains
