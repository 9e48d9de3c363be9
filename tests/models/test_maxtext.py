"""MaxText's own train step as a program, where MaxText is installed."""

from __future__ import annotations

import functools
import re
from importlib.util import find_spec

import pytest

from autoshard.cli.numbers import concrete
from autoshard.lower.verify import verify
from autoshard.machine.load import load
from autoshard.models.find import call
from autoshard.models.maxtext import program
from autoshard.models.providers import ProgramError, Target
from autoshard.program.trace import trace
from autoshard.search.options import SearchOptions
from autoshard.search.search import search

TINY = {
    "per_device_batch_size": 1,
    "max_target_length": 128,
    "base_num_decoder_layers": 2,
    "base_emb_dim": 64,
    "base_mlp_dim": 128,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
    "attention": "dot_product",
}
HERE = find_spec("maxtext") is not None
REASON = "MaxText is not installed: pip install 'autoshard[maxtext]'"
installed = pytest.mark.skipif(not HERE, reason=REASON)


@pytest.mark.skipif(HERE, reason="MaxText is installed")
def test_where_it_is_absent_the_line_that_installs_it_is_said():
    with pytest.raises(ProgramError, match=r"^it needs maxtext, which is not installed: pip"):
        program("llama3.1-8b", Target(8, ("tpu",)))


@installed
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("auto", "constraints of MaxText's logical axis rules are set aside"),
        ("explicit", "the layouts in MaxText's types (shard_mode=explicit) are set aside"),
    ],
)
def test_the_step_on_a_mesh_has_the_numbers_of_one_device(mode, said):
    asked = {**TINY, "shard_mode": mode}
    found = call(functools.partial(program, "llama3.1-8b", Target(8, ("tpu",))), asked, "tiny")
    assert said in found.notes[0]
    traced = trace(found.fn, *found.args, **found.options)
    assert not any(op.primitive == "sharding_constraint" for op in traced.ops)
    assert traced.argument_names == ("state", "batch")
    plan = search(traced, load("v5e-8"), mesh={"x": 4, "y": 2}, baselines=False, gap=0.1)
    verdict = verify(plan, found.fn, *found.args, concrete=concrete(found, seed=0))
    assert verdict.skipped == ""
    assert verdict.differences == ()


@installed
def test_constraints_that_are_kept_are_demands_on_its_own_mesh():
    asked = {**TINY, "ici_fsdp_parallelism": 4, "ici_tensor_parallelism": 2}
    fn, args, options = program("llama3.1-8b", Target(8, ("tpu",)), constraints="keep", **asked)
    (note,) = options.pop("notes")
    assert "--mesh fsdp=4,tensor=2" in note
    traced = trace(fn, *args, **options)
    mesh = {"fsdp": 4, "tensor": 2}
    plan = search(traced, load("v5e-8"), mesh=mesh, baselines=False, gap=0.1)
    axes = {traced.values[k].path: plan.decisions.stored[k] for k in traced.inputs}
    (weight,) = (path for path in axes if "'model'" in path and "'wi_0'" in path)
    assert axes[weight] == (0, 2)  # what lies on fsdp and on tensor of [embed, layers, mlp]


@installed
@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("llama3.1-9b", {}, "MaxText has no model 'llama3.1-9b'; did you mean llama3.1-8b or "),
        ("nowhere.yml", {}, "there is no file 'nowhere.yml'"),
        ("llama3.1-8b", {"atention": "flash"}, "no 'atention' (did you mean attention"),
        ("llama3.1-8b", {"max_target_length": "long"}, "MaxText refuses this configuration: "),
        ("llama3.1-8b", {"attention": "other"}, "cannot build the step of llama3.1-8b: ValueError"),
        ("llama3.1-8b", {"attention": "flsh"}, "name attention='flsh'; did you mean flash?"),
        ("llama3.1-8b", {"remat_policy": "sometimes"}, "'sometimes'; it takes minimal_with"),
        ("llama3.1-8b", {"constraints": "some"}, "constraints=some: it must be aside or keep"),
        (
            "llama3.1-8b",
            {"shard_mode": "explicit", "constraints": "keep"},
            "constraints=keep and --as maxtext go with shard_mode=auto",
        ),
        ("llama3.1-8b", {"step": "serve"}, "step=serve: it must be one of train, decode, prefill"),
        (
            "llama3.1-8b",
            {"step": "decode", "constraints": "keep"},
            "constraints=keep goes with step=train, not with step=decode",
        ),
    ],
)
def test_what_maxtext_refuses_is_said(name, settings, words, capfd):
    with pytest.raises(ProgramError, match=re.escape(words)):
        program(name, Target(8, ("tpu",)), **settings)
    assert capfd.readouterr().out == ""


