"""XLA's own auto-sharder as a peer: its shardings read, the step annotated, its plans kept.

`auto_sharding_mlp` is a plan that it made, of a small perceptron on 2 x 4 TPU v5e.
"""

from __future__ import annotations

import json
import math
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard import load_machine, models
from autoshard.compiler.compiled import compile_lowered
from autoshard.compiler.target import kind_of, target_of
from autoshard.plan.plan import MeshShape
from tests.cli.helpers import refused

KEPT = Path(__file__).with_name("auto_sharding_mlp")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
GRID = MeshShape(("x", "y"), (2, 4))


def perceptron(layers: int = 4, *, scan: bool = True) -> Any:
    """The step of which the kept plan is."""
    return models.build("mlp", batch=16, width=32, hidden=64, layers=layers, scan=scan)


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks are scripts: each finds the others in its own folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def script(name: str) -> ModuleType:
    import importlib

    return importlib.import_module(name)


# -- shardings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("{replicated}", PartitionSpec()),
        ("{devices=[8]<=[8]}", PartitionSpec(("x", "y"))),
        ("{devices=[2,4]<=[8]}", PartitionSpec("x", "y")),
        ("{devices=[4,2]<=[2,4]T(1,0)}", PartitionSpec("y", "x")),
        ("{devices=[1,2,4]<=[8] last_tile_dim_replicate}", PartitionSpec(None, "x")),
        (
            "{devices=[1,4,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
            PartitionSpec(None, "y", None, None),
        ),
        ("{devices=[8]0,4,1,5,2,6,3,7}", PartitionSpec(("y", "x"))),
    ],
)
def test_shardings_as_xla_writes_them(text, spec):
    assert script("auto_sharding.annotate").spec_of(text, GRID) == spec


@st.composite
def tilings(draw: st.DrawFn) -> tuple[MeshShape, tuple[int, ...], str, np.ndarray]:
    """A mesh, tiles, the sharding's text, and the device of every tile (copies in the last place).

    Neighbours of the permuted mesh are dealt to the dimensions of an array, the rest to copies.
    """
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (2, 1, 4)]))
    order = draw(st.permutations(range(len(sizes))))
    cuts = sorted(draw(st.lists(st.integers(0, len(sizes)), min_size=2, max_size=2)))
    groups = [order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] :]]
    tiles = tuple(math.prod(sizes[axis] for axis in group) for group in groups)
    devices = np.arange(8).reshape(sizes).transpose(order).reshape(tiles)
    shape, turned = ",".join(map(str, sizes)), ",".join(map(str, order))
    text = (
        f"{{devices=[{','.join(map(str, tiles))}]<=[{shape}]T({turned}) last_tile_dim_replicate}}"
    )
    return MeshShape(tuple("xyz"[: len(sizes)]), sizes), tiles[:-1], text, devices


@settings(deadline=None)
@given(tilings())
def test_every_device_holds_the_tile_that_the_text_says(tiling):
    mesh, tiles, text, devices = tiling
    spec = script("auto_sharding.annotate").spec_of(text, mesh)
    there = jax.devices()
    on = NamedSharding(Mesh(np.array(there).reshape(mesh.sizes), mesh.names), spec)
    held = on.devices_indices_map(tiles)  # an array with one element to a tile
    for index in np.ndindex(devices.shape):
        part = held[there[devices[index]]]
        starts = (cut.indices(size)[0] for cut, size in zip(part, tiles, strict=True))
        assert tuple(starts) == index[:-1]


def test_all_that_axes_cannot_say_is_named():
    plan = script("auto_sharding.annotate")
    shardings = {
        "['a']": "{devices=[4,2]<=[8]}",
        "['b']": "{replicated}",
        "['c']": "{maximal device=0}",
        "['d']": "{devices=[4]<=[4]}",
    }
    with pytest.raises(ValueError, match="cannot say") as caught:
        plan.AutoPlan.read({"x": 2, "y": 4}, shardings, {}, module=b"", made_for="", seconds=1.0)
    assert str(caught.value) == (
        "XLA's auto-sharder chose what the mesh x=2, y=4 cannot say:\n"
        "  ['a']: {devices=[4,2]<=[8]} does not follow whole axes\n"
        "  ['c']: {maximal device=0} is not a tiling\n"
        "  ['d']: {devices=[4]<=[4]} is not for 8 devices"
    )


# -- the annotated step ----------------------------------------------------------------------------


