"""The fewest lines of built-in programs: two in a repeated block make the plan."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import pytest

from autoshard import models
from autoshard.lower.spmd import lower
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.models import graph_network
from autoshard.program.annotations import laid_out
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.study.annotate.fewest import fewest
from autoshard.study.annotate.line_search import FEW
from autoshard.study.annotate.sites import written
from tests.helpers import MESHES, sampled

NARROWER = 128
"""So much narrower are the small Llamas than Llama-3-8B: 32 to 64 instead of 4,096 to 8,192."""


def narrow(name: str) -> Machine:
    """A preset on which small programs are planned as large ones are on the preset itself.

    The FLOP of a product for each byte of its operands grow with its sizes: arithmetic is slower
    here by as much as the programs are narrower, nothing waits for a launch or a message, and wires
    carry what they are rated for.
    """
    machine = load(name)
    chip = replace(
        machine.chip,
        peak_flops={kind: rate / NARROWER for kind, rate in machine.chip.peak_flops.items()},
        vector_flops=machine.chip.vector_flops / NARROWER,
        launch_seconds=0.0,
    )
    free = {"latency_seconds": 0.0, "start_seconds": 0.0, "efficiency": 1.0}
    network = tuple(replace(level, **free) for level in machine.network)
    return replace(machine, chip=chip, network=network)


PROGRAMS = (
    "mlp",
    "llama3-1b",
    "llama3-8b-unrolled",
    "llama3-8b-decode",
    "llama3-8b-prefill",
    "mixtral-8x7b",
    "mixtral-8x7b-unrolled",
    "vit-l16",
    "resnet50",
    "unet",
    "gnn",
)
CASES = tuple(itertools.product(PROGRAMS, ("8", "2x4")))
QUICK = (
    ("mlp", "8"),
    ("llama3-8b-decode", "8"),
    ("llama3-8b-prefill", "8"),
    ("llama3-8b-prefill", "2x4"),
)


@pytest.mark.parametrize(("name", "mesh"), sampled(CASES, QUICK.__contains__))
def test_two_lines_in_a_repeated_block_make_the_plan(name, mesh):
    fn, args, options = models.tiny(name)
    machine = narrow("h100-8")
    program = trace(fn, *args, **options)
    plan = search(program, machine, mesh=MESHES[mesh], baselines=False)
    assert any(move.kind != "all_slice" for move in plan.moves)
    found = fewest(lower(plan, fn, *args), fn, machine=machine)
    assert found.enough, str(found)
    assert found.per_block <= FEW, str(found)


@pytest.mark.long
def test_one_line_about_the_round_of_the_graph_network_says_what_its_derivatives_read(monkeypatch):
    """As it is printed, and by what is printed the same arrays are laid out alike."""
    fn, args, options = models.tiny("gnn")
    machine = narrow("h100-8")
    plan = search(trace(fn, *args, **options), machine, mesh=MESHES["8"], baselines=False)
    lowered = lower(plan, fn, *args)
    found = fewest(lowered, fn, machine=machine)
    (line,) = [line for line in found.lines if line.entries]
    assert line.where == ("graph_network.py, around _round",)
    assert any(said.apart for said in line.says)
    assert "autoshard.Reading(" in str(line)
    expected = constraints(written(fn, [line], lowered.mesh), args)
    said = {
        key: one.reading(lowered.mesh) if one.apart else partial(one, mesh=lowered.mesh)
        for key, one in line.entries
    }
    told = laid_out(graph_network._round, said, strict=line.strict)
    monkeypatch.setattr(graph_network, "_round", told)
    again = constraints(models.tiny("gnn").fn, args)
    assert Counter(again) == Counter(expected)
    assert len(expected) >= len(line.entries)


@pytest.mark.long
@pytest.mark.parametrize("machine", ["v5p-64", "h100-64"])
def test_two_lines_in_the_block_of_mixtral_make_its_plan(machine):
    """At its real size; what one of them says is that of a function."""
    fn, args, options = models.build("mixtral-8x7b")
    program = trace(fn, *args, **options)
    mesh = {"x": 8, "y": 8}
    plan = search(program, machine, mesh=mesh, baselines=False, time_limit=120.0)
    found = fewest(lower(plan, fn, *args), fn)
    assert found.enough, str(found)
    assert found.per_block <= FEW, str(found)
    assert any(line.entries for line in found.lines)


def constraints(function, args):
    """The constraints in a lowered function, in order."""
    text = jax.jit(function).trace(*args).lower(lowering_platforms=("tpu",)).as_text()
    return re.findall(r"sdy.sharding_constraint \S+ (<.*?>) :", text)
