"""What is fused, and what transcendental functions cost, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.cost.step_prices import step_prices
from autoshard.machine.chip import Chip
from autoshard.machine.compiler import of_release
from autoshard.machine.load import load
from autoshard.program.strategies import enumerate_strategies
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from autoshard.xla.fusion import fuse
from tests.helpers import toy_machine, with_compiler, with_lost_habits


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def softmax_twice(x: Any, w: Any) -> Any:
    """The exponentials of a product, read by two reductions and the division."""
    shares = jnp.exp((x @ w).astype(jnp.float32))
    total = jnp.sum(shares, axis=1, keepdims=True)
    return shares / total, jnp.max(shares)


def softmax() -> Program:
    return trace(
        softmax_twice, array(64, 32, dtype=jnp.bfloat16), array(32, 48, dtype=jnp.bfloat16)
    )


def written(program: Program, chip: Chip | None, primitive: str) -> bool:
    op = next(op for op in program.ops if op.primitive == primitive)
    return fuse(program, chip).materialised[op.outputs[0]]


def chip(exponential_bytes: float) -> Chip:
    """A chip whose memory moves so many bytes in the time of an exponential."""
    plain = toy_machine().chip
    return replace(
        plain, exponential_flops=exponential_bytes / plain.memory_rate * plain.vector_flops
    )


@pytest.mark.parametrize(
    ("exponential_bytes", "expected"),
    # Read by three: 3 * 2 + 2 e against 2 + 4 + 3 * 4 bytes an element.
    [(0.0, False), (5.9, False), (6.1, True)],
)
def test_exponentials_are_made_anew_where_memory_is_slower(
    exponential_bytes: float, expected: bool
) -> None:
    assert written(softmax(), chip(exponential_bytes), "exp") == expected


def test_presets_make_them_anew_as_the_compiler_does() -> None:
    """XLA:GPU writes the exponentials of attention on a B200, and not on an H100 or A100."""
    program = softmax()
    made = {name: not written(program, load(name).chip, "exp") for name in PRESETS}
    assert made == PRESETS


def test_gpus_write_what_exact_gelu_reads_again_backward() -> None:
    def activated(x: Any, w: Any) -> Any:
        return jax.nn.gelu(x @ w, approximate=False) @ w.T

    def step(x: Any, w: Any) -> Any:
        return jax.grad(lambda w: activated(x, w).sum())(w)

    arrays = array(64, 32), array(32, 48)
    for name, expected in {"h100-8": True, "a100-8": True, "v5e-8": False}.items():
        chip = with_lost_habits(load(name)).chip
        later = replace(chip, compiler=of_release(chip.compiler, "0.12.0"))
        assert written(trace(step, *arrays), chip, "erfc") == expected
        assert written(trace(step, *arrays), later, "erfc")
        assert not written(trace(activated, *arrays), chip, "erfc")


PRESETS = {"a100-8": True, "h100-8": True, "h200-8": True, "b200-8": False}


def test_every_kernel_computes_what_is_fused_into_it() -> None:
    program = softmax()
    work = {
        op.primitive: fuse(program).exponentials[op.index]
        for op in program.ops
        if fuse(program).exponentials[op.index]
    }
    assert work == {"reduce_sum": 64 * 48, "div": 64 * 48, "reduce_max": 64 * 48}


def test_a_function_that_is_fused_twice_into_one_kernel_counts_once() -> None:
    program = trace(lambda x: jnp.exp(x) * (1 + jnp.exp(x)), array(8, 8))
    last = max(op.index for op in program.ops if op.primitive == "mul")
    assert fuse(program).exponentials[last] == 2 * 64  # two equations
    program = trace(lambda x: (lambda y: y * (1 + y))(jnp.exp(x)), array(8, 8))
    last = max(op.index for op in program.ops if op.primitive == "mul")
    assert fuse(program).exponentials[last] == 64


def test_sines_are_eight_exponentials_and_can_bind() -> None:
    machine = toy_machine()
    rates = replace(machine.chip, exponential_flops=100.0, vector_flops=1e6, launch_seconds=0.0)
    machine = replace(machine, chip=rates)
    program = trace(lambda x: jnp.sin(x), array(8, 128))
    prices = step_prices(program, analyse(program, rates), machine, (8,))
    assert prices.ideal_seconds([[op.index] for op in program.ops]) == pytest.approx(
        8 * 128 * (8 * 100 + 1) / 1e6 / 8
    )


def loss_by_class(w: Any, x: Any, targets: Any) -> Any:
    """Cross-entropy as most write it: what the target's class has is looked up."""
    scores = jax.nn.log_softmax((x @ w).astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(scores, targets[:, None], axis=-1))


def classified() -> Program:
    args = array(32, 48, dtype=jnp.bfloat16), array(64, 32, dtype=jnp.bfloat16)
    return trace(jax.value_and_grad(loss_by_class), *args, array(64, dtype=jnp.int32))


def test_what_is_looked_up_is_computed_where_it_is_read() -> None:
    program = classified()
    found = fuse(program)
    (look_up,) = (op for op in program.ops if op.primitive == "gather")
    scores = look_up.inputs[0]
    assert not found.materialised[scores]
    product = next(op for op in program.ops if op.primitive == "dot_general").outputs[0]
    assert product in found.sources[scores]


