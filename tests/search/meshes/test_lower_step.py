"""Without a layout, stages are sharded as the one-mesh solver plans them; the step is the step."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import PartitionSpec

from autoshard.lower.interpret import LoweringError
from autoshard.lower.mpmd.instructions import Slot
from autoshard.lower.mpmd.place import batch_sharded
from autoshard.machine.load import load
from autoshard.plan.plan import MeshShape
from autoshard.search.meshes import pricer
from autoshard.search.meshes.devices import machine_of, machines_of, preset_of
from autoshard.search.meshes.lower_step import lower_mpmd
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.stage_program import stage_program
from tests.helpers import sampled
from tests.lower.mpmd.cases import small_step, tiny_llama
from tests.lower.mpmd.runs import eager, lowered_and_differences, meshes_of

EIGHT = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")


@EIGHT
@pytest.mark.parametrize("schedule", sampled(["1f1b", "zb-h1"], lambda name: name == "zb-h1"))
def test_stages_are_sharded_as_planned(schedule):
    step = tiny_llama(layers=2)
    lowered, differences = lowered_and_differences(
        step, meshes_of(4, 2), schedule=schedule, steps=2
    )
    assert differences == []
    mode = "fused" if schedule == "1f1b" else "split"
    cut = 0
    for stage, mesh in enumerate(lowered.meshes):
        program = stage_program(lowered.partition, stage, mode)
        machine = machine_of(eager(), mesh.size)
        shape = MeshShape(("data",), (mesh.size,))
        with jax.enable_x64(True):
            planned = Pricer().price(
                program, machine, {shape: 0.0}, machine.chip.usable_bytes, 10.0
            )
        assert isinstance(planned, StagePrice)
        for argument, spec in zip(program.arguments, planned.specs, strict=True):
            spec = PartitionSpec(None, *spec) if argument.group == "sliced" else spec
            if argument.group in ("state", "totals", "sliced"):
                assert lowered.layouts[Slot(stage, argument.value)].spec == spec
            cut += any(spec)
    assert cut > 4


@EIGHT
def test_equal_stages_are_planned_once(monkeypatch):
    calls = []
    real = pricer.search
    monkeypatch.setattr(pricer, "search", lambda *a, **k: calls.append(a) or real(*a, **k))
    step = small_step(layers=6, scan=True)
    lower_mpmd(step.fn, *step.args, meshes=meshes_of(2, 2), stages=6, schedule="circular")
    assert len(calls) == 3  # the first stage, the last, and one of those between
    calls.clear()
    lower_mpmd(step.fn, *step.args, meshes=meshes_of(2, 2), layout=batch_sharded)
    lower_mpmd(step.fn, *step.args, meshes=meshes_of(1, 1))
    assert calls == []


@EIGHT
def test_all_stages_without_a_plan_are_named():
    step = small_step(layers=2)
    with pytest.raises(LoweringError) as caught:
        lower_mpmd(step.fn, *step.args, meshes=meshes_of(2, 2), memory_limit=100.0)
    text = str(caught.value)
    assert text.startswith(
        "the sharding of these stages was not found:\n  * stage 0 on mesh 0 (2 x"
    )
    assert "\n  * stage 1 on mesh 1 (2 x H100 SXM): " in text
    assert text.endswith("or say by `layout` how arrays are sharded")


@pytest.mark.parametrize(
    ("kind", "preset"),
    [
        ("TPU v5 lite", "v5e"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("NVIDIA GB200", "gb200-nvl72"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("cpu", "h100"),
        ("Quantum 9", None),
    ],
)
def test_devices_are_machines(kind, preset):
    assert preset_of(kind) == preset
    assert preset is None or load(preset, chips=4).chips == 4


def test_machines_of_meshes():
    meshes = meshes_of(1)
    assert machines_of(meshes) == [None]
    with pytest.raises(LoweringError, match="2 machines for 1 mesh"):
        machines_of(meshes, ["h100", "a100"])
    assert machine_of("v5p", 2).chips == 2
    assert machine_of("h100-8", 4).chips == 4
