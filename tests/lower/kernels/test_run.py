"""Pallas calls cut along every axis of their grids compute what they compute whole, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh

import autoshard
from autoshard import compat
from autoshard.compat import told_kernels
from autoshard.lower.local import run_in_parts
from autoshard.lower.parts.cut import Cut
from autoshard.lower.parts.manual import Devices
from autoshard.lower.spmd import lower
from autoshard.program.bodies import run_equations
from autoshard.program.kernels.cuts import kernel_cuts
from autoshard.program.kernels.rule import kernel_rule
from autoshard.program.vocabulary import INLINED
from tests.helpers import LONG, MESHES, best_plan, case
from tests.lower.kernels.test_programs import STEPS, cut_kernels, triton
from tests.lower.parts.one_op import OneOp
from tests.program.kernels.functions import (
    attention,
    column_sum,
    f,
    looked_up,
    masked,
    matmul,
    row_softmax,
    running_sum,
    turned,
    updated,
)


def array(*shape: int) -> Any:
    rng = np.random.default_rng(sum(shape))
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


QUERIES, KEYS, VALUES = array(2, 4, 32, 8), array(2, 2, 32, 8), array(2, 2, 32, 8) + 1
PLACES = jnp.arange(8, dtype=jnp.int32)[::-1]


@pytest.mark.parametrize(
    ("fn", "arrays", "ways"),
    [
        (matmul, (array(32, 16), array(16, 32)), 9),
        (row_softmax, (array(16, 8),), 4),
        (attention, (QUERIES, KEYS, VALUES), 14),
        (partial(attention, causal=True), (QUERIES, KEYS, VALUES), 14),
        (running_sum, (array(8, 16),), 1),
        (partial(running_sum, anew=True), (array(8, 16),), 4),
        (looked_up, (PLACES, array(16, 1, 32)), 9),
        (masked, (array(16, 8), array(16, 8) + 1), 7),
        (jax.vmap(masked), (array(2, 16, 8), array(2, 16, 8) + 1), 13),
        (updated, (array(16, 8), array(1, 8)), 4),
        (turned, (array(16, 8),), 4),
        (column_sum, (array(16, 32),), 4),
        (jax.vmap(matmul), (array(2, 32, 16), array(2, 16, 32)), 15),
        (jax.vmap(matmul, (0, None)), (array(4, 32, 16), array(16, 32)), 16),
    ],
)
def test_every_cut_over_two_axes_computes_what_the_whole_does(
    fn: Callable[..., Any], arrays: tuple[Any, ...], ways: int
) -> None:
    interpreted = compat.with_kernels(jax.make_jaxpr(fn)(*arrays), compat.interpreted)
    (expected,) = jax.jit(jaxpr_as_fun(interpreted))(*arrays)
    one = OneOp(fn, arrays, compat.PALLAS)
    assignments = list(one.assignments((2, 2)))
    assert len(assignments) == ways
    for assignment in assignments:
        found = one.on_parts(assignment, (2, 2))
        np.testing.assert_array_equal(found, expected, err_msg=str(assignment))


def test_a_place_that_a_branch_asks_for_is_told() -> None:
    """JAX's interpreter cannot answer there, so that the expected results are of another kernel."""
    arrays = array(16, 8), array(16, 8) + 1
    interpreted = compat.with_kernels(jax.make_jaxpr(masked)(*arrays), compat.interpreted)
    (expected,) = jax.jit(jaxpr_as_fun(interpreted))(*arrays)
    one = OneOp(partial(masked, inside=True), arrays, compat.PALLAS)
    found = one.on_parts((0, 0), (2, 2))
    np.testing.assert_array_equal(found, expected)