def test_what_is_scattered_is_written_and_what_it_is_added_to_is_filled_first() -> None:
    program = classified()
    (scatter,) = (op for op in program.ops if op.primitive == "scatter-add")
    assert program.values[scatter.inputs[0]].free
    flow = analyse(program)
    (result,) = scatter.outputs
    assert flow.materialised[result]
    prices = step_prices(program, flow, toy_machine(1), (1,))
    whole = enumerate_strategies(scatter.rule, (1,), [(64, 48)])
    seconds = prices.compute_seconds(scatter, whole)[0]
    assert seconds * prices.machine.chip.memory_rate >= 64 * 48 * 4  # all the zeros


@pytest.mark.parametrize("libraries", [True, False])
def test_a_scatter_makes_what_it_scatters_where_xla_fuses_that(libraries: bool) -> None:
    def step(table: Any, tokens: Any, x: Any) -> Any:
        return jnp.zeros_like(table).at[tokens].add(x.astype(jnp.float32))

    arguments = array(64, 48), array(32, dtype=jnp.int32), array(32, 48, dtype=jnp.bfloat16)
    program = trace(step, *arguments)
    found = fuse(
        program, with_compiler(toy_machine(), name="xla:gpu" if libraries else "xla:tpu").chip
    )
    (scatter,) = (op for op in program.ops if op.primitive == "scatter-add")
    assert found.materialised[scatter.inputs[2]] is not libraries
    read = 32 * 48 * (2 if libraries else 4)
    assert found.fetched[scatter.index][2] == read


@pytest.mark.parametrize(("libraries", "kept"), [(True, 2), (False, 1)])
def test_nothing_is_written_over_the_result_of_a_librarys_product(
    libraries: bool, kept: int
) -> None:
    """The gradient of the logits takes their place where products are not calls of a library."""

    def step(w: Any, x: Any) -> Any:
        return jax.nn.gelu(x @ w)

    program = trace(step, array(32, 48), array(64, 32))
    flow = analyse(
        program, with_compiler(toy_machine(), name="xla:gpu" if libraries else "xla:tpu").chip
    )
    product, last = program.ops[0].outputs[0], program.outputs[0]
    made = program.values[program.ops[program.values[last].producer].inputs[0]]
    spans = [(flow.start[v], flow.stop[v]) for v in (product, made.index)]
    alive = [sum(a <= point < b for a, b in spans) for point in range(flow.end)]
    assert max(alive) == kept


def test_a_kernel_that_computes_a_slice_reads_no_more_than_it_takes():
    def rows(stack, index):
        return jnp.tanh(jax.lax.dynamic_index_in_dim(stack, index, keepdims=False))

    def ends(x):
        low, high = x[:8], x[8:]
        return low * high + low, x[:12] + x[4:]

    program = trace(rows, array(32, 64), jax.ShapeDtypeStruct((), jnp.int32))
    (op,) = [op for op in program.ops if op.primitive == "tanh"]
    assert fuse(program, toy_machine().chip).fetched[op.index] == (64 * 4 + 4,)
    program = trace(ends, array(16))
    fetched = fuse(program, toy_machine().chip).fetched
    first, second = [op.index for op in program.ops if op.primitive == "add"]
    assert fetched[first] == (16 * 4, 0)
    assert sum(fetched[second]) == 16 * 4  # no more than there is


def test_a_row_that_a_loop_looks_up_is_there_as_early_as_its_slice():
    def scanned(x, stack):
        return jax.lax.scan(lambda x, w: (x @ w.astype(jnp.bfloat16), None), x, stack)[0]

    def looked_up(x, stack):
        def turn(x, k):
            w = jax.lax.dynamic_index_in_dim(stack, k, keepdims=False)
            return x @ w.astype(jnp.bfloat16), None

        return jax.lax.scan(turn, x, jnp.arange(4))[0]

    shapes = array(8, 16, dtype=jnp.bfloat16), array(4, 16, 16)
    for fn in (scanned, looked_up):
        program = trace(fn, *shapes)
        facts = analyse(program, load("h100-8").chip)
        (product,) = [op for op in program.ops if op.primitive == "dot_general"]
        assert facts.prefetchable[product.inputs[1]]
        (cast,) = [op for op in program.ops if op.primitive == "convert_element_type"]
        assert sum(facts.fetched[cast.index]) == 16 * 16 * 4


@pytest.mark.parametrize("machine", ["h100-8", "v5e-8"])
@pytest.mark.parametrize("reduce", [jnp.sum, jnp.argmin, jnp.argmax])
def test_reductions_compute_what_they_reduce(machine, reduce):
    """Those that find a place, too: the nearest of many codes needs no array of distances."""

    def nearest(x: Any, codes: Any) -> Any:
        return reduce(jnp.sum(codes**2, axis=1) - 2 * (x @ codes.T), axis=1)

    program = trace(nearest, array(4096, 64), array(8192, 64))
    assert not written(program, load(machine).chip, "sub")