def test_a_kept_plan_is_read():
    plan = script("auto_sharding.asked").read_plan(KEPT)
    assert (plan.mesh, plan.made_for, plan.seconds) == (GRID, "v5e:2x4", 264.9)
    assert plan.inputs["[0]['layers']['down']"] == PartitionSpec(None, "y", "x")
    assert plan.inputs["[2]['inputs']"] == PartitionSpec(None, "x")
    assert plan.outputs["[0]"] == PartitionSpec()
    assert len(plan.inputs) == len(jax.tree.leaves(perceptron().args))


@pytest.mark.parametrize("way", ["ends", "ops"])
def test_the_step_lies_as_planned(way, tmp_path):
    step, plan = perceptron(), script("auto_sharding.asked").read_plan(KEPT)
    annotate = script("auto_sharding.annotate")
    if way == "ends":
        lowered = annotate.lower_ends(plan, step, platforms=("cpu",))
    else:
        lowered = annotate.whole(plan, step)
    machine = load_machine("mi300x-8")
    target = target_of(machine, plan.mesh, kind_of(machine))
    compiled = compile_lowered(lowered, plan.mesh, machine, target=target, cache=tmp_path)

    def bytes_of(tree: Any, specs: dict[str, PartitionSpec]) -> int:
        sizes, total = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True)), 0
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            axes = [axis for part in specs[jax.tree_util.keystr(path)] for axis in part or ()]
            total += math.prod(leaf.shape) * leaf.dtype.itemsize // math.prod(map(sizes.get, axes))
        return total

    given_bytes, state = bytes_of(step.args, plan.inputs), bytes_of(step.args[:2], plan.inputs)
    assert compiled.memory.argument_bytes == given_bytes
    assert compiled.memory.alias_bytes == state
    axes = {axis for one in compiled.partitioned for axis in one.axes}
    assert {"x", "y"} <= {str(axis) for axis in axes}


def test_a_plan_of_another_step_is_refused():
    plan, annotate = script("auto_sharding.asked").read_plan(KEPT), script("auto_sharding.annotate")
    step = perceptron(2, scan=False)
    with pytest.raises(ValueError, match="another step") as caught:
        annotate.lower_ends(plan, step, platforms=("cpu",))
    lines = str(caught.value).split("\n")
    assert lines[:2] == [
        "the auto-sharder saw another step:",
        "  argument [0]['layers'][0]['down']: only in the step",
    ]
    assert lines[-1] == "  result [2][0].nu['layers']['up_bias']: only in the plan"
    with pytest.raises(ValueError, match="with 15 arguments, not 27"):
        annotate.whole(plan, step)


def test_the_old_gather_is_the_same():
    from autoshard.models import training

    table, indices = jnp.arange(24.0).reshape(6, 4), jnp.array([[5, 0, 2], [1, 1, 3]])
    found = script("auto_sharding.child")._look_up(table, indices)
    assert np.array_equal(found, training.look_up(table, indices))


# -- asking ----------------------------------------------------------------------------------------


