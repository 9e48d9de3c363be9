"""A run as a question: which program on which machine, laid out how.

The axes of its mesh, major to minor, as far as they are larger than one:

    replica    data parallel with whole weights
    fsdp       data parallel with sharded weights and optimizer state
    expert     experts; for all else part of the data-parallel ranks
    context    positions, with gathered keys and values
    tensor     heads, hidden widths and vocabulary

Where a source says only how many data-parallel ranks there are, their optimizer state is sharded
over them (ZeRO-1), and so are the weights, whose gathers the solver places: once a step where there
is memory for them. What is not published is taken to be as in `notes`, which say so.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from autoshard.machine.file import MachineError
from autoshard.machine.machine import Machine, submachine
from autoshard.models.annotate import Rules
from autoshard.models.decoder import parameter_count
from autoshard.models.decoder_sizes import Decoder
from autoshard.models.splash import MOST
from autoshard.study.measured.machines import machine_of
from autoshard.study.measured.models import decoder_of
from autoshard.study.measured.pipeline import Pipeline, pipeline_of
from autoshard.study.measured.precision import products_of, scaling_of
from autoshard.study.measured.remat import JAX, Remat, UnreachableError, remat_of
from autoshard.study.measured.table import Run
from autoshard.study.measured.unpublished import UNPUBLISHED, data_parallel_mesh

AXES = ("replica", "fsdp", "expert", "context", "tensor")
COMPILED_LOSS = 202506
"""Since when torchtitan compiles its loss: year and month of the first published run whose version
does (github.com/pytorch/torchtitan, e7c0cae, components/loss.py, build_cross_entropy_loss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A run's own configuration.

    Attributes:
      decoder: dimensions.
      batch, sequence: of a step, or of one microbatch of a pipeline.
      microbatches: over which gradients are accumulated.
      remat: choices of `autoshard.models.decoder`; the first that fits is the run's.
      attention, products: see `autoshard.models.decoder`.
      offloaded: what of it waits in the memory of the host, by name.
      machine: it ran on; of a pipeline, the part of it that one stage has.
      pipeline: of its stages, or None.
      block: tokens of a block of fused attention.
      eager: whether the framework runs op by op, see `autoshard.study.measured.eager`.
      hides_tensor: whether collectives of tensor parallelism run beside its products.
      reserves: whether what is held is what PyTorch's allocator reserves, see
        `autoshard.study.measured.saved`.
      plain_loss: whether the loss is made of PyTorch's own functions, not compiled.
      selective: whether attention alone is made anew.
      exchanges: whether tokens go to experts as `autoshard.study.measured.dispatch` says.
      unrolled: whether layers are in no loop of XLA:GPU, see `autoshard.study.measured.unrolled`.
      scaling: "tensorwise" or "rowwise", of float8 where its framework says which; else "".
      rules: mesh, and where logical names lie.
      notes: what was taken to be so.
    """

    decoder: Decoder
    batch: int
    sequence: int
    microbatches: int
    remat: tuple[Remat, ...]
    attention: str
    products: str
    offloaded: tuple[str, ...]
    machine: Machine
    pipeline: Pipeline | None
    block: int
    eager: bool
    hides_tensor: bool
    reserves: bool
    plain_loss: bool
    selective: bool
    exchanges: bool
    unrolled: bool
    scaling: str
    rules: Rules
    notes: tuple[str, ...]


def question(run: Run) -> Question:
    """The question that a run is.

    Raises:
      UnreachableError: its model, software, machine or configuration cannot be expressed, or too
        little of it was published.
    """
    found = decoder_of(run.model)
    if isinstance(found, str):
        raise UnreachableError(found)
    if "LoRA" in run.task:
        raise UnreachableError("low-rank adapters, which no built-in decoder has")
    run, batch_notes = _with_batch(run)
    missing = [name for name in ("batch", "sequence") if not getattr(run, name)]
    if missing:
        raise UnreachableError(f"the source does not say its {' and '.join(missing)}")
    try:
        machine, words = machine_of(run)
    except MachineError as error:
        raise UnreachableError(str(error).split("\n")[0]) from error
    notes = [*words, *batch_notes]
    pipeline, machine = _pipeline(run, machine, found.layers, notes)
    mesh = _mesh(run, machine, notes)
    remat, sent = remat_of(run, notes)
    products = products_of(run, notes)
    batch, sequence = int(run.batch or 0), run.sequence or 0
    microbatches = _microbatches(run, mesh, batch, notes)
    divides(batch // microbatches, sequence, mesh)
    if found.experts and sequence % found.group:
        raise UnreachableError(f"{sequence} tokens do not divide into groups of {found.group}")
    old = "2205.05198" in run.notes or "Korthikanti" in run.group
    return Question(
        decoder=found,
        batch=batch,
        sequence=sequence,
        microbatches=microbatches,
        remat=remat,
        attention="plain" if old else "flash",
        products=products,
        offloaded=sent,
        machine=machine,
        pipeline=pipeline,
        block=_block(machine, sequence),
        eager=not any(name in run.framework for name in JAX),
        hides_tensor=any(name in run.framework for name in ("Megatron-Bridge", "MLPerf"))
        or "async TP" in run.settings,
        reserves="torchtitan" in run.framework,
        plain_loss="torchtitan" in run.framework and _dated(run) < COMPILED_LOSS,
        selective="sel" in run.remat,
        exchanges="Megatron-Bridge" in run.framework,
        unrolled=_unrolled(run, machine),
        scaling=scaling_of(run),
        rules=rules_of(
            found,
            mesh,
            whole=pipeline is not None,
            # of a pipeline the widths of experts lie over `tensor`, see `_mesh`
            wide_experts=pipeline is None
            and (run.ep or 1) == mesh["expert"] * mesh["tensor"] > mesh["expert"],
            parallel_sequence=_parallel_sequence(run),
            # github.com/AI-Hypercomputer/maxtext, configs/base.yml: activation_embed over tensor
            parallel_width="MaxText" in run.framework and (run.tp or 1) > 1,
        ),
        notes=tuple(notes),
    )


def _unrolled(run: Run, machine: Machine) -> bool:
    """Whether MaxText has its layers in no loop, compiled by XLA:GPU."""
    written_out = "MaxText" in run.framework and "scan_layers=false" in run.settings
    return written_out and machine.chip.compiler.name == "xla:gpu"


def _dated(run: Run) -> int:
    """Year and month of a publication by the name of its file, as 202412; 999999 where it has none.

    >>> from autoshard.study.measured.table import Run
    >>> run = Run(id="a", model="m", chip="c", chips=1, path="benchmarks/h100_202412_titan.md")
    >>> _dated(run)
    202412
    """
    found = re.search(r"(20\d\d)-?(0[1-9]|1[0-2])(?!\d)", run.path)
    return int(found[1] + found[2]) if found else 999999


def _with_batch(run: Run) -> tuple[Run, tuple[str, ...]]:
    """The run with a batch, where that follows from its microbatch: one on every FSDP rank."""
    known = run.batch or not run.microbatch or run.fsdp != run.chips or (run.pp or 1) > 1
    if known:
        return run, ()
    batch = (run.microbatch or 0) * run.chips
    return replace(run, batch=batch), ("batch not published: taken to be a microbatch a rank",)


def _pipeline(
    run: Run, machine: Machine, layers: int, notes: list[str]
) -> tuple[Pipeline | None, Machine]:
    """The pipeline of a run, and the machine of one stage."""
    try:
        pipeline = pipeline_of(run, machine, notes)
        if pipeline is None:
            return None, machine
        if machine.chips % pipeline.meshes:
            raise UnreachableError(f"pp {run.pp} does not divide {machine.chips} devices")
        if pipeline.stages > layers + 2:  # embedding and logits may be stages
            raise UnreachableError(f"{layers} layers are fewer than the {pipeline.stages} stages")
        return pipeline, submachine(machine, machine.chips // pipeline.meshes)
    except ValueError as error:
        raise UnreachableError(str(error).split("\n")[0]) from error


def _mesh(run: Run, machine: Machine, notes: list[str]) -> dict[str, int]:
    """Sizes of all axes, in their order."""
    devices = machine.chips
    tensor, context, experts = run.tp or 1, run.cp or 1, run.ep or 1
    model = tensor * context
    if devices % model:
        raise UnreachableError(f"tp {tensor} x cp {context} does not divide {devices} devices")
    ranks = devices // model
    if (run.pp or 1) > 1:
        notes.append("in the pipeline weights are whole on data-parallel ranks, updates sharded")
        if experts > ranks and ranks * tensor % experts == 0:
            notes.append(f"experts over {ranks} ranks, their widths over tensor")
            experts = ranks
        if ranks % experts:
            raise UnreachableError(f"ep {experts} does not divide {ranks} data-parallel ranks")
        return {"replica": ranks // experts, "fsdp": 1, **_model_axes(experts, context, tensor)}
    sizes = {"replica": run.dp or 1, "fsdp": run.fsdp or 0}
    if sizes["fsdp"] == -1:
        sizes = {"replica": 1, "fsdp": ranks}
    if run.fsdp is None and run.dp is None:
        sizes, note = data_parallel_mesh(run, machine, ranks)
        notes.append(f"{UNPUBLISHED}: {note}")
    if not sizes["fsdp"]:
        notes.append("optimizer state sharded over the data-parallel ranks, weights as it is best")
        sizes = {"replica": 1, "fsdp": ranks}
    if sizes["fsdp"] == ranks:
        sizes["replica"] = 1  # the same ranks, said twice
    own = sizes["replica"] * sizes["fsdp"]
    if experts > ranks and experts == ranks * tensor:
        # docs.nvidia.com/megatron-core, expert_tensor_parallel_size of 1: ranks of both
        notes.append("experts over data-parallel and tensor-parallel ranks")
        sizes, experts = {"replica": 1, "fsdp": 1}, ranks
    elif own * experts == ranks and experts > 1:
        pass  # experts have an axis of their own
    elif own == ranks:
        if sizes["fsdp"] % experts:
            raise UnreachableError(f"ep {experts} does not divide {sizes['fsdp']} sharded ranks")
        sizes["fsdp"] //= experts
    else:
        raise UnreachableError(
            f"dp {run.dp} x fsdp {run.fsdp} x tp {tensor} x cp {context} is not {devices} devices"
        )
    return {**sizes, **_model_axes(experts, context, tensor)}


def _model_axes(experts: int, context: int, tensor: int) -> dict[str, int]:
    return {"expert": experts, "context": context, "tensor": tensor}


def rules_of(
    decoder: Decoder,
    mesh: dict[str, int],
    *,
    whole: bool,
    wide_experts: bool,
    parallel_sequence: bool,
    parallel_width: bool,
) -> Rules:
    """Mesh and rules; `whole` for weights that are the same on all context-parallel ranks, and
    `wide_experts` for experts that also lie over `tensor`."""
    live = {axis: size for axis, size in mesh.items() if size > 1} or {"fsdp": 1}

    def on(*axes: str) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis in live)

    tensor = {"heads": on("tensor"), "mlp": on("tensor"), "vocab": on("tensor")}
    if decoder.state_groups % mesh["tensor"] == 0:
        tensor["state_groups"] = on("tensor")
    if decoder.kv_heads % mesh["tensor"] == 0:
        tensor["kv_heads"] = on("tensor")
    if decoder.vocabulary % mesh["tensor"]:
        del tensor["vocab"]
    dense = {name: axes for name, axes in tensor.items() if axes}
    norm = on("context", "tensor") if parallel_sequence else on("context")
    ranks = on("fsdp", "expert") if whole else on("fsdp", "expert", "context")
    experts = on("expert", "tensor") if wide_experts else on("expert")
    parameters = {"expert": experts, "embed": ranks, **dense}
    stream = {"embed": on("tensor")} if parallel_width else {}
    activations = {
        "batch": on("replica", "fsdp", "expert"),
        "expert_batch": on("replica", "fsdp"),
        "expert": experts,
        "length": on("context"),
        "norm_length": norm,
        **dense,
        **stream,
    }
    if parallel_width:
        parameters["norm"] = on("tensor")
    return Rules(live, parameters, activations)


def _block(machine: Machine, sequence: int) -> int:
    """Tokens of a block of fused attention.

    Kernels of GPUs have blocks of 64 to 256 (github.com/Dao-AILab/flash-attention, hopper/
    tile_size.h), so that hardly more is computed than a causal mask leaves; a sixteenth of the
    sequence is as near to that.
    """
    if machine.chip.matrix_side:
        return MOST
    return min(max(2 ** round(math.log2(sequence / 16)), 256), MOST)


def _parallel_sequence(run: Run) -> bool:
    """Whether positions lie over `tensor` between the parts of a layer."""
    return "MaxText" not in run.framework and run.remat.strip() != "full"


def _microbatches(run: Run, mesh: dict[str, int], batch: int, notes: list[str]) -> int:
    ranks = mesh["replica"] * mesh["fsdp"] * mesh["expert"]
    if run.accumulate:
        count = int(run.accumulate)
    elif any(name in run.framework for name in JAX):
        return 1  # per_device_batch_size counts all devices, and steps do not accumulate
    elif run.microbatch and run.microbatch >= 1:
        count = max(round(batch / (ranks * run.microbatch)), 1)
    elif (run.pp or 1) > 1:
        # github.com/pytorch/torchtitan, config/job_config.py: pipeline_parallel_microbatch_size;
        # github.com/NVIDIA/Megatron-LM, training/arguments.py: micro-batch-size has no default
        notes.append("microbatches not published: a sequence each, the smallest that there are")
        return max(batch // ranks, 1)
    else:
        count = 1
    if batch % count:
        raise UnreachableError(f"a batch of {batch} does not divide into {count} microbatches")
    if not run.microbatch and count == 1 and not run.accumulate:
        notes.append("microbatches not published: taken to be one")
    return count


def divides(batch: int, sequence: int, mesh: dict[str, int]) -> None:
    ranks = mesh["replica"] * mesh["fsdp"] * mesh["expert"]
    if batch % ranks:
        raise UnreachableError(f"{batch} sequences do not divide over {ranks} data-parallel ranks")
    if sequence % (mesh["context"] * mesh["tensor"]):
        raise UnreachableError(f"{sequence} positions do not divide over {mesh}")


def token_flops(decoder: Decoder, sequence: int, *, causal: bool) -> float:
    """FLOP of a train step per token as MaxText counts them: products with weights, and attention.

    6 for each weight that a token uses (embeddings once), and 12 h n s a layer for scores and sums,
    or half of it where masked scores are left out (github.com/AI-Hypercomputer/maxtext,
    maxtext_utils.py, calculate_tflops_training_per_device).
    """
    unused = 0.0
    if decoder.experts:
        one = (3 if decoder.gated else 2) * decoder.expert_width * decoder.expert_hidden
        layers = sum(n for kind, n in decoder.kinds.items() if kind in ("layers", "local_layers"))
        unused = (layers + (decoder.further > 0)) * (decoder.experts - decoder.active) * one
    table = decoder.vocabulary * decoder.width
    used = parameter_count(decoder) - unused - (0 if decoder.tied else table)
    size = decoder.head_size + decoder.value_size
    pairs = 6 * decoder.attention_count * decoder.heads * size * sequence * (0.5 if causal else 1.0)
    return 6.0 * used + pairs


def measured_seconds(run: Run, asked: Question) -> tuple[float | None, str]:
    """Measured seconds of a step, and how they were had where they were not published.

    TFLOP/s and shares of the peak become seconds by the source's own count of FLOP: MaxText's until
    the middle of 2025 has attention without a mask.
    """
    if run.step_seconds:
        return run.step_seconds, ""
    if run.token_rate:
        return asked.batch * asked.sequence / run.token_rate / run.chips, "seconds from tokens/s"
    if not run.tflops and not run.mfu:
        return None, "no time was published"
    rate = (
        run.tflops * 1e12
        if run.tflops
        else ((run.mfu or 0.0) / 100 * asked.machine.chip.matmul_flops("bfloat16"))
    )
    per_token = token_flops(asked.decoder, asked.sequence, causal=False)
    devices = asked.machine if asked.pipeline is None else asked.pipeline.machine
    chips = run.chips if run.tflops else devices.chips
    tokens = asked.batch * asked.sequence
    return tokens * per_token / chips / rate, "seconds from the published FLOP/s"


def describe(asked: Question) -> str:
    """The mesh of a question: `fsdp=64,tensor=4`."""
    mesh = ",".join(f"{axis}={size}" for axis, size in asked.rules.mesh.items())
    return mesh if asked.pipeline is None else f"pipeline={asked.pipeline.meshes},{mesh}"
