"""Published training runs lie between our bounds.

The quickest that a step can be is the time of the model's own products at the rates that a machine
file gives (`autoshard.program.model_work`): nothing recomputed, nothing communicated, every other
operation fused. The slowest that a good run should be is the plan that the search finds for the
built-in, which writes its attention plainly and computes each layer twice; published runs do not.

Sources: "The Llama 3 Herd of Models", table 4 (https://arxiv.org/abs/2407.21783); "PaLM", section
4.1 (https://arxiv.org/abs/2204.02311); MaxText's table of optimized models
(https://maxtext.readthedocs.io/en/latest/reference/models/tiering.html); torchtitan's on A100
(https://github.com/pytorch/torchtitan/blob/main/docs/performance.md, of 2024).
"""

from __future__ import annotations

import pytest

import autoshard
from autoshard import models
from autoshard.machine.load import load
from autoshard.models.llama import Llama, llama
from autoshard.program.model_work import model_flops
from autoshard.program.trace import Program
from tests.helpers import sampled

# Program, machine, mesh, batch, sequence, and tokens per second and chip as published.
RUNS = (
    ("llama3-8b", "v6e-256", (256,), 1024, 8192, 7207.0),
    ("llama3-70b", "v6e-256", (256,), 512, 8192, 960.0),
    ("llama3-405b", "v6e-256", (256,), 256, 8192, 123.0),
    ("mixtral-8x7b", "v5p-256", (256,), 1024, 4096, 2909.0),
    ("llama3-8b", "a100-64", (64,), 64, 8192, 2904.0),
    ("llama3-70b", "a100-64", (64,), 64, 8192, 331.0),
)


def quickest(program: Program, machine: autoshard.Machine) -> float:
    """Seconds of the model's products alone, at the rates of the machine file."""
    chip = machine.chip
    return sum(
        flops / (chip.matmul_flops(dtype) * chip.matmul_efficiency) / machine.chips
        for dtype, flops in model_flops(program).items()
    )


def found(program: Program, machine: autoshard.Machine, sizes: tuple[int, ...]) -> float:
    """Seconds of the plan that is found on this mesh, in as much memory as it takes.

    With the memory of plain attention the built-ins need more than those runs had.
    """
    mesh = dict(zip("xyz", sizes, strict=False))
    plan = autoshard.search(
        program, machine, mesh=mesh, baselines=False, gap=0.05, time_limit=60, memory_limit=1e13
    )
    return plan.estimate.step_seconds


@pytest.mark.parametrize(
    ("name", "machine_name", "mesh", "batch", "sequence", "rate"),
    sampled(RUNS, lambda run: RUNS.index(run) % 2 == 0),
    ids=[f"{run[0]} on {run[1]}" for run in RUNS],
)
def test_tokens_per_second(name, machine_name, mesh, batch, sequence, rate):
    machine = load(machine_name)
    step = models.build(name, batch=batch, sequence=sequence)
    program = autoshard.trace(step.fn, *step.args, **step.options)
    published = batch * sequence / rate / machine.chips
    assert quickest(program, machine) < published < found(program, machine, mesh)


def test_llama3_405b():
    """430 TFLOP/s a GPU (43 %) on 8,192 H100, 400 (41 %) on 16,384, and 380 (38 %) with 131,072
    tokens a sequence; batches of 16M tokens."""
    machine = load("h100-8192")
    step = models.build("llama3-405b", batch=2048, sequence=8192)
    program = autoshard.trace(step.fn, *step.args, **step.options)
    flops = sum(model_flops(program).values())
    slowest = found(program, machine, (1024, 8))
    for rate in (430e12, 400e12, 380e12):
        published = flops / machine.chips / rate
        assert quickest(program, machine) < published < slowest
    peak = machine.chip.matmul_flops("bfloat16")
    assert [round(100 * rate / peak) for rate in (430e12, 400e12, 380e12)] == [43, 40, 38]


def test_palm_540b():
    """46.2 % of 6,144 v4: 238,300 tokens a second, 2,048 sequences of 2,048 tokens a step.

    Each of the two pods has half of the batch; this is one of them. The heads of PaLM make 12,288
    of the width 18,432 and share one key and value; here they make all of it, which is 5 % more.
    """
    machine = load("v4-3072")
    config = Llama(
        layers=118, width=18_432, heads=72, kv_heads=1, hidden=73_728, vocabulary=256_000
    )
    step = llama(config, batch=1024, sequence=2048)
    program = autoshard.trace(step.fn, *step.args, **step.options)
    published = 2048 * 2048 / 238_300
    peak = machine.chip.matmul_flops("bfloat16")
    assert 6 * 540.35e9 * 238_300 / (6144 * peak) == pytest.approx(0.457, abs=0.002)
    assert quickest(program, machine) < published < found(program, machine, (256, 12))
