"""Plans through Shardy:MPMD's own passes; the examples of its RFC."""

from __future__ import annotations

import jax
import pytest

from autoshard import compat
from autoshard.compat import MpmdFragment, MpmdMerge
from autoshard.lower.mpmd.shardy import export_mpmd
from autoshard.lower.mpmd.shardy_partitioned import disagreements, fragments_of
from autoshard.search.meshes.lower_step import lower_mpmd
from tests.lower.mpmd.cases import small_step
from tests.lower.mpmd.runs import meshes_of

TWO_MESHES = (("m1", (("x", 2),)), ("m2", (("x", 2),)))

# The RFC's "Simple example of mesh inference".
INFERENCE = """
func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %1 = mpmd.named_computation<"layer1"> (%arg0, %arg1) (%a: tensor<4xf32>, %b: tensor<4xf32>) {
    %x = stablehlo.add %a, %a : tensor<4xf32>
    mpmd.return %x : tensor<4xf32>
  } : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c = stablehlo.constant dense<0.0> : tensor<4xf32>
  %2 = mpmd.named_computation<"layer2"> (%1, %c) (%a: tensor<4xf32>, %b: tensor<4xf32>) {
    %x = stablehlo.add %a, %a : tensor<4xf32>
    mpmd.return %x : tensor<4xf32>
  } : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = stablehlo.multiply %1, %1 : tensor<4xf32>
  %4 = stablehlo.divide %2, %2 : tensor<4xf32>
  func.return %3, %4  : tensor<4xf32>, tensor<4xf32>
}
"""


def test_mesh_inference_of_the_rfc():
    text, _ = compat.partition_mpmd(
        INFERENCE,
        meshes=TWO_MESHES,
        assignment={"layer1": "m1", "layer2": "m2"},
        input_meshes=(None, None),
        output_meshes=(None, None),
    )
    assert fragments_of(text) == (("m1", (("layer1", 0),)), ("m2", (("layer2", 0),)))
    assert text.count("mpmd.transfer") == 1
    first, second = text.split("func.func @p")[1:]
    assert "stablehlo.multiply" in first
    assert "stablehlo.divide" in second


def two_stages() -> str:
    """The RFC's pipeline of two stages and two microbatches, as named computations."""
    bodies = "".join(
        f"""
func.func private @f{k}(%arg0: tensor<4xf32>) -> tensor<4xf32> {{
  %1 = mpmd.named_computation<{origin}> (%arg0) (%a: tensor<4xf32>) {{
    %x = stablehlo.add %a, %a : tensor<4xf32>
    mpmd.return %x : tensor<4xf32>
  }} : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}}"""
        for k, origin in enumerate(('"layer1"', '"layer2"', '"layer2"(1)', '"layer1"(1)'))
    )
    calls = "".join(
        f"""
  %{name}{i} = mpmd.call @f{k}({operand}) {{call_counter = {i} : ui32}} :
      (tensor<4xf32>) -> tensor<4xf32>"""
        for i in range(2)
        for k, (name, operand) in enumerate(
            (("a", "%arg0"), ("b", f"%a{i}"), ("c", f"%b{i}"), ("d", f"%c{i}"))
        )
    )
    return f"""module {{
func.func @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{{calls}
  return %d0, %d1 : tensor<4xf32>, tensor<4xf32>
}}{bodies}
}}"""


def test_one_f_one_b_with_merging_and_deduplication_of_the_rfc():
    def fragment(layer: int, count: int, microbatch: int) -> MpmdFragment:
        return MpmdFragment(((f"layer{layer}", count),), f"m{layer}", layer, microbatch)

    merges = []
    for i in range(2):
        both = fragment(2, 0, i), fragment(2, 1, i)
        target = MpmdFragment((("layer2", 0), ("layer2", 1)), "m2", call_counter=i)
        merges.append(MpmdMerge(both, target))
    text, ifrt = compat.partition_mpmd(
        two_stages(),
        meshes=TWO_MESHES,
        assignment={"layer1": ("m1", 1), "layer2": ("m2", 2)},
        input_meshes=("m1",),
        output_meshes=("m1", "m1"),
        schedule="1F1B",
        merges=merges,
    )
    fragments = fragments_of(text)
    ends = (("m1", (("layer1", 1),)),)
    merged = ("m2", (("layer2", 0), ("layer2", 1)))
    forward = ("m1", (("layer1", 0),))
    assert [one for one in fragments if one[0] == "m1"] == [forward, forward, *ends, *ends]
    assert [one for one in fragments if one[0] == "m2"] == [merged, merged]
    assert text.count("= mpmd.transfer") == 4
    # Equal programs of both microbatches are one: three functions, as in the RFC.
    assert text.count("func.func @p") == 3
    assert "ifrt.CopyArrays" in ifrt


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_fragments_order_and_transfers_are_the_plans(schedule):
    if len(jax.devices()) < 4:
        pytest.skip("needs 4 devices")
    step = small_step(2, microbatches=3)
    lowered = lower_mpmd(
        step.fn, *step.args, meshes=meshes_of(2, 2), schedule=schedule, donate_argnums=(0, 1)
    )
    exported = export_mpmd(lowered)
    partitioned = exported.partition()
    assert disagreements(lowered, partitioned) == []
    assert sum(len(partitioned.on(f"mesh{k}")) for k in range(2)) >= 12
    assert f"ifrt.Call @{partitioned.programs[0]}::@main" in partitioned.ifrt_text
    # The check tells: another order is refused.
    other = lower_mpmd(
        step.fn, *step.args, meshes=meshes_of(2, 2), schedule="gpipe", donate_argnums=(0, 1)
    )
    assert any("runs" in fault for fault in disagreements(other, partitioned))


def test_inputs_and_results_are_on_the_users_meshes_for_shardy_too():
    if len(jax.devices()) < 4:
        pytest.skip("needs 4 devices")
    step = small_step(2, microbatches=2)
    lowered = lower_mpmd(
        step.fn,
        *step.args,
        meshes=meshes_of(2, 2),
        donate_argnums=(0, 1),
        inputs={"params.embedding": 1, "batch.targets": 0},
        outputs={"result[0]": 0},
    )
    exported = export_mpmd(lowered)
    paths = lowered.partition.in_paths
    embedding, targets = (
        exported.input_meshes[paths.index(path)] for path in ("[0]['embedding']", "[2]['targets']")
    )
    assert (embedding, targets, exported.output_meshes[0]) == ("mesh1", "mesh0", "mesh0")
    assert disagreements(lowered, exported.partition()) == []


def test_the_last_stage_is_merged():
    if len(jax.devices()) < 2:
        pytest.skip("needs 2 devices")
    step = small_step(2, microbatches=3)
    lowered = lower_mpmd(step.fn, *step.args, meshes=meshes_of(1, 1), donate_argnums=(0, 1))
    partitioned = export_mpmd(lowered).partition()
    assert disagreements(lowered, partitioned) == []
    merged = [origins for mesh, origins in partitioned.fragments if mesh == "mesh1"]
    # Shardy joins the first microbatch's forward with what is done before the loop instead.
    assert sum(("stage1", 0) in one and ("stage1", 1) in one for one in merged) == 2
