"""Steps on which habits of compilers act, by machine and habit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.program.trace import Program, trace
from autoshard.xla.habits.tpu_loops import in_turns


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


WIDE = array(64, 256)
SQUARE = array(64, 64)
STACK = array(3, 64, 64)
TOKENS = array(32, dtype=jnp.int32)


class Case(NamedTuple):
    """A step, what it is given, and what it may write over."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    donated: tuple[int, ...] = ()

    def program(self) -> Program:
        return trace(self.step, *self.args, donate_argnums=self.donated)


def read_by_two(make: Callable[..., Any], arrays: int = 1, dtype: Any = jnp.float32) -> Case:
    """What two reductions read."""

    def step(*given: Any) -> Any:
        made = make(*given)
        return jnp.sum(made, axis=-1), jnp.max(made, axis=-1)

    return Case(step, (array(64, 256, dtype=dtype),) * arrays)


def scanned(body: Callable[[Any, Any], Any], *, gradient: bool = False) -> Case:
    def step(stack: Any, x: Any) -> Any:
        return jnp.sum(lax.scan(lambda x, w: (body(x, w), None), x, stack)[0])

    return Case(jax.grad(step) if gradient else step, (STACK, SQUARE))


def saving_products(body: Callable[[Any, Any], Any]) -> Case:
    """The gradients of a loop that saves products alone."""
    policy = jax.checkpoint_policies.dots_saveable
    return scanned(jax.checkpoint(body, policy=policy), gradient=True)


def layers(weights: Any, x: Any) -> Any:
    for weight in weights:
        x = jnp.tanh(x @ weight.astype(x.dtype))
    return jnp.sum(x)


