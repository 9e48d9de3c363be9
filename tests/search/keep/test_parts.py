"""Where memory is left over, the last turns of a loop save more than the first, and no more fit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.lower.verify import verify
from autoshard.plan.plan import Plan
from autoshard.plan.text.page import format_plan
from autoshard.program.rewritten import loops_in_parts, resaved
from autoshard.program.trace import TraceError, trace
from autoshard.search.keep.otherwise import keep_choices
from autoshard.search.search import InfeasibleError, search
from tests.helpers import toy_machine
from tests.search.keep.stacked import stacked_arguments

LAYERS, BATCH, WIDTH = 8, 2048, 32
OPTIONS = {"mesh": {"x": 8}, "baselines": False}


def step(params, x):
    def layer(x, weights):
        return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None

    def loss(params):
        with jax.named_scope("layers"):
            last, _ = lax.scan(jax.checkpoint(layer), x, params)
        return jnp.sum(last * last)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def arguments():
    return stacked_arguments((LAYERS,), BATCH, WIDTH, 2 * WIDTH)


@pytest.fixture(scope="module")
def program():
    return trace(step, *arguments(), donate_argnums=0)


@pytest.fixture(scope="module")
def ends(program):
    """The plans that save nothing, and all that is worth it."""
    nothing = search(program, toy_machine(), **OPTIONS)
    return nothing, search(program, toy_machine(), remat="search", **OPTIONS)


@pytest.fixture(scope="module")
def chosen(program, ends):
    least, most = (plan.estimate.peak_bytes for plan in ends)
    limit = (least + most) / 2
    return search(program, toy_machine(), remat="search", memory_limit=limit, **OPTIONS)


def test_no_other_turn_to_begin_the_second_part_is_better(program, ends, chosen):
    (start,) = chosen.options["parts"]["layers"]
    assert chosen.options["saved"] == [f"layers/tanh[{start}:{LAYERS}]"]
    assert all("parts" not in plan.options for plan in ends)
    nothing, everything = (plan.estimate.step_seconds for plan in ends)
    assert everything < chosen.estimate.step_seconds < nothing
    for other in range(1, LAYERS):
        parts = loops_in_parts(program, {"layers": [other]})
        saved = [name.replace(f"[{start}:", f"[{other}:") for name in chosen.options["saved"]]
        try:
            plan = search(
                resaved(parts, saved),
                toy_machine(),
                memory_limit=chosen.memory_limit,
                **OPTIONS,
            )
        except InfeasibleError:
            assert other < start
        else:
            assert plan.estimate.step_seconds >= chosen.estimate.step_seconds * (1 - 1e-6)


def test_the_plan_is_kept_and_runs_as_it_says(chosen, tmp_path):
    chosen.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan == chosen
    args = arguments()
    assert verify(plan, step, *args, concrete=args).agrees


def test_the_report_says_that_no_policy_says_it(chosen):
    (start,) = chosen.options["parts"]["layers"]
    text = " ".join(format_plan(chosen).split())
    assert f"more in the last {LAYERS - start} of the {LAYERS} turns of layers" in text
    assert f"f32[2048,64] x {LAYERS - start} [{start}:{LAYERS}]" in text
    assert "no policy of jax.checkpoint says the same" in text
    assert f"turns [0:{start}], policy=jax.checkpoint_policies.nothing_saveable" in text
    assert 'save_only_these_names("layers_tanh")' in text


def test_each_part_may_be_asked_what_it_costs_to_keep_otherwise(program, chosen):
    planned = trace(step, *arguments(), **chosen.options)
    found = keep_choices(planned, chosen, ["*tanh"])
    (start,) = chosen.options["parts"]["layers"]
    assert {(one.name, one.saved) for one in found} == {
        (f"layers/tanh[0:{start}]", False),
        (f"layers/tanh[{start}:{LAYERS}]", True),
    }
    (last,) = keep_choices(planned, chosen, [f"layers/tanh[{start}:{LAYERS}]"])
    assert last.saved
    with pytest.raises(TraceError, match="parts of loops already"):
        loops_in_parts(planned, {"layers": [1]})
