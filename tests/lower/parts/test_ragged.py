"""Ragged products cut along every one of their dimensions compute what they compute whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autoshard
from autoshard.lower.verify import verify
from autoshard.program.ragged import RAGGED, RaggedKind
from tests.helpers import case, random_plan
from tests.lower.parts.one_op import OneOp

ROWS, INNER, COLUMNS, GROUPS = 16, 8, 4, 4


def numbers(contracted, batch, ragged, groups):
    return lax.RaggedDotDimensionNumbers((contracted, batch), [ragged], groups)


NUMBERS = {
    RaggedKind.ROWS: numbers(((1,), (1,)), ((), ()), 0, [0]),
    RaggedKind.CONTRACTED: numbers(((0,), (0,)), ((), ()), 0, []),
    RaggedKind.BATCH: numbers(((2,), (1,)), ((0,), (0,)), 0, []),
}
SHAPES = {
    RaggedKind.ROWS: ((ROWS, INNER), (GROUPS, INNER, COLUMNS)),
    RaggedKind.CONTRACTED: ((ROWS, INNER), (ROWS, COLUMNS)),
    RaggedKind.BATCH: ((ROWS, 4, INNER), (ROWS, INNER, COLUMNS)),
}
SIZES = [(5, 0, 8, 3), (0, 0, 16, 0), (3, 1, 2, 4)]
"""Groups that end within a device's rows, that have none, and that leave rows to nobody."""


def product(kind):
    return lambda left, right, sizes: lax.ragged_dot_general(left, right, sizes, NUMBERS[kind])


@pytest.mark.parametrize("kind", RaggedKind)
def test_every_cut_over_two_axes_computes_the_whole_product(kind: RaggedKind) -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    left, right = (
        jax.random.normal(key, shape) for key, shape in zip(keys, SHAPES[kind], strict=True)
    )
    fn = product(kind)
    arrays = left, right, jnp.array(SIZES[0], jnp.int32)
    one = OneOp(fn, arrays, RAGGED)
    together = {joint.factor for joint in one.rule.joint}
    assert len(together) == (kind is not RaggedKind.BATCH)
    for assignment in one.assignments((2, 2)):
        first = assignment[0] in together
        if not first and (together & {*assignment} or assignment != tuple(sorted(assignment))):
            continue
        for sizes in SIZES[:1] if assignment[0] != assignment[1] else SIZES:
            found = one.on_parts(assignment, (2, 2), left, right, jnp.array(sizes, jnp.int32))
            whole = fn(left, right, jnp.array(sizes, jnp.int32))
            np.testing.assert_allclose(found, whole, atol=1e-4, err_msg=str(assignment))


def ragged_all_to_all(
    operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name
):
    """As `jax.lax.ragged_all_to_all` is defined, which XLA:CPU has not."""
    told = (operand, input_offsets, send_sizes, output_offsets)
    rows, starts, counts, ends = (lax.all_gather(one, axis_name) for one in told)
    me, row = lax.axis_index(axis_name), jnp.arange(output.shape[0])
    for sender in range(rows.shape[0]):
        place = row - ends[sender, me]
        here = (place >= 0) & (place < counts[sender, me])
        found = rows[sender][jnp.clip(starts[sender, me] + place, 0, rows.shape[1] - 1)]
        output = jnp.where(here[:, None], found, output)
    agreed = jnp.all(counts[:, me] == recv_sizes)
    return jnp.where(agreed, output, jnp.nan)


