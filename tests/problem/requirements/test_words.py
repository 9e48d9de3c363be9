"""Patterns, targets and statements: what they mean, and what is said where they mean nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autoshard import models
from autoshard.problem.requirements.text import (
    from_json,
    parse,
    read_file,
    requirements_of,
    to_json,
)
from autoshard.program.layout import layouts
from autoshard.program.layout_pattern import PatternError, parse_pattern
from autoshard.program.select import RequirementError, find_values, scope_names, shown_path
from autoshard.program.trace import trace
from tests.problem.requirements.brute_force import layouts_of
from tests.problem.requirements.programs import plan_of, train_program

STATEMENTS = (
    "pin params.layers[*].w1 [data, model?]",
    "pin params['layers'][0] [(data, model), None, ?] replicated(pod)",
    "p1: replicate opt.** over pod, data",
    "2ms: tie a with scope b/c with line model.py:41",
    "forbid backward scope layer_*/attention [?, model, ...]",
    "limit memory 60GiB",
    "limit memory 123456789",
    "0.3us: limit all_gather over data count 3",
    "limit collectives over pod, data bytes 2000000000",
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_are_read_as_they_print(statement):
    requirement = parse(statement, source="here")
    assert str(requirement) == statement
    assert from_json(to_json(requirement)) == requirement


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pin a", "it needs a target and a layout"),
        ("shard a [x]", "is not a requirement: write `pin TARGET LAYOUT`"),
        ("pin a [x", r"'\[x' is not a layout: ',' should stand where the end stands"),
        ("limit gathers count 2", "'gathers' is none of all_gather, all_reduce"),
        ("limit all_gather count two", "'two' is not a count"),
        ("limit memory lots", "'lots' is not a size"),
    ],
)
def test_what_is_no_statement_is_told(text, said):
    with pytest.raises(RequirementError, match=said):
        parse(text)


def test_all_bad_statements_are_told_at_once():
    with pytest.raises(RequirementError) as caught:
        requirements_of(["pin a", "limit memory 1GiB", "shard b"])
    assert str(caught.value).count("\n  - ") == 2


def test_a_file_with_faults_names_all_of_them(tmp_path: Path):
    path = tmp_path / "bad.toml"
    path.write_text('requirement = []\nrequirements = ["pin a"]\n[[logical]]\nrule = {}\n')
    with pytest.raises(RequirementError) as caught:
        read_file(path)
    said = str(caught.value)
    assert all(
        word in said for word in ("'requirement' is neither", "'pin a'", "rule is not known")
    )
    with pytest.raises(RequirementError, match="cannot read"):
        read_file(tmp_path / "absent.toml")


def test_shardy_text_is_read():
    pattern = parse_pattern('[{"x", "y", ?}, {}, {?}], replicated={"z"}')
    assert str(pattern) == "[(x, y)?, None, ?] replicated(z)"
    assert parse_pattern(str(pattern)) == pattern
    with pytest.raises(PatternError):
        parse_pattern("[x] replicated")


TEXTS = (
    "[?, ?]",
    "[x, ?]",
    "[x?, ?]",
    "[y?, None]",
    "[(x, z)?, y?]",
    "[None, ...]",
    "[...]",
    "[z, (x, y)]",
    "[...] replicated(y)",
    "[?, x] replicated(z)",
)


@pytest.mark.parametrize(
    "text", [*TEXTS, "[z, (x, y)]", "[...] replicated(y)", "[?, x] replicated(z)"]
)
def test_masks_are_what_the_definition_says(text):
    from autoshard.plan.plan import MeshShape

    pattern = parse_pattern(text)
    for sizes in ((2, 2, 2), (2, 1, 4)):
        mesh = MeshShape(("x", "y", "z"), sizes)
        every = layouts((16, 16), sizes)
        mask = pattern.mask(np.array(every), mesh.names, mesh.sizes)
        assert mask.tolist() == [layouts_of(pattern, layout, mesh) for layout in every]


def test_paths_scopes_and_lines():
    program = train_program()
    up, down = find_values(program, "weights.up"), find_values(program, "weights['down']")
    assert find_values(program, "weights.*") == find_values(program, "[0].**") == (*down, *up)
    assert [shown_path(program, v) for v in (*up, *down)] == ["weights.up", "weights.down"]
    assert len(find_values(program, "result[1].*")) == 2
    products = find_values(program, "scope mlp:dot_general")
    assert [program.values[v].shape for v in products] == [(64, 1024), (64, 256)]
    line = program.ops[program.values[products[1]].producer].line
    assert find_values(program, f"line {line}:dot_general") == products[1:]
    assert set(find_values(program, f"line tests/requirements/{line}")) >= set(products[1:])
    backward = find_values(program, "backward scope mlp:dot_general")
    assert len(backward) == 3
    assert not set(backward) & set(find_values(program, "scope mlp"))


def test_scopes_without_what_transforms_write():
    assert scope_names("transpose(jvp(layer_3))/mlp") == ["layer_3", "mlp"]
    assert scope_names("jvp(layers)/rematted_computation/ffn/bsd,df->bsf") == [
        *("layers", "ffn", "bsd,df->bsf"),
    ]


def test_wildcards_on_a_tree():
    step = models.tiny("mlp")
    program = trace(step.fn, *step.args, **step.options)
    ups = find_values(program, "params.layers[*].up")
    assert next(shown_path(program, v) for v in ups) == "params.layers[0].up"
    assert set(find_values(program, "params.**.up*")) > set(ups)
    assert set(find_values(program, "**.up")) > set(ups)
    ends = {*program.inputs, *program.outputs}
    everywhere = {value for value in ends if "up" in shown_path(program, value)}
    assert set(find_values(program, "*up*")) == everywhere
    assert set(find_values(program, "params*.up")) == set(ups)
    with pytest.raises(RequirementError, match="names no value"):
        find_values(program, "*upp*")
    scopes = ["/".join(scope_names(op.scope)) for op in program.ops if not op.boundary]
    deep = next(scope for scope in scopes if "/" in scope)
    assert set(find_values(program, f"scope {deep.replace('/', '*')}")) >= set(
        find_values(program, f"scope {deep}")
    )


def test_everything_that_does_not_fit_is_told_at_once():
    with pytest.raises(RequirementError) as caught:
        plan_of(
            train_program(),
            "pin weights.upp [model, data]",
            "pin weights.up [modl, data]",
            "pin weights.up [model]",
            "pin weights.up [(model, data), None]",
            "pin weights.up [data, data]",
            "tie weights.up with weights.down",
            "pin scope mpl [?, ?]",
        )
    said = str(caught.value)
    for words in (
        "'weights.upp' names no value of train_step; did you mean weights.up",
        "the mesh (data=2, model=4) has no axis modl; did you mean model?",
        "a layout of 1 dimension does not fit weights.up f32[256,1024]",
        "they have different shapes: weights.up f32[256,1024], weights.down f32[1024,256]",
        "'scope mpl' names no value of train_step; did you mean scope mlp",
    ):
        assert words in said
    with pytest.raises(RequirementError) as caught:
        plan_of(
            train_program(),
            "pin weights.up [(model, data), None]",
            "pin weights.up [data, data]",
            "pin result[0] []",
            "replicate weights.up over data",
        )
    said = str(caught.value)
    assert (
        "axes (model, data) are not in mesh order: write (data, model), or give the mesh in that "
        "order: --mesh model=4,data=2" in said
    )
    assert "axis 'data' stands twice" in said
    assert said.count("\n  - ") == 2


def test_sizes_that_do_not_divide_are_told():
    with pytest.raises(RequirementError, match="dimension 0 of 64 is not divisible by 128"):
        plan_of(train_program(), "pin batch.* [all, None]", mesh={"all": 128}, chips=128)
