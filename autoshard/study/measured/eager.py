"""A step of a framework that runs op by op, made of a plan's parts.

What such a framework does otherwise than the plan, by its documentation:

    data parallelism   collectives of weights and gradients run beside compute, on streams of their
                       own (`autoshard.study.measured.data_parallel`)
    what is kept       for the backward pass is held where it was made (docs.pytorch.org, autograd
                       mechanics, saved tensors): it is not copied into a stack of all layers, nor
                       marked as being of its dtype, as XLA does
    tokens             go to experts once a place, where its kernels do so
                       (`autoshard.study.measured.dispatch`)
    tensor parallelism tokens come to the weights (`autoshard.study.measured.tensor_parallel`);
                       gathers and sums run in as many parts as there are ranks, all but the first
                       beside the products that read or make them, where the framework says so
                       (docs.nvidia.com/nemo/megatron-bridge, Communication Overlap: on by default
                       in its recipes; discuss.pytorch.org, Introducing Async Tensor Parallelism)

What it holds is in `autoshard.study.measured.saved`.
"""

from __future__ import annotations

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.evaluate import compute_seconds
from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import Plan
from autoshard.plan.records import Move
from autoshard.study.measured.data_parallel import of_rows, of_weights, weight_shapes
from autoshard.study.measured.dispatch import exchange_seconds, is_exchange
from autoshard.study.measured.held import kept_bytes, place, weight_bytes
from autoshard.study.measured.question import Question
from autoshard.study.measured.remat import Remat
from autoshard.study.measured.saved import layer_bytes, reserved_bytes
from autoshard.study.measured.tensor_parallel import (
    cast_seconds,
    is_tensor_parallel,
    tensor_seconds,
)

KEPT_BYTES, SHARDED_BYTES = 6.0, 12.0
"""Of a weight: bfloat16 and its gradient in float32; float32 and two moments of Adam."""
COPIES = frozenset({"scan_stack", "reduce_precision", "name"})
"""Ops by which XLA alone keeps what the backward pass reads."""


def hidden_in_products(move: Move, ranks: int) -> float:
    """Seconds of a collective of tensor parallelism that are not beside a product."""
    split = move.kind in ("all_gather", "reduce_scatter")
    return move.exposed_seconds / ranks if split else move.exposed_seconds


def eager_seconds(plan: Plan, prices: StepPrices, asked: Question) -> float:
    """Seconds of a step on one mesh; `prices` are of the plan's program there."""
    spent = compute_seconds(prices, plan.decisions)
    copies = sum(seconds for op, _, seconds in spent if op.primitive in COPIES)
    shapes = weight_shapes(asked.decoder)
    data = [move for move in plan.moves if of_weights(move, shapes)]
    rows = [move for move in plan.moves if of_rows(move, shapes)]
    estimate = plan.estimate
    others = estimate.step_seconds - estimate.compute_seconds
    others -= sum(move.exposed_seconds for move in (*data, *rows))
    if rows and not asked.decoder.tied:
        data += [move for move in data if place(move.scope)[0] == "unembed"]
    exchange = exchange_seconds(asked)
    if exchange is not None:
        ways = [move for move in plan.moves if is_exchange(move, shapes)]
        others += sum(move.count * exchange - move.exposed_seconds for move in ways)
    tensor = tensor_seconds(asked, prices.topology)
    if tensor is not None:
        others += tensor - sum(m.exposed_seconds for m in plan.moves if is_tensor_parallel(m))
    elif asked.hides_tensor:
        ranks = asked.rules.mesh.get("tensor", 1)
        ways = [move for move in plan.moves if move.axes == ("tensor",)]
        others -= sum(move.exposed_seconds - hidden_in_products(move, ranks) for move in ways)
    busy = estimate.compute_seconds - copies + cast_seconds(asked) + max(others, 0.0)
    return busy + max(sum(move.seconds for move in data) - busy, 0.0)


def eager_bytes(plan: Plan, prices: StepPrices, asked: Question, remat: Remat) -> float:
    """Bytes of a device on one mesh: as the plan has it, or by the law of its framework."""
    program, held = prices.program, prices.held_bytes
    weights = sum(size for _, size in weight_bytes(program, plan, held)) / 4
    one = layer_bytes(asked, remat)
    if one is not None:
        return (KEPT_BYTES + SHARDED_BYTES) * weights + asked.decoder.layers * one
    if not asked.reserves:
        return needed_bytes(plan.estimate)
    kept = sum(size for _, size in kept_bytes(program, plan, held))
    return reserved_bytes(asked, weights, kept)