@pytest.mark.parametrize("kind", [RaggedKind.ROWS, RaggedKind.CONTRACTED])
def test_rows_are_sent_as_the_collective_is_defined(
    kind: RaggedKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lax, "platform_dependent", lambda *a, cpu, default: default(*a))
    monkeypatch.setattr(lax, "ragged_all_to_all", ragged_all_to_all)
    keys = jax.random.split(jax.random.key(0), 2)
    left, right = (
        jax.random.normal(key, shape) for key, shape in zip(keys, SHAPES[kind], strict=True)
    )
    one = OneOp(product(kind), (left, right, jnp.array(SIZES[0], jnp.int32)), RAGGED)
    (together,) = (joint.factor for joint in one.rule.joint)
    for sizes in [*SIZES, (4, 4, 4, 4)]:
        arrays = left, right, jnp.array(sizes, jnp.int32)
        found = one.on_parts((together,), (4,), *arrays)
        np.testing.assert_allclose(found, product(kind)(*arrays), atol=1e-4, err_msg=str(sizes))


def test_sizes_of_their_own_for_every_batch_are_cut_with_it() -> None:
    batched = jax.vmap(product(RaggedKind.ROWS))
    keys = jax.random.split(jax.random.key(0), 2)
    left = jax.random.normal(keys[0], (2, ROWS, INNER))
    right = jax.random.normal(keys[1], (2, GROUPS, INNER, COLUMNS))
    arrays = left, right, jnp.array(SIZES[:2], jnp.int32)
    rule = next(op.rule for op in autoshard.trace(batched, *arrays).ops if op.primitive == RAGGED)
    batch, rows = (rule.results[0][d][0] for d in (0, 1))
    for assignment in ((batch, rows), (rows, batch), (rows, rows), (-1, rows)):
        found = OneOp(batched, arrays, RAGGED).on_parts(assignment, (2, 2))
        np.testing.assert_allclose(found, batched(*arrays), atol=1e-4)


def test_groups_are_whole_where_every_batch_has_its_own_sizes() -> None:
    """Each batch would have to be rolled by another count."""
    s = jax.ShapeDtypeStruct
    arrays = s((2, 8, 4), "float32"), s((2, 4, 4, 4), "float32"), s((2, 4), "int32")
    program = autoshard.trace(jax.vmap(product(RaggedKind.ROWS)), *arrays)
    rule = next(op.rule for op in program.ops if op.primitive == RAGGED)
    assert str(rule).endswith("need_replication={m, n}")


def experts(weights, x, sizes):
    """The loss of two ragged products and its gradient: all modes but the batch."""

    def loss(weights):
        hidden = jnp.tanh(lax.ragged_dot(x, weights[0], sizes))
        return jnp.sum(lax.ragged_dot(hidden, weights[1], sizes) ** 2)

    return jax.value_and_grad(loss)(weights)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_random_plans_of_a_step_are_what_shardy_makes_and_compute_the_same(
    seed: int, explicit: bool
) -> None:
    keys = jax.random.split(jax.random.key(1), 3)
    weights = tuple(
        0.1 * jax.random.normal(key, shape)
        for key, shape in zip(keys, ((GROUPS, 8, 16), (GROUPS, 16, 8)), strict=False)
    )
    arguments = weights, jax.random.normal(keys[2], (ROWS, 8)), jnp.array(SIZES[0], jnp.int32)
    plan = random_plan(case(experts, *arguments, mesh={"x": 4, "y": 2}), seed)
    verdict = verify(plan, experts, *arguments, concrete=arguments, explicit=explicit)
    assert verdict, str(verdict)


def test_a_step_that_sends_rows_is_exported() -> None:
    arrays = (jax.ShapeDtypeStruct(shape, "float32") for shape in SHAPES[RaggedKind.ROWS])
    arguments = (*arrays, jax.ShapeDtypeStruct((GROUPS,), "int32"))
    fn = product(RaggedKind.ROWS)
    given = case(fn, *arguments, mesh={"x": 4, "y": 2})
    op = next(op for op in given.program.ops if op.primitive == RAGGED)
    (together,) = (joint.factor for joint in op.rule.joint)
    plans = (random_plan(given, seed) for seed in range(100))
    plan = next(one for one in plans if together in (one.decisions.assignment[op.index] or ()))
    lowered = autoshard.lower(plan, fn, *arguments)
    for platform in ("tpu", "cuda"):
        assert b"ragged_all_to_all" in lowered.export(platforms=(platform,))
