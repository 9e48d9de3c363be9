"""What is saved for the backward pass is decided with the layouts, and the plan runs as decided."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.lower.spmd import lower
from autoshard.lower.verify import verify
from autoshard.plan.plan import Plan, PlanError
from autoshard.plan.same_program import for_program
from autoshard.plan.text.page import format_plan
from autoshard.program.rewritten import resaved
from autoshard.program.trace import TraceError, trace
from autoshard.search.search import InfeasibleError, search
from tests.helpers import toy_machine
from tests.search.keep.stacked import stacked_arguments

LAYERS, BATCH, WIDTH = 4, 128, 32


def loss(params, x):
    def layer(x, weights):
        return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None

    x, _ = lax.scan(jax.checkpoint(layer), x, params)
    return jnp.sum(x * x)


def step(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def arguments():
    return stacked_arguments((LAYERS,), BATCH, WIDTH, 2 * WIDTH)


@pytest.fixture(scope="module")
def program():
    return trace(step, *arguments(), donate_argnums=0)


@pytest.fixture(scope="module")
def plans(program):
    options = {"mesh": {"x": 8}, "baselines": False}
    written = search(program, toy_machine(), **options)
    return written, search(program, toy_machine(), remat="search", **options)


def test_with_room_to_spare_nothing_dear_is_computed_again(plans, program):
    written, chosen = plans
    assert "saved" not in written.options
    assert chosen.estimate.step_seconds < 0.95 * written.estimate.step_seconds
    changed = resaved(program, chosen.options["saved"])
    again = [op.primitive for op in changed.ops if op.recomputed]
    assert "dot_general" not in again
    assert chosen.fingerprint == changed.fingerprint != program.fingerprint


def test_the_report_says_what_is_saved_and_how_the_program_would_say_so(plans):
    written, chosen = plans
    (one,) = [one for one in chosen.kept if one.saved]
    assert (one.type, one.turns, one.bytes) == ("f32[128,64]", LAYERS, LAYERS * 128 * 64 * 4)
    assert [line.partition(":")[0] for line in one.lines[:1]] == ["test_search.py"]
    text = format_plan(chosen)
    assert "saved for the backward pass" in text
    assert f'save_only_these_names("{one.name}")' in text
    assert "saved for the backward pass" not in format_plan(written)


def test_the_bound_is_that_of_all_choices_and_a_note_says_so(plans):
    _, chosen = plans
    assert chosen.proof.bound <= chosen.proof.objective
    (note,) = [note for note in chosen.notes if note.startswith("what is saved")]
    assert "as it is written" in note
    assert "the bound holds for the others on the mesh" in note


def test_layouts_make_room_for_what_is_saved_until_nothing_can_be(program, plans):
    written, chosen = plans
    options = {"mesh": {"x": 8}, "baselines": False}
    found = {}
    for part in (0.6, 0.5):
        limit = part * written.estimate.peak_bytes + 8.0
        options["memory_limit"] = limit
        found[part] = search(program, toy_machine(), remat="search", **options)
        assert found[part].estimate.peak_bytes <= limit
    assert chosen.estimate.peak_bytes > limit
    assert len(found[0.6].options["saved"]) == 1
    assert "saved" not in found[0.5].options
    seconds = [plan.estimate.step_seconds for plan in (chosen, found[0.6], found[0.5])]
    assert seconds == sorted(seconds)


def test_where_nothing_fits_the_least_is_that_of_the_fewest_stacks(program):
    said = []
    for remat in ("respect", "search"):
        with pytest.raises(InfeasibleError) as error:
            search(
                program,
                toy_machine(),
                mesh={"x": 8},
                baselines=False,
                remat=remat,
                memory_limit=16 * 1024.0,
            )
        said.append(error.value.least_bytes)
    assert said[1] == said[0] is not None


def test_the_plan_is_kept_lowered_and_verified(plans, tmp_path):
    _, chosen = plans
    chosen.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan == chosen
    args = arguments()
    verdict = verify(plan, step, *args, concrete=args)
    assert verdict.differences == ()
    assert verdict.collectives.agrees, str(verdict)
    text = lower(plan, step, *args).mlir_text()
    assert "rematted_computation" not in text or text.count("stablehlo.dot_general") == 6


def test_a_plan_for_other_saved_values_is_refused(plans, program):
    _, chosen = plans
    with pytest.raises(PlanError, match="the plan was made for program"):
        for_program(chosen, program)
    with pytest.raises(TraceError, match=r"is called moon; those of this program: "):
        resaved(program, ["moon"])


def test_without_a_choice_a_note_says_so():
    program = trace(lambda x, w: jnp.tanh(x @ w), np.ones((8, 8)), np.ones((8, 8)))
    plan = search(program, toy_machine(), mesh={"x": 8}, baselines=False, remat="search")
    assert any("there is nothing to choose to save" in note for note in plan.notes)


def test_meshes_are_searched_with_the_best_choice(program, plans):
    _, chosen = plans
    found = search(program, toy_machine(), baselines=False, remat="search")
    assert len(found.options["saved"]) == 1
    assert found.estimate.step_seconds <= chosen.estimate.step_seconds * (1 + 1e-9)
    assert len(found.proof.meshes) >= 1


def test_unrolled_layers_are_chosen_alike():
    def unrolled(params, x):
        def layer(x, weights):
            return x + jnp.tanh(x @ weights["up"]) @ weights["down"]

        for k in range(LAYERS):
            with jax.named_scope(f"layer_{k}"):
                x = jax.checkpoint(layer)(x, {name: stack[k] for name, stack in params.items()})
        return jnp.sum(x * x)

    def step(params, x):
        value, grads = jax.value_and_grad(unrolled)(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    args = arguments()
    program = trace(step, *args, donate_argnums=0)
    options = {"mesh": {"x": 8}, "baselines": False}
    written = search(program, toy_machine(), **options)
    chosen = search(program, toy_machine(), remat="search", **options)
    assert chosen.estimate.step_seconds < 0.95 * written.estimate.step_seconds
    names = [name.partition("/") for name in chosen.options["saved"]]
    assert {scope for scope, _, _ in names} == {f"layer_{k}" for k in range(LAYERS)}
    assert len({name for _, _, name in names}) * LAYERS == len(names)
    assert verify(chosen, step, *args, concrete=args).agrees


def test_what_is_saved_and_the_number_of_microbatches_are_chosen_together(program, plans):
    """Half of the batch at a time, everything can be saved where it could not be for the whole."""
    _, ample = plans
    options = {"mesh": {"x": 8}, "baselines": False, "remat": "search"}
    limit = 0.6 * ample.estimate.peak_bytes
    alone = search(program, toy_machine(), memory_limit=limit, **options)
    both = search(program, toy_machine(), memory_limit=limit, accumulate=(1, 2, 4), **options)
    assert both.estimate.peak_bytes <= limit
    assert both.estimate.step_seconds <= alone.estimate.step_seconds * (1 + 1e-9)
    assert all(f"in {count} microbatches" in " ".join(both.notes) for count in (2, 4))
    args = arguments()
    assert verify(both, step, *args, concrete=args).agrees
