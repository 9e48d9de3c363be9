"""What a step changes in place is a result of it, and state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from autoshard.program.notes import notes_of
from autoshard.program.state.in_place import Returning
from autoshard.program.state.write import write_back
from autoshard.program.trace import TraceError, trace
from tests.program.in_place_steps import (
    BATCH,
    Average,
    average_step,
    eval_step,
    model_and_optimizer,
    plain_step,
    ref_step,
    refs,
    returning_step,
    train_step,
)
from tests.program.steps import f


def paths(program, pairs):
    return {program.input_paths[i]: program.output_paths[o] for i, o in pairs}


@pytest.mark.parametrize("step", [plain_step, train_step])
def test_the_update_of_flax_objects_is_planned(step) -> None:
    model, optimizer = model_and_optimizer()
    program = trace(step, model, optimizer, BATCH)
    returned = trace(returning_step, model, optimizer, BATCH, donate_argnums=(0, 1))
    assert sum(op.flops for op in program.ops) == sum(op.flops for op in returned.ops)
    assert len(program.outputs) == len(returned.outputs)
    assert notes_of(program) == ()
    changed = paths(program, program.changed)
    assert changed["[0].up.kernel.value"] == "[1]['model'].up.kernel.value"
    assert changed["[0].norm.mean.value"] == "[1]['model'].norm.mean.value"
    moment = "opt_state[0].trace['down']['bias'].value"
    assert changed[f"[1].{moment}"] == f"[1]['optimizer'].{moment}"
    assert program.ties == program.changed
    state = [k for k, path in enumerate(program.input_paths) if path[:3] != "[2]"]
    assert sorted(program.donated) == state == [given for given, _ in program.changed]
    assert len(returned.ties) == len(program.ties)


def test_what_is_changed_and_returned_is_no_second_result() -> None:
    def step(model, optimizer, batch):
        return plain_step(model, optimizer, batch), nnx.state((model, optimizer))

    program = trace(step, *model_and_optimizer(), BATCH)
    assert program.changed == ()
    assert program.donated == frozenset()
    assert paths(program, program.ties)["[0].up.kernel.value"] == "[1][0]['up']['kernel'].value"


def test_what_only_passes_through_a_call_is_not_changed() -> None:
    model, _ = model_and_optimizer()
    program = trace(eval_step, model, BATCH)
    assert program.changed == program.ties == ()
    assert program.output_paths == ("",)


def test_refs_are_arrays_that_the_step_returns() -> None:
    program = trace(ref_step, *refs(), f(4, 16))
    assert program.input_paths == ("[0]['count']", "[0]['sums']", "[1]", "[2]")
    assert program.refs == {0, 1, 2}
    assert paths(program, program.ties) == {
        "[0]['count']": "[1]['state.count']",
        "[0]['sums']": "[1]['state.sums']",
        "[1]": "[1]['weights']",
    }
    assert not {"get", "swap", "addupdate", "ref"} & {op.primitive for op in program.ops}
    assert program.donated == {0, 1, 2}


def test_refs_that_are_no_arguments_are_refused() -> None:
    weights = jax.new_ref(jnp.ones(4))

    def step(x):
        weights[...] += x
        return jnp.sum(x)

    message = r"step reads or changes Refs that are not arguments of it: Ref\{float32\[4\]\}; pass"
    with pytest.raises(TraceError, match=message):
        trace(step, f(4))


def test_refs_of_a_step_alone_are_planned() -> None:
    def step(x):
        total = jax.new_ref(jnp.zeros(16))
        jax.lax.scan(lambda k, row: (total.addupdate(row), None)[::-1] and (k, None), 0, x)
        return total[...]

    program = trace(step, f(4, 16))
    assert program.changed == ()
    assert "add" in {op.primitive for op in program.ops}


def test_objects_of_a_users_own_are_state_where_they_change() -> None:
    average = Average(f(8), (f(), f()))
    program = trace(average_step, average, f(8))
    assert len(program.changed) == 3
    assert paths(program, program.ties)["[0].parts[0]"] == "[1]['average'].parts[0]"


def test_dictionaries_are_changed_inside_of_the_step_alone() -> None:
    def step(params, x):
        params["w"] = params["w"] + x
        return jnp.sum(params["w"])

    program = trace(step, {"w": f(4), "b": f(4)}, f(4))
    assert program.output_paths == ("",)


def test_objects_that_are_built_otherwise_afterwards_are_refused() -> None:
    def step(model, optimizer, batch):
        model.seen = nnx.Cache(batch["x"])
        return plain_step(model, optimizer, batch)

    with pytest.raises(TraceError) as caught:
        trace(step, *model_and_optimizer(), BATCH)
    lines = str(caught.value).split("\n")
    assert lines[:2] == ["step changes objects, but", "  model.seen.value is new"]
    assert lines[-1].startswith("hand the state in as arrays and return them, as in `graphdef,")


def test_one_object_in_two_places_is_refused() -> None:
    average = Average(f(8), (f(), f()))
    with pytest.raises(TraceError, match=r"\n  pair\.a and pair\.b are one object\n"):
        trace(lambda pair, x: average_step(pair["b"], x), {"a": average, "b": average}, f(8))
    assert trace(lambda pair, x: pair["a"].total + x, {"a": average, "b": average}, f(8))
    model, optimizer = model_and_optimizer()
    model.tied = model.up
    with pytest.raises(TraceError, match=r"model\.tied and model\.up are one object"):
        trace(plain_step, model, optimizer, BATCH)


def averaging_step(weights, averaged, x):
    for weight, average in zip(weights, averaged, strict=True):
        weight[...] = weight[...] + x
        average[...] = 0.9 * average[...] + 0.1 * weight[...]


def test_averaged_weights_that_are_the_objects_of_the_weights_are_refused_in_a_few_lines() -> None:
    many = [nnx.Param(f(8)) for _ in range(20)]
    with pytest.raises(TraceError) as caught:
        trace(averaging_step, many, many, f(8))
    lines = str(caught.value).split("\n")
    assert lines[1] == "  weights.0 and averaged.0 are one object"
    assert lines[-2] == "  and 8 more"
    assert lines[-1].startswith("give one of the two objects of its own, as `jax.tree.map(lambda")
    apart = [nnx.Param(f(8)) for _ in range(20)]
    assert len(trace(averaging_step, many, apart, f(8)).changed) == 40


def test_a_function_that_returns_its_changes_leaves_its_arguments_alone() -> None:
    average = Average(jnp.ones(8), (jnp.zeros(()), jnp.ones(())))
    state, weights = refs()
    step = Returning(average_step, (average, jnp.ones(8)))
    loss, changed = Returning(step, (average, jnp.ones(8)))(average, jnp.ones(8))
    assert average.total[0] == 1.0
    assert (loss, changed["average"].total[0], changed["average"].parts[0]) == (8.0, 3.0, 1.0)
    arrays = jax.tree.map(lambda ref: ref[...], (state, weights))
    _, changed = Returning(ref_step, (state, weights, 0))(*arrays, jnp.ones((4, 16)))
    assert changed["state.count"] == 4
    assert state["count"][...] == 0


def test_arrays_are_written_into_objects_of_any_kind() -> None:
    model, _ = model_and_optimizer()
    average = Average(jnp.ones(8), (jnp.zeros(()), jnp.ones(())))
    up, names = model.up, [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(model)]
    kernel = names.index(".up.kernel.value")
    write_back((model, {"a": average}), {kernel: "new", len(names) + 1: "part"})
    assert model.up is up
    assert model.up.kernel.get_raw_value() == "new"
    assert average.parts == ("part", jnp.ones(()))
