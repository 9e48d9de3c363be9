"""Plans of steps with something on the host are lowered so that it stays there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest

from autoshard.lower.numbers.numeric import require_same_outputs
from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from tests.helpers import MESHES, case, concrete_like, random_plan
from tests.host_steps import ACTIVATIONS, MOMENTS, activations, moments, momentum

STEPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "activations": (activations, ACTIVATIONS, {}),
    "moments": (moments, MOMENTS, {"donate_argnums": (0, 1)}),
    "held": (momentum, MOMENTS, {"donate_argnums": (0, 1), "host": ["kept"]}),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", STEPS)
def test_numbers_and_collectives_are_as_planned(name: str, seed: int) -> None:
    step, args, options = STEPS[name]
    lowered = lower(
        random_plan(case(step, *args, mesh=MESHES["2x4"], **options), seed), step, *args
    )
    assert verify_collectives(lowered).agrees
    if seed:
        assert numeric_differences(lowered, step, concrete_like(args)) == []


def placements(text: str, shape: str) -> list[str]:
    """The memories that a module's annotations name for arrays of a type, in order."""
    return re.findall(rf'_xla_buffer_placement = "(\w+)".*-> tensor<{shape}>', text)


def test_transfers_stand_in_the_module() -> None:
    step, args, _ = STEPS["activations"]
    lowered = lower(random_plan(case(step, *args, mesh=MESHES["2x4"]), 0), step, *args)
    for platform in ("tpu", "cuda"):
        text = lowered.mlir_text(platform=platform)
        assert placements(text, "64x64xf32") == ["pinned_host", "device"]


def test_state_on_the_host_has_its_memory_kind() -> None:
    step, args, options = STEPS["moments"]
    lowered = lower(random_plan(case(step, *args, mesh=MESHES["8"], **options), 1), step, *args)
    into, out = lowered.in_shardings, lowered.out_shardings
    for kept, others in ((into[1], into[0]), (out[1], out[0])):
        assert {one.memory_kind for one in jax.tree.leaves(kept)} == {"pinned_host"}
        assert {one.memory_kind for one in jax.tree.leaves(others)} != {"pinned_host"}
    inputs, _, results = lowered.mlir_text().partition("func.func public @main(")[2].partition("->")
    for side in (inputs, results.partition("{\n")[0]):
        assert side.count('mhlo.memory_kind = "pinned_host"') == 2


def test_a_step_runs_on_what_its_last_call_left_on_the_host() -> None:
    step, args, options = STEPS["moments"]
    lowered = lower(random_plan(case(step, *args, mesh=MESHES["8"], **options), 2), step, *args)
    run, known = lowered.jit(), concrete_like(args)
    placed = lowered.shard(*concrete_like(args))
    for _ in range(2):
        params, kept, loss = run(*placed)
        assert {one.sharding.memory_kind for one in jax.tree.leaves(kept)} == {"pinned_host"}
        placed = params, kept, placed[2]
        *state, expected = jax.jit(step)(*known)
        known = (*state, known[2])
        require_same_outputs(expected, loss, tolerances={"float32": 1e-4})
