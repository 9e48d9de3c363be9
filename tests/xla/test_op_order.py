"""The order in which ops run: a valid one for any program, and XLA's habits in a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.program.trace import Program, trace
from autoshard.xla.fusion import fuse
from autoshard.xla.kernel_orders import greedy
from autoshard.xla.op_order import arranged, sequence
from tests.random_programs import random_program


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def assert_runs(program: Program) -> None:
    """Every op once, after what it reads, every loop in one piece."""
    when = sequence(program, fuse(program))
    assert sorted(when) == list(range(len(program.ops)))
    for op in program.ops:
        for value in op.inputs:
            if value >= 0 and program.values[value].producer >= 0:
                assert when[program.values[value].producer] < when[op.index], op
    for region in program.regions:
        points = when[region.start : region.stop]
        assert not points or max(points) - min(points) == len(points) - 1


@pytest.mark.parametrize("seed", range(30))
def test_any_program_runs_in_the_order(seed: int) -> None:
    fn, args, options = random_program(seed)
    assert_runs(trace(fn, *args, **options))


def layer(x: Any, weights: Any) -> tuple[Any, None]:
    up, down = weights
    return x + jnp.tanh(x @ up) @ down, None


def training_step(x: Any, up: Any, down: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, weights)[0])

    return jax.grad(loss)((up, down))


def test_gradients_of_weights_wait_for_those_of_activations() -> None:
    program = trace(training_step, array(64, 8), array(3, 8, 32), array(3, 32, 8))
    assert_runs(program)
    when = sequence(program, fuse(program))
    products = [
        op
        for op in program.ops
        if op.primitive == "dot_general" and program.regions[op.region].start > 0
    ]
    backward = [op for op in products if op.backward and op.region == products[-1].region]
    weights = [op for op in backward if 64 not in program.values[op.outputs[0]].shape]
    activations = [op for op in backward if op not in weights]
    assert len(weights) == 2
    assert min(when[op.index] for op in weights) > max(when[op.index] for op in activations)


def test_outside_of_loops_a_gradient_is_made_where_that_frees_memory() -> None:
    """Unrolled, the gradients of weights come between those of activations."""

    def step(x: Any, weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for one in weights:
                y = jnp.tanh(y @ one)
            return jnp.sum(y)

        return jax.grad(loss)(weights)

    program = trace(step, array(4096, 8), [array(8, 8)] * 4)
    assert_runs(program)
    when = sequence(program, fuse(program))
    backward = [op for op in program.ops if op.primitive == "dot_general" and op.backward]
    weights = [op for op in backward if 4096 not in program.values[op.outputs[0]].shape]
    last = max(when[op.index] for op in backward if op not in weights)
    assert len(weights) == 4
    assert sum(when[op.index] < last for op in weights) >= 3


def test_what_is_cut_small_is_made_early() -> None:
    """Orders follow the bytes on a device: of whole arrays the second sum would come first."""

    def step(x: Any, w: Any) -> Any:
        wide, narrow = x @ w, w @ w
        return jnp.sum(wide), jnp.sum(narrow)

    program = trace(step, array(64, 32), array(32, 32))
    fusion = fuse(program)
    sizes = [float(value.bytes) for value in program.values]
    first, second = (op for op in program.ops if op.primitive == "dot_general")

    def order(sizes: list[float]) -> bool:
        when, _ = arranged(program, fusion, lambda region, kernels: greedy(kernels), sizes)
        return when[first.index] < when[second.index]

    assert not order(sizes)
    sizes[first.outputs[0]] /= 64
    assert order(sizes)
