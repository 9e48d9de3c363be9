"""Axes that are split: how they are written, read, planned and run, and when they win."""

from __future__ import annotations

import doctest

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import autoshard
from autoshard.cli.parsers import arguments as cli_arguments
from autoshard.lower.verify import verify
from autoshard.plan.plan import MeshShape, Plan
from autoshard.plan.text.page import format_plan
from autoshard.program import subaxes
from autoshard.program.layout import format_type
from autoshard.program.subaxes import (
    SubAxisError,
    coarse,
    from_shardy_text,
    joined,
    shardy_text,
    split,
)
from tests.helpers import concrete_like, toy_machine

NAMES, SIZES = split({"x": (2, 2, 2), "y": 4})


def test_examples():
    assert doctest.testmod(subaxes).attempted
    assert not doctest.testmod(subaxes).failed


def test_a_mesh_is_written_with_the_parts_of_its_axes():
    assert NAMES == ("x:(1)2", "x:(2)2", "x:(4)2", "y")
    assert coarse(NAMES, SIZES) == {"x": (2, 2, 2), "y": (4,)}
    assert str(MeshShape(NAMES, SIZES)) == "x=2*2*2, y=4"
    assert cli_arguments.mesh("x=2*2*2,y=4") == {"x": (2, 2, 2), "y": 4}


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ((0, 0, 0, -1), "f32[8@x, 8]"),
        ((0, 0, 1, -1), 'f32[8@"x":(1)4, 8@"x":(4)2]'),
        ((-1, 0, 0, 0), 'f32[8@("x":(2)4,y), 8]'),
        ((0, 1, 0, -1), 'f32[8@("x":(1)2,"x":(4)2), 8@"x":(2)2]'),
    ],
)
def test_parts_that_stand_together_are_printed_together(layout, text):
    assert format_type("float32", (8, 8), layout, NAMES) == text


@pytest.mark.parametrize(
    "spec",
    [
        PartitionSpec(),
        PartitionSpec(NAMES[:3]),
        PartitionSpec("x:(2)2", ("x:(1)2", "y")),
        PartitionSpec(("x:(4)2", "x:(1)2"), None, "y"),
        PartitionSpec(None, ("x:(2)2", "x:(4)2")),
    ],
)
def test_shardys_text_reads_back(spec):
    text = shardy_text(spec, 3, NAMES)
    assert from_shardy_text(text, NAMES, SIZES) == spec


def test_what_the_mesh_has_not_is_refused_at_once():
    with pytest.raises(SubAxisError) as error:
        from_shardy_text('<@mesh, [{"x":(1)3}, {"z"}, {"y":(1)2}]>', NAMES, SIZES)
    assert str(error.value).split("\n  - ")[1:] == [
        '"x":(1)3 is not made of parts of the mesh (x:(1)2=2, x:(2)2=2, x:(4)2=2)',
        '"z" is not made of parts of the mesh (no such axis)',
        '"y":(1)2 is not made of parts of the mesh (y=4)',
    ]
    with pytest.raises(SubAxisError, match="is not a sharding; expected the form"):
        from_shardy_text("P('x')", NAMES, SIZES)


def batched_heads(q, k, w):
    """Two sequences of four heads: eight devices can share them only if the axis is split."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    return jax.nn.softmax(scores, axis=-1), w * 2


ARGS = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 4, 9, 25), (2, 4, 15, 25), (8, 3)))


@pytest.fixture(scope="module")
def plans():
    program = autoshard.trace(batched_heads, *ARGS)
    machine = toy_machine(8)
    return {
        name: autoshard.search(program, machine, mesh=mesh, time_limit=20)
        for name, mesh in {"whole": {"x": 8}, "split": {"x": (2, 4)}}.items()
    }


def test_a_case_in_which_splitting_wins(plans):
    whole, split_plan = plans["whole"], plans["split"]
    assert split_plan.estimate.step_seconds < 0.2 * whole.estimate.step_seconds
    assert whole.specs["inputs"]["[0]"] == PartitionSpec()
    spec = split_plan.specs["inputs"]["[0]"]
    assert shardy_text(spec, 4, split_plan.mesh.names) == (
        '<@mesh, [{"x":(1)2}, {"x":(2)4}, {}, {}]>'
    )
    assert joined(split_plan.specs["inputs"]["[2]"][0], split_plan.mesh.names) == ("x",)


def test_the_report_prints_the_coarse_mesh(plans):
    text = format_plan(plans["split"])
    assert "mesh x=2*4 (8 devices)" in text
    assert 'f32[2@"x":(1)2, 4@"x":(2)4, 9, 25]' in text
    assert "f32[8@x, 3]" in text


def test_a_plan_with_split_axes_runs_and_is_what_it_says(plans, tmp_path):
    plan = plans["split"]
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").specs == plan.specs
    for explicit in (False, True):
        checked = verify(
            plan, batched_heads, *ARGS, concrete=concrete_like(ARGS), explicit=explicit
        )
        assert checked.agrees, str(checked)
