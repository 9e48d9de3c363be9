"""Real compilers without their devices: what they say of plans, and how they fail."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest

import autoshard
from autoshard.cli.main import main
from autoshard.compiler import compiled as module
from autoshard.compiler.cache import Answer
from autoshard.compiler.compiled import Compiled, compile_plan
from autoshard.compiler.hlo.timeline import Timeline
from autoshard.compiler.run import measure
from autoshard.compiler.target import CompileError, why_missing
from autoshard.compiler.verdict import judge
from autoshard.lower.spmd import Lowered, lower
from autoshard.machine.load import load
from autoshard.models import tiny
from autoshard.plan.plan import Plan
from autoshard.program import flatten
from tests.helpers import LONG, best_plan, case, sampled

CPU_MACHINE = "mi300x-8"


def needs(kind: str) -> pytest.MarkDecorator:
    missing = why_missing(kind)  # type: ignore[arg-type]
    return pytest.mark.skipif(bool(missing), reason=missing or "installed")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@functools.cache
def lowered(name: str, sizes: tuple[int, ...]) -> Lowered:
    step = tiny(name)
    mesh = dict(zip("xyz", sizes, strict=False))
    plan = best_plan(case(step.fn, *step.args, mesh=mesh, **step.options))
    return lower(plan, step.fn, *step.args)


def check(compiled: Compiled, low: Lowered) -> None:
    """What holds of every compile of a plan."""
    plan = low.plan
    verdict = judge(plan, compiled)
    assert verdict.comparison.agrees, str(verdict.comparison)
    assert verdict.involuntary == ()
    predicted = sum(a for a, _, _ in verdict.wire_bytes().values())
    partitioned = sum(b for _, b, _ in verdict.wire_bytes().values())
    # A sum that is sliced afterwards is planned as the two that it is; a sum over two axes that is
    # taken in two steps sends a little more.
    assert 0 < partitioned <= predicted * 1.01
    whole = sum(low.program.values[v].bytes for v in low.program.inputs)
    assert 0 < compiled.memory.argument_bytes < whole * 2
    assert compiled.memory.alias_bytes <= compiled.memory.output_bytes
    assert compiled.memory.peak_bytes >= compiled.memory.argument_bytes
    assert str(verdict).startswith(f"by XLA:{compiled.kind.upper()} for ")
    data = json.loads(json.dumps(verdict.to_json()))
    assert data["compiled"]["memory"]["peak_bytes"] == compiled.memory.peak_bytes
    assert len(data["collectives"]) == len(verdict.comparison.tallies)


@pytest.mark.parametrize(
    ("name", "sizes"),
    sampled([("mlp", (2, 4)), ("llama3-8b", (2, 4))], lambda one: one[0] == "mlp"),
)
def test_the_cpus_compiler(name, sizes, cache):
    low = lowered(name, sizes)
    compiled = compile_plan(low, load(CPU_MACHINE), cache=cache)
    assert (compiled.kind, compiled.device_kind, compiled.timeline) == ("cpu", "cpu", None)
    check(compiled, low)


@needs("tpu")
@pytest.mark.parametrize(
    ("name", "sizes", "machine"),
    sampled(
        [
            ("mlp", (2, 4), "v5e-8"),
            ("llama3-8b", (2, 4), "v5e-8"),
            ("llama3-8b", (8,), "v5p-8"),
            ("mlp", (2, 2, 2), "v5p-8"),
            ("vit-l16", (8,), "v5p-8"),
            ("mlp", (2, 4), "2xv5e-4"),
            ("mlp", (8,), "v7x-8"),
        ],
        lambda one: one[0] == "mlp" or one[1] == (2, 4),
    ),
)
def test_the_tpus_compiler(name, sizes, machine, cache):
    low = lowered(name, sizes)
    compiled = compile_plan(low, load(machine), cache=cache)
    check(compiled, low)
    time = compiled.timeline
    assert time is not None
    assert 0 < time.exposed_seconds <= time.collective_seconds * (1 + 1e-9)
    assert time.seconds == pytest.approx(time.compute_seconds + time.exposed_seconds)
    assert time.known_share > 0.4
    assert compiled.memory_report


@needs("gpu")
@pytest.mark.parametrize(
    "name", sampled(["h100-8", "h200-8", "b200-8", "gb200-nvl72-8"], lambda name: name == "h100-8")
)
def test_the_gpus_compiler_and_its_own_timeline(name, cache):
    low = lowered("llama3-8b", (2, 4))
    compiled = compile_plan(low, load(name), cache=cache)
    check(compiled, low)
    assert compiled.basis == "the compiler's own timeline"
    time = compiled.timeline
    assert time is not None
    assert 0 < time.compute_seconds <= time.seconds
    assert any(one.asynchronous for one in compiled.final)


@needs("gpu")
def test_a_chip_of_which_the_gpus_compiler_knows_no_times(cache):
    low = lowered("mlp", (2, 4))
    compiled = compile_plan(low, load("a100-8"), cache=cache)
    check(compiled, low)
    assert compiled.basis.startswith("the machine's prices")
    assert compiled.timeline is not None
    assert compiled.timeline.known_share == 0


def one_slice(stack, x, place):
    return jax.numpy.tanh(x @ jax.lax.dynamic_index_in_dim(stack, place, 0, keepdims=False))


def one_taken(stack, x, place):
    return jax.numpy.tanh(x @ jax.numpy.take(stack, place[None], axis=0)[0])


def one_added(stack, x, place):
    return stack.at[place, :512].add(x)


@needs("gpu")
@pytest.mark.parametrize("step", [one_slice, one_taken, one_added])
def test_one_place_of_a_cut_dimension_is_summed_and_nothing_gathered(step, cache):
    shapes = ((8, 1024, 1024), "bfloat16"), ((512, 1024), "bfloat16"), ((), "int32")
    args = tuple(jax.ShapeDtypeStruct(*one) for one in shapes)
    pins = ["pin stack [y, ...]", "pin x [x, ...]"]
    found = autoshard.search(
        autoshard.trace(step, *args), "v5e-8", mesh={"x": 4, "y": 2}, requirements=pins,
        baselines=False,
    )  # fmt: skip
    summed = "reduce_scatter" in {move.kind for move in found.moves}
    assert summed == (step is not one_added)
    low = lower(replace(found, machine="h100-8"), step, *args)
    verdict = judge(low.plan, compile_plan(low, load("h100-8"), cache=cache))
    assert verdict.involuntary == ()
    assert verdict.comparison.agrees, str(verdict.comparison)


def test_an_answer_is_kept_and_found_again(cache, monkeypatch):
    low = lowered("mlp", (8,))
    first = compile_plan(low, load(CPU_MACHINE), cache=cache)

    def never(*_: object) -> Answer:
        raise AssertionError("compiled again")

    monkeypatch.setattr(module, "_compile", never)
    again = compile_plan(low, load(CPU_MACHINE), cache=cache)
    assert again.from_cache
    assert replace(again, from_cache=first.from_cache) == first
    with pytest.raises(AssertionError, match="compiled again"):
        compile_plan(low, load(CPU_MACHINE), cache=cache, use_cache=False)


def test_an_answer_that_cannot_be_kept_is_given_with_a_warning(tmp_path):
    (tmp_path / "file").write_text("no folder")
    folder = tmp_path / "file" / "compiled"
    with pytest.warns(UserWarning, match="the compiler's answer is not kept") as caught:
        compiled = compile_plan(lowered("mlp", (8,)), load(CPU_MACHINE), cache=folder)
    assert not compiled.from_cache
    assert str(caught[0].message) == (
        f"the compiler's answer is not kept: cannot write {str(folder)!r}: Not a directory; it is "
        "asked again next time"
    )


def test_a_compile_that_takes_too_long(cache):
    with pytest.raises(CompileError) as caught:
        compile_plan(
            lowered("mlp", (8,)), load(CPU_MACHINE), cache=cache, use_cache=False, time_limit=0.05
        )
    assert str(caught.value) == (
        "the CPU compiler did not finish within 0.05 s for 8 devices; give it longer, or compile "
        "fewer layers"
    )


def test_a_compiler_that_refuses_says_why(cache, monkeypatch):
    monkeypatch.setattr(module.compat, "module_bytecode", lambda stage: b"no module")
    with pytest.raises(CompileError) as caught:
        compile_plan(lowered("mlp", (8,)), load(CPU_MACHINE), cache=cache, use_cache=False)
    message = str(caught.value)
    assert message.startswith("the CPU compiler refused the program: ")
    assert "Unable to parse module" in message
    assert "Traceback" not in message


def test_a_compiler_that_crashes(cache, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CompileError, match="the CPU compiler refused the program: it said nothing"):
        compile_plan(lowered("mlp", (8,)), load(CPU_MACHINE), cache=cache, use_cache=False)


def test_a_compiler_that_is_missing(cache, monkeypatch):
    monkeypatch.setattr(module, "why_missing", lambda kind: f"no {kind}")
    with pytest.raises(CompileError, match="no tpu"):
        compile_plan(lowered("mlp", (8,)), load("v5e-8"), cache=cache)


# -- verdicts --------------------------------------------------------------------------------------


def test_an_involuntary_collective_refutes_a_plan_with_its_place(cache):
    low = lowered("mlp", (2, 4))
    compiled = compile_plan(low, load(CPU_MACHINE), cache=cache)
    gather = next(move for move in low.plan.moves if move.kind == "all_gather")
    plan = replace(low.plan, moves=tuple(m for m in low.plan.moves if m is not gather))
    verdict = judge(plan, compiled)
    assert not verdict.agrees
    (fault,) = verdict.faults
    axes = ",".join(gather.axes)
    assert fault.startswith(f"involuntary all_gather({axes}), {gather.bytes:,} B x ")
    assert re.search(r"(mlp|training)\.py:[0-9]+", fault)
    assert "jit(train_step)" in fault


def test_a_peak_that_is_off_refutes_a_plan(cache):
    low = lowered("mlp", (2, 4))
    compiled = replace(compile_plan(low, load(CPU_MACHINE), cache=cache), kind="tpu")
    memory = replace(compiled.memory, argument_bytes=2**34, temporary_bytes=0, output_bytes=0)
    compiled = replace(compiled, memory=replace(memory, alias_bytes=0))
    for predicted, agrees in ((2**34, True), (15 * 2**30, True), (12 * 2**30, False)):
        estimate = replace(low.plan.estimate, peak_bytes=predicted)
        plan = replace(low.plan, estimate=estimate)
        assert judge(plan, compiled).agrees is agrees
        assert judge(plan, replace(compiled, kind="cpu")).agrees
    assert judge(plan, compiled).faults == [
        "the compiled peak of 16.0 GiB is more than 20 % from the predicted 12.0 GiB"
    ]
    assert judge(plan, compiled, memory_tolerance=0.5).agrees


def test_a_step_that_is_off_refutes_a_plan(cache):
    low = lowered("mlp", (2, 4))
    compiled = replace(compile_plan(low, load(CPU_MACHINE), cache=cache), kind="gpu")
    compiled = replace(compiled, timeline=Timeline(0.5))
    peak = compiled.memory.peak_bytes
    for predicted, agrees in ((0.5, True), (0.35, True), (0.9, True), (0.0168, False), (4, False)):
        estimate = replace(low.plan.estimate, step_seconds=predicted, peak_bytes=peak)
        plan = replace(low.plan, estimate=estimate)
        assert judge(plan, compiled).agrees is agrees
        assert judge(plan, replace(compiled, kind="cpu")).agrees
    assert judge(plan, compiled).faults == [
        "the compiled step of 500.0 ms is more than 50 % from the predicted 4.000 s"
    ]
    assert judge(plan, compiled, step_tolerance=0.9).agrees


# -- on devices that are there ---------------------------------------------------------------------


def test_a_step_is_measured_on_the_devices_that_are_there():
    step = tiny("mlp")
    plan = lowered("mlp", (2, 4)).plan
    measured = measure(
        lower(plan, step.fn, *step.args, devices=jax.devices("cpu")[:8]), warm_ups=1, repeats=3
    )
    assert len(measured.runs) == 3
    assert measured.step_seconds == sorted(measured.runs)[1] > 0
    assert measured.device_kind == "cpu"


def test_random_keys_can_be_zeros_too():
    def step(key, x):
        return jax.random.split(key, 2), x + jax.random.normal(key, x.shape)

    args = (
        jax.eval_shape(lambda: jax.random.key(0)),
        jax.ShapeDtypeStruct((8, 4), "float32"),
    )
    given = case(step, *args, mesh={"x": 8})
    plan = best_plan(given)
    devices = jax.devices("cpu")[:8]
    assert measure(lower(plan, step, *args, devices=devices), warm_ups=0, repeats=1).runs


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [pytest.param("cpu", marks=LONG), pytest.param("tpu", marks=needs("tpu"))]
)
def test_verify_compiles(kind, plan_file, capsys, monkeypatch, cache):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert main(["verify", str(plan_file), "--compile", kind]) == 0
    out = capsys.readouterr().out
    assert f"compiled     ok       by XLA:{kind.upper()} for " in out
    planned = len(json.loads(plan_file.read_text())["moves"])
    assert planned > 3
    assert re.search(r"collectives: \d+ as planned, 0 missing, 0 unplanned", out)
    assert os.listdir(cache / "autoshard" / "compiled")


MATRICES = """
import jax
import jax.numpy as jnp

