"""Plans whose best form is known, on machines as they are sold.

Each test picks a regime in which the literature has one answer, and asserts on that answer: which
axis shards which dimension of the weights, and which collectives run on what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from autoshard.models.mlp import mlp
from autoshard.plan.plan import Move, Plan
from autoshard.program.trace import Program, trace
from autoshard.search.search import search

CHIPS = 8
SMALL_BYTES = 2**16  # biases and scalars


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def sgd(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A train step without optimizer state."""

    def step(weights: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, *data)
        return value, jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients)

    return step


def pairs(weights: Any, x: jax.Array) -> jax.Array:
    """Residual pairs of products, width -> hidden -> width."""
    for up, down in weights:
        x = x + jax.nn.relu(x @ up) @ down
    return x


def mean_square(weights: Any, x: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.mean((pairs(weights, x) - target).astype(jnp.float32) ** 2)


def pair_weights(count: int, width: int, hidden: int) -> list[Any]:
    return [(array(width, hidden), array(hidden, width)) for _ in range(count)]


def best(program: Program, machine: str = "h100-8", **options: Any) -> Plan:
    """The proven optimum of the sum of prices, on one axis over all chips."""
    options = {"by_schedule": False, **options}
    plan = search(program, machine, mesh={"x": CHIPS}, gap=0.0, **options)
    assert plan.proof.status == "optimal"
    return plan


def large(plan: Plan, *kinds: str) -> list[Move]:
    """The moves of these kinds that carry more than scalars and biases."""
    return [move for move in plan.moves if move.kind in kinds and move.bytes > SMALL_BYTES]


def baseline(plan: Plan, name: str) -> float:
    seconds = next(row.step_seconds for row in plan.baselines if row.name == name)
    assert seconds is not None
    return seconds


def strip(move: Move) -> str:
    """What a move carries, without axes."""
    return move.value.replace("@x", "")


# -- data parallel ------------------------------------------------------------------------


def test_serving_a_large_batch_with_ample_memory_is_data_parallel() -> None:
    """Nothing has to move at all, so nothing does."""
    plan = best(trace(pairs, pair_weights(2, 1024, 4096), array(65536, 1024)))
    assert plan.moves == ()
    assert all(spec == P() for path, spec in plan.specs["inputs"].items() if path != "[1]")
    assert plan.specs["inputs"]["[1]"] == P("x")
    seconds = baseline(plan, "data parallel")
    assert plan.estimate.step_seconds == pytest.approx(seconds, rel=1e-9)


def test_training_weights_that_do_not_divide_is_data_parallel() -> None:
    """Weights of odd sizes cannot be sharded, so that their gradients are all-reduced."""
    program = trace(
        sgd(mean_square),
        pair_weights(2, 1023, 4095),
        array(65536, 1023),
        array(65536, 1023),
        donate_argnums=0,
    )
    plan = best(program)
    assert all(spec == P() for path, spec in plan.specs["inputs"].items() if path[:3] == "[0]")
    assert plan.specs["inputs"]["[1]"] == plan.specs["inputs"]["[2]"] == P("x")
    assert {move.kind for move in plan.moves} == {"all_reduce"}
    assert len(large(plan, "all_reduce")) == 4  # one per weight
    assert plan.estimate.step_seconds == pytest.approx(baseline(plan, "data parallel"), rel=1e-9)


def test_training_a_large_batch_moves_weights_and_gradients_only() -> None:
    """Compute is data parallel. A sharded update (ZeRO) is never dearer than a replicated one:
    a reduce-scatter and an all-gather cost what an all-reduce costs, and the update is cut."""
    program = trace(
        sgd(mean_square),
        pair_weights(2, 1024, 4096),
        array(65536, 1024),
        array(65536, 1024),
        donate_argnums=0,
    )
    plan = best(program)
    assert plan.specs["inputs"]["[1]"] == plan.specs["inputs"]["[2]"] == P("x")
    assert all("65536" not in move.value for move in plan.moves)  # no activation moves
    assert plan.estimate.step_seconds <= baseline(plan, "data parallel")
    assert baseline(plan, "data parallel") < 1.05 * plan.estimate.step_seconds
    assert baseline(plan, "tensor parallel") > 2 * plan.estimate.step_seconds


# -- ZeRO-3 -------------------------------------------------------------------------------


def zero3(plan: Plan, layers: int) -> int:
    """Check that a plan for `mlp` is ZeRO-3; returns how many weights are gathered in a step."""
    for path, spec in plan.specs["inputs"].items():
        weight = "'up'" in path or "'down'" in path
        if weight:  # parameters and both moments, over all devices
            assert sorted(filter(None, spec)) == ["x"], path
    assert plan.specs["inputs"]["[2]['inputs']"] == P("x")
    assert len(large(plan, "reduce_scatter")) == 2 * layers
    assert not large(plan, "all_reduce", "all_to_all")
    gathers = large(plan, "all_gather")
    assert all(move.value.startswith("bf16") for move in gathers)  # after the cast, so half
    return len(gathers)


def test_tight_memory_is_zero_3() -> None:
    """Where the state fits only when it is sharded, it is, and weights are gathered at use."""
    layers = 4
    fn, args, options = mlp(16384, 4096, 16384, layers)
    program = trace(fn, *args, **options)
    plan = best(program, "h100-8")
    fsdp = next(row for row in plan.baselines if row.name == "FSDP")
    replicated = next(row for row in plan.baselines if row.name == "data parallel")
    assert fsdp.peak_bytes is not None
    assert replicated.peak_bytes is not None
    assert fsdp.peak_bytes < 0.6 * replicated.peak_bytes
    tight = search(
        program, "h100-8", mesh={"x": CHIPS}, memory_limit=fsdp.peak_bytes, time_limit=30.0
    )
    assert zero3(tight, layers) == 2 * layers  # once, kept for the backward pass
    tighter = search(
        program,
        "h100-8",
        mesh={"x": CHIPS},
        memory_limit=0.85 * fsdp.peak_bytes,
        time_limit=30.0,
        baselines=False,
    )
    assert tighter.estimate.step_seconds >= tight.proof.bound
    assert zero3(tighter, layers) > 2 * layers  # some are dropped and gathered anew


# -- tensor parallel ----------------------------------------------------------------------


def is_column_row(plan: Plan, count: int) -> None:
    """First weights are cut by their output dimension, second ones by their input dimension."""
    for pair in range(count):
        assert plan.specs["inputs"][f"[0][{pair}][0]"] == P(None, "x")
        assert plan.specs["inputs"][f"[0][{pair}][1]"] == P("x")


def test_serving_a_fat_mlp_to_a_small_batch_is_column_row() -> None:
    """Reading a weight is what costs: no weight moves, and each pair sums its output once."""
    count = 3
    plan = best(trace(pairs, pair_weights(count, 8192, 32768), array(8, 8192)))
    is_column_row(plan, count)
    assert all("32768" not in move.value for move in plan.moves)
    sums = large(plan, "all_reduce", "reduce_scatter")
    assert len(sums) == count
    assert len(large(plan, "all_gather")) == len(
        [move for move in sums[:-1] if move.kind == "reduce_scatter"]
    )
    seconds = baseline(plan, "tensor parallel")
    assert plan.estimate.step_seconds == pytest.approx(seconds, rel=1e-9)
    assert baseline(plan, "data parallel") > 3 * plan.estimate.step_seconds


def test_training_a_fat_mlp_on_a_small_batch_is_column_row() -> None:
    """One sum per pair and direction (the first pair needs no gradient of its input)."""
    count = 3
    program = trace(
        sgd(mean_square),
        pair_weights(count, 8192, 32768),
        array(64, 8192),
        array(64, 8192),
        donate_argnums=0,
    )
    plan = best(program)
    is_column_row(plan, count)
    assert all("32768" not in move.value for move in plan.moves)
    assert len(large(plan, "all_reduce", "reduce_scatter")) == 2 * count - 1
    assert baseline(plan, "data parallel") > 4 * plan.estimate.step_seconds


# -- embeddings and experts ---------------------------------------------------------------


def test_a_huge_embedding_is_sharded_over_vocabulary() -> None:
    """A table that is looked up and is the output layer too: logits stay cut by vocabulary."""
    vocabulary, width = 2**20, 1024

    def loss(weights: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        table = weights["table"]
        x = table.at[tokens].get(mode="promise_in_bounds", wrap_negative_indices=False)
        logits = (jnp.tanh(x @ weights["mix"]) @ table.T).astype(jnp.float32)
        classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
        chosen = jnp.sum(jnp.where(classes == targets[..., None], logits, 0.0), axis=-1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    tokens = array(8, 128, dtype=jnp.int32)
    weights = {"table": array(vocabulary, width), "mix": array(width, width)}
    program = trace(sgd(loss), weights, tokens, tokens, donate_argnums=0)
    plan = best(program)
    assert plan.specs["inputs"]["[0]['table']"] == P("x")
    assert plan.specs["outputs"]["[1]['table']"] == P("x")
    assert all(str(vocabulary) not in move.value for move in plan.moves)


def experts(weights: Any, x: jax.Array, dispatch: jax.Array, combine: jax.Array) -> jax.Array:
    """A mixture of experts by dispatch and combine tensors `[token, expert, slot]`."""
    slots = jnp.einsum("tec,td->ecd", dispatch, x)
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", slots, weights["up"]))
    return jnp.einsum("tec,ecd->td", combine, jnp.einsum("ecf,efd->ecd", hidden, weights["down"]))


@pytest.mark.parametrize("train", [False, True], ids=["serve", "train"])
def test_many_experts_are_sharded_over_the_expert_dimension(train: bool) -> None:
    """Each device owns whole experts; tokens travel to them, weights do not."""
    count, tokens, width, hidden, slots = 64, 512, 4096, 2048, 8
    weights = {"up": array(count, width, hidden), "down": array(count, hidden, width)}
    data = (array(tokens, width), *(array(tokens, count, slots) for _ in range(2)))

    def loss(weights: Any, *data: Any) -> jax.Array:
        return jnp.mean(experts(weights, *data).astype(jnp.float32) ** 2)

    program = trace(
        sgd(loss) if train else experts, weights, *data, donate_argnums=0 if train else ()
    )
    plan = best(program)
    assert plan.specs["inputs"]["[0]['up']"] == P("x")
    assert plan.specs["inputs"]["[0]['down']"] == P("x")
    assert all(f"{width}, {hidden}" not in strip(move) for move in plan.moves)
    assert all(f"{hidden}, {width}" not in strip(move) for move in plan.moves)
