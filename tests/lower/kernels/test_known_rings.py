"""Known attention kernels as rings: on parts they compute, and send, what is planned."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)
from jax.sharding import Mesh

import autoshard
from autoshard import compat
from autoshard.lower.local import run_in_parts
from autoshard.lower.parts.cut import Cut
from autoshard.lower.parts.manual import Devices
from autoshard.lower.verify import verify
from autoshard.program.bodies import run_equations
from autoshard.program.kernels.rule import ring_factors
from autoshard.program.strategies import project_assignment
from autoshard.program.vocabulary import INLINED
from autoshard.search.search import search
from autoshard.solve import evaluate
from tests.helpers import LONG, MESHES, best_plan, case, concrete_like


def attended(blocks: tuple[int, ...], causal: bool, *operands: Any) -> Any:
    """JAX's flash attention for TPUs; blocks of queries and of keys, copied and computed on."""
    rows, inner, keys, computed = blocks
    sizes = BlockSizes(
        *(rows, keys, computed, 1), *(rows, keys, computed, inner), *(keys, computed, rows)
    )
    return flash_attention(*operands, causal=causal, sm_scale=0.125, block_sizes=sizes)


def splashed(
    blocks: tuple[int, ...], causal: bool, heads: int, shape: tuple[int, int], *operands: Any
) -> Any:
    """JAX's splash attention, of heads of keys or of one that all share; `blocks` as above."""
    rows, inner, keys, computed = blocks
    sizes = splash_attention_kernel.BlockSizes(
        *(rows, keys, computed, inner, keys, computed, rows, computed)
    )
    mask = (splash_attention_mask.CausalMask if causal else splash_attention_mask.FullMask)(shape)
    shared = operands[1].ndim == operands[0].ndim - 1
    make: Any = getattr(splash_attention_kernel, f"make_splash_{'mqa' if shared else 'mha'}")
    kernel = make(
        splash_attention_mask.MultiHeadMask([mask] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
    )
    for _ in operands[0].shape[:-3]:
        kernel = jax.vmap(kernel)
    return kernel(*operands)


def slopes(fn: Any, *operands: Any) -> Any:
    """The gradients of a function's operands."""
    return jax.grad(
        lambda given: jnp.sum(jnp.sin(fn(*given).astype(jnp.float32))), allow_int=False
    )(operands)


def arrays(heads: int, rows: int, keys: int, width: int, dtype: Any = jnp.float32) -> list[Any]:
    """Queries, keys and values."""
    generator = np.random.default_rng(0)
    shapes = [(1, heads, length, width) for length in (rows, keys, keys)]
    return [jnp.asarray(generator.normal(size=shape), dtype) for shape in shapes]


def differences(fn: Any, given: list[Any], devices: int) -> list[float]:
    """By how much the results of each kernel of a step differ as a ring over so many devices."""
    program = autoshard.trace(fn, *given)
    ops = iter(op for op in program.ops if op.primitive == compat.PALLAS)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("x",))
    found: list[float] = []

    def run(equation: Any, operands: list[Any]) -> Any:
        if equation.primitive.name in INLINED:
            body, consts = compat.called_jaxpr(equation)
            return run_equations(body, consts, operands, run)
        if equation.primitive.name != compat.PALLAS:
            return compat.bind_equation(equation, operands)
        op = next(ops)
        assert op.kernel is not None
        shapes = tuple(tuple(var.aval.shape) for var in equation.outvars)
        whole = jax.jit(lambda *one: compat.bind_kernel(equation, one, shapes, {}))(*operands)
        rings = ring_factors(op.rule, op.kernel.rings)
        (factor,) = (k for k, ring in rings.items() if ring.passed)
        stored = tuple(np.full((1, 1), -1) for _ in op.outputs)
        strategy = project_assignment(op.rule, np.array([[factor]]), stored, (devices,))
        reads, written = (
            tuple(tuple(layout[0].tolist()) for layout in side)
            for side in (strategy.reads, strategy.written)
        )
        cut = Cut(op, reads, written, (), shapes, Devices(("x",), (devices,)), (factor,))
        parts = jax.jit(lambda *one: run_in_parts(equation, one, cut, mesh))(*operands)
        for var, here, there in zip(equation.outvars, parts, whole, strict=True):
            if compat.is_dropped(var):
                continue
            here, there = (np.asarray(one, np.float32) for one in (here, there))
            found.append(float(np.abs(here - there).max() / np.abs(there).max()))
        return whole

    run_equations(program.jaxpr.jaxpr, program.jaxpr.consts, given, run)
    return found


