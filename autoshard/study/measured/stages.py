"""The price of a run's pipeline: its layers priced on the mesh of one stage, then its schedule.

One microbatch of a model with the layers of one stage is planned on one mesh under the run's rules,
with embedding and logits. What it takes, op by op and collective by collective, is told apart by
the scopes of the program:

    of a layer of each kind, of the embedding, of the logits and the loss
    forward (F), backward (B), products that make gradients of weights (W)
    once a step: the update; casts of weights, which all microbatches use (docs.nvidia.com/
    deeplearning/transformer-engine, is_first_microbatch); sums of gradients over data-parallel
    ranks and gathers of weights

Stages are made of these, and the schedule is simulated (`autoshard.solve.schedule`). A step is the
makespan, and what is done once; of sums and gathers that is what takes longer than a microbatch, as
they run beside the last and the first one (`autoshard.study.measured.data_parallel`). Weights stay
whole on a mesh's data-parallel ranks during the step; gradients, and the update, are sharded over
them (ZeRO-1), as the frameworks that run pipelines do.

Memory of a device: weights in bfloat16 and gradients in float32 (6 bytes each), the rest of the
optimizer's state (12) over the data-parallel ranks, what its stages keep of the microbatches that
are in flight, and what a microbatch needs beside that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autoshard.models.decoder_sizes import Decoder
from autoshard.plan.evaluate import compute_seconds, evaluate
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program
from autoshard.search.assemble import prices_of
from autoshard.solve.schedule import NAMED, Instance, simulate
from autoshard.study.measured.completed import ANY, completed, ruled_program
from autoshard.study.measured.data_parallel import of_rows, of_weights, sides, weight_shapes
from autoshard.study.measured.dispatch import exchange_seconds, is_exchange
from autoshard.study.measured.eager import (
    COPIES,
    KEPT_BYTES,
    SHARDED_BYTES,
    hidden_in_products,
)
from autoshard.study.measured.held import ENDS, KINDS, kept_bytes, place, weight_bytes
from autoshard.study.measured.pipeline import Pipeline, layers_of_stages
from autoshard.study.measured.question import Question, Remat
from autoshard.study.measured.saved import layer_bytes, loss_bytes


@dataclass(frozen=True, slots=True)
class Parts:
    """What the parts of a stage take: a layer of each kind, the embedding, the logits, the loss.

    Attributes:
      seconds: by part, and by F, B, W, "once" for the update, or "data" for sums and gathers.
      scalars: weights on a device, by part.
      kept_bytes: of a device and a microbatch from F to W, by part.
      workspace_bytes: of a device beside weights and what is kept.
    """

    seconds: Mapping[tuple[str, str], float]
    scalars: Mapping[str, float]
    kept_bytes: Mapping[str, float]
    workspace_bytes: float


@dataclass(frozen=True, slots=True)
class Piped:
    """The price of a step in a pipeline.

    Attributes:
      seconds: of the step.
      needed_bytes: of the device that takes most.
      bubble: the share of the meshes' time in which they wait.
      remat: what a layer keeps.
    """

    seconds: float
    needed_bytes: float
    bubble: float
    remat: Remat


def piped(asked: Question, time_limit: float) -> Piped:
    """The price of a question with a pipeline, by the first choice of remat that fits, or the last.

    Raises:
      ScheduleError: the schedule is not made for so many microbatches.
      InfeasibleError, NoPlanError, MeshError, RulesError: the stage has no plan.
    """
    assert asked.pipeline is not None
    found = None
    for remat in asked.remat:
        found = piped_of(asked, asked.pipeline, parts_of(asked, remat, time_limit), remat)
        if found.needed_bytes <= asked.machine.chip.usable_bytes:
            break
    assert found is not None
    return found


def parts_of(asked: Question, remat: Remat, time_limit: float) -> Parts:
    """The parts of a question's stages on the mesh of one stage."""
    assert asked.pipeline is not None
    config = asked.decoder
    dense = config.dense_layers if config.experts else 0
    stage = max(math.ceil(config.layers / asked.pipeline.meshes), dense + (config.full_every or 1))
    one = replace(
        asked,
        decoder=replace(config, layers=min(stage, config.layers)),
        batch=asked.batch // asked.microbatches,
        microbatches=1,
    )
    program = ruled_program(one, remat)
    return _parts(one, remat, program, completed(program, one, ANY, time_limit))


