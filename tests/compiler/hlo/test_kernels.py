"""What a compiled step takes of kernels that people wrote, of which the compiler says no time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.compiler.hlo.places import Place
from autoshard.compiler.hlo.schedule import Schedule, ScheduledComputation
from autoshard.compiler.hlo.text import read_module
from autoshard.compiler.hlo.timeline import timeline
from autoshard.lower.facts.kernel_times import KernelTime
from tests.compiler.hlo.test_timeline import GIGA, HEAD, ByBytes, busy, run


@pytest.mark.parametrize(
    ("target", "scope", "seconds"),
    [
        ("tpu_custom_call", "jit(step)/attention/splash/shard_map/pallas_call", 7.0),
        ("__cudnn$fmhaSoftmax", "jit(step)/attention/cudnn/shard_map/cond", 2.0),
        ("tpu_custom_call", "jit(step)/transpose(jvp(attention))/shard_map/pallas_call", 2.0),
        ("tpu_custom_call", "jit(step)/other/splash/pallas_call", 1.0),
        ("TopK", "jit(step)/attention/splash/shard_map", 1.0),
        ("AllocateBuffer", "jit(step)/attention/splash/shard_map", 0.0),
        ("ConcatBitcast", "", 0.0),
    ],
)
def test_a_kernel_that_people_wrote_takes_what_the_plan_says(target, scope, seconds):
    """The one whose scope has most parts in common; what is none is priced as all else.

    What XLA:TPU writes as a call, but makes no kernel of, takes no time.
    """
    text = (
        f"{HEAD}ENTRY %main (p: f32[1]) -> f32[1] {{\n  %p = f32[1]{{0}} parameter(0)\n"
        f'  ROOT %k = f32[1]{{0}} custom-call(%p), custom_call_target="{target}", '
        f'metadata={{op_name="{scope}"}}\n}}\n'
    )
    kernels = (KernelTime("attention", 2.0), KernelTime("attention/splash", 7.0))
    module = replace(read_module(text), kernels=kernels)
    entry = Place(module, module.computations["main"])
    found = timeline(entry, [], ByBytes(compute=1.0), clock_hertz=GIGA)
    assert found.compute_seconds == seconds


def test_what_the_compiler_schedules_of_a_written_kernel_is_no_time():
    """It is the same for all of them."""
    target = 'custom_call_target="__cudnn$fmhaSoftmax"'
    text = (
        f"{HEAD}ENTRY %main (p: f32[1]) -> f32[1] {{\n  %p = f32[1]{{0}} parameter(0)\n"
        f"  %k = f32[1]{{0}} custom-call(%p), {target}\n"
        f"  ROOT %n = f32[1]{{0}} negate(%k)\n}}\n"
    )
    *_, kernel, other = read_module(text).computations["main"].instructions
    starts, ends = {"k": 0.0, "n": 1e-5}, {"k": 1e-5, "n": 3e-5}
    scheduled = ScheduledComputation(3e-5, starts, ends)
    assert scheduled.seconds_of(kernel) is None
    assert scheduled.seconds_of(other) == pytest.approx(2e-5)


@pytest.mark.parametrize(("target", "least", "more"), [
    ("__cublas$lt$matmul", 0.5, 1.0),  # 3 x 4 bytes take 6 s, not 5
    ("__cublas$lt$matmul", 0.25, 0.0),
    ("__cudnn$convForward", 0.5, 0.0),
])  # fmt: skip
def test_a_product_of_the_library_takes_what_its_bytes_do(target, least, more):
    """Not those of its workspace."""
    body = (
        "  %c = (f32[1]{0}, s8[64]{0}) custom-call(%p, %p, %p), "
        f'custom_call_target="{target}", backend_config={{"dot_dimension_numbers":'
        '{"lhs_contracting_dimensions":["0"]}}\n'
        "  %one = f32[1]{0} get-tuple-element(%c), index=0\n"
    )
    main = ScheduledComputation(8.0, {"c": 0.0, "work": 5.0}, {"c": 5.0, "work": 8.0})
    prices = ByBytes(least=least)
    found = run(body + busy("work", "one", 3, root=True), prices, schedule=Schedule({"main": main}))
    assert found.seconds == 8.0 + more
    assert found.compute_seconds == 8.0 + more
