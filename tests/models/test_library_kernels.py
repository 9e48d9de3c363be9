"""JAX's own kernels with rules are cut by experts, sequences and heads, and compute the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import compat
from autoshard.lower.kernels.ruled import run_closed
from autoshard.lower.verify import verify
from autoshard.models.library_kernels import grouped_product, paged_attention
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import toy_machine
from tests.program.kernels.functions import f

ROWS, WIDTH, HIDDEN, EXPERTS = 256, 128, 128, 8
SIZES = np.array([40, 0, 70, 18, 128, 0, 0, 0], np.int32)


def products(rows, matrices, sizes):
    return grouped_product(rows, matrices, sizes)


def update(matrices, rows, sizes):
    def loss(matrices):
        return jnp.sum(grouped_product(rows, matrices, sizes) ** 2)

    return matrices - 0.1 * jax.grad(loss)(matrices)


def decode(queries, keys, values, lengths, pages):
    return paged_attention(queries, keys, values, lengths, pages, pages_per_block=2)


def integers(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


GROUPED = f(ROWS, WIDTH), f(EXPERTS, WIDTH, HIDDEN), integers(EXPERTS)
UPDATED = GROUPED[1], GROUPED[0], GROUPED[2]
PAGED = f(4, 4, 128), f(2, 16, 16, 128), f(2, 16, 16, 128), integers(4), integers(4, 4)


def arrays(shapes: Any) -> list[Any]:
    """Random ones; sizes of groups, or lengths and pages, that the kernels may be asked for."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    found = [jax.random.normal(key, one.shape) for key, one in zip(keys, shapes, strict=True)]
    if len(shapes) == 3:
        return [*found[:2], jnp.asarray(SIZES)]
    lengths = jnp.array([5, 64, 1, 33], jnp.int32)
    found[0] = found[0] / np.sqrt(found[0].shape[-1])
    return [*found[:3], lengths, jax.random.randint(keys[4], (4, 4), 0, 16, jnp.int32)]


def run(fn: Any, given: list[Any]) -> Any:
    """What a step computes, its kernels in interpret mode."""
    return run_closed(jax.make_jaxpr(fn)(*given), given)[0]


def cut_plan(fn: Any, shapes: Any, pins: list[str], axes: dict[str, int]) -> tuple[Any, set[Any]]:
    """The plan of a step under some pins; names and sizes of the factors that cut its calls."""
    machine = toy_machine(int(np.prod(list(axes.values()))))
    program = trace(fn, *shapes)
    plan = search(program, machine, mesh=axes, requirements=pins, time_limit=20)
    calls = [op for op in program.ops if op.primitive == compat.RULED]
    cut = {(op.rule, factor) for op in calls for factor in plan.decisions.assignment[op.index]}
    factors = [rule.factors[factor] for rule, factor in cut if factor >= 0]
    return plan, {one.name for one in factors} | {one.size for one in factors}


def test_a_grouped_product_is_a_ragged_one():
    given = arrays(GROUPED)
    found, expected = run(products, given), jax.lax.ragged_dot(*given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_paged_attention_reads_the_pages_of_its_sequences():
    given = arrays(PAGED)
    queries, keys, values, lengths, pages = map(np.asarray, given)
    found = np.asarray(run(decode, given))
    for row, length in enumerate(lengths):
        for head in range(queries.shape[1]):
            seen = [one[head // 2, pages[row]].reshape(-1, 128)[:length] for one in (keys, values)]
            scores = np.exp(seen[0] @ queries[row, head])
            expected = scores @ seen[1] / scores.sum()
            np.testing.assert_allclose(found[row, head], expected, rtol=2e-2, atol=1e-2)


CASES = [
    (products, GROUPED, ["pin matrices [x, ...]"], {"x": 4}, {"g"}),
    (update, UPDATED, ["pin matrices [x, ...]"], {"x": 4}, {EXPERTS}),
    (products, GROUPED, ["pin matrices [x, None, y]"], {"x": 2, "y": 2}, {"g", "n"}),
    (decode, PAGED, ["pin queries [x, ...]", "pin keys [y, ...]"], {"x": 4, "y": 2}, {"b", "k"}),
]


@pytest.mark.parametrize(("fn", "shapes", "pins", "axes", "factors"), CASES)
def test_calls_are_cut_by_experts_columns_sequences_and_heads(fn, shapes, pins, axes, factors):
    _, cut = cut_plan(fn, shapes, pins, axes)
    assert factors <= cut


@pytest.mark.long
@pytest.mark.parametrize(("fn", "shapes", "pins", "axes", "factors"), CASES)
def test_parts_compute_what_the_whole_does(fn, shapes, pins, axes, factors):
    plan, _ = cut_plan(fn, shapes, pins, axes)
    checked = verify(plan, fn, *shapes, concrete=tuple(arrays(shapes)))
    assert checked.agrees, str(checked)
