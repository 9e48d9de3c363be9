"""More pieces of random programs: algorithms, loops in loops, meshes of the step's own, types.

See `drawn.pieces`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import sparse
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from drawn.pieces import Dice, F, I, Made, Shape, any_shape, axis_of, piece, rank

MESH = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
"""A mesh of the step's own: plans match its axis by name, and may have another size of it."""


def matrices(x: Any) -> Any:
    """A symmetric matrix of 4 for each row."""
    row = x[:, :4] if x.shape[1] >= 4 else jnp.tile(x, (1, 4))[:, :4]
    return 0.1 * row[:, :, None] * row[:, None, :] + jnp.diag(jnp.arange(1.0, 5.0))


# -- matrices and elements of a batch --------------------------------------------------------------


@piece(rank(2))
def sparse_product(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, spots: Any, values: Any) -> Any:
        pairs = jnp.stack([spots % shape[0], spots // shape[0] % shape[0]], 1)
        return jnp.tanh(sparse.BCOO((values, pairs), shape=(shape[0], shape[0])) @ x)

    return [I((16,), shape[0] ** 2), F((16,))], run


@piece(rank(2))
def between(dice: Dice, shape: Shape) -> Made:
    marks = jnp.linspace(-1.0, 1.0, 8)
    if dice.random() < 0.5:
        return [], jax.vmap(lambda row: 0.1 * jnp.searchsorted(marks, row))
    return [F((8,))], lambda x, heights: jax.vmap(lambda row: jnp.interp(row, marks, heights))(x)


@piece(any_shape)
def mantissas(dice: Dice, shape: Shape) -> Made:
    def run(x: Any) -> Any:
        mantissa, exponent = jnp.frexp(lax.stop_gradient(x))
        return jnp.tanh(jnp.ldexp(jnp.round(8 * mantissa) / 8, exponent)) + x

    return [], run


@piece(any_shape)
def flagged(dice: Dice, shape: Shape) -> Made:
    def run(x: Any) -> Any:
        turned = lax.while_loop(lambda c: c[1], lambda c: (jnp.sin(c[0]), False), (x, True))[0]
        flag = lax.cond(jnp.sum(turned) > 0, lambda: 1.0, lambda: 0.5)
        return flag * turned

    return [], lambda x: x + run(lax.stop_gradient(x))


@piece(rank(2))
def eigenvalues(dice: Dice, shape: Shape) -> Made:
    return [], lambda x: jnp.linalg.eigvalsh(matrices(x))


@piece(rank(2))
def singular_values(dice: Dice, shape: Shape) -> Made:
    return [], lambda x: jnp.linalg.svd(matrices(x), compute_uv=False)


@piece(rank(2))
def decomposed(dice: Dice, shape: Shape) -> Made:
    if dice.random() < 0.5:
        return [], lambda x: jnp.tanh(jnp.linalg.qr(matrices(x))[1])
    return [], lambda x: jnp.linalg.slogdet(matrices(x))[1]


@piece(rank(2))
def triangular(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, b: Any) -> Any:
        lower = jnp.tril(matrices(x))
        return jnp.tanh(lax.linalg.triangular_solve(lower, b, left_side=True, lower=True))

    return [F((shape[0], 4, 8))], run


@piece(any_shape)
def special(dice: Dice, shape: Shape) -> Made:
    kind = int(dice.integers(4))

    def run(x: Any) -> Any:
        a = jnp.abs(x) + 1.0
        if kind == 0:
            return lax.igamma(a, jnp.abs(x))
        if kind == 1:
            return jnp.tanh(lax.lgamma(a) + lax.digamma(a))
        if kind == 2:
            return jax.scipy.special.erfinv(jnp.tanh(0.5 * x))
        return jnp.tanh(lax.bessel_i0e(x) * lax.polygamma(1.0, a))

    return [], run


# -- places ----------------------------------------------------------------------------------------


@piece(any_shape)
def in_order_of_keys(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)

    def run(x: Any, keys: Any) -> Any:
        keys = jnp.broadcast_to(
            keys.reshape([-1 if d == axis else 1 for d in range(x.ndim)]), x.shape
        )
        return lax.sort((keys, x), dimension=axis, num_keys=1)[1]

    return [F((shape[axis],))], run


@piece(any_shape)
def place_of_largest(dice: Dice, shape: Shape) -> Made:
    return [], lambda x: x * jax.nn.one_hot(jnp.argmax(x, -1), x.shape[-1])


@piece(rank(2, 3))
def taken_along(dice: Dice, shape: Shape) -> Made:
    at = I((*shape[:-1], 4), shape[-1])
    return [at], lambda x, at: jnp.take_along_axis(x, at % x.shape[-1], -1)


@piece(rank(2, 3))
def block_read(dice: Dice, shape: Shape) -> Made:
    sizes = tuple(max(n // 2, 1) for n in shape)

    def run(x: Any, a: Any, b: Any) -> Any:
        return lax.dynamic_slice(x, (a, b, *(jnp.int32(0),) * (x.ndim - 2)), sizes)

    return [I((), shape[0]), I((), shape[1])], run


@piece(rank(2, 3))
def rows_of_each(dice: Dice, shape: Shape) -> Made:
    """A row of its own for every element of the batch, as caches have."""

    def one(part: Any, row: Any, at: Any) -> Any:
        return lax.dynamic_update_slice(part, row[None], (at, *(jnp.int32(0),) * (part.ndim - 1)))

    return [F((shape[0], *shape[2:])), I((shape[0],), shape[1])], jax.vmap(one)


@piece(any_shape)
def stretched(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    low, high, inside = (int(dice.integers(-1, 3)) for _ in range(3))

    def run(x: Any) -> Any:
        widths = [(low, high, abs(inside)) if d == axis else (0, 0, 0) for d in range(x.ndim)]
        return lax.pad(x, jnp.float32(0.5), widths)

    return [], run


@piece(any_shape)
def strided(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: lax.slice_in_dim(x, 0, x.shape[axis], 2, axis=axis)


# -- windows and sums ------------------------------------------------------------------------------


@piece(rank(3))
def batches_grouped(dice: Dice, shape: Shape) -> Made:
    groups = int(dice.choice([g for g in (2, 4) if shape[0] % g == 0]))

    def run(x: Any, w: Any) -> Any:
        found = lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), batch_group_count=groups
        )
        return jnp.tanh(found)

    return [F((3, shape[2], 8))], run


@piece(rank(3))
def each_channel(dice: Dice, shape: Shape) -> Made:
    """A depthwise convolution, strided or dilated."""
    stride, wide = int(dice.choice([1, 2])), int(dice.choice([1, 2]))

    def run(x: Any, w: Any) -> Any:
        found = lax.conv_general_dilated(
            x, w, (stride,), "SAME", rhs_dilation=(wide,), dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=x.shape[2],
        )  # fmt: skip
        return jnp.tanh(found)

    return [F((3, 1, shape[2]))], run


@piece(rank(3))
def widened(dice: Dice, shape: Shape) -> Made:
    return [F((3, shape[2], 4))], lambda x, w: jnp.tanh(
        lax.conv_transpose(x, w, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    )


@piece(any_shape)
def scanned_by_pairs(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: lax.associative_scan(lambda a, b: jnp.tanh(a + b), x, axis=axis)


@piece(any_shape)
def largest_so_far(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    function = [lax.cummax, lax.cumlogsumexp][dice.integers(2)]
    return [], lambda x: jnp.tanh(function(x, axis=axis))


@piece(rank(2, 3))
def any_or_all(dice: Dice, shape: Shape) -> Made:
    axis, function = axis_of(dice, shape), [jnp.any, jnp.all][dice.integers(2)]
    return [], lambda x: jnp.where(function(x > 0.3, axis, keepdims=True), x, 0.5 * x)


@piece(rank(2, 3))
def bits_joined(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    kind = [lax.bitwise_or, lax.bitwise_and, lax.bitwise_xor][dice.integers(3)]

    def run(x: Any) -> Any:
        whole = jnp.int32(-1) if kind is lax.bitwise_and else jnp.int32(0)
        bits = lax.reduce((10 * x).astype(jnp.int32), whole, kind, (axis,))
        return x + jnp.expand_dims(bits.astype(jnp.float32), axis) * 0.01

    return [], run


@piece(rank(2))
def both_transforms(dice: Dice, shape: Shape) -> Made:
    return [], lambda x: jnp.tanh(jnp.real(jnp.fft.ifft2(jnp.fft.fft2(x) * (1 - 0.5j))))


@piece(any_shape)
def attended(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, k: Any) -> Any:
        scores = jax.nn.softmax(x @ k.T, -1)
        return scores @ k

    return [F((8, shape[-1]))], run


@piece(rank(2))
def by_experts(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, w: Any) -> Any:
        sizes = jnp.array([x.shape[0] // 4, x.shape[0] - x.shape[0] // 4], jnp.int32)
        return jnp.tanh(lax.ragged_dot(x, w, sizes))

    return [F((2, shape[1], 8))], run


@piece(any_shape)
def rounded(dice: Dice, shape: Shape) -> Made:
    """Through a short type and back; both runs in double precision leave it out."""
    return [F((shape[-1], 8))], lambda x, w: jnp.tanh(
        x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
    ).astype(jnp.float32)


# -- loops, derivatives, meshes --------------------------------------------------------------------


@piece(any_shape)
def written_in_turns(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, w: Any) -> Any:
        def turn(k: Any, c: Any) -> Any:
            return c.at[k].set(jnp.tanh(c[k] * w))

        return lax.fori_loop(0, 3, turn, x)

    return [F(())], run


@piece(any_shape)
def loop_in_loop(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, w: Any) -> Any:
        def inner(c: Any, _: Any) -> Any:
            return jnp.tanh(c @ w), None

        def outer(c: Any, scale: Any) -> Any:
            c = lax.scan(inner, c, None, length=2)[0]
            return c * scale, jnp.max(c)

        last, most = lax.scan(jax.checkpoint(outer), x, jnp.arange(1.0, 4.0))
        return jnp.tanh(last + jnp.sum(most))

    return [F((shape[-1], shape[-1]))], run


@piece(any_shape)
def branch_in_loop(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, w: Any) -> Any:
        def turn(c: Any, k: Any) -> Any:
            return lax.switch(k % 3, [jnp.sin, lambda c: c * w, lambda c: c - jnp.mean(c)], c), None

        return lax.scan(turn, x, jnp.arange(4))[0]

    return [F((shape[-1],))], run


@piece(any_shape)
def own_derivative_of_product(dice: Dice, shape: Shape) -> Made:
    """A gradient that clips, as people write it, around a loop."""

    @jax.custom_vjp
    def apply(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 2, lambda _, c: jnp.tanh(c @ w), x)

    def backward(kept: Any, g: Any) -> Any:
        x, w = kept
        shared = x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1])
        return jnp.clip(g @ w.T, -1.0, 1.0), jnp.clip(shared, -1.0, 1.0)

    apply.defvjp(lambda x, w: (apply(x, w), (x, w)), backward)
    return [F((shape[-1], shape[-1]))], apply


@piece(any_shape)
def less_its_mean(dice: Dice, shape: Shape) -> Made:
    def run(x: Any) -> Any:
        return jax.vmap(lambda row: row - lax.pmean(row, "rows"), axis_name="rows")(x)

    return [], run


@piece(any_shape)
def constrained(dice: Dice, shape: Shape) -> Made:
    fitting = [d for d, size in enumerate(shape) if size % 8 == 0]
    cut = int(dice.choice(fitting)) if fitting and dice.random() < 0.7 else -1
    spec = PartitionSpec(*("x" if d == cut else None for d in range(len(shape))))
    return [], lambda x: lax.with_sharding_constraint(jnp.sin(x), NamedSharding(MESH, spec))


@piece(rank(2, 3))
def mapped(dice: Dice, shape: Shape) -> Made:
    rest = (None,) * (len(shape) - 1)
    split = PartitionSpec("x", *rest)

    def part(x: Any, w: Any) -> Any:
        shared = lax.psum(jnp.sum(x, 0), "x")
        return jnp.tanh(x @ w + jnp.sin(shared @ w))

    return [F((shape[-1], 8))], jax.shard_map(
        part, mesh=MESH, in_specs=(split, PartitionSpec()), out_specs=split
    )


@piece(any_shape)
def with_noise(dice: Dice, shape: Shape) -> Made:
    seed = int(dice.integers(100))

    def run(x: Any) -> Any:
        key = jax.random.key(seed)
        return x + 0.1 * jax.random.uniform(key, x.shape) * jax.random.bernoulli(key, 0.5, x.shape)

    return [], run


@piece(any_shape)
def kept_in_state(dice: Dice, shape: Shape) -> Made:
    """What is summed up in a Ref."""

    def run(x: Any) -> Any:
        total = jax.new_ref(jnp.zeros_like(x))
        for k in range(2):
            total[...] += jnp.sin(x * (k + 1.0))
        return jnp.tanh(total[...])

    return [], run


@piece(any_shape)
def asked_of_python(dice: Dice, shape: Shape) -> Made:
    def run(x: Any) -> Any:
        mean = jnp.mean(x)
        result = jax.ShapeDtypeStruct((), jnp.float32)
        return x * jax.pure_callback(lambda v: v * 0 + 0.5, result, lax.stop_gradient(mean))

    return [], run


NO_GRADIENT = frozenset({"bits_joined", "batches_grouped", "asked_of_python"})
"""Pieces of which JAX takes no gradient."""
