"""Steps to trace, each with the sketch of its program (see test_trace.py)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from autoshard.program.trace import Op, Program, trace


def f(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def i(*shape: int) -> jax.ShapeDtypeStruct:
    return f(*shape, dtype=jnp.int32)


@dataclass(frozen=True, slots=True)
class Step:
    """A function, its arguments, and the sketch of its program."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    sketch: str
    options: dict[str, Any]


STEPS: dict[str, Step] = {}


def step(*args: Any, sketch: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    def keep(fn: Callable[..., Any]) -> Callable[..., Any]:
        STEPS[fn.__name__] = Step(fn, args, " ".join(sketch.split()), options)
        return fn

    return keep


def of_kind(program: Program, primitive: str) -> list[Op]:
    return [op for op in program.ops if op.primitive == primitive]


def traced(name: str) -> Program:
    given = STEPS[name]
    return trace(given.fn, *given.args, **given.options)


def lines_of(fn: Any) -> range:
    lines, first = inspect.getsourcelines(fn)
    return range(first, first + len(lines))


# -- derivatives and calls ---------------------------------------------------------------------


@step(f(8, 16), f(16, 4), sketch="dot_general tanh reduce_sum return")
def dead_code_is_gone(x, w):
    jnp.exp(x) @ w
    return jnp.sum(jnp.tanh(x @ w))


@step(
    f(16, 4),
    f(8, 16),
    sketch="""dot_general sin cos reduce_sum broadcast_in_dim' mul' dot_general' transpose'
    return return""",
)
def value_and_gradient(w, x):
    return jax.value_and_grad(lambda v: jnp.sum(jnp.sin(x @ v)))(w)


@step(f(8, 8), f(4, 8), sketch="dot_general sin sin sin return")
def checkpointed(w, x):
    return jnp.sin(jax.checkpoint(lambda h: jnp.sin(jnp.sin(h @ w)))(x))


@step(
    f(8, 8),
    f(4, 8),
    sketch="""dot_general sin sin cos broadcast_in_dim' mul' dot_general' sin' cos' cos' mul'
    mul' dot_general' transpose' return""",
)
def gradient_of_checkpointed(w, x):
    block = jax.checkpoint(lambda h, v: jnp.sin(jnp.sin(h @ v)))
    return jax.grad(lambda v: jnp.sum(jnp.sin(block(x, v))))(w)


@step(f(8), sketch="sin mul return")
def custom_jvp(x):
    return sine_by_hand(x)


@step(f(8), sketch="cos mul broadcast_in_dim' mul' return")
def gradient_of_custom_jvp(x):
    return jax.grad(lambda y: jnp.sum(sine_by_hand(y)))(x)


@step(f(8, 16), f(16, 4), sketch="dot_general return")
def custom_vjp(x, w):
    return matmul_by_hand(x, w)


@step(
    f(8, 16),
    f(16, 4),
    sketch="""dot_general cos broadcast_in_dim' mul' transpose' dot_general' transpose'
    dot_general' return return""",
)
def gradient_of_custom_vjp(x, w):
    return jax.grad(lambda *a: jnp.sum(jnp.sin(matmul_by_hand(*a))), argnums=(0, 1))(x, w)


@step(f(8), sketch="sin mul return")
def custom_vmap(x):
    @jax.custom_batching.custom_vmap
    def sine(y):
        return jnp.sin(y) * 2.0

    sine.def_vmap(lambda size, batched, y: (jnp.sin(y) * 2.0, batched[0]))
    return sine(x)


@step(
    f(8, 16),
    f(16, 4),
    sketch="""dot_general cos broadcast_in_dim' mul' transpose' dot_general'
    return""",
)
def optimized_custom_vjp(x, w):
    @jax.custom_vjp
    def product(y, v):
        return y @ v

    product.defvjp(
        lambda y, v: (y @ v, (y, v)),
        lambda saved, t: (t @ saved[1].T, saved[0].T @ t),
        optimize_remat=True,
    )
    return jax.grad(lambda v: jnp.sum(jnp.sin(product(x, v))))(w)


@step(f(8, 16), sketch="mul neg exp add return")
def nested_jit(x):
    inner = jax.jit(lambda y: jnp.exp(-jax.jit(lambda z: z * z)(y)))
    return inner(x) + x


# -- loops and branches ------------------------------------------------------------------------


@step(
    f(4, 8, 8),
    f(2, 8),
    f(2, 8),
    sketch="""scan*4( enter carry scan_slice dot_general add tanh reduce_sum yield scan_stack )
    return return""",
)
def scan(weights, x, bias):
    def layer(h, w):
        return jnp.tanh(h @ w + bias), jnp.sum(h)

    return lax.scan(layer, x, weights)


@step(f(4, 8), f(8), sketch="scan*4( carry scan_slice add yield scan_stack ) return return")
def reverse_scan(rows, x):
    return lax.scan(lambda h, row: (h + row, h), x, rows, reverse=True)


@step(
    f(3, 5, 8),
    f(8),
    sketch="""scan*3( carry scan_slice scan*5( carry scan_slice mul yield scan_stack ) yield
    scan_stack )
    return return""",
)
def nested_scan(blocks, x):
    def outer(h, block):
        return lax.scan(lambda g, row: (g * row, g), h, block)

    return lax.scan(outer, x, blocks)


@step(
    f(4, 8, 8),
    f(2, 8),
    sketch="""scan*4( carry scan_slice dot_general sin cos yield scan_stack scan_stack )
    broadcast_in_dim'
    scan*4( carry' scan_slice' scan_slice' scan_slice' mul' dot_general' transpose' dot_general'
    yield' scan_stack' ) return""",
)
def gradient_of_scan(weights, x):
    def loss(w):
        return jnp.sum(lax.scan(lambda h, v: (jnp.sin(h @ v), None), x, w)[0])

    return jax.grad(loss)(weights)


@step(f(8), sketch="scan*6( carry mul yield ) return")
def counted_loop(x):
    return lax.fori_loop(0, 6, lambda _, h: h * 2.0, x)


@step(f(0, 8), f(8), sketch="scan*0( carry scan_slice add yield ) return")
def scan_over_nothing(rows, x):
    return lax.scan(lambda h, row: (h + row, None), x, rows)[0]


@step(
    f(8),
    f(8, 8),
    i(),
    trip_counts=5,
    sketch="while*5( enter enter carry carry lt add dot_general yield yield ) return",
)
def while_loop(x, w, last):
    return lax.while_loop(lambda s: s[0] < last, lambda s: (s[0] + 1, s[1] @ w), (FIRST, x))[1]


@step(
    f(8, 8),
    i(),
    sketch="""gt convert_element_type branch-( enter mul ) branch( enter dot_general ) join
    return""",
)
def two_branches(x, which):
    return lax.cond(which > 0, lambda: x @ x, lambda: x * 2.0)


@step(
    f(8, 8),
    i(),
    sketch="""clamp branch-( enter sin ) branch( enter dot_general dot_general )
    branch-( enter dot_general ) join return""",
)
def three_branches(x, which):
    return lax.switch(which, [jnp.sin, lambda y: y @ y @ y, lambda y: y @ y], x)


@step(
    f(8, 8),
    i(),
    f(8, 8),
    sketch="""gt convert_element_type branch-( enter enter mul ) branch( enter enter dot_general )
    join return""",
)
def branches_with_own_operands(x, which, y):
    return lax.cond(which > 0, lambda: x @ y, lambda: x * 2.0)


@step(
    f(8, 8),
    i(),
    i(),
    sketch="""gt convert_element_type
    branch( enter enter dot_general dot_general dot_general )
    branch-( enter enter gt convert_element_type
        branch-( enter transpose dot_general dot_general )
        branch-( enter dot_general dot_general ) join )
    join return""",
)
def branches_within_a_branch(x, outer, inner):
    def two():
        return lax.cond(inner > 0, lambda: x @ x @ x, lambda: x.T @ x @ x)

    return lax.cond(outer > 0, two, lambda: x @ x @ x @ x)


@step(
    f(3, 8, 8),
    f(8, 8),
    i(),
    sketch="""gt convert_element_type
    branch-( enter enter dot_general dot_general )
    branch( enter enter scan*3( carry scan_slice dot_general yield ) ) join return""",
)
def loop_within_a_branch(weights, x, which):
    def loop():
        return lax.scan(lambda h, w: (h @ w, None), x, weights)[0]

    return lax.cond(which > 0, loop, lambda: x @ x @ x)


# -- other primitives --------------------------------------------------------------------------


@step(
    jax.eval_shape(lambda: jax.random.key(0)),
    sketch="random_split slice squeeze random_bits return",
)
def typed_key(key):
    return jax.random.bits(jax.random.split(key)[0], (8, 16))


@step(f(2, dtype=jnp.uint32), sketch="random_wrap random_bits return")
def raw_key(key):
    return jax.random.bits(key, (8, 16))


@step(f(32, 16), i(8, 1), sketch="gather return")
def gathered(table, rows):
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lax.gather(table, rows, numbers, (1, 16), mode="clip")


@step(f(32, 16), i(8, 1), f(8, 16), sketch="scatter-add scatter return return")
def scattered(table, rows, update):
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    added = lax.scatter_add(table, rows, update, numbers, mode="clip")
    return added, lax.scatter(table, rows, update, numbers, mode="clip")


@step(f(8, 16), i(8, 16), sketch="sort return return")
def sorted_pairs(keys, values):
    return lax.sort((keys, values), num_keys=1)


@step(f(8, 16), sketch="top_k return return")
def top(x):
    return lax.top_k(x, 4)


@step(f(8, 16), sketch="cumsum cummax return return")
def running(x):
    return lax.cumsum(x, axis=1), lax.cummax(x, axis=0, reverse=True)


@step(f(8, 8, 8, 4), f(3, 3, 4, 6), sketch="conv_general_dilated return")
def convolved(x, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)


@step(f(8, 8, 8, 4), sketch="reduce_window_max reduce_window_sum return return")
def pooled(x):
    window, strides = (1, 2, 2, 1), (1, 2, 2, 1)
    largest = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "VALID")
    return largest, lax.reduce_window(x, 0.0, lax.add, window, strides, "VALID")


