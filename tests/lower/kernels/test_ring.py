"""Rings of attention: planned, typed, lowered in both ways, and held to the unsharded numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

from autoshard import compat
from autoshard.lower.verify import verify
from autoshard.program.kernels.rule import ring_factors
from autoshard.program.rules.record import FactorKind
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.solve import evaluate
from tests.helpers import LONG, MESHES, Case, best_plan, case, concrete_like, random_plan

BATCH, LENGTH, HEADS, WIDTH = 1, 48, 1, 8


def attended(causal: bool, q: Any, k: Any, v: Any) -> Any:
    """Output and gradients of cuDNN's attention; nothing but the sequence can be cut."""

    def loss(operands: Any) -> Any:
        out = jax.nn.dot_product_attention(*operands, is_causal=causal, implementation="cudnn")
        return jnp.sum(jnp.sin(out.astype(jnp.float32)))

    return jax.value_and_grad(loss)((q, k, v))


ARGS = (jax.ShapeDtypeStruct((BATCH, LENGTH, HEADS, WIDTH), jnp.bfloat16),) * 3


def rings(given: Case, plan: Any) -> list[tuple[str, ...]]:
    """The axes over which each kernel's sequence is cut."""
    found = []
    for op in given.program.ops:
        if op.primitive in compat.KERNELS:
            assigned = plan.decisions.assignment[op.index]
            kinds = [op.rule.factors[k].kind if k >= 0 else None for k in assigned]
            pairs = zip(plan.mesh.names, kinds, strict=True)
            found.append(tuple(name for name, kind in pairs if kind is FactorKind.RING))
    return found


@pytest.mark.parametrize(
    ("causal", "mesh", "explicit"),
    [
        (True, "2x4", False),
        (False, "2x2x2", True),
        pytest.param(True, "8", True, marks=LONG),
    ],
)
def test_a_ring_computes_and_sends_what_the_plan_says(
    causal: bool, mesh: str, explicit: bool
) -> None:
    """Forward and backward, over one axis and over several together, and at one price."""
    fn, axes = partial(attended, causal), MESHES[mesh]
    given = case(fn, *ARGS, mesh=axes)
    plan = best_plan(given)
    assert rings(given, plan) == [tuple(axes)] * 2
    choices = given.built.encode(plan.decisions)
    assert choices is not None
    found = evaluate(given.built.problem, choices)
    assert plan.estimate.step_seconds == pytest.approx(found.objective)
    reserved = given.program.constant_bytes
    assert plan.estimate.peak_bytes == pytest.approx(found.peak + reserved, abs=0.5)
    assert {move.kind for move in plan.moves} >= {"collective_permute"}
    checked = verify(plan, fn, *ARGS, concrete=concrete_like(ARGS), explicit=explicit)
    assert checked.agrees, str(checked)


def flash(q: Any, k: Any, v: Any) -> Any:
    """JAX's own, of four blocks of queries; backward, one kernel walks along keys."""
    sizes = BlockSizes(*(128, 128, 128, 1), *(128, 128, 128, 128), *(128, 128, 128))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(jnp.sin(flash_attention(q, k, v, causal=True, block_sizes=sizes)))

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def halved(given: Case, plan: Any) -> list[bool]:
    """Whether devices do an early and a late half of a part, by kernel."""
    found = []
    for op in given.program.ops:
        if op.kernel is not None:
            rings = ring_factors(op.rule, op.kernel.rings)
            (together,) = (factor for factor, ring in rings.items() if not ring.passed)
            found.append(together in plan.decisions.assignment[op.index])
    return found


def test_parts_of_a_causal_sequence_may_be_evened_out() -> None:
    """Each of two devices does an early and a late block; halves are exchanged, nothing else."""
    args = (jax.ShapeDtypeStruct((1, 4, 512, 128), jnp.float32),) * 3
    given = case(flash, *args, mesh=MESHES["2x4"])
    plans = (random_plan(given, seed) for seed in range(100))
    plan = next(plan for plan in plans if sum(halved(given, plan)) > 1)
    choices = given.built.encode(plan.decisions)
    assert choices is not None
    found = evaluate(given.built.problem, choices)
    assert plan.estimate.step_seconds == pytest.approx(found.objective)
    checked = verify(plan, flash, *args, concrete=concrete_like(args))
    assert checked.agrees, str(checked)


@pytest.mark.parametrize(("length", "worth"), [(2048, False), (65536, True)])
def test_halves_are_exchanged_where_that_saves_more_than_it_costs(length: int, worth: bool) -> None:
    """What late parts have to do more grows with the square of the sequence."""
    args = (jax.ShapeDtypeStruct((1, 1, length, 128), jnp.bfloat16),) * 3
    program = trace(partial(flash_attention, causal=True), *args)
    cut = [f"pin [{k}] [None, None, x, None]" for k in range(1)]
    plan = search(program, "v5p-8", mesh={"x": 8}, requirements=cut, time_limit=10)
    sent = {move.kind for move in plan.moves}
    assert ("collective_permute" in sent) is worth