@installed
def test_a_wrong_key_in_a_file_of_the_users_is_named_with_the_near_ones(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text("base_config: base.yml\nbase_emb_dim: 64\nbase_mlp_dimm: 128\n")
    said = r"no 'base_mlp_dimm' \(did you mean base_mlp_dim or base_moe_mlp_dim\?\)$"
    with pytest.raises(ProgramError, match=said):
        program(str(file), Target(8, ("tpu",)))
    file.write_text("base_emb_dim: [64\n")
    with pytest.raises(ProgramError, match="MaxText refuses this configuration: while parsing"):
        program(str(file), Target(8, ("tpu",)))


@installed
def test_flash_attention_is_built_for_the_platform_without_a_device():
    asked = {**TINY, "attention": "flash", "head_dim": 128}
    fn, args, options = program("llama3.1-8b", Target(4, ("tpu",)), **asked)
    kernels = [op for op in trace(fn, *args, donate_argnums=0).ops if op.kernel is not None]
    assert len(kernels) == 4
    assert options["donate_argnums"] == 0


@installed
@pytest.mark.long
def test_its_own_file_is_read_back_as_the_planned_step():
    machine, news = load("v5e-4"), []
    asked = SearchOptions(gap=0.1, time_limit=20.0, remat="search")
    target = Target.of(machine)
    found = program.own_file(
        "llama3.1-8b", target, TINY, machine=machine, asked=asked, heard=news.append
    )
    assert any("what the model asks of tensor" in one for one in news)
    assert "not split: expert: it does what fsdp does" in found.summary
    assert "ici_fsdp_parallelism: " in found.text
    assert 'compile_topology: "v5e-4"' in found.text
    assert "base_emb_dim=64" in found.text.splitlines()[0]  # the model's own file says another
    assert found.plan.estimate.step_seconds > 0


@installed
@pytest.mark.parametrize(("kind", "shape"), [("decode", (8, 1)), ("prefill", (1, 64))])
def test_steps_of_the_engine_are_planned(kind, shape):
    asked = {**TINY, "max_prefill_predict_length": 64, "step": kind}
    found = call(functools.partial(program, "llama3.1-8b", Target(8, ("tpu",))), asked, "tiny")
    assert found.args[3].shape == shape
    assert found.notes[0].startswith(f"{kind} of {shape[0]} sequence")
    traced = trace(found.fn, *found.args, **found.options)
    plan = search(traced, load("v5e-8"), mesh={"x": 8}, baselines=False, gap=0.1)
    assert verify(plan, found.fn, *found.args, concrete=concrete(found, seed=0)).differences == ()


@installed
@pytest.mark.parametrize("words", [{"quantization": "int8", "use_qwix_quantization": True}])
def test_products_of_eight_bits_are_traced_and_planned(words):
    fn, args, options = program("llama3.1-8b", Target(8, ("tpu",)), **TINY, **words)
    options.pop("notes")
    traced = trace(fn, *args, **options)
    types = {traced.values[op.inputs[0]].dtype for op in traced.ops if "dot" in op.primitive}
    assert "int8" in {str(one) for one in types}
    assert search(traced, load("v6e-8"), mesh={"x": 8}, baselines=False, gap=0.1).estimate