def fake_python(folder: Path, text: str) -> Path:
    """An interpreter that does as `text`, in sh: $3 is the folder of the question."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


ANSWER = f"cp {KEPT}/plan.json $3/plan.json; gunzip -c {KEPT}/module.hlo.pb.gz > $3/module.hlo.pb"
QUESTION = {"program": "mlp", **json.loads((KEPT / "question.json").read_text())}


def asks(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    python = fake_python(folder, text)
    monkeypatch.setattr(script("auto_sharding.asked"), "environment", lambda folder: python)


def test_a_plan_is_asked_for_once(tmp_path, monkeypatch):
    auto = script("auto_sharding.asked")
    asks(
        monkeypatch, tmp_path, f'echo asked >> {tmp_path}/log; test -e "$3/question.json"; {ANSWER}'
    )
    for _ in range(2):
        plan = auto.auto_plan(QUESTION, tmp_path, time_limit=60.0)
        assert plan.outputs["[0]"] == PartitionSpec()
    assert (tmp_path / "log").read_text() == "asked\n"
    auto.auto_plan({**QUESTION, "fingerprint": "another"}, tmp_path, time_limit=60.0)
    assert (tmp_path / "log").read_text() == "asked\nasked\n"


def test_a_failure_is_kept_until_more_time_is_given(tmp_path, monkeypatch):
    auto = script("auto_sharding.asked")
    asks(monkeypatch, tmp_path, "sleep 600")
    with pytest.raises(ValueError, match="did not finish") as caught:
        auto.auto_plan(QUESTION, tmp_path, time_limit=0.2)
    assert str(caught.value) == (
        "XLA's auto-sharder did not finish within 0.2 s; give it longer with --auto-sharding-limit"
    )
    asks(monkeypatch, tmp_path, ANSWER)
    with pytest.raises(ValueError, match=r"did not finish within 0\.2 s"):
        auto.auto_plan(QUESTION, tmp_path, time_limit=0.1)
    assert auto.auto_plan(QUESTION, tmp_path, time_limit=60.0).mesh == GRID


def test_what_came_from_outside_is_not_kept(tmp_path, monkeypatch):
    auto = script("auto_sharding.asked")
    asks(monkeypatch, tmp_path, "kill -9 $$")
    with pytest.raises(ValueError, match=r"was ended by signal 9 after \d+ s"):
        auto.auto_plan(QUESTION, tmp_path, time_limit=60.0)
    asks(monkeypatch, tmp_path, ANSWER)
    assert auto.auto_plan(QUESTION, tmp_path, time_limit=60.0).mesh == GRID


def test_the_old_jax_is_told_nothing_of_the_present_one(tmp_path, monkeypatch):
    auto = script("auto_sharding.asked")
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/present/libtpu.so")
    asks(
        monkeypatch,
        tmp_path,
        'test -e "$PYTHONPATH/autoshard/models" || exit 1; ls "$PYTHONPATH" >&2; '
        'echo "no: $TPU_LIBRARY_PATH $JAX_PLATFORMS" >&2; exit 3',
    )
    with pytest.raises(ValueError, match=r"failed after \d+ s: no:  cpu"):
        auto.auto_plan(QUESTION, tmp_path, time_limit=60.0)


# -- the environment -------------------------------------------------------------------------------


def test_the_environment_is_made_once(tmp_path, monkeypatch, capsys):
    made: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        made.append(command)
        (tmp_path / "environment").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    peer = script("auto_sharding.environment")
    python = peer.environment(tmp_path)
    assert [command[0] for command in made] == [sys.executable, str(python)]
    assert made[1][1:] == ["-m", "pip", "install", "--quiet", *peer.REQUIREMENTS]
    assert capsys.readouterr().err.startswith("autoshard: installing jax==0.5.3, jaxlib==0.5.3, ")
    assert peer.environment(tmp_path) == python
    assert len(made) == 2


def test_an_environment_that_cannot_be_made_says_why(tmp_path, monkeypatch, capsys):
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        said = "WARNING: Retrying\nERROR: No matching distribution found for jax==0.5.3\n[notice]"
        return subprocess.CompletedProcess(command, int("pip" in command), "", said)

    monkeypatch.setattr(subprocess, "run", run)
    words = f"bench plans --rows llama3-8b@h100-8 --auto-sharding {tmp_path}"
    assert refused(capsys, words) == (
        f"the environment of XLA's auto-sharder cannot be made in {tmp_path}/environment: ERROR: "
        "No matching distribution found for jax==0.5.3. It needs a package index once, for "
        "jax==0.5.3, jaxlib==0.5.3, libtpu==0.0.11, optax==0.2.4, chex<0.1.90; or name with "
        "--auto-sharding a folder in which it has been made"
    )


def test_no_files_are_lost_to_the_environment(tmp_path):
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "thesis.txt").touch()
    peer = script("auto_sharding.environment")
    with pytest.raises(ValueError, match="is not a Python environment, but holds files"):
        peer.environment(tmp_path)


# -- rows ------------------------------------------------------------------------------------------


def test_rows_of_the_auto_sharder(tmp_path, monkeypatch):
    row, auto = script("plans_row"), script("auto_sharding.asked")
    shutil.copytree(KEPT, tmp_path / "kept")
    asked: list[dict[str, Any]] = []

    def plan(question: dict[str, Any], folder: Path, *, time_limit: float) -> Any:
        asked.append(question)
        if time_limit < 60:
            raise script("auto_sharding.environment").AutoShardingError("it took\ntoo long")
        return auto.read_plan(tmp_path / "kept")

    monkeypatch.setattr(auto, "auto_plan", plan)
    monkeypatch.setattr(row, "step_of", lambda program, layers, sizes: perceptron())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    question = {
        "program": "mlp", "layers": 2, "sizes": [16], "machine": "mi300x-8", "degree": 4,
        "plan": "XLA auto-sharding, i/o", "compile_limit": 300.0, "auto_folder": str(tmp_path),
        "auto_limit": 60.0,
    }  # fmt: skip
    found = row.measure_row(question)
    assert (found["mesh"], found["note"]) == ("x=2, y=4", "planned in 265 s for v5e:2x4")
    assert found["peak"] > 0
    assert asked[0]["topology"]["topology_name"] == "v5p:2x2x2"
    assert len(asked[0]["devices"]) == 8
    assert row.measure_row({**question, "auto_limit": 1.0}) == {
        "mesh": "x=2, y=4",
        "note": "it took too long",
    }
    assert row.measure_row({**question, "degree": 3}) == {
        "note": "an axis of 3 does not divide 8 chips"
    }