def results_on_parts(
    equation: Any, arrays: list[Any], cut: Any, count: int
) -> tuple[list[Any], list[Any]]:
    """What a kernel computes where an axis of its grid is cut, and what it computes whole."""
    call = compat.kernel_call(equation)
    first, atoms = call.bounds + call.scalars, (*equation.invars, *equation.outvars)
    places = {first + number: d for number, d in cut.dims}
    layouts = [(places.get(k, -1),) for k in range(len(atoms))]
    shapes = tuple(tuple(var.aval.shape) for var in equation.outvars)
    inputs = len(equation.invars)
    made = Cut(
        SimpleNamespace(rule=kernel_rule(equation), kernel=None),  # pyright: ignore[reportArgumentType]
        tuple(layouts[:inputs]),
        tuple(layouts[inputs:]),
        (),
        shapes,
        Devices(("x",), (count,)),
    )
    mesh = Mesh(np.array(jax.devices()[:count]), ("x",))
    parts = jax.jit(lambda *given: run_in_parts(equation, given, made, mesh))(*arrays)
    whole = jax.jit(lambda *given: compat.bind_kernel(equation, given, shapes, {}))(*arrays)
    return list(parts), list(whole)


@pytest.mark.parametrize(
    ("name", "batch", "heads", "kernels"),
    [
        ("flash", 1, 1, 3),
        pytest.param("splash", 1, 2, 3, marks=LONG),
        pytest.param("triton", 1, 1, 2, marks=LONG),
    ],
)
def test_sequences_under_a_causal_mask_are_cut_as_if_they_were_whole(
    name: str, batch: int, heads: int, kernels: int
) -> None:
    """JAX's own kernels, forward and backward: each part is told where it starts."""
    fn = STEPS[name][0]
    if name == "triton":
        fn = jax.grad(lambda *operands: jnp.sum(triton(*operands) ** 2), (0, 1, 2))
    shape = (batch, 256, heads, 64) if name == "triton" else (batch, heads, 256, 128)
    arrays = [array(*shape) + k for k in range(3)]
    seen: list[str] = []

    def run(equation: Any, operands: list[Any]) -> Any:
        if equation.primitive.name in INLINED:
            body, consts = compat.called_jaxpr(equation)
            return run_equations(body, consts, operands, run)
        if equation.primitive.name != compat.PALLAS:
            return compat.bind_equation(equation, operands)
        for cut in (one for one in kernel_cuts(equation).cuts if one.told):
            parts, whole = results_on_parts(equation, operands, cut, 2)
            for var, here, there in zip(equation.outvars, parts, whole, strict=True):
                if not compat.is_dropped(var):
                    np.testing.assert_array_equal(here, there)
            seen.append(compat.kernel_call(equation).name)
        shapes = [var.aval.shape for var in equation.outvars]
        return jax.jit(lambda *given: compat.bind_kernel(equation, given, shapes, {}))(*operands)

    closed = autoshard.trace(fn, *arrays).jaxpr
    run_equations(closed.jaxpr, closed.consts, arrays, run)
    assert len(set(seen)) == kernels


def test_a_kernel_for_tpus_is_told_by_a_scalar_in_advance() -> None:
    """Mosaic takes the kernel, its index maps, and one scalar array more."""
    fn, _ = STEPS["flash"]
    given = case(fn, *[f(1, 1, 1024, 128)] * 3, mesh=MESHES["8"])
    plan = best_plan(given)
    assert cut_kernels(given, plan) == 3
    text = lower(plan, fn, *[f(1, 1, 1024, 128)] * 3).lower(platforms=("tpu",)).as_text()
    calls = [line for line in text.splitlines() if "@tpu_custom_call(" in line]
    assert len(calls) == 3
    assert all("tensor<1xi32>" in line for line in calls)


def test_what_is_kept_for_calls_on_other_meshes_names_no_mesh() -> None:
    told_kernels._extra_operand.cache_clear()
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Manual,))
    with jax.sharding.use_abstract_mesh(mesh):
        extra = told_kernels._extra_operand(1, 1, True)
    assert extra.asks.ctx.cur_abstract_mesh.empty
    assert all(read.ctx.cur_abstract_mesh.empty for read in extra.reads)
