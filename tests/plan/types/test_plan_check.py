"""Valid plans type-check, with exactly their moves; plans that were broken by hand are refused."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from autoshard import models
from autoshard.plan.types.hops import hop, permutation
from autoshard.plan.types.op_types import op_types
from autoshard.plan.types.plan_check import PlanTypeError, check_plan
from autoshard.program.rules.ask_shardy import Rule
from tests.helpers import MESHES, case, random_plan, sampled
from tests.plan.types.breaking import BREAKS, broken

PROGRAMS = ("mlp", "llama3-1b", "llama3-405b-decode", "mixtral-8x7b")


PLANNED = [((name, mesh),) for name in PROGRAMS for mesh in ("2x4", "2x2x2")]


@pytest.fixture(
    scope="module", params=sampled(PLANNED, lambda one: PLANNED.index(one) % 8 in (0, 3))
)
def planned(request):
    name, mesh = request.param
    fn, args, options = models.tiny(name)
    given = case(fn, *args, mesh=MESHES[mesh], **options)
    return given.program, random_plan(given, 1)


def test_a_valid_plan_has_the_moves_that_its_types_need(planned):
    program, plan = planned
    typed = check_plan(program, plan)
    assert len(typed.moves) == len(plan.moves) > 0
    ends = {*program.inputs, *program.outputs}
    for value, stored in zip(program.values, typed.stored, strict=True):
        assert (stored is None) == value.free
        assert stored is None or not stored.invariant or value.index in ends


def test_plans_broken_by_hand_are_refused(planned):
    program, plan = planned
    for seed in range(2 * len(BREAKS)):
        what, other = broken(plan, program, seed)
        assert other != plan, what
        with pytest.raises(PlanTypeError, match="does not type-check"):
            check_plan(program, other)


def dots(x, w, v):
    return jnp.maximum(x @ w, 0.0) @ v


SHAPES = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 16), (16, 32), (32, 16))]


@pytest.fixture(scope="module")
def two_dots():
    from autoshard.plan.evaluate import evaluate
    from autoshard.search.assemble import assemble

    given = case(dots, *SHAPES, mesh={"x": 2, "y": 4})
    whole = given.built.decode([0] * len(given.built.problem.nodes))
    layouts = {"[0]": (0, -1), "[1]": (-1, 1), "[2]": (-1, 0)}
    stored, assignment = list(whole.stored), list(whole.assignment)
    for value in given.program.values:
        stored[value.index] = layouts.get(value.path, stored[value.index])
    for op in given.program.ops:
        if op.primitive in ("dot_general", "max"):
            summed = len(op.inputs) == 2 and op.inputs[1] == given.program.inputs[2]
            names = [f.name for f in op.rule.factors]
            assignment[op.index] = (names.index("i"), names.index("k" if summed else "j"))
            stored[op.outputs[0]] = (0, -1) if summed else (0, 1)
        if op.primitive == "return":
            assignment[op.index] = (0, -1)
            stored[op.outputs[0]] = (0, -1)
    decisions = replace(whole, stored=tuple(stored), assignment=tuple(assignment))
    evaluation = evaluate(given.built.prices, decisions, given.mesh.names)
    proof = given.plan(whole).proof
    plan = assemble(
        given.built.prices, decisions, given.mesh, evaluation, proof=proof, memory_limit=1e9
    )
    return given.program, plan


def test_megatron_by_hand_is_well_typed(two_dots):
    program, plan = two_dots
    typed = check_plan(program, plan)
    assert [str(move) for move in typed.moves] == [
        "all_reduce over y: f32[8@x, 16]{unreduced=y} -> f32[8@x, 16], 256 bytes"
    ]
    texts = [typed.stored[v].text(plan.mesh.names) for v in program.inputs]
    assert texts == ["f32[8@x, 16]{I: y}", "f32[16, 32@y]{I: x}", "f32[32@y, 16]{I: x}"]


def test_all_faults_are_named_at_once_with_what_is_missing(two_dots):
    program, plan = two_dots
    stored = list(plan.decisions.stored)
    stored[program.inputs[0]] = (0, 1)  # x comes in sharded over y, too
    stored[program.inputs[2]] = (-1, 1)  # v is sharded along its columns
    other = replace(plan, decisions=replace(plan.decisions, stored=tuple(stored)))
    with pytest.raises(PlanTypeError) as error:
        check_plan(program, other)
    lines = [op.line for op in program.ops if op.primitive == "dot_general"]
    assert str(error.value).split("\n  - ") == [
        "the plan does not type-check on the mesh x=2, y=4 (4 faults):",
        f"dot_general at (top) ({lines[0]}): operand 0, x, is f32[8@x, 16@y] where f32[8@x, 16] "
        "is read; missing jax.lax.all_gather(x, 'y', axis=1, tiled=True)",
        f"dot_general at (top) ({lines[1]}): operand 1, v, is f32[32, 16@y]{{I: x}} where "
        "f32[32@y, 16] is read; missing jax.lax.all_to_all(v, 'y', split_axis=0, concat_axis=1, "
        "tiled=True)",
        "inputs [0]: its spec is P('x',), but it is stored as P('x', 'y')",
        "inputs [2]: its spec is P('y',), but it is stored as P(None, 'y')",
    ]


def test_a_partial_result_may_not_be_stored_where_no_settlement_leads(two_dots):
    program, plan = two_dots
    stored = list(plan.decisions.stored)
    last = next(
        o
        for op in program.ops
        if op.primitive == "dot_general"
        for o in op.outputs
        if op.inputs[1] == program.inputs[2]
    )
    stored[last] = (-1, -1)
    other = replace(plan, decisions=replace(plan.decisions, stored=tuple(stored)))
    with pytest.raises(
        PlanTypeError,
        match=r"is written as f32\[8@x, 16\]\{P: y\}, but stored as "
        r"f32\[8, 16\]; missing jax.lax.all_gather",
    ):
        check_plan(program, other)


def test_ops_that_cannot_be_cut_so():
    rule = Rule.parse("([ij])->([i, j]) {i=4, j=8}")
    fine = op_types(rule, (0, 1), (4, 2), ("x", "y"))
    assert fine.reads == ((0, 0),)
    assert fine.written == ((0, 1),)
    assert not fine.partial
    assert op_types(rule, (-1, 1), (4, 2), ("x", "y")).faults == (
        "axis y shards factor j of a dimension whose major factors are not used up, which leaves "
        "no even parts",
    )
    rule = Rule.parse("([i])->([i]) {i=6} need_replication={i}")
    assert op_types(rule, (0,), (4,), ("x",)).faults == (
        "axis x shards factor i, which must stay whole (REPLICATE)",
        "axis x cuts factor i of size 6 into 4 parts",
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (((0, 1), ()), ((0,), ()), "all_gather over (1,), dimension 0"),
        (((0, 1), ()), ((), ()), "all_gather over (0, 1), dimension 0"),
        (((), ()), ((0,), (1,)), "all_slice over (0, 1)"),
        (((0,), (1,)), ((), (1, 0)), "all_to_all over (0,), dimension 0 -> 1"),
        (((0, 2), ()), ((2, 0), ()), "collective_permute over (0, 2)"),
        (((0,), ()), ((2,), ()), "collective_permute over (0, 2)"),
        (((0, 1), ()), ((1,), ()), None),
        (((0,), (1,)), ((), ()), None),
        (((0,), ()), ((), (0, 1)), None),
    ],
)
def test_hops(before, after, expected):
    found = hop(before, after, (2, 4, 2))
    assert (found if found is None else str(found)) == expected


def test_the_messages_of_a_permute_carry_the_right_shards():
    move = hop(((0,), ()), ((2,), ()), (2, 4, 2))
    assert move is not None
    # Device (x, z) needs shard z, which devices (z, *) have.
    assert permutation(move, (2, 4, 2)) == ((0, 0), (2, 1), (1, 2), (3, 3))
