"""What stays in a vector memory: never more than its room, the shortest lives first."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.tiling import padding
from autoshard.machine.load import load
from autoshard.program.trace import trace
from autoshard.search.assemble import priced_anew, prices_of
from autoshard.search.search import search
from autoshard.xla.forecast.tpu_vector_memory import SHARE, Life, spared
from tests.helpers import with_compiler

END = 12
LIVES = st.builds(
    lambda start, length, size: Life(start, min(start + length, END), float(size)),
    st.integers(0, END - 1),
    st.integers(1, 6),
    st.integers(1, 90),
)


@given(st.lists(LIVES, max_size=12), st.integers(0, 200))
def test_what_stays_has_room_all_its_life(lives: list[Life], capacity: int) -> None:
    stays = list(spared(lives, capacity, END))
    for point in range(END):
        held = sum(life.bytes for life in stays if life.start <= point < life.stop)
        assert held <= SHARE * capacity
    shortest = min(lives, key=lambda life: (life.stop - life.start, life), default=None)
    if shortest is not None and shortest.bytes <= SHARE * capacity:
        assert shortest in stays


def block(x, weights):
    for kernel in weights:
        x = x + jax.nn.relu(x @ kernel)
    return (x.astype(jnp.float32) ** 2).mean()


def arrays(*shapes: tuple[int, ...], dtype: object = jnp.bfloat16):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def test_a_larger_vector_memory_takes_arrays_out_of_the_main_one() -> None:
    """And of a plan nothing else changes: its prices, and its peak in the solver's order."""
    program = trace(jax.grad(block, argnums=1), *arrays((1024, 512)), arrays(*[(512, 512)] * 3))
    machine = load("v5e-8")
    plan = search(program, machine, mesh={"x": 8}, baselines=False)
    peaks = []
    for capacity in (0.0, 2.0**20, 2.0**27):
        other = replace(machine, chip=replace(machine.chip, vector_memory_bytes=capacity))
        estimate = priced_anew(plan, prices_of(plan, program, other)).estimate
        assert estimate.step_seconds == plan.estimate.step_seconds
        assert estimate.peak_bytes == plan.estimate.peak_bytes
        peaks.append(estimate.expected_bytes)
    assert peaks[0] > peaks[1] > peaks[2] > 0


def test_weights_that_products_alone_read_are_not_converted_in_memory() -> None:
    """Where the compiler makes products: there is no copy of them in bfloat16, on GPUs there is."""

    def step(x, weights):
        return jnp.tanh(x @ weights.astype(x.dtype))

    (x,) = arrays((256, 4096))
    (weights,) = arrays((4096, 4096), dtype=jnp.float32)
    program = trace(step, x, weights)
    kept = {}
    for name in ("v5e-1", "h100-1"):
        machine = load(name)
        chip = replace(machine.chip, vector_memory_bytes=0.0)
        plain = with_compiler(replace(machine, chip=chip), workspace_bytes=0.0)
        plan = search(program, plain, mesh={"x": 1}, baselines=False)
        kept[name] = plan.estimate.expected_bytes
    arguments = 256 * 4096 * 2 + 4096 * 4096 * 4
    assert kept["v5e-1"] < arguments + 4096 * 4096 * 2 < kept["h100-1"]


def test_stacks_are_converted_as_a_whole_before_their_loop() -> None:
    def step(x, weights):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w.astype(x.dtype)), None), x, weights)
        return x

    (x,) = arrays((256, 1024))
    (weights,) = arrays((8, 1024, 1024), dtype=jnp.float32)
    program = trace(step, x, weights)
    machine = load("v5e-1")
    chip = replace(machine.chip, vector_memory_bytes=0.0)
    plain = with_compiler(replace(machine, chip=chip), heap_overhead=0.0)
    plan = search(program, plain, mesh={"x": 1}, baselines=False)
    arguments, stack = 256 * 1024 * 2 + 8 * 1024 * 1024 * 4, 8 * 1024 * 1024 * 2
    assert stack <= plan.estimate.expected_bytes - arguments < stack + 4 * 256 * 1024 * 2


def test_images_of_few_channels_lie_by_their_batch() -> None:
    """Which fills 128 lanes, and the channels 4 sublanes; of a matrix any two dimensions."""
    chip = load("v5e-1").chip
    images = np.array([[16, 224, 224, 3], [64, 224, 224, 3], [256, 224, 224, 3]])
    assert padding(images, chip, (0, 3)).tolist() == [128 / 16 * 4 / 3, 2 * 4 / 3, 4 / 3]
    assert (padding(images, chip) < padding(images, chip, (0, 3))).tolist() == [True, True, True]

    def step(images, kernel):
        return jax.lax.conv_general_dilated(
            images, kernel, (16, 16), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    program = trace(step, *arrays((64, 224, 224, 3), (16, 16, 3, 256)))
    plan = search(program, "v5e-1", mesh={"x": 1}, baselines=False)
    assert plan.estimate.peak_bytes > 64 * 224 * 224 * 2 * (2 * 4)
