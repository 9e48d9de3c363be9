"""Sums of partial sums: one collective for all terms, in both lowerings, and the right numbers."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify, verify_collectives, verify_written
from autoshard.plan.types.plan_check import PlanTypeError, check_plan
from autoshard.plan.unreduced_sums import find_sums
from autoshard.program.layout import UNREDUCED
from autoshard.xla import analyse
from tests.helpers import MESHES, case, concrete_like, random_plan, toy_machine


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def projections(dq, dk, dv, wq, wk, wv):
    """The input gradient of three projections of one input."""
    return dq @ wq + dk @ wk + dv @ wv


ARGS = f32(2, 64), f32(2, 32), f32(2, 32), f32(64, 64), f32(32, 64), f32(32, 64)
ODD = f32(2, 64), f32(2, 32), f32(2, 32), f32(64, 63), f32(32, 63), f32(32, 63)


def heads(dq, dk, wq, wk):
    """The same with heads: two contracted dimensions, and a batch of products."""
    left = jnp.einsum("bshd,hde->bse", dq, wq) + jnp.einsum("bshd,hde->bse", dk, wk)
    right = jnp.einsum("bse,bte->bst", left, left) + jnp.einsum("bshd,bthd->bst", dq, dk)
    return left, right


HEADS = f32(4, 8, 4, 8), f32(4, 8, 4, 8), f32(4, 8, 16), f32(4, 8, 16)


def test_which_values_may_wait():
    def step(a, b, c, d):
        read_twice = a @ b
        scaled = (c @ d) * 2
        return (a @ d + c @ b) + (b @ a + d @ c) + read_twice + scaled, read_twice

    program = autoshard.trace(step, *[f32(8, 8)] * 4)
    sums = find_sums(program, analyse(program).readers)
    products = [op for op in program.ops if op.primitive == "dot_general"]
    waiting = [products.index(p) for p in products if p.outputs[0] in sums.pending]
    assert len(products) == 6
    assert len(waiting) == 4
    assert 0 not in waiting  # read twice; the scaled one is not a plain term either
    assert len(sums.joins) == 3


@pytest.fixture(scope="module")
def folded():
    program = autoshard.trace(projections, *ODD)  # only the contracted dimension can be cut
    return program, autoshard.search(
        program, toy_machine(8), mesh={"x": 8}, gap=0.0, join_sums=True
    )


def test_three_terms_are_settled_by_one_collective(folded):
    program, plan = folded
    (move,) = plan.moves
    assert (move.kind, move.value) == ("all_reduce", "f32[2, 63]{unreduced=x} -> f32[2, 63]")
    assert plan.proof.status == "optimal"
    waiting = [v for v, layout in enumerate(plan.decisions.stored) if UNREDUCED in layout]
    assert len(waiting) == 4  # three products and the sum of two of them
    typed = check_plan(program, plan)
    texts = {kind.text(("x",)) for kind in (typed.stored[v] for v in waiting) if kind}
    assert texts == {"f32[2, 63]{P: x}"}


@pytest.mark.parametrize("explicit", [False, True], ids=["annotated", "written out"])
def test_the_compiler_makes_that_one_and_the_numbers_are_right(folded, explicit):
    _, plan = folded
    checked = verify(plan, projections, *ODD, concrete=concrete_like(ODD), explicit=explicit)
    assert checked.agrees, str(checked)


@pytest.mark.parametrize("mesh", ["2x4", "2x2x2"])
@pytest.mark.parametrize(("fn", "args"), [(projections, ARGS), (heads, HEADS)])
def test_random_plans_with_terms_that_wait(fn, args, mesh):
    given = case(fn, *args, mesh=MESHES[mesh], join_sums=True)
    found = 0
    for seed in range(60):
        plan = random_plan(given, seed)
        waits = [layout for layout in plan.decisions.stored if layout and UNREDUCED in layout]
        if not waits:
            continue
        found += 1
        check_plan(given.program, plan)
        lowered = lower(plan, fn, *args)
        comparison = verify_collectives(lowered)
        assert comparison.agrees, f"seed {seed}\n{comparison}"
        written = lower(plan, fn, *args, explicit=True)
        comparison = verify_written(written)
        assert comparison.agrees, f"seed {seed}\n{comparison}"
        if found <= 2:
            for one in (lowered, written):
                assert numeric_differences(one, fn, concrete_like(args)) == [], seed
        if found == 8:
            return
    pytest.fail(f"only {found} plans of 60 have terms that wait")


def test_constraints_settle_every_term_by_itself(folded):
    """They cannot say that a value stays unreduced."""
    from autoshard.study.annotate.fewest import fewest

    _, plan = folded
    assert [move.kind for move in plan.moves] == ["all_reduce"]
    few = fewest(lower(plan, projections, *ODD), projections, machine=toy_machine(8))
    assert [move.kind for move in few.lowered.plan.moves] == ["all_reduce"] * 3


def test_no_term_waits_where_that_is_not_wanted():
    program = autoshard.trace(projections, *ODD)
    plan = autoshard.search(program, toy_machine(8), mesh={"x": 8}, gap=0.0, join_sums=False)
    assert [move.kind for move in plan.moves] == ["all_reduce"] * 3


def test_a_value_that_is_no_term_may_not_be_unreduced(folded):
    program, plan = folded
    stored = list(plan.decisions.stored)
    stored[program.outputs[0]] = (UNREDUCED,)
    other = replace(plan, decisions=replace(plan.decisions, stored=tuple(stored)))
    with pytest.raises(PlanTypeError, match=r"is stored in \(-2,\), which is not a layout of"):
        check_plan(program, other)
