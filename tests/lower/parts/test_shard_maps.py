"""Steps that call `jax.shard_map`: planned on any mesh, lowered, with the numbers of the user's."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention
from jax.sharding import AxisType, PartitionSpec

from autoshard.lower.spmd import LoweringError, lower
from autoshard.lower.verify import verify, verify_written
from autoshard.program.trace import trace
from autoshard.search import search
from autoshard.study.annotate.fewest import fewest
from tests.helpers import (
    MESHES,
    case,
    concrete_like,
    moves_by_kind,
    random_plan,
    sampled,
    toy_machine,
)
from tests.program.shard_maps.steps import STEPS, with_gradients

QUICK = ("megatron", "experts", "ring_attention", "in_checkpointed_layers", "two_axes")


def same_numbers(lowered: Any, fn: Any, args: Any) -> None:
    """Hold a lowered step to the `shard_map` as its user runs it, on eight devices."""
    found = lowered.jit()(*jax.device_put(args, lowered.in_shardings))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        largest = max(float(np.max(np.abs(other))), 1.0)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5 * largest)


@pytest.mark.parametrize("name", sampled(list(STEPS), QUICK.__contains__))
def test_random_plans_make_their_collectives_and_the_right_numbers(name: str) -> None:
    """Forward and backward, on meshes of other shapes than the user's."""
    fn, args = with_gradients(STEPS[name]())
    for seed, mesh in enumerate(("8", "2x4")):
        plan = random_plan(case(fn, *args, mesh=MESHES[mesh]), seed)
        verification = verify(plan, fn, *args, concrete=args)
        assert verification.agrees, str(verification)
        same_numbers(lower(plan, fn, *args), fn, args)


@pytest.mark.parametrize("name", ["megatron", "experts", "two_axes"])
def test_they_are_written_out_for_one_device(name: str) -> None:
    fn, args = STEPS[name]()
    plan = random_plan(case(fn, *args, mesh=MESHES["2x4"]), 3)
    lowered = lower(plan, fn, *args, explicit=True)
    comparison = verify_written(lowered)
    assert comparison.agrees, str(comparison)
    same_numbers(lowered, fn, args)


BY_HAND: dict[str, tuple[dict[str, int], list[str], dict[str, int]]] = {
    "cut_batch": ({"x": 8}, ["w [None, None]", "x [x, None]", "result [x, None]"], {}),
    "megatron": (
        {"x": 8},
        ["up [None, x]", "down [x, None]", "x [None, None]", "result [None, None]"],
        {"all_reduce": 1},
    ),
    "fully_sharded": (
        {"x": 8},
        ["up [x, None]", "down [x, None]", "x [x, None]", "result [x, None]"],
        {"all_gather": 2},
    ),
    "experts": (
        {"x": 8},
        ["w [x, None, None]", "x [x, None]", "result [x, None]", "all_gather"],
        {"all_to_all": 2},
    ),
    "partly_automatic": (
        {"a": 4, "b": 2},
        ["w [a, b]", "x [None, a]", "result [None, b]", "all_gather"],
        {"all_reduce": 1},
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_collectives_of_the_user_are_those_of_a_plan_and_the_best_is_no_dearer(
    name: str,
) -> None:
    """Where arrays lie as his specs say, and without the collectives of other ways."""
    mesh, words, collectives = BY_HAND[name]
    fn, args = STEPS[name]()
    pins = [f"pin {word}" for word in words if "[" in word]
    limits = [f"limit {word} count 0" for word in words if "[" not in word]
    program = trace(fn, *args)
    same = search(program, toy_machine(), mesh=mesh, requirements=[*pins, *limits])
    assert moves_by_kind(same) == collectives, same.moves
    best = search(program, toy_machine(), mesh=mesh, requirements=pins)
    assert best.estimate.step_seconds <= same.estimate.step_seconds * (1 + 1e-9)


def test_no_lines_can_say_a_plan_of_a_shard_map() -> None:
    fn, args = STEPS["megatron"]()
    plan = random_plan(case(fn, *args, mesh=MESHES["8"]), 0)
    with pytest.raises(LoweringError, match=r"calls jax\.shard_map: its specs say how its arrays"):
        fewest(lower(plan, fn, *args), fn)


def test_a_kernel_inside_is_cut_over_the_parts_as_its_user_cuts_it() -> None:
    """Batch and heads of flash attention: the kernel keeps its blocks, and nothing moves."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    spec = PartitionSpec("data", "model")
    fn = jax.shard_map(
        partial(flash_attention, causal=True, block_sizes=BlockSizes(128, 128, 128, 1)),
        mesh=mesh,
        in_specs=(spec,) * 3,
        out_specs=spec,
        check_vma=False,
    )
    shapes = [jax.ShapeDtypeStruct((4, 2, 128, 128), jax.numpy.float32)] * 3
    program = trace(fn, *shapes)
    plan = search(program, toy_machine(), mesh={"x": 4, "y": 2})
    (kernel,) = [op for op in program.ops if op.primitive == "pallas_call"]
    assert plan.decisions.assignment[kernel.index] in ((0, 1), (1, 0))
    assert not plan.moves
    verification = verify(plan, fn, *shapes, concrete=concrete_like(shapes))
    assert verification.agrees, str(verification)
