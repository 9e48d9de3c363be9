"""A loop in parts computes the same, to the last bit, and each part saves what it is told."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from autoshard.program.keep import KeepError, find_residuals, with_parts, with_saved
from autoshard.program.keep.names import without_part
from autoshard.program.select import find_values
from autoshard.program.trace import TraceError, trace
from tests.program.keep.one_by_one import run
from tests.program.keep.programs import CHECKPOINTS, LAYERS, PROGRAMS
from tests.program.keep.test_rewrite import traced


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [
        ("mlp", "names"),
        ("transformer", "checkpoint"),
        ("nested", "plain"),
        ("branches", "dots"),
        ("accumulated", "checkpoint"),
    ],
)
@pytest.mark.parametrize("starts", [[1], [1, 2]])
def test_numbers_are_equal_to_the_last_bit(name, checkpoint, starts):
    closed, flat = traced(name, checkpoint)
    whole = find_residuals(closed)
    (loop,) = whole.loops
    cut = with_parts(closed, whole, {loop: starts})
    residuals = find_residuals(cut)
    assert len(residuals.loops) == len(starts) + 1
    bare = {without_part(one.name)[0] for one in residuals.values}
    assert {one.name for one in whole.values} <= bare
    last = [one.name for one in residuals.values if one.name.endswith(f":{LAYERS}]")]
    assert 0 < len(last) < len(residuals.values)
    wanted = run(closed, flat)
    for changed in (cut, with_saved(cut, residuals, ()), with_saved(cut, residuals, last)):
        for one, other in zip(run(changed, flat), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_only_the_turns_that_save_a_value_have_a_stack_of_it_and_weights_are_not_copied():
    closed, _ = traced("mlp", "checkpoint")
    cut = with_parts(closed, find_residuals(closed), {"loop": [1]})
    residuals = find_residuals(cut)
    assert list(residuals.loops) == ["loop[0:1]", "loop[1:3]"]
    (hidden,) = [one for one in residuals.values if one.name == "tanh[1:3]"]
    assert (hidden.turns, hidden.bytes) == (2, 2 * 2 * 8 * 8)
    changed = with_saved(cut, residuals, [hidden.name])
    loops = [one for one in changed.jaxpr.eqns if one.primitive.name == "scan"]
    assert [one.params["length"] for one in loops] == [1, 2, 2, 1]  # the last turns go back first
    shapes = [[var.aval.shape for var in one.outvars] for one in loops]
    assert (2, 2, 8) in shapes[1]
    assert (1, 2, 8) not in shapes[0]
    weights = {var for var in changed.jaxpr.invars if len(var.aval.shape) == 3}
    assert len(weights) == 2
    readers = [one for one in changed.jaxpr.eqns if any(var in one.invars for var in weights)]
    assert readers == loops  # no slice of them is made


def test_what_is_no_part_of_a_loop_is_refused_by_name():
    closed, _ = traced("mlp", "checkpoint")
    residuals = find_residuals(closed)
    with pytest.raises(KeepError, match=r"no loop .* is called moon; those: loop"):
        with_parts(closed, residuals, {"moon": [1]})
    for starts in ([], [0], [3], [2, 1]):
        with pytest.raises(KeepError, match=r"loop has 3 turns.*give turns between 1 and 2"):
            with_parts(closed, residuals, {"loop": starts})


def test_requirements_on_a_scope_are_on_all_parts_and_a_loop_is_cut_once():
    fn, args = PROGRAMS["mlp"](CHECKPOINTS["checkpoint"])

    def step(*args):
        with jax.named_scope("layers"):
            return fn(*args)

    whole = trace(step, *args)
    cut = trace(step, *args, parts={"layers": [1]})
    assert cut.options["parts"] == {"layers": [1]}
    found = [find_values(one, "scope layers:tanh") for one in (whole, cut)]
    assert [len(one) for one in found] == [1, 2]
    with pytest.raises(TraceError, match="no loop has a backward one and is called moon"):
        trace(step, *args, parts={"moon": [1]})


def test_loops_in_parts_of_a_loop_have_one_trip_count():
    fn, args = PROGRAMS["mlp"](CHECKPOINTS["checkpoint"])
    assert trace(fn, *args, parts={"loop": [1]}, trip_counts=3).options["trip_counts"] == 3
    with pytest.raises(TraceError, match="several times: give one trip count for all"):
        trace(fn, *args, parts={"loop": [1]}, trip_counts=[3, 4])
