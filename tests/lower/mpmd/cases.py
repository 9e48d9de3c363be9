"""Small steps with microbatches, and a cut run by hand, one fragment after another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import autoshard
from autoshard import compat
from autoshard.lower.mpmd.cut.cutting import cut_microbatch
from autoshard.lower.mpmd.cut.fragments import SHARED, Cut
from autoshard.lower.mpmd.cut.graph import run
from autoshard.lower.mpmd.cut.loop import MicrobatchedStep, find_loop
from autoshard.lower.mpmd.cut.pieces import Pieces
from autoshard.models import training
from autoshard.models.llama import Llama, llama
from autoshard.models.mixtral import Mixtral, mixtral
from autoshard.models.vision_transformer import VisionTransformer, vision_transformer


def tiny_llama(layers: int = 4, **options: Any):
    config = Llama(layers, 16, 4, 2, 32, vocabulary=32, tied=options.pop("tied", True))
    return llama(config, 16, 8, **{"microbatches": 8, **options})


def tiny_mixtral(layers: int = 4, **options: Any):
    config = Mixtral(
        layers=layers, width=16, heads=4, kv_heads=2, hidden=16, vocabulary=32, experts=4, group=8
    )
    return mixtral(config, 16, 16, **{"microbatches": 8, **options})


def tiny_vit(layers: int = 4, **options: Any):
    config = VisionTransformer(
        layers=layers, width=16, heads=2, hidden=32, patch=4, image=8, classes=8
    )
    return vision_transformer(config, 16, **{"microbatches": 8, **options})


def small_step(
    layers: int = 4,
    *,
    microbatches: int = 4,
    scan: bool = False,
    checkpoint: bool = False,
    clip: float | None = None,
    width: int = 8,
    vocabulary: int = 32,
    rows: int = 4,
) -> training.Step:
    """An AdamW step of layers `tanh(x w)` between an embedding and its transpose.

    A microbatch has so many `rows`.
    """
    adamw = optax.adamw(1e-2, weight_decay=0.1)
    optimizer = adamw if clip is None else optax.chain(optax.clip_by_global_norm(clip), adamw)

    def layer(x, weight):
        return jnp.tanh(x @ weight), None

    def loss(params, batch):
        with jax.named_scope("embed"):
            x = training.look_up(params["embedding"], batch["tokens"])
        x, _ = training.repeat(layer, x, params["layers"], checkpoint=checkpoint)
        with jax.named_scope("unembed"):
            logits = x @ params["embedding"].T
        return training.cross_entropy(logits, batch["targets"])

    def step(params, opt_state, batch):
        function = autoshard.accumulate_grads(loss, microbatches=microbatches)
        value, gradients = function(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return value, optax.apply_updates(params, updates), opt_state

    params = {
        "embedding": training.abstract(vocabulary, width),
        "layers": training.stacked(training.abstract(width, width), layers, scan=scan),
    }
    tokens = training.abstract(rows * microbatches, dtype=jnp.int32)
    batch = {"tokens": tokens, "targets": tokens}
    opt_state = jax.eval_shape(optimizer.init, params)
    return training.Step(step, (params, opt_state, batch), {"donate_argnums": (0, 1)})


def taken_apart(fn: Any, args: Any) -> MicrobatchedStep:
    return find_loop(compat.drop_dead_code(jax.jit(fn).trace(*args).jaxpr))


def cut_of(step: MicrobatchedStep, stages: Any, **options: Any) -> Cut:
    initial = {result.output: result.initial is not None for result in step.results}
    return cut_microbatch(
        step.micro,
        stages,
        summed=[initial[k] for k in range(len(step.micro.outputs))],
        shared=[not operand.sliced for operand in step.operands],
        **options,
    )


def run_cut(cut: Cut, arguments: list[Any], *, fused: bool) -> list[Any]:
    """The outputs of one microbatch: F up the stages, then B and W, or BW, down the stages."""
    values: dict[tuple[int, int], Any] = {}
    for entry, array in zip(cut.inputs, arguments, strict=True):
        if isinstance(entry, Pieces):
            for value, (start, stop) in zip(entry.values, entry.bounds, strict=True):
                values[value, SHARED] = array[start:stop]
        else:
            values[entry, SHARED] = array
    once = run(cut.invariant, {v: a for (v, _), a in values.items()}, lifted := made_by(cut))
    values |= {(value, SHARED): array for value, array in zip(lifted, once, strict=True)}
    stages = len(cut.stages)
    order = [(stage, "F") for stage in range(stages)]
    for stage in reversed(range(stages)):
        order += [(stage, kind) for kind in (("BW",) if fused else ("B", "W"))]
    for key in order:
        fragment = cut.fragments[key]
        known = {source.value: values[source.value, source.stage] for source in fragment.inputs}
        results = run(fragment.nodes, known, fragment.outputs)
        values |= {(v, key[0]): a for v, a in zip(fragment.outputs, results, strict=True)}
    outputs = []
    for output in cut.outputs:
        parts = [sum(values[s.value, s.stage] for s in part) for part in output.parts]
        outputs.append(parts[0] if output.pieces is None else jax.numpy.concatenate(parts))
    return outputs


def made_by(cut: Cut) -> list[int]:
    return [value for node in cut.invariant for value in node.outputs]
