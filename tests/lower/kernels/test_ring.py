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
from autoshard.program.rules.record import FactorKind
from autoshard.program.trace import trace
from autoshard.solve import evaluate
from tests.helpers import LONG, MESHES, Case, best_plan, case, concrete_like

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


def test_parts_of_a_causal_sequence_are_evened_out_where_that_is_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of two devices does an early and a late block; halves are exchanged, nothing else."""
    args = (jax.ShapeDtypeStruct((1, 4, 512, 128), jnp.float32),) * 3
    assert not any(op.kernel and op.kernel.ring for op in trace(flash, *args).ops)
    monkeypatch.setattr("autoshard.program.kernels.work.WORTH", 0.0)
    given = case(flash, *args, mesh=MESHES["2x4"])
    kernels = [op for op in given.program.ops if op.kernel is not None]
    assert [op.kernel.ring.counts for op in kernels if op.kernel] == [(2,)] * 3
    plan = best_plan(given)
    assert plan.decisions.assignment[kernels[0].index] is not None
    sent = [move for move in plan.moves if move.kind == "collective_permute"]
    assert {move.axes for move in sent} == {("x",)}
    checked = verify(plan, flash, *args, concrete=concrete_like(args))
    assert checked.agrees, str(checked)
