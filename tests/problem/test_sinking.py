"""Where a value is gathered: above or below what is computed between, whichever is cheaper.

Every op may run on the shard and its result be gathered, or read what was gathered before. So an
all-gather sinks below elementwise and linear ops, or stays above them, as a choice of strategies.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autoshard.lower.collectives import explicit_collectives
from autoshard.lower.compare import compare
from autoshard.lower.spmd import lower
from autoshard.program.trace import trace
from autoshard.search.search import search

SIZE = 4096


def array(*shape: int, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def narrow(x):
    return jnp.tanh(x).astype(jnp.bfloat16)


def wide(x):
    return jnp.tanh(x.astype(jnp.float32))


def added(x, y):
    return jnp.exp(x) * y + x


def split(x):
    return jnp.exp(x), jnp.tanh(x), x * x


def product(x, w):
    return x @ w


def moved(x):
    return jnp.transpose(x).reshape(SIZE // 4, 4, SIZE).astype(jnp.bfloat16)


def running(x):
    return jnp.cumsum(x, axis=0).astype(jnp.bfloat16)


BOTH = "pin x [x, None]", "pin y [x, None]"
WHOLE = "pin w [None, None]"
CASES = {
    "sinks below a cast to fewer bytes": (
        narrow, (array(SIZE, SIZE),), (), ["bf16[4096@x, 4096] -> bf16[4096, 4096]"],
    ),
    "stays above a cast to more bytes": (
        wide, (array(SIZE, SIZE, dtype=jnp.bfloat16),), (),
        ["bf16[4096@x, 4096] -> bf16[4096, 4096]"],
    ),
    "sinks below an addition, and two become one": (
        added, (array(SIZE, SIZE), array(SIZE, SIZE)), BOTH[1:],
        ["f32[4096@x, 4096] -> f32[4096, 4096]"],
    ),
    "stays above three readers": (
        split, (array(SIZE, SIZE),), (), ["f32[4096@x, 4096] -> f32[4096, 4096]"],
    ),
    "sinks below a product with a small result": (
        product, (array(SIZE, SIZE), array(SIZE, 64)), (WHOLE,),
        ["f32[4096@x, 64] -> f32[4096, 64]"],
    ),
    "stays above a product with a large result": (
        product, (array(SIZE, 64), array(64, SIZE)), (WHOLE,),
        ["f32[4096@x, 64] -> f32[4096, 64]"],
    ),
    "sinks below a transposition, a reshape and a cast": (
        moved, (array(SIZE, SIZE),), (), ["bf16[1024, 4, 4096@x] -> bf16[1024, 4, 4096]"],
    ),
    "stays above what needs the dimension whole": (
        running, (array(SIZE, 1),), (), ["f32[4096@x, 1] -> f32[4096, 1]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_gather_stands_where_it_is_cheapest(name):
    fn, args, more, expected = CASES[name]
    program = trace(fn, *args)
    results = [f"pin result[{k}]" for k in range(3)] if fn is split else ["pin result"]
    ranks = [len(program.values[value].shape) for value in program.outputs]
    whole = [
        f"{result} [{', '.join(['None'] * rank)}]"
        for result, rank in zip(results, ranks, strict=True)
    ]
    plan = search(
        program,
        "v5e-8",
        mesh={"x": 8},
        baselines=False,
        gap=0.0,
        requirements=[BOTH[0], *more, *whole],
    )
    assert plan.proof.gap <= 1e-9
    assert [(move.kind, move.value) for move in plan.moves] == [
        ("all_gather", value) for value in expected
    ]
    made = explicit_collectives(lower(plan, fn, *args).lower(platforms=("tpu",)))
    assert compare(plan.moves, made).agrees
