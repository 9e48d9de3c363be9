"""Orders where the batch of products is cut to one element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.cost.reordering import transposing
from autoshard.cost.step_prices import StepPrices, step_prices
from autoshard.program.strategies import enumerate_strategies
from autoshard.program.trace import Op, Program, trace
from autoshard.xla import analyse
from tests.helpers import toy_machine, with_compiler

GROUPED = (2, 64, 8, 4, 32)


def attention(q: Any, k: Any, v: Any) -> Any:
    shares = jax.nn.softmax(jnp.einsum("bqkgh,bskh->bkgqs", q, k))
    return jnp.einsum("bkgqs,bskh->bqkgh", shares, v)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def priced(program: Program, chips: int) -> StepPrices:
    """Prices with products computed as they are written, whatever that transposes."""
    plain = with_compiler(toy_machine(chips), name="xla:gpu")
    machine = replace(plain, chip=replace(plain.chip, transaction_bytes=64.0))
    flow = replace(analyse(program), chip=machine.chip)
    return step_prices(program, flow, machine, (chips,))


def moved(program: Program, op: Op, cut: int, chips: int) -> float:
    """Bytes that transposing the shares takes where their dimension `cut` is in `chips` parts."""
    prices = priced(program, chips)
    strategies = enumerate_strategies(
        op.rule, (chips,), [program.values[o].shape for o in op.outputs]
    )
    position = [len(program.values[v].shape) for v in op.inputs].index(5)
    rows = np.flatnonzero(strategies.reads[position][:, 0] == cut)
    flow = prices.dataflow
    both = zip(flow.transposed[op.index], flow.turned[op.index], strict=True)
    shares = [(one, life) for one, life in both if one.position == position]
    only = replace(
        flow,
        transposed={op.index: tuple(one for one, _ in shares)},
        turned={op.index: tuple(life for _, life in shares)},
    )
    found = transposing(replace(prices, dataflow=only), op, strategies)[0]
    assert len(rows)
    return float(found[rows[0]])


@pytest.mark.parametrize(("batch", "heads"), [(1, 8), (8, 1)])
def test_shares_lie_right_where_the_batch_is_cut_to_one(batch: int, heads: int) -> None:
    """Of one sequence a key head each, or of one key head a sequence each."""
    query = array(batch, 64, heads, 4, 32)
    keys = array(batch, 64, heads, 32)
    program = trace(attention, query, keys, keys)
    product = [op for op in program.ops if op.primitive == "dot_general"][-1]
    dimension = 1 if batch == 1 else 0  # of the shares, [batch, heads, groups, queries, keys]
    assert moved(program, product, cut=dimension, chips=8) == 0.0
    assert moved(program, product, cut=dimension, chips=4) > 0.0
    assert moved(program, product, cut=3, chips=8) > 0.0


def test_products_without_a_batch_are_as_before() -> None:
    def layer(x: Any, w: Any) -> Any:
        return jnp.einsum("bsnh,nhd->dbs", jnp.einsum("bsd,dnh->bsnh", x, w), w.transpose(1, 2, 0))

    program = trace(lambda x, w: jnp.tanh(layer(x, w)), array(4, 16, 32), array(32, 32, 32))
    assert {one.alone for found in analyse(program).transposed.values() for one in found} <= {None}
