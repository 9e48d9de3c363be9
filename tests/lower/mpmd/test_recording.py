"""A recorded step: everything that was enqueued, its order, its trace, and bytes in use."""

from __future__ import annotations

import itertools
import json

import jax
import numpy as np
import pytest

from autoshard.lower.mpmd.instructions import Send
from autoshard.lower.mpmd.recording import Recorded, Recording
from autoshard.models import training
from autoshard.search.meshes.lower_step import lower_mpmd
from autoshard.solve.schedule.task import Task
from tests.lower.mpmd.cases import small_step
from tests.lower.mpmd.runs import BOUNDS, meshes_of


@pytest.fixture(scope="module")
def recorded():
    if len(jax.devices()) < 3:
        pytest.skip("needs 3 devices")
    step = small_step(2, microbatches=3)
    args = training.sample(step.args, 0, BOUNDS)
    lowered = lower_mpmd(step.fn, *step.args, meshes=meshes_of(2, 1), schedule="zb-h1")
    plain = lowered.run(*args)
    result, recording = lowered.record(*args)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(result), strict=True):
        assert np.array_equal(a, b)
    return lowered, recording


def test_everything_is_there_in_the_order_of_the_schedule(recorded):
    lowered, recording = recorded
    assert len(recording.done) == len(lowered.script.instructions)
    for mesh, tasks in enumerate(lowered.order):
        names = {str(task) for task in tasks}
        ran = [name for one in recording.on(mesh) for name in one.name.split(" + ")]
        ran = [name for name in ran if name in names]
        assert ran == [str(task) for task in tasks if str(task) in ran]
        assert str(Task("F", mesh, 2)) in ran
    sends = sum(isinstance(one, Send) for one in lowered.script.instructions)
    transfers = [one for one in recording.done if one.kind == "transfer"]
    assert len(transfers) == sends
    assert all(one.bytes > 0 and one.source != one.mesh for one in transfers)
    assert f"{sends} transfers" in str(lowered.script)


def test_one_after_another_and_laid_out(recorded):
    _, recording = recorded
    ends = [0.0, *(one.end for one in recording.done)]
    assert all(one.start >= end for one, end in zip(recording.done, ends, strict=False))
    laid_out = recording.laid_out()
    assert laid_out.seconds <= recording.seconds
    for one, before in zip(laid_out.done, recording.done, strict=True):
        assert one.seconds == pytest.approx(before.seconds)
        assert all(laid_out.done[number].end <= one.start for number in one.reads)
    for mesh in range(2):
        row = laid_out.on(mesh)
        assert all(a.end <= b.start for a, b in itertools.pairwise(row))


def test_meshes_work_at_once_when_laid_out():
    done = (
        Recorded("F0@0", "F", 0, 0.0, 2.0, ()),
        Recorded("F0@0 to mesh 1", "transfer", 1, 2.0, 3.0, (0,), source=0, bytes=8),
        Recorded("F1@0", "F", 0, 3.0, 5.0, ()),
        Recorded("F0@1", "F", 1, 5.0, 6.0, (1,)),
    )
    laid_out = Recording("step", 2, done).laid_out()
    assert [(one.start, one.end) for one in laid_out.done] == [(0, 2), (2, 3), (2, 4), (3, 4)]
    assert str(laid_out).splitlines() == [
        "step: 4 instructions in 4.000 s",
        "mesh 0: 2 F 4.000 s; 0 B of a device at most",
        "mesh 1: 1 transfer 1.000 s, 1 F 1.000 s; 0 B of a device at most",
    ]


def test_the_trace(recorded, tmp_path):
    lowered, recording = recorded
    path = tmp_path / "step.trace"
    recording.laid_out().save(path)
    events = json.loads(path.read_text())["traceEvents"]
    blocks = [event for event in events if event["ph"] == "X"]
    assert len(blocks) == len(lowered.script.instructions)
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(threads.values()) == ["mesh 0", "to mesh 0", "mesh 1", "to mesh 1"]
    for one in blocks:
        assert (one["cat"] == "transfer") == threads[one["tid"]].startswith("to")
    arrows = [event["ph"] for event in events if event["ph"] in "sf"]
    assert arrows.count("s") == arrows.count("f") > 0