@pytest.mark.parametrize(
    ("blocks", "causal", "heads", "rows", "keys", "width", "devices"),
    [
        ((256, 128, 512, 128), True, 1, 512, 512, 128, 2),
        ((128, 128, 256, 256), False, 2, 256, 512, 64, 2),
        pytest.param((1024, 512, 1024, 512), True, 1, 1024, 1024, 128, 4, marks=LONG),
        pytest.param((384, 384, 384, 384), True, 2, 1536, 1536, 256, 2, marks=LONG),
        pytest.param((128, 128, 128, 128), True, 1, 2048, 2048, 128, 8, marks=LONG),
        pytest.param((256, 256, 1024, 512), False, 1, 512, 2048, 128, 4, marks=LONG),
    ],
)
def test_kernels_on_parts_of_the_sequence_compute_what_the_whole_does(
    blocks: Any, causal: bool, heads: int, rows: int, keys: int, width: int, devices: int
) -> None:
    """Forward with its statistics, and both backward: blocks become as small as parts are."""
    given = arrays(heads, rows, keys, width)
    found = differences(partial(slopes, partial(attended, blocks, causal)), given, devices)
    assert len(found) == 6
    assert max(found) < 1e-5


@pytest.mark.parametrize(
    ("causal", "queries", "keys", "devices"),
    [
        (True, (2, 512, 128), (512, 128), 2),
        pytest.param(False, (2, 2, 256, 64), (2, 1, 512, 64), 2, marks=LONG),
        pytest.param(True, (1, 4, 1024, 128), (1, 2, 1024, 128), 4, marks=LONG),
        pytest.param(True, (1, 2, 2, 512, 128), (1, 2, 512, 128), 2, marks=LONG),
    ],
)
def test_splash_attention_on_parts_computes_what_the_whole_does(
    causal: bool, queries: tuple[int, ...], keys: tuple[int, ...], devices: int
) -> None:
    """Heads that share keys or not, under `vmap` or not; a part has a mask of its own."""
    generator = np.random.default_rng(0)
    given = [jnp.asarray(generator.normal(size=one) / 8) for one in (queries, keys, keys)]
    shape, blocks = (queries[-2], keys[-2]), (256, 128, 256, 128)
    fn = partial(splashed, blocks, causal, queries[-3], shape)
    found = differences(partial(slopes, fn), [one.astype(jnp.float32) for one in given], devices)
    assert len(found) == 5
    assert max(found) < 1e-5


def test_a_kernel_that_saves_nothing_saves_what_its_ring_needs() -> None:
    """In bfloat16, of which the sum of two parts is rounded once more."""
    given = arrays(1, 512, 512, 128, jnp.bfloat16)
    found = differences(partial(attended, (128, 128, 128, 128), True), given, 2)
    assert len(found) == 1
    assert max(found) < 2**-7


def trained(blocks: tuple[int, ...], causal: bool, weights: Any, x: Any) -> Any:
    """A step of descent of rematerialised layers in a scan."""

    def layer(x: Any, weight: Any) -> Any:
        q, k, v = (x @ one for one in weight)
        return x + attended(blocks, causal, q, k, v), None

    def loss(weights: Any) -> Any:
        return jnp.sum(jnp.sin(jax.lax.scan(jax.checkpoint(layer), x, weights)[0]))

    return weights - 0.1 * jax.grad(loss)(weights)


