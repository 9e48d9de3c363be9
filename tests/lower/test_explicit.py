"""The step written out for one device: the planned collectives, and the right numbers."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from autoshard import models
from autoshard.lower.parts.manual import Devices, reduce_scatter, run_hop
from autoshard.lower.spmd import LoweringError, lower
from autoshard.lower.verify import numeric_differences, verify_written
from autoshard.models.training import Step
from autoshard.models.unet import UNet, unet
from autoshard.plan.types.hops import hop
from autoshard.plan.types.specification import parts
from tests.helpers import MESHES, case, concrete_like, random_plan, sampled
from tests.lower.test_built_ins import PROGRAMS

GRID, NAMES = (2, 2, 2), ("x", "y", "z")


def small(name: str) -> Step:
    """The built-in, small; U-Net smaller than elsewhere, for its many convolutions."""
    if name != "unet":
        return models.tiny(name)
    config = UNet(image=8, channels=8, multipliers=(1, 2), blocks=1, attention=(4,), groups=4)
    return unet(config, 8, checkpoint=False)


WRITTEN = sampled(
    list(itertools.product(PROGRAMS, ("2x4", "2x2x2"))),
    lambda one: (
        one[0] not in ("unet", "llama3-8b-unrolled", "resnet50", "vit-l16", "mixtral-8x7b")
        and (PROGRAMS.index(one[0]) % 2 == 0) == (one[1] == "2x4")
    ),
)


@pytest.mark.parametrize(("name", "mesh"), WRITTEN)
def test_the_written_step_makes_the_planned_collectives_and_the_right_numbers(name, mesh):
    """Loss and state are those of the unsharded step."""
    fn, args, options = small(name)
    plan = random_plan(case(fn, *args, mesh=MESHES[mesh], **options), 4)
    assert plan.moves
    lowered = lower(plan, fn, *args, explicit=True)
    comparison = verify_written(lowered)
    assert comparison.agrees, str(comparison)
    assert numeric_differences(lowered, fn, models.concrete(name, args)) == []


def test_a_written_step_is_one_shard_map_that_runs_and_donates():
    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return loss, w - 0.1 * gradient

    args = f32(16, 32), f32(8, 16)
    given = case(step, *args, mesh=MESHES["2x4"], donate_argnums=(0,))
    lowered = lower(random_plan(given, 0), step, *args, explicit=True)
    (equation,) = jax.make_jaxpr(lowered.fn)(*args).eqns
    assert equation.primitive.name == "shard_map"
    w, x = jax.device_put(concrete_like(args), lowered.in_shardings)
    expected = step(*concrete_like(args))
    loss, new = lowered.jit()(w, x)
    assert w.is_deleted()
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    np.testing.assert_allclose(new, expected[1], rtol=1e-4, atol=1e-5)
    assert "sdy.manual_computation" in lowered.mlir_text()


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


FAR = np.array([3, -1, 15, 16, 99, -99, 0, 7], np.int32)  # some outside, some from the end


def taken(mode):
    return lambda x, i: jnp.take(x, i, axis=0, mode=mode, fill_value=5.0)


def added(mode):
    return lambda x, i, u: x.at[i].add(u, mode=mode)


def largest(x, i, u):
    return x.at[i].max(u)


def written_at(x, u, i):
    return lax.dynamic_update_slice(x, u, (i[0], jnp.int32(0)))


def convolved(x, w):
    return lax.conv_general_dilated(
        x, w, (2, 1), [(1, 1), (1, 2)], (1, 1), (1, 2), ("NHWC", "HWIO", "NHWC")
    )


def by_depth(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", feature_group_count=8, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def pooled(x):
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 4, 8, 1), (1, 4, 1, 1), [(0, 0), (0, 0), (4, 3), (0, 0)]
    )


def looped(x, w):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (0, x))[1]


def branched(x, w):
    return lax.cond(jnp.sum(x) > 0, lambda a: jnp.tanh(a @ w), lambda a: a @ (w + 1), x)


def masked(x):
    keep = jnp.tril(jnp.ones((16, 16), bool))
    return jax.nn.softmax(jnp.where(keep, x, -1e9), axis=-1)


def dropped(x):
    return x * jax.random.bernoulli(jax.random.key(3), 0.5, x.shape)


def flags(x):
    return jnp.any(x > 1, axis=0), jnp.all(x > -3, axis=1), jnp.max(x, axis=1), jnp.argmax(x, -1)


def folded(x):
    return jnp.sort(x.reshape(4, 4, 16).transpose(2, 0, 1).reshape(64, 4)[:, ::2], axis=1)


def split_up(x):
    """Pieces along one dimension, and one piece that is all there is."""
    return [jnp.sin(piece) for size in ([16], [4, 12]) for piece in lax.split(x, size, 1)]


def constant(x):
    return x @ np.arange(256, dtype=np.float32).reshape(16, 16)


CASES = {
    "take, clipped": (taken("clip"), (f32(16, 8), FAR)),
    "take, filled": (taken("fill"), (f32(16, 8), FAR)),
    "take, wrapped": (taken("wrap"), (f32(16, 8), FAR)),
    "add, dropped": (added("drop"), (f32(16, 8), FAR, f32(8, 8))),
    "add, clipped": (added("clip"), (f32(16, 8), FAR, f32(8, 8))),
    "maximum": (largest, (f32(16, 8), FAR, f32(8, 8))),
    "update": (written_at, (f32(16, 8), f32(1, 8), np.array([11], np.int32))),
    "update, beyond": (written_at, (f32(16, 8), f32(1, 8), np.array([99], np.int32))),
    "convolution": (convolved, (f32(8, 8, 8, 4), f32(3, 3, 4, 8))),
    "by depth": (by_depth, (f32(8, 8, 8, 8), f32(3, 3, 1, 8))),
    "pooling": (pooled, (f32(8, 16, 8, 4),)),
    "while": (looped, (f32(8, 16), f32(16, 16))),
    "cond": (branched, (f32(8, 16), f32(16, 16))),
    "mask": (masked, (f32(16, 16),)),
    "random bits": (dropped, (f32(16, 16),)),
    "flags": (flags, (f32(16, 16),)),
    "folds": (folded, (f32(16, 16),)),
    "constant": (constant, (f32(16, 16),)),
    "pieces": (split_up, (f32(16, 16),)),
    "repeats": (lambda x: jnp.sin(jnp.tile(x, (1, 8))), (f32(16, 4),)),
}


@pytest.mark.parametrize("name", CASES)
def test_ops_on_parts(name):
    fn, args = CASES[name]
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args)
    trips: Any = {"trip_counts": 3} if name == "while" else {}
    drawn = concrete_like(shapes)
    real = tuple(
        jnp.asarray(arg) if isinstance(arg, np.ndarray) else one
        for arg, one in zip(args, drawn, strict=True)
    )
    cut = 0
    for mesh in ("2x4", "2x2x2"):
        given = case(fn, *shapes, mesh=MESHES[mesh], **trips)
        for seed in range(3):
            plan = random_plan(given, seed)
            cut += any(a is not None and max(a) >= 0 for a in plan.decisions.assignment)
            lowered = lower(plan, fn, *shapes, explicit=True)
            comparison = verify_written(lowered)
            assert comparison.agrees, f"{mesh}, seed {seed}\n{comparison}"
            found = numeric_differences(lowered, fn, real)
            assert found == [], f"{mesh}, seed {seed}: {found[0]}"
    assert cut


def states(rank):
    """All arrangements of the axes of the grid over `rank` dimensions."""
    found = [((),) * rank]
    for axis in range(len(GRID)):
        found += [
            (*state[:d], (*axes[:at], axis, *axes[at:]), *state[d + 1 :])
            for state in found
            for d, axes in enumerate(state)
            for at in range(len(axes) + 1)
        ]
    return found


def on_all_devices(body, array):
    """The parts that a function of the whole array makes on every device."""
    mesh = jax.make_mesh(GRID, NAMES, axis_types=(AxisType.Auto,) * 3)
    every = PartitionSpec(NAMES)
    mapped = jax.shard_map(
        lambda a: [part[None] for part in body(a)],
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=every,
        check_vma=False,
    )
    return [list(np.asarray(part)) for part in jax.jit(mapped)(array)]


def test_every_hop_moves_the_right_shards():
    devices = Devices(NAMES, GRID)
    every = [hop(a, b, GRID) for a, b in itertools.permutations(states(2), 2)]
    hops = [move for move in every if move is not None]
    dice = np.random.default_rng(0)
    chosen = [hops[k] for k in dice.permutation(len(hops))[:80]]
    assert {move.kind for move in chosen} == {
        "all_gather", "all_slice", "all_to_all", "collective_permute",
    }  # fmt: skip
    array = np.arange(8 * 16).reshape(8, 16)

    def body(whole):
        made = []
        for move in chosen:
            start = hop(((), ()), move.before, GRID)
            part = whole if start is None else run_hop(whole, start, devices)
            made.append(run_hop(part, move, devices))
        return made

    for move, found in zip(chosen, on_all_devices(body, jnp.asarray(array)), strict=True):
        for one, other in zip(parts(array, move.after, GRID), found, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(move))


@pytest.mark.parametrize(
    "onto", [{0: (0, 1)}, {1: (2,), 0: (0,)}, {0: (1,), 1: (0, 2)}, {1: (0, 1, 2)}], ids=str
)
def test_a_reduce_scatter_of_several_dimensions_is_one_collective(onto):
    devices = Devices(NAMES, GRID)
    array = np.arange(8 * 16).reshape(8, 16)
    axes = [axis for group in onto.values() for axis in group]

    def body(whole):
        return [reduce_scatter(whole * (devices.place(axes) + 1), onto, devices)]

    (found,) = on_all_devices(body, jnp.asarray(array))
    count = devices.count(axes)
    state = tuple(tuple(onto.get(d, ())) for d in range(2))
    for one, other in zip(
        parts(array * (count * (count + 1) // 2), state, GRID), found, strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_an_opaque_op_is_written_out_whole():
    from tests.lower.test_spmd import RULES, kernel_step

    args = f32(8, 16), f32(16, 8)
    given = case(kernel_step, *args, mesh=MESHES["2x4"], user_rules=RULES)
    assert verify_written(lower(random_plan(given, 0), kernel_step, *args, explicit=True)).agrees


def test_a_shard_map_in_the_step_is_written_out_like_other_ops():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))

    def step(w, x):
        def part(w, x):
            return lax.psum(jnp.tanh(x @ w), "d")

        specs = PartitionSpec("d"), PartitionSpec(None, "d")
        return jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())(w, x) * 2

    args = f32(32, 16), f32(8, 32)
    plan = random_plan(case(step, *args, mesh={"x": 2, "y": 4}), 1)
    lowered = lower(plan, step, *args, explicit=True)
    comparison = verify_written(lowered)
    assert comparison.agrees, str(comparison)
    assert numeric_differences(lowered, step, concrete_like(args)) == []


def test_products_have_no_collective():
    def step(x):
        return jnp.prod(x, axis=0)

    given = case(step, f32(8, 16), mesh={"x": 8})
    number = next(op for op in given.program.ops if op.primitive == "reduce_prod").index
    plans = (random_plan(given, seed) for seed in range(40))
    plan = next(p for p in plans if 1 in (p.decisions.assignment[number] or ()))
    with pytest.raises(LoweringError, match=r"reduce_prod at .* cannot be written out for one"):
        verify_written(lower(plan, step, f32(8, 16), explicit=True))
