"""Collectives of tensor parallelism as frameworks make them, and the casts of float8 recipes.

A plan may bring tokens to weights that it gathers over `tensor`, where that is fewer bytes. These
frameworks never do: a layer's attention and its feed-forward part each

    forward    gather their input, and scatter the sum that they return
    backward   gather the gradient of the one, scatter that of the other, and gather the input
               again, which is not kept (https://arxiv.org/abs/2205.05198, section 4.2.2)

of all tokens of a data-parallel rank (docs.pytorch.org, tensor.parallel: PrepareModuleInput of
Shard(1) to Replicate, and RowwiseParallel). Where everything is made anew, so is the sum of the
attention, but not the last one (docs.pytorch.org, torch.utils.checkpoint: early_stop). Without
sequence parallelism a scatter and the next gather are one all-reduce.

Scaling in float8 (torchtitan, docs/float8.md):

    tensorwise   operands are cast on their ranks, and gathered in float8 by default
    rowwise      operands are gathered in bfloat16 and cast then; under async TP gathers are not
                 run beside products (github.com/pytorch/pytorch/issues/149990)

An operand is cast for both products that read it, each along its own sum. A program has one pass
for each, of three bytes an element; torchao counts (github.com/pytorch/ao at 0598012,
testing/training/roofline_utils.py, get_tensor_memory_traffic_ovhd_s, inputs and gradients) two to
find the largest and four for both casts tensorwise, and five and three rowwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from autoshard.cost.collective import MeshTopology
from autoshard.plan.records import Move
from autoshard.study.measured.held import KINDS, place
from autoshard.study.measured.question import Question

PRICED = 3.0
"""Bytes of an element's cast in a program: read in bfloat16, written in float8."""
CAST_BYTES: Mapping[str, float] = {"tensorwise": 6.0, "rowwise": 8.0}


def is_tensor_parallel(move: Move) -> bool:
    """Whether a collective of a layer is of activations or weights over tensor-parallel ranks."""
    return "tensor" in move.axes and place(move.scope)[0] in KINDS


def tokens_of(asked: Question) -> float:
    """Tokens of a microbatch that a data-parallel rank has, with all that its peers share."""
    mesh, rules = asked.rules.mesh, asked.rules.activations
    axes = [axis for axis in (*rules["batch"], *rules["length"]) if axis != "tensor"]
    return asked.batch // asked.microbatches * asked.sequence / math.prod(mesh[a] for a in axes)


def tensor_seconds(asked: Question, topology: MeshTopology) -> float | None:
    """Seconds of a step's collectives of tensor parallelism that nothing hides; None if not known.

    Args:
      asked: of one mesh.
      topology: of its axes in their order.
    """
    mesh, decoder = asked.rules.mesh, asked.decoder
    if mesh.get("tensor", 1) == 1 or set(decoder.kinds) != {"layers"} or decoder.experts:
        return None
    axes = (list(mesh).index("tensor"),)
    sent = 2.0 * tokens_of(asked) * decoder.width
    remade = asked.remat == ("full",)
    scatters = 5 if remade else 4
    layers = decoder.layers * asked.microbatches
    if "tensor" not in asked.rules.activations["norm_length"]:
        return layers * scatters * topology.collective_seconds("all_reduce", axes, sent)
    gathered = sent / 2 if asked.scaling == "tensorwise" else sent
    gather = topology.collective_seconds("all_gather", axes, gathered)
    scatter = topology.collective_seconds("reduce_scatter", axes, sent)
    spent = 0.0
    for number, (into, out) in enumerate(_product_seconds(asked)):
        fused = asked.hides_tensor and asked.scaling != "rowwise"
        into_gather, out_gather = (
            _beside(gather, product if fused else 0.0, mesh["tensor"]) for product in (into, out)
        )
        into_scatter, out_scatter = (
            _beside(scatter, product if asked.hides_tensor else 0.0, mesh["tensor"])
            for product in (into, out)
        )
        again = out_scatter if remade and number == 0 else 0.0
        spent += 2 * into_gather + out_scatter + out_gather + into_scatter + again
    return layers * spent


def _beside(seconds: float, product: float, ranks: int) -> float:
    """Seconds of a collective in so many parts that are not beside a product."""
    return max(seconds / ranks, seconds - product) if product else seconds


def _product_seconds(asked: Question) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of attention and of the feed-forward part: products of its input, and of its result."""
    decoder, chip = asked.decoder, asked.machine.chip
    heads, pairs = decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
    ups = 2 if decoder.gated else 1
    most = chip.matmul_flops(asked.products) * chip.matmul_efficiency
    each = 2.0 * tokens_of(asked) * decoder.width / asked.rules.mesh["tensor"] / most
    attention = each * (heads + 2 * pairs), each * heads
    return attention, (each * ups * decoder.hidden, each * decoder.hidden)


def cast_seconds(asked: Question) -> float:
    """Seconds of a step's casts beside those of the program, of inputs and gradients of layers."""
    if asked.scaling not in CAST_BYTES or set(asked.decoder.kinds) != {"layers"}:
        return 0.0
    decoder, ranks = asked.decoder, asked.rules.mesh.get("tensor", 1)
    heads, pairs = decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
    ups = 2 if decoder.gated else 1
    stream = 4 * decoder.width  # inputs of both parts, gradients of what they return
    cut = (2 * heads + 2 * pairs + (1 + ups) * decoder.hidden) / ranks
    if asked.scaling == "tensorwise":
        stream /= ranks
    elements = tokens_of(asked) * (stream + cut) * decoder.layers * asked.microbatches
    chip = asked.machine.chip
    return elements * (CAST_BYTES[asked.scaling] - PRICED) / chip.memory_rate