@pytest.mark.long
@pytest.mark.parametrize(
    ("causal", "length", "mesh", "explicit"),
    [(True, 2048, "8", False), (False, 1024, "2x4", True), (True, 2048, "2x2x2", True)],
)
def test_a_step_with_rings_computes_and_sends_what_the_plan_says(
    causal: bool, length: int, mesh: str, explicit: bool
) -> None:
    """One block is the whole sequence, so that a ring alone can cut it."""
    fn = partial(trained, (length,) * 4, causal)
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 3, 128, 128), (1, 1, length, 128))]
    given = case(fn, *args, mesh=MESHES[mesh])
    plan = best_plan(given)
    choices = given.built.encode(plan.decisions)
    assert choices is not None
    found = evaluate(given.built.problem, choices)
    assert plan.estimate.step_seconds == pytest.approx(found.objective)
    assert "collective_permute" in {move.kind for move in plan.moves}
    checked = verify(plan, fn, *args, concrete=concrete_like(args), explicit=explicit)
    assert checked.agrees, str(checked)


def passed(fn: Any, *given: Any) -> list[Any]:
    """The ways in which keys may go round in a step."""
    shapes = [jax.ShapeDtypeStruct(*one) for one in given]
    ops = autoshard.trace(fn, *shapes).ops
    return [one for op in ops if op.kernel for one in op.kernel.rings if one.passed]


def test_masks_that_are_no_causal_or_full_ones_stay_whole() -> None:
    """A window, an offset, a mask in arrays; and whatever stands in arguments of the step."""
    length = 512

    def kernel(mask: Any) -> Any:
        return splash_attention_kernel.make_splash_mqa(
            splash_attention_mask.MultiHeadMask([mask]), head_shards=1, q_seq_shards=1
        )

    lower = np.tri(length, dtype=bool)
    lower[0, 1] = True
    shape = length, length
    given = [((1, length, 128), jnp.float32), *[((length, 128), jnp.float32)] * 2]
    causal = splash_attention_mask.CausalMask(shape)
    assert len(passed(kernel(causal), *given)) == 1
    for mask in (
        splash_attention_mask.LocalMask(shape, (256, 0), 0),
        splash_attention_mask.CausalMask(shape, offset=128),
        splash_attention_mask.NumpyMask(lower),
    ):
        assert not passed(kernel(mask), *given)
    ops = autoshard.trace(
        lambda one, *operands: one(*operands),
        kernel(causal),
        *(jax.ShapeDtypeStruct(*one) for one in given),
    ).ops
    assert not [one for op in ops if op.kernel for one in op.kernel.rings if one.passed]


def test_what_cannot_be_cut_stays_whole() -> None:
    """A bias, segments, causal queries of another number than keys, parts that are not blocks."""
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds

    def array(length: int) -> Any:
        return (1, 1, length, 128), jnp.float32

    def segmented(q: Any, k: Any, v: Any, ids: Any) -> Any:
        return flash_attention(q, k, v, segment_ids=SegmentIds(ids, ids), causal=True)

    causal, free = (partial(flash_attention, causal=one) for one in (True, False))
    three = (array(512),) * 3
    assert len(passed(causal, *three)) == len(passed(free, array(256), array(512), array(512))) == 1
    assert not passed(free, *three, ((1, 1, 512, 512), jnp.float32))
    assert not passed(segmented, *three, ((1, 512), jnp.int32))
    assert not passed(causal, array(256), array(512), array(512))
    assert not passed(causal, *(array(384),) * 3)


def test_a_long_sequence_of_a_small_batch_is_a_ring() -> None:
    """Forward and for the gradient of queries, where keys that are gathered would wait."""
    args = (jax.ShapeDtypeStruct((1, 4, 131072, 128), jnp.bfloat16),) * 3
    fn = partial(slopes, partial(attended, (1024,) * 4, True))
    program = autoshard.trace(fn, *args)
    plan = search(program, "v5p-16", time_limit=10)
    kernels = [(op, op.kernel.rings) for op in program.ops if op.kernel is not None]
    rings = [
        any(
            one.passed and factor in (plan.decisions.assignment[op.index] or ())
            for factor, one in ring_factors(op.rule, rings).items()
        )
        for op, rings in kernels
    ]
    assert sum(rings) >= 2
    assert "collective_permute" in {move.kind for move in plan.moves}
