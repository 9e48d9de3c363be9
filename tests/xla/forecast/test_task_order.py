"""Tasks that become one: never one that would wait for itself, whatever was merged before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest

from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.xla.forecast.task_order import TaskOrder
from autoshard.xla.latency_hiding import Role, Task, any_needs

f32, i32 = jnp.float32, jnp.int32
NODES, EDGES, WIDTH = 64, 256, 32


@st.composite
def tasks(draw: st.DrawFn) -> list[Task]:
    made: list[Task] = []
    for number in range(draw(st.integers(2, 10))):
        one = Task(number, Role.KERNEL, kernels=(number,))
        for other in draw(st.lists(st.sampled_from(made), max_size=3)) if made else []:
            one.reads(other)
        made.append(one)
    return made


def would_wait_for_itself(one: Task, other: Task) -> bool:
    """Whether a path leads from one task to the other through a third."""
    pairs = (one, other), (other, one)
    return any(
        any_needs([task for task in reader.before if task is not source], source)
        for reader, source in pairs
    )


@hypothesis.given(tasks(), st.data())
def test_all_that_may_become_one_does_and_the_order_holds(
    made: list[Task], data: st.DataObject
) -> None:
    order, left = TaskOrder(made), list(made)
    for _ in range(len(made) - 1):
        leader, task = data.draw(st.permutations(left))[:2]
        apart = would_wait_for_itself(leader, task)
        assert order.merge(leader, task) is not apart
        left = left if apart else [one for one in left if one is not task]
        assert sorted(map(id, order.position)) == sorted(map(id, left))
        assert len(set(order.position.values())) == len(left)
        for reader in left:
            assert all(order.position[one] < order.position[reader] for one in reader.before)
        if len(left) < 2:
            break


def messages(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """The loss of a graph network that combines messages by `reduce` besides their sum."""

    def loss(w: Any, x: Any, source: Any, to: Any, y: Any) -> Any:
        m = jax.nn.relu(x[source] @ w["m"])
        total, other = jax.ops.segment_sum(m, to, NODES), reduce(m, to, NODES)
        return jnp.mean(((total + jnp.where(jnp.isfinite(other), other, 0)) @ w["o"] - y) ** 2)

    return loss


def softmax_over_edges(w: Any, x: Any, source: Any, to: Any, y: Any) -> Any:
    """Attention on a graph: scores are divided by the sum of those of the same node."""
    m = x[source] @ w["m"]
    score = jnp.exp(m - jax.ops.segment_max(m, to, NODES)[to])
    part = score / jax.ops.segment_sum(score, to, NODES)[to]
    total = jax.ops.segment_sum(part * m, to, NODES)
    return jnp.mean(((total + jnp.where(total > 0, total, 1)) @ w["o"] - y) ** 2)


def sums_of_sums(w: Any, x: Any, source: Any, to: Any, y: Any) -> Any:
    """Scatters onto zeros, each added to what depends on the one before."""
    m = x[source] @ w["m"]
    total = jnp.zeros((NODES, WIDTH))
    for _ in range(3):
        total = jnp.zeros((NODES, WIDTH)).at[to].add(m) + jnp.where(total > 0, total, 1.0)
        m = m * jnp.isfinite(total)[to]
    return jnp.mean((total @ w["o"] - y) ** 2)


LOSSES = {
    "max": messages(jax.ops.segment_max),
    "min": messages(jax.ops.segment_min),
    "softmax": softmax_over_edges,
    "sums": sums_of_sums,
}


@pytest.mark.parametrize("machine", ["h100-8", "v5e-8"])
@pytest.mark.parametrize("name", LOSSES)
def test_the_forecast_of_a_graph_network_ends(name: str, machine: str) -> None:
    def step(w: Any, *data: Any) -> Any:
        value, g = jax.value_and_grad(LOSSES[name])(w, *data)
        return jax.tree.map(lambda a, b: a - 1e-3 * b, w, g), value

    w = {
        "m": jax.ShapeDtypeStruct((WIDTH, WIDTH), f32),
        "o": jax.ShapeDtypeStruct((WIDTH, WIDTH), f32),
    }
    nodes, edges = jax.ShapeDtypeStruct((NODES, WIDTH), f32), jax.ShapeDtypeStruct((EDGES,), i32)
    program = trace(step, w, nodes, edges, edges, nodes, donate_argnums=(0,))
    plan = search(program, machine, mesh={"x": 2, "y": 4}, gap=0.05)
    assert plan.estimate.step_seconds > 0