def renewed(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent."""

    def training(weights: Any, x: Any) -> Any:
        slopes = jax.grad(step)(weights, x)
        return jax.tree.map(lambda one, slope: one - 0.1 * slope, weights, slopes)

    return training


def attention(q: Any, k: Any, v: Any) -> Any:
    shares = jax.nn.softmax(jnp.einsum("bqkgh,bskh->bkgqs", q, k))
    return jnp.einsum("bkgqs,bskh->bqkgh", shares, v)


def cached(cache: Any, x: Any, new: Any) -> Any:
    """A loop that updates its carry, and multiplies with a slice of it."""

    def body(carry: Any, layer: Any) -> Any:
        cache, x = carry
        cache = lax.dynamic_update_slice(cache, jnp.tanh(new)[None], (layer, 0, 0, 0, 0))
        one = lax.dynamic_index_in_dim(cache, layer, keepdims=False)
        scores = jax.nn.softmax(jnp.einsum("bqkh,bskh->bkqs", x, one))
        return (cache, jnp.einsum("bkqs,bskh->bqkh", scores, one)), None

    return lax.scan(body, (cache, x), jnp.arange(3))[0]


def disagreeing(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Two products that lie in different orders, and their sum."""
    left, right = jnp.einsum("bij,bjk->bik", a, b), jnp.einsum("bij,bjk->bik", c, d)
    return jnp.sum(jnp.tanh(left) + jnp.tanh(right).transpose(0, 2, 1), (1, 2))


def entering(a: Any, b: Any, x: Any) -> Any:
    """A product that a loop reads transposed."""
    made = jnp.einsum("bij,bjk->bik", a, b).transpose(0, 2, 1)
    return lax.scan(lambda x, _: (jnp.tanh(x * made), None), x, None, length=3)[0]


def convolved(channels: int, size: int = 3) -> Case:
    def step(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = lax.conv_general_dilated(
                x.astype(jnp.bfloat16),
                weight.astype(jnp.bfloat16),
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            x = jnp.tanh(x)
        return jnp.sum(x.astype(jnp.float32))

    weights = [array(size, size, channels, 16), array(size, size, 16, 16)]
    return Case(renewed(step), (weights, array(8, 16, 16, channels)), (0,))


def widened(arrays: Any, small: Any, wide: Any, tall: Any) -> Any:
    """Branches of three products, the second of which is much the largest."""
    return [one @ small @ wide @ tall for one in arrays]


def softmax(axis: int) -> Case:
    return Case(lambda x: jax.nn.softmax(x, axis=axis), (WIDE,))


def read_elsewhere(x: Any) -> Any:
    most = jnp.max(x, axis=-1, keepdims=True)
    powers = jnp.exp(x - most)
    return powers / jnp.sum(powers, axis=-1, keepdims=True), most


def summed(x: Any, y: Any) -> Any:
    """Two sums that nothing waits for."""
    return jnp.sum(x, axis=0), jnp.sum(y, axis=0)


def reading(cache: Any, q: Any) -> Any:
    """A loop that multiplies with slices of a stack of which the second dimension is a batch."""

    def body(q: Any, one: Any) -> tuple[Any, None]:
        scores = jnp.einsum("bqkh,bskh->bkqs", q, one)
        return jnp.tanh(jnp.einsum("bkqs,bskh->bqkh", scores, one)), None

    return lax.scan(body, q, cache)[0]


def renewing(stack: Any, x: Any) -> Any:
    """A loop that reads a stack and makes one of the same slices."""
    x, stack = lax.scan(lambda x, one: (jnp.tanh(x + one), one + x), x, stack)
    return stack, x


def narrow(array: Any) -> Any:
    return array.astype(jnp.bfloat16)


def kept_on_host(x: Any, w: Any) -> Any:
    """What goes to the host long before it comes back."""
    space = jax.memory.Space
    kept = jax.device_put(jnp.sin(x), space.Host)
    return jnp.tanh(jnp.tanh(x @ w) @ w) * jax.device_put(kept, space.Device)


ON_HOST = Case(kept_on_host, (SQUARE, SQUARE))
BARRED = Case(lambda x: 3 * lax.optimization_barrier(jnp.tanh(x)) + x, (WIDE,))
TWO_PRODUCTS = Case(lambda a, b, c, d: a @ b + c @ d, (SQUARE,) * 4)
THREE_PRODUCTS = Case(lambda a, b, c, d, e, f: a @ b + c @ d + e @ f, (SQUARE,) * 6)
SIBLINGS = Case(lambda a, b: (a + b, a * b), (WIDE, WIDE))
SUMS = read_by_two(lambda x: x)
WRITTEN_OVER = Case(
    lambda x, w: jnp.tanh(lax.optimization_barrier(jnp.exp(x)) + 1) @ w, (SQUARE, SQUARE)
)
GROUPED = Case(attention, (array(2, 64, 8, 4, 32), array(2, 64, 8, 32), array(2, 64, 8, 32)))
RENEWED = Case(renewing, (array(3, 8, 64), array(8, 64)), (0,))
CACHED = Case(cached, (array(3, 8, 64, 4, 32), array(8, 1, 4, 32), array(8, 1, 4, 32)), (0,))
TURNED = Case(lambda x, w: (x @ w).T @ x, (array(64, 32), array(32, 48)))
OF_PRODUCT = scanned(lambda x, w: jnp.tanh(x @ w))
OF_ARRAY = scanned(lambda x, w: jnp.tanh(x * w))
NARROW_IN_LOOP = scanned(lambda x, w: jnp.tanh(x @ narrow(w)).astype(jnp.float32))
IN_TURNS = Case(in_turns, (WIDE, array(3, 64, 256)))
LEARNT = Case(renewed(layers), ([SQUARE] * 4, WIDE.update(shape=(256, 64))), (0,))
LEARNT_IN_LOOP = scanned(lambda x, w: jnp.tanh(jnp.sin(x @ w) @ w + jnp.cos(x)), gradient=True)
LOOKED_UP = Case(lambda table, tokens: narrow(table[tokens]), (WIDE, TOKENS))
SCATTERED = Case(
    lambda tokens, x: jnp.zeros((64, 256)).at[tokens].add(x.astype(jnp.float32)),
    (TOKENS, array(32, 256, dtype=jnp.bfloat16)),
)

CASES: dict[str, dict[str, Case]] = {
    "h100-8": {
        "gpu.elementwise-chain": Case(lambda x: jnp.exp(jnp.tanh(x)), (WIDE,)),
        "gpu.rows-compute-operands": Case(lambda x: jnp.sum(2 * x, axis=-1), (WIDE,)),
        "gpu.scatters-compute-updates": SCATTERED,
        "gpu.nothing-over-barriers": BARRED,
        "gpu.cheap-computed-anew": read_by_two(lambda x: 2 * x),
        "gpu.dear-written": read_by_two(lambda a, b, c, d: a + b * c - d, 4),
        "gpu.long-functions-written": read_by_two(lax.erfc),
        "gpu.siblings-run-as-one": SIBLINGS,
        "gpu.reductions-join-siblings": Case(lambda x: (2 * x, jnp.sum(x, -1)), (WIDE,)),
        "gpu.softmax-in-one-kernel": softmax(-1),
        "gpu.norm-in-one-kernel": Case(lambda x: x / jnp.sum(x * x, -1, keepdims=True), (WIDE,)),
        "gpu.rows-read-elsewhere-alone": Case(read_elsewhere, (WIDE,)),
        "gpu.columns-in-several-kernels": softmax(0),
        "gpu.products-start-from-products": TWO_PRODUCTS,
        "gpu.third-product-added": THREE_PRODUCTS,
        "gpu.slices-written-for-products": OF_PRODUCT,
        "gpu.slices-read-in-place": OF_ARRAY,
        "gpu.products-not-written-over": Case(
            lambda x, w: jax.nn.gelu(x @ w) @ w, (SQUARE, SQUARE)
        ),
        "gpu.elementwise-written-over": WRITTEN_OVER,
        "gpu.updates-in-place": CACHED,
        "gpu.carries-put-in-order": CACHED,
        "gpu.caches-put-in-order-for-sums": CACHED,
        "gpu.stacks-beside-what-they-renew": RENEWED,
        "gpu.stacks-turned-for-products": Case(
            reading, (array(3, 8, 64, 4, 32), array(8, 2, 4, 32))
        ),
        "gpu.stacks-turned-for-wide-rows": Case(
            lambda x, w: lax.scan(lambda x, w: (x, jnp.einsum("sd,dkh->skh", x, w)), x, w)[1],
            (array(1, 64), array(3, 64, 4, 32)),
        ),
        "gpu.products-write-batch-left-right": GROUPED,
        "gpu.grouped-scores-transposed": GROUPED,
        "gpu.batch-of-one-is-none": GROUPED,
        "gpu.transposes-renumber": Case(
            lambda a, b: jnp.tanh(jnp.einsum("bij,bjk->bik", a, b).transpose(0, 2, 1)),
            (array(4, 64, 32), array(4, 32, 48)),
        ),
        "gpu.matrices-read-transposed": TURNED,
        "gpu.left-order-prevails": Case(
            disagreeing, (array(4, 64, 32), array(4, 32, 48), array(4, 48, 32), array(4, 32, 64))
        ),
        "gpu.loop-edges-as-numbered": Case(
            entering, (array(4, 64, 32), array(4, 32, 48), array(4, 48, 64))
        ),
        "gpu.renewal-turns-weight": convolved(16, size=1),
        "gpu.lookups-gathered-as-stored": LOOKED_UP,
        "gpu.stacks-gathered-as-stored": NARROW_IN_LOOP,
        "gpu.gathers-combined": LEARNT,
        "gpu.gathers-combined-in-loops": Case(
            lambda stacks, x: lax.scan(lambda x, w: (x @ w[0] @ w[1], None), x, stacks)[0],
            ((STACK, STACK), SQUARE),
        ),
        "gpu.sums-combined": LEARNT,
        "gpu.sums-combined-in-loops": LEARNT_IN_LOOP,
        "gpu.depth-first-where-least": Case(
            widened, ([SQUARE] * 6, array(64, 32), array(32, 256), array(256, 8))
        ),
        "gpu.greedy-where-least": LEARNT,
        "gpu.host-copies-beside-kernels": ON_HOST,
    },
    "b200-8": {"gpu.functions-are-multiples": read_by_two(lambda a, b: jnp.exp(a + b), 2)},
    "a100-8": {"gpu.least-memory-in-loops": LEARNT_IN_LOOP},
    "v5p-8": {
        "tpu.elementwise-into-reductions": Case(lambda x: jnp.sum(2 * x, axis=-1), (WIDE,)),
        "tpu.barriers-part-kernels": BARRED,
        "tpu.pads-run-in-readers": Case(lambda x: jnp.pad(x, ((0, 8), (0, 0))) @ x.T, (SQUARE,)),
        "tpu.made-anew-for-two-products": read_by_two(lambda x: 2 * x),
        "tpu.activations-made-anew": read_by_two(jnp.tanh, dtype=jnp.bfloat16),
        "tpu.exponentials-made-anew-backward": read_by_two(jnp.exp, dtype=jnp.bfloat16),
        "tpu.written-for-many-readers": read_by_two(lambda a, b, c, d: a + b * c - d, 4),
        "tpu.long-functions-made-anew": read_by_two(lax.erfc),
        "tpu.optimizers-in-one-kernel": SIBLINGS,
        "tpu.reductions-of-one-array-together": SUMS,
        "tpu.products-added-to-products": TWO_PRODUCTS,
        "tpu.slices-read-in-place": OF_PRODUCT,
        "tpu.slices-written-for-kernels": IN_TURNS,
        "tpu.kernels-read-as-numbered": IN_TURNS,
        "tpu.updates-in-place": CACHED,
        "tpu.stacks-beside-what-they-renew": RENEWED,
        "tpu.scores-lie-by-positions": GROUPED,
        "tpu.windows-lie-by-batch-and-features": convolved(16),
        "tpu.images-lie-by-batch-and-channels": convolved(3),
        "tpu.lookups-gather-narrow-tables": LOOKED_UP,
        "tpu.loops-gather-narrow-slices": NARROW_IN_LOOP,
        "tpu.reshaped-weights-gathered-narrow": Case(
            lambda w, x: x @ narrow(w.reshape(64, 64)), (array(4096), SQUARE)
        ),
        "tpu.sums-are-combined": Case(summed, (WIDE, WIDE)),
        "tpu.gradients-are-combined-in-loops": LEARNT_IN_LOOP,
        "tpu.host-copies-beside-kernels": ON_HOST,
    },
    "v5e-8": {"tpu.loops-run-depth-first": LEARNT_IN_LOOP},
    "v6e-8": {
        "tpu.wide-units-write-columns": saving_products(lambda x, w: jnp.sin(x @ w) @ w),
    },
}
"""By machine and habit, a program on which it acts."""
