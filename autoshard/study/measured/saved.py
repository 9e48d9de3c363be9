"""Bytes that frameworks of PyTorch hold, by their documentation, beside what a plan says.

Megatron-LM without fused attention saves of a layer, for `b s` tokens of width `h` on `t` ranks of
tensor parallelism (https://arxiv.org/abs/2205.05198, equations 1 to 4; dropout included):

    nothing recomputed                       s b h (10 + 24 / t + 5 a s / (h t))
    attention alone, sequence parallel       34 s b h / t
    all but the layer's input                2 s b h

torchtitan logs what PyTorch's allocator has reserved at most (components/metrics.py,
max_reserved_gib). What is reserved holds everything that is in use when the loss is computed, and
what has no other place there (docs.pytorch.org, CUDA semantics, memory management: a free block is
given to what fits into it):

    16 B   of a weight: itself, two moments and its gradient in float32; a gradient is a block of
           its layer's size, into which no array of logits fits
    2 B    of a weight of embedding and logits, which FSDP keeps whole after the forward pass
           (docs.pytorch.org, fully_shard: the root module is not resharded)
    14 B   of a logit, where the loss is PyTorch's own (`cross_entropy` of logits in float32): its
           log_softmax, that one's gradient and the gradient of the logits in float32, and beside
           these the place of the logits in bfloat16, into which none of the others fits
    18 B   where it is that of DTensor's loss_parallel, whose backward pass adds
           `exp(log_softmax)` in float32 (github.com/pytorch/pytorch, tensor/parallel/loss.py)
    4 B    where it is compiled: logits and their gradients in bfloat16 (torchtitan,
           components/loss.py, build_cross_entropy_loss)
    2 B    of a feature of the output layer's input, which is gathered over tensor-parallel ranks
           (torchtitan, infra/parallelize.py: ColwiseParallel of Shard(1))
"""

from __future__ import annotations

import math

from autoshard.study.measured.question import Question

STATE_BYTES, TABLE_BYTES = 16.0, 2.0
PLAIN_BYTES, PARALLEL_BYTES, COMPILED_BYTES = 14.0, 18.0, 4.0


def layer_bytes(asked: Question, remat: object) -> float | None:
    """Of a layer and microbatch on a device, without fused attention; None where it is fused."""
    if asked.attention != "plain":
        return None
    config, mesh = asked.decoder, asked.rules.mesh
    ranks = mesh.get("tensor", 1)
    batch = asked.batch // asked.microbatches / data_parallel(asked)
    stream = asked.sequence * batch * config.width
    if remat == "full":
        return 2.0 * stream
    if asked.selective:
        return 34.0 * stream / ranks
    scores = 5.0 * config.heads * asked.sequence / (config.width * ranks)
    return stream * (10.0 + 24.0 / ranks + scores)


def data_parallel(asked: Question) -> int:
    """Over how many ranks sequences lie."""
    return math.prod(asked.rules.mesh[axis] for axis in asked.rules.activations["batch"])


def logit_bytes(asked: Question) -> float:
    """Of a logit when the loss is computed, of torchtitan."""
    if not asked.plain_loss:
        return COMPILED_BYTES
    return PARALLEL_BYTES if asked.rules.activations.get("vocab") else PLAIN_BYTES


def loss_bytes(asked: Question) -> float:
    """Of a device and microbatch when the loss is computed, of torchtitan."""
    rules, mesh = asked.rules.activations, asked.rules.mesh
    tokens = asked.batch // asked.microbatches * asked.sequence
    tokens /= math.prod(mesh[axis] for axis in (*rules["batch"], *rules["length"]))
    gathered = 2.0 * tokens * asked.decoder.width if mesh.get("tensor", 1) > 1 else 0.0
    shared = math.prod(mesh[axis] for axis in rules.get("vocab", ()))
    return gathered + logit_bytes(asked) * tokens * asked.decoder.vocabulary / shared


def reserved_bytes(asked: Question, weights: float, kept: float) -> float:
    """What PyTorch's allocator reserves on a device under FSDP.

    Args:
      asked: of the run.
      weights: scalars of the weights on a device.
      kept: bytes that its layers keep for the backward pass.
    """
    config, mesh = asked.decoder, asked.rules.mesh
    tables = (1 if config.tied else 2) * config.vocabulary * config.width / mesh.get("tensor", 1)
    return STATE_BYTES * weights + TABLE_BYTES * tables + kept + loss_bytes(asked)