def products():
    array = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    return (lambda x, w, v: jnp.tanh(x @ w) @ v), (array, array, array)
"""


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        pytest.param("v5e-8", "tpu", marks=needs("tpu")),
        pytest.param("h100-8", "gpu", marks=[needs("gpu"), LONG]),
    ],
)
def test_verify_finds_arithmetic_that_is_counted_wrongly(
    machine, kind, tmp_path, capsys, monkeypatch, cache
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.chdir(tmp_path)
    Path("matrices.py").write_text(MATRICES)
    search = f"search matrices.py:products --machine {machine} --mesh x=8 --quiet --no-baselines"
    judged = f"verify p.json matrices.py:products --compile {kind}".split()
    counted = flatten.equation_flops
    for share, code in ((1.0, 0), (1e-3, 5)):
        monkeypatch.setattr(flatten, "equation_flops", lambda one, k=share: k * counted(one))
        assert main([*search.split(), "-o", "p.json"]) == 0
        assert main(judged) == code
    out = capsys.readouterr().out
    assert out.count("price        ok") == 2  # whoever counts wrongly prices wrongly too
    assert re.search(r"compiled +FAILED +the compiled step of .* is more than 50 % from the", out)


def test_verify_ends_with_five_where_a_plan_lacks_its_collectives(
    plan_file, tmp_path, capsys, monkeypatch, cache
):
    """What is mis-typed is not compiled; an involuntary collective is the test's above."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    data = json.loads(plan_file.read_text())
    lacking = {", ".join(move["axes"]) for move in data["moves"] if move["kind"] == "all_gather"}
    data["moves"] = [move for move in data["moves"] if move["kind"] != "all_gather"]
    path = tmp_path / "forged.json"
    path.write_text(json.dumps(data))
    assert main(["verify", str(path), "--compile", "cpu", "--json"]) == 5
    out, err = capsys.readouterr()
    verdicts = {v["judge"]: v for v in json.loads(out)["verdicts"]}
    assert verdicts["types"]["agrees"] is False
    assert lacking
    for axes in lacking:
        lack = rf"moves lack (\d+ x )?all_gather over {axes}:"
        assert re.search(lack, verdicts["types"]["text"])
    assert "compiled" not in verdicts
    assert " is refuted by its types" in err


def test_verify_refuses_a_compiler_for_other_chips(plan_file, capsys):
    assert main(["verify", str(plan_file), "--compile", "gpu"]) == 2
    assert "which the GPU compiler does not know" in capsys.readouterr().err


def test_a_device_is_only_run_where_it_is(plan_file, capsys):
    from autoshard.cli import device as cli_device

    assert cli_device.main([str(plan_file), "mlp:tiny"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"skipped": "the mesh needs 8 accelerators, here are 0"}


def test_the_plan_in_the_file_is_the_one_that_is_compiled(plan_file):
    plan = Plan.load(plan_file)
    assert autoshard.load_machine(plan.machine).chips == 8
    assert importlib.util.find_spec("autoshard.compiler.child") is not None