@step(
    f(8, 16),
    i(),
    f(8, 4),
    sketch="dynamic_slice dynamic_update_slice return return",
)
def dynamic_slices(x, at, update):
    piece = lax.dynamic_slice(x, (0, at), (8, 4), allow_negative_indices=False)
    return piece, lax.dynamic_update_slice(x, update, (0, at), allow_negative_indices=False)


@step(f(8, 16), sketch="fft return")
def fourier(x):
    return lax.fft(x, "RFFT", (16,))


@step(
    f(3, 4, 4),
    f(3, 4, 4),
    sketch="""cholesky iota add iota ge broadcast_in_dim broadcast_in_dim select_n triangular_solve
    eigh svd slice squeeze qr lu return return return return""",
)
def linear_algebra(a, b):
    lower = lax.linalg.cholesky(a, symmetrize_input=False)
    solved = lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)
    _, values = lax.linalg.eigh(a, symmetrize_input=False)
    singular = lax.linalg.svd(a, compute_uv=False)[0]
    return lax.linalg.qr(solved)[1], values, singular, lax.linalg.lu(a)[0]


FIRST = np.int32(0)


@jax.custom_jvp
def sine_by_hand(x):
    return jnp.sin(x) * 2.0


sine_by_hand.defjvp(lambda p, t: (sine_by_hand(*p), jnp.cos(p[0]) * 2.0 * t[0]))


@jax.custom_vjp
def matmul_by_hand(x, w):
    return x @ w


matmul_by_hand.defvjp(
    lambda x, w: (x @ w, (x, w)), lambda saved, t: (t @ saved[1].T, saved[0].T @ t)
)
