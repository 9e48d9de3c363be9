"""Kernels that are told scalars in advance, in a user's `shard_map`: one op, not a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.lower.verify import verify
from autoshard.program.notes import notes_of
from autoshard.program.trace import TraceError
from tests.helpers import case, random_plan
from tests.program.shard_maps.steps import grid, line, normal

ROWS, COLUMNS, WIDTH = 8, 128, 128


def product(body: Callable[..., None], *, estimate: Any = None) -> Callable[..., Any]:
    """Rows times the matrix of the group that is told of each block of them."""

    def run(groups: Any, x: Any, weights: Any) -> Any:
        columns = weights.shape[-1]
        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                in_specs=[
                    pl.BlockSpec((ROWS, WIDTH), lambda i, j, told: (i, 0)),
                    pl.BlockSpec((1, WIDTH, COLUMNS), lambda i, j, told: (told[i], 0, j)),
                ],
                out_specs=pl.BlockSpec((ROWS, COLUMNS), lambda i, j, told: (i, j)),
                grid=(x.shape[0] // ROWS, columns // COLUMNS),
            ),
            out_shape=jax.ShapeDtypeStruct((x.shape[0], columns), x.dtype),
            cost_estimate=estimate,
            name="grouped",
        )(groups, x, weights)

    return run


def once(told: Any, x: Any, weights: Any, made: Any) -> None:
    made[...] = jnp.dot(x[...], weights[0], preferred_element_type=jnp.float32)


def as_told(told: Any, x: Any, weights: Any, made: Any) -> None:
    def turn(_: Any, total: Any) -> Any:
        return total + jnp.dot(x[...], weights[0], preferred_element_type=jnp.float32)

    made[...] = lax.fori_loop(0, told[pl.program_id(0)], turn, jnp.zeros((ROWS, COLUMNS)))


def steps(kernel: Callable[..., Any], *, told: P) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A step over eight devices, whose blocks of rows are 32, with its arguments."""

    def part(groups: Any, x: Any, weights: Any) -> Any:
        return jnp.sin(kernel(groups[: x.shape[0] // ROWS], jnp.tanh(x), weights))

    mesh = line() if told in (P("x"), P()) else grid()
    rows = P("x") if mesh.axis_names == ("x",) else P(("a", "b"))
    mapped = jax.shard_map(
        part, mesh=mesh, in_specs=(told, rows, P()), out_specs=rows, check_vma=False
    )
    groups = jax.random.randint(jax.random.key(0), (32,), 0, 4)
    return mapped, (groups, normal(1, 32 * ROWS, WIDTH), normal(2, 4, WIDTH, 2 * COLUMNS))


FLOPS = 2.0 * 32 * ROWS * WIDTH * 2 * COLUMNS
BYTES = 4.0 * 32 * 2 * (ROWS * WIDTH / 2 + WIDTH * COLUMNS + ROWS * COLUMNS)
"""Of all parts: rows stay for both blocks of columns, and matrices are read again."""


@pytest.mark.parametrize("told", [P("x"), P(("a", "b")), P("a"), P()], ids=str)
def test_a_kernel_is_one_op_with_the_work_of_its_blocks(told: P) -> None:
    fn, args = steps(product(once), told=told)
    program = autoshard.trace(fn, *args)
    (op,) = (op for op in program.ops if op.kernel is not None)
    assert op.trips == 1
    assert op.kernel is not None
    assert op.kernel.name == "grouped"
    assert op.kernel.arithmetic.products == FLOPS
    assert op.kernel.bytes == BYTES
    assert not [note for note in notes_of(program) if "data decides" in note]
    assert not [region for region in program.regions if region.kind != "step"]


@pytest.mark.parametrize("told", [P("x"), P("a")], ids=str)
def test_plans_cut_its_parts_and_compute_the_same(told: P) -> None:
    fn, args = steps(product(once), told=told)
    given = case(fn, *args, mesh={"x": 4, "y": 2})
    cut = 0
    for seed in range(3):
        plan = random_plan(given, seed)
        (op,) = (op for op in given.program.ops if op.kernel is not None)
        cut += any(factor >= 0 for factor in plan.decisions.assignment[op.index] or ())
        verdict = verify(plan, fn, *args, concrete=args)
        assert verdict, str(verdict)
    assert cut


@pytest.mark.parametrize("told", [P("x"), P()], ids=str)
def test_what_data_decides_is_said_unless_its_author_has_said_it(told: P) -> None:
    fn, args = steps(product(as_told), told=told)
    (note,) = (one for one in notes_of(autoshard.trace(fn, *args)) if "data decides" in one)
    assert note.startswith("data decides how much the kernel grouped computes (1 op, the first at ")
    assert note.endswith(
        "): the turns of a loop, counted as one, so the step may take longer: say what it takes by "
        "cost_estimate=pl.CostEstimate(...) of the pl.pallas_call, or by autoshard.kernel(..., "
        "flops=, bytes=)"
    )
    estimate = pl.CostEstimate(flops=int(3 * FLOPS / 8), transcendentals=0, bytes_accessed=10**6)
    fn, args = steps(product(as_told, estimate=estimate), told=told)
    program = autoshard.trace(fn, *args)
    assert not [one for one in notes_of(program) if "data decides" in one]
    (op,) = (op for op in program.ops if op.kernel is not None)
    assert op.kernel is not None
    assert op.kernel.arithmetic.products == pytest.approx(3 * FLOPS, rel=1e-6)


def test_a_grid_without_steps_is_refused_where_it_should_write() -> None:
    fn, args = steps(product(once), told=P("x"))
    few = args[1][: 8 * ROWS // 2]
    with pytest.raises(TraceError, match=r"the grid \(0, 2\) of the kernel grouped has no"):
        autoshard.trace(fn, args[0], few, args[2])