def _parts(one: Question, remat: Remat, program: Program, plan: Plan) -> Parts:
    prices = prices_of(plan, program, one.machine)
    counts = {part: one.decoder.kinds.get(part, 1) for part in (*KINDS, *ENDS)}
    shapes = weight_shapes(one.decoder)
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for op, _, spent in compute_seconds(prices, plan.decisions):
        if one.eager and op.primitive in COPIES:
            continue
        part, kind = place(op.scope)
        of_weight = any(sides(program.values[v].shape) in shapes for v in op.outputs)
        if kind == "B" and op.primitive == "dot_general" and of_weight:
            kind = "W"
        elif kind == "B" and of_weight:
            continue  # gradients are scaled and summed by the products that make them
        elif kind == "F" and of_weight:
            kind = "once"
        seconds[part, kind] += spent / counts.get(part, 1)
    estimate = plan.estimate
    exposed = estimate.step_seconds - estimate.compute_seconds
    hidden = max(estimate.expected_seconds - estimate.compute_seconds, 0.0)
    share = hidden / exposed if exposed > 0 else 1.0
    exchange = exchange_seconds(one)
    ranks = one.rules.mesh.get("tensor", 1)
    rows = False
    for move in evaluate(prices, plan.decisions, plan.mesh.names).moves:
        part, kind = place(move.scope)
        if one.eager and of_rows(move, shapes):
            rows = True
            continue
        data = of_weights(move, shapes)
        spent = move.seconds if data else share * move.exposed_seconds
        if one.hides_tensor and move.axes == ("tensor",):
            spent = share * hidden_in_products(move, ranks)
        if exchange is not None and is_exchange(move, shapes):
            spent = move.count * exchange
        seconds[part, "data" if data else kind] += spent / counts.get(part, 1)
    if rows and not one.decoder.tied:
        seconds["embed", "data"] = seconds["unembed", "data"]
    kept: dict[str, float] = defaultdict(float)
    for part, held in kept_bytes(program, plan, prices.held_bytes):
        kept[part] += held / counts.get(part, 1)
    known = sum(counts[part] * kept[part] for part in counts)
    saved = layer_bytes(one, remat)
    if saved is not None:
        kept.update(dict.fromkeys(one.decoder.kinds, saved))
    scalars: dict[str, float] = defaultdict(float)
    for part, held in weight_bytes(program, plan, prices.held_bytes):
        scalars[part] += held / 4 / counts.get(part, 1)
    stored = sum(counts[part] * scalars[part] for part in counts)
    update = seconds.pop(("", "once"), 0.0) / stored / data_ranks(one)
    for part in counts:
        seconds[part, "once"] += update * scalars[part]
    total = (KEPT_BYTES + SHARDED_BYTES) * stored + known
    least = loss_bytes(one) if one.reserves else 0.0
    return Parts(seconds, scalars, kept, max(estimate.peak_bytes - total, least))


def data_ranks(asked: Question) -> int:
    """Ranks over which dense weights are the same and gradients are summed."""
    return math.prod(asked.rules.mesh.get(axis, 1) for axis in ("replica", "fsdp", "context"))


def piped_of(asked: Question, pipeline: Pipeline, parts: Parts, remat: Remat) -> Piped:
    stages = list(_layers(asked.decoder, pipeline.stages))
    stages[0]["embed"] = 1.0
    stages[-1] |= dict.fromkeys((end for end in ENDS if end != "embed"), 1.0)

    def times(kind: str) -> tuple[float, ...]:
        return tuple(
            sum(count * parts.seconds.get((part, kind), 0.0) for part, count in one.items())
            for one in stages
        )

    kept = tuple(sum(n * parts.kept_bytes.get(part, 0.0) for part, n in s.items()) for s in stages)
    nothing = (0.0,) * len(stages)
    instance = Instance(
        meshes=pipeline.meshes,
        microbatches=asked.microbatches,
        forward=times("F"),
        backward=times("B"),
        weight=times("W"),
        placement=pipeline.placement,
        transfer=pipeline.transfer_seconds(sent_bytes(asked)),
        time_scale=(1.0,) * pipeline.meshes,
        memory_forward=kept,
        memory_backward=nothing,
        memory_weight=tuple(-one for one in kept),
    )
    timeline = simulate(instance, NAMED[pipeline.schedule](instance))
    busy, update, data = ([0.0] * pipeline.meshes for _ in range(3))
    needed = list(timeline.peak_memory)
    sharded = SHARDED_BYTES / data_ranks(asked)
    for stage, mesh in enumerate(pipeline.placement):
        busy[mesh] += sum(times(kind)[stage] for kind in ("F", "B", "W"))
        update[mesh] += times("once")[stage]
        data[mesh] += times("data")[stage]
        scalars = sum(n * parts.scalars.get(part, 0.0) for part, n in stages[stage].items())
        needed[mesh] += scalars * (KEPT_BYTES + sharded)
    once = [
        more + max(sums - beside, 0.0)
        for beside, more, sums in zip(busy, update, data, strict=True)
    ]
    return Piped(
        seconds=float(timeline.makespan) + max(once),
        needed_bytes=max(needed) + parts.workspace_bytes,
        bubble=timeline.bubble,
        remat=remat,
    )


def _layers(config: Decoder, stages: int) -> Iterator[dict[str, float]]:
    """How many layers of each kind every stage has; kinds but the dense ones lie evenly."""
    kinds = dict(config.kinds)
    dense = kinds.pop("dense_layers", 0)
    rest = sum(kinds.values())
    for layers in layers_of_stages(config.layers, stages):
        first = min(dense, layers)
        dense -= first
        others = {kind: (layers - first) * count / rest for kind, count in kinds.items()}
        yield {"dense_layers": float(first), **others}


def sent_bytes(asked: Question) -> float:
    """Bytes that a device sends to the next mesh of a microbatch: its part of the stream."""
    rules = asked.rules
    tokens = asked.batch // asked.microbatches * asked.sequence
    axes = (*rules.activations["batch"], *rules.activations["norm_length"])
    return 2.0 * tokens * asked.decoder.width / math.prod(rules.mesh[axis] for axis in axes)
