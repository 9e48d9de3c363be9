"""Weights that are renewed while the step still reads them: which, and who waits for that."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.program.trace import Program, trace
from autoshard.xla.early_updates import renewals
from tests.xla.forecast.test_task_graph import graphs

IMAGES = jax.ShapeDtypeStruct((8, 4, 4, 16), jnp.bfloat16)


def step_of(sizes: tuple[int, ...]) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    """A step of gradient descent through convolutions of windows of these sizes."""

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jax.lax.conv_general_dilated(
                x,
                weight.astype(jnp.bfloat16),
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            x = jnp.tanh(x)
        return jnp.sum(x.astype(jnp.float32))

    def step(weights: Any, x: Any) -> Any:
        slopes = jax.grad(loss)(weights, x)
        return [one - 0.1 * slope for one, slope in zip(weights, slopes, strict=True)]

    shapes = [jax.ShapeDtypeStruct((size, size, 16, 16), jnp.float32) for size in sizes]
    return step, shapes


def program_of(*sizes: int) -> Program:
    step, weights = step_of(sizes)
    return trace(step, weights, IMAGES, donate_argnums=0)


def test_errors_wait_where_they_are_convolved_point_by_point() -> None:
    """The first layer carries no error on."""
    program = program_of(1, 3, 1, 1)
    found = renewals(program)
    shapes = [program.values[program.ops[gradient].outputs[0]].shape for gradient in found]
    assert shapes == [(1, 1, 16, 16)] * 2
    for gradient, one in found.items():
        error = program.ops[one.error]
        assert program.values[error.outputs[0]].shape == IMAGES.shape
        assert one.turned[-1] in program.inputs
        returned = {program.ops[program.values[v].producer].inputs[0] for v in program.outputs}
        assert set(one.results) <= returned
        assert gradient != one.error


def test_what_is_not_renewed_waits_for_nothing() -> None:
    step, weights = step_of((1, 1))
    assert not renewals(trace(lambda weights, x: step(weights, x)[0].sum(), weights, IMAGES))


@pytest.mark.parametrize(
    ("layout", "forbidden"),
    [
        ("[None, None, None, None]", ("reduce_scatter", "all_gather", "all_to_all")),
        ("[None, None, x, None]", ()),
    ],
)
def test_an_error_waits_unless_the_weight_is_gathered(
    layout: str, forbidden: tuple[str, ...]
) -> None:
    step, weights = step_of((1, 1))
    decided, found = graphs(
        step,
        weights,
        IMAGES,
        requirements=[
            *(f"pin weights[{k}] {layout}" for k in (0, 1)),
            "pin x [x, None, None, None]",
            *(f"limit {kind} count 0" for kind in forbidden),
        ],
        donate_argnums=(0,),
        compiler="xla:gpu",
    )
    graph, program = found[0], decided.prices.program
    ((gradient, one),) = renewals(program).items()
    error = graph.tasks[graph.maker[program.ops[one.error].outputs[0]]]
    end = graph.settled[program.ops[gradient].outputs[0]]
    assert error.needs(end) == bool(forbidden)
