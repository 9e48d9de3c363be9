"""The fewest lines: Shardy makes the plan of them, and of no fewer."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from jax.tree_util import Partial

from autoshard.compat import ARGUMENT, REMAT
from autoshard.lower.compare import Tally
from autoshard.lower.spmd import lower, make_mesh
from autoshard.program.annotations import laid_out
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.study.annotate.fewest import Fewest, fewest
from autoshard.study.annotate.function_lines import in_functions
from autoshard.study.annotate.line_search import TOLERANCE
from autoshard.study.annotate.marks import Marked, marked_values
from autoshard.study.annotate.planned_spots import PlannedSpots
from autoshard.study.annotate.sites import sites_of, written
from autoshard.study.annotate.source_lines import Constraint, Spot, visits, with_lines
from tests.helpers import toy_machine
from tests.problem.requirements.programs import array, plan_of, train_program, train_step

ARGUMENTS = (
    {"up": array(256, 1024), "down": array(1024, 256)},
    {"inputs": array(64, 256), "targets": array(64, 256)},
)
BY_HAND = (
    "pin weights.up [data, model]",
    "pin weights.down [model, data]",
    "pin batch.* [data, None]",
)


@pytest.mark.parametrize("requirements", [(), BY_HAND])
def test_shardy_makes_the_plan_of_the_fewest_and_of_no_fewer(requirements):
    plan = plan_of(train_program(), *requirements)
    checks = []
    lowered = lower(plan, train_step, *ARGUMENTS)
    found = fewest(
        lowered, train_step, machine=toy_machine(), heard=lambda n, ok: checks.append((n, ok))
    )
    assert found.exact
    count = len(found.lines)
    assert (count, True) in checks
    assert found.checks == len(checks) + 1  # the last one traces the step with these lines alone
    # None can be left out: every set of one fewer was checked, and does not suffice.
    assert checks.count((count - 1, False)) >= count
    assert (count - 1, True) not in checks
    text = str(found)
    if count:
        assert text.startswith(f"{count} of {found.of} lines")
        assert "programs.py:" in text
        assert "with_sharding_constraint(x, P(" in text


def test_what_propagation_does_alone_needs_no_lines():
    """Data parallelism follows from the batch."""
    plan = plan_of(
        train_program(),
        "pin weights.* [None, None]",
        "pin batch.* [(data, model), None]",
        "forbid scope mlp:dot_general [None, ?]",
        "limit all_gather count 0",
        "limit all_to_all count 0",
    )
    found = fewest(lower(plan, train_step, *ARGUMENTS), train_step, machine=toy_machine())
    assert found.exact
    assert not found.lines
    assert str(found) == "the shardings of inputs and results are enough"


def test_a_spot_is_an_expression_of_the_user_and_every_pass_over_it():
    def step(x):
        for _ in range(3):
            x = jax.nn.gelu(x @ x)
        return jax.grad(lambda y: jnp.sum(y * y))(x)

    seen = [one for one in visits(step, array(8, 8)) if one.last and not one.spot.read]
    spots = dict.fromkeys(one.spot for one in seen)
    lines = [spot.user[0].line for spot in spots]
    first = step.__code__.co_firstlineno
    assert lines.count(first + 2) >= 2  # the product, and what gelu makes of it
    assert len([one for one in seen if one.spot == seen[0].spot]) == 3
    # What differentiation makes is nobody's line.
    assert {line - first for line in lines} <= {2, 3}


def test_a_line_of_the_user_constrains_the_cotangent_too():
    def loss(x):
        y = jnp.sin(x)
        return jnp.sum(y * 2.0)

    mesh = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spot = next(
        one.spot for one in visits(jax.value_and_grad(loss), array(8, 8)) if not one.spot.read
    )

    def constraints(spec, cotangent):
        line = Constraint(spec, cotangent)
        step = with_lines(
            jax.value_and_grad(loss), lambda at, y: line(y, mesh) if at.anywhere == spot else y
        )
        return _constraints_of(step, array(8, 8))

    rows, columns = P("x", None), P(None, "x")
    assert constraints(rows, rows) == [rows, rows]  # forward and backward
    assert constraints(rows, None) == [rows]
    assert constraints(rows, columns) == [rows, columns]
    assert constraints(None, columns) == [columns]


def _constraints_of(function, *shapes):
    """The layouts of all constraints of a lowered function, in order."""
    text = jax.jit(function).trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()
    found = re.findall(r"sdy.sharding_constraint \S+ <@mesh, \[(.*?)\]> :", text)
    return [P(*map(_axes, re.findall(r"\{(.*?)\}", one))) for one in found]


def _axes(dimension):
    names = tuple(name.strip(' "') for name in dimension.split(",") if name)
    return names[0] if len(names) == 1 else names or None


def test_products_cut_otherwise_and_dear_collectives_do_not_make_the_plan():
    """A share of the step below the tolerance is listed, and no failure; a product always is."""
    cheap = Tally("all_reduce", ("x",), 1024, planned=0, found=1)
    found = Fewest((), None, 3, left=(cheap,), share=TOLERANCE / 2)  # type: ignore[arg-type]
    assert found.enough
    assert not found.exact
    assert str(found).splitlines() == [
        "0 of 3 lines, beside the shardings of inputs and results:",
        "Otherwise than planned, 0.50% of the step, are:",
        "  all_reduce over x of 1.00 KiB: 0 planned, 1 made",
    ]
    assert not replace(found, share=2 * TOLERANCE).enough
    assert not replace(found, products=1).enough


def test_a_line_may_say_something_else_of_what_is_computed_again():
    """Where the plan lays it out otherwise there, and `checkpoint` computes it again."""

    def step(w, x):
        @jax.checkpoint
        def block(y):
            return jnp.sin(jnp.sin(y @ w))

        return jax.value_and_grad(lambda y: jnp.sum(block(y)))(x)

    shapes = array(64, 64), array(64, 64)
    program = trace(step, *shapes)
    plan = search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    products = [op for op in program.ops if op.primitive == "dot_general"]
    first = next(op.outputs[0] for op in products if not op.backward)
    again = next(op.outputs[0] for op in products if op.recomputed)
    mesh = make_mesh(plan, None)

    def lines(layout):
        stored = list(plan.decisions.stored)
        stored[first], stored[again] = (0,), layout
        changed = replace(plan, decisions=replace(plan.decisions, stored=tuple(stored)))
        return sites_of(program, changed, mesh, step, *shapes).planned

    def of_the_product(layout):
        (line,) = [
            one for one in lines(layout) if one.names[0].startswith("dot_general in the step")
        ]
        return line

    assert not of_the_product((0,)).says[0].twofold
    line = of_the_product((1,))
    (said,) = line.says
    assert (said.spec, said.again) == (P("x"), (P("x"), P(None, "x")))  # as made, and as kept
    assert "x = autoshard.constrain(x, P('x'), " in str(line)
    assert "again=[P('x'), P(None, 'x')])" in str(line)
    found = _constraints_of(written(step, [line], mesh), *shapes)
    assert found[:3] == [P("x", None), P("x", None), P(None, "x")]


def test_what_the_derivatives_of_a_product_read_is_found():
    """The gradient of one operand reads the other, and the cotangent of the result."""

    def step(w, x):
        return jax.grad(lambda w, x: jnp.sum(jnp.sin(x @ w)), (0, 1))(w, x)

    shapes = array(32, 16), array(64, 32)
    program = trace(step, *shapes)
    mesh = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    reads = [one.spot for one in visits(step, *shapes) if one.spot.primitive == "dot_general"]
    x, w, _ = reads
    assert (x.read, x.shape, w.read, w.shape) == (True, (64, 32), True, (32, 16))
    marked = marked_values(program, mesh, step, shapes, {x: 0, w: 1})
    _, back, other = [op for op in program.ops if op.primitive == "dot_general"]
    of_w, of_x = sorted((back, other), key=lambda op: program.inputs[1] not in op.inputs)
    for number, value, own, others in ((0, 1, of_x, of_w), (1, 0, of_w, of_x)):
        (gradient,) = [one for one in marked[number] if one.gradient]
        assert gradient.value == program.inputs[value]
        assert [op for op, _ in gradient.readers] == [others.index]
        (given,) = [one for one in marked[number] if one.given]
        assert [op for op, _ in given.readers] == [own.index]
        assert given.value in own.inputs
        assert given.value in others.inputs


def test_operations_that_are_left_out_are_no_spots():
    def step(table, rows):
        return table.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)

    shapes = array(64, 32), jax.ShapeDtypeStruct((16,), jnp.int32)
    made = [one for one in visits(step, *shapes) if one.last and not one.spot.read]
    assert [one.spot.primitive for one in made] == ["gather"]
    traced = [one.primitive.name for one in jax.make_jaxpr(step)(*shapes).eqns]
    assert traced == ["broadcast_in_dim", "gather"]


def test_a_product_in_an_einsum_has_spots_of_its_own():
    def step(x, y):
        return jnp.einsum("abc,adb->dca", x, y)

    shapes = array(4, 8, 2), array(4, 16, 8)
    seen = visits(step, *shapes)
    assert [(one.spot.primitive, one.spot.read) for one in seen] == [
        ("dot_general", True),
        ("dot_general", True),
        ("dot_general", False),
        ("transpose", True),
        ("transpose", False),
    ]
    assert {one.spot.within for one in seen} == {"einsum"}
    assert {one.scope for one in seen} == {("abc,adb->dca",)}
    same = with_lines(step, lambda spot, array: array)
    assert str(jax.make_jaxpr(same)(*shapes)) == str(jax.make_jaxpr(step)(*shapes))


def test_one_line_in_a_helper_says_the_same_of_arrays_of_any_rank():
    def twice(y):
        return y * 2.0

    def step(x, z):
        return twice(x), twice(z)

    shapes = array(64, 32), array(64, 32, 16)
    program = trace(step, *shapes)
    asked = "pin x [data, model]", "pin z [data, model, None]"
    plan = plan_of(program, *asked)
    lines = sites_of(program, plan, make_mesh(plan, None), step, *shapes).lines
    said = Constraint(P("data", "model"), P("data", "model"))
    both = [line for line in lines if len(line.places) == 2 and line.says == (said,)]
    assert {spot.read for line in both for spot in line.spots} == {True, False}
    for line in both:
        users = [spot.user[0].function.rpartition(".")[2] for spot in line.spots]
        assert users == ["twice", "twice"]
        assert "float32[64, 32], " in str(line)
        assert "float32[64, 32, 16]" in str(line)


def test_a_line_may_say_something_else_of_each_shape():
    """Where a loop of the user passes arrays of several shapes, and only then."""

    def step(x, z):
        return [y * 2.0 for y in (x, z)]

    shapes = array(64, 32), array(128, 16, 8)
    program = trace(step, *shapes)
    plan = plan_of(program, "pin x [data, model]", "pin z [model, None, data]")
    mesh = make_mesh(plan, None)
    lines = sites_of(program, plan, mesh, step, *shapes).lines
    tables = [line for line in lines if line.table]
    assert tables
    for line in tables:
        assert [spot.shape for spot in line.spots] == [(64, 32), (128, 16, 8)]
        assert [one.spec for one in line.says] == [P("data", "model"), P("model", None, "data")]
        assert ", by x.shape: " in str(line)
        found = _constraints_of(written(step, [line], mesh), *shapes)
        assert found == [P("data", "model"), P("model", None, "data")]
    one = next(line for line in lines if len(line.places) == 1)
    assert one.by_shape
    assert not one.table
    same = array(64, 32), array(64, 32)
    program = trace(step, *same)
    plan = plan_of(program, "pin x [data, model]", "pin z [data, model]")
    lines = sites_of(program, plan, mesh, step, *same).lines
    assert not any(line.by_shape for line in lines)


def test_what_does_not_fit_all_arrays_at_a_spot_is_not_said():
    def step(x, z):
        return [y * 2.0 for y in (x, z)]

    shapes = array(64, 32), array(64, 30)
    program = trace(step, *shapes)
    plan = plan_of(program, "pin x [data, model]", "pin z [data, None]")
    planned = PlannedSpots(program, plan)
    marked = [Marked(v, False, False, (), "", 1) for v in program.inputs]
    spot = Spot((), "mul", 0)
    both, first = planned.constraints(marked, spot), planned.constraints(marked[:1], spot)
    assert P("data") in {one.spec for one in both}
    assert P("data", "model") not in {one.spec for one in both}
    assert P("data", "model") in {one.spec for one in first}


def test_one_line_about_a_function_says_what_several_say():
    """Its keys, given to `laid_out`, make the same program as the lines."""

    def block(x, w):
        with jax.named_scope("block"):
            hidden = jnp.einsum("bd,df->bf", x, w["up"])
            with jax.named_scope("out"):
                return jnp.einsum("bf,fd->bd", jnp.tanh(hidden), w["down"])

    class Step:
        layer = staticmethod(block)

    def step(w, x):
        body = jax.checkpoint(lambda x, one: (Step.layer(x, one), None))
        return jax.grad(lambda x: jnp.sum(jax.lax.scan(body, x, w)[0]))(x)

    shapes = {"up": array(2, 64, 256), "down": array(2, 256, 64)}, array(32, 64)
    program = trace(step, *shapes)
    plan = search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    mesh = make_mesh(plan, None)
    sites = sites_of(program, plan, mesh, step, *shapes)
    alone = [line for line in sites.planned if line.blocks and len(line.places) == 1]
    made = [line for line in alone if not line.spots[0].read and "block" in str(line.names)]
    assert len(made) == 3
    said = [P("x"), P(None, "x"), P(None, "x")]
    lines = [
        replace(line, places=((line.spots[0], Constraint(one, None)),))
        for line, one in zip(sorted(made, key=lambda one: one.where), said, strict=True)
    ]
    assert in_functions(lines, sites.visits, lambda _: False, lambda *_: True) == lines
    assert in_functions(lines, sites.visits, lambda _: True, lambda *_: False) == lines
    (line,) = in_functions(lines, sites.visits, lambda found: len(found) > 2, lambda *_: True)
    assert set(line.spots) == {spot for one in lines for spot in one.spots}
    keys = [key for key, _ in line.entries]
    assert keys == [
        "bd,df->bf:dot_general float32[32,256]",
        "out:tanh float32[32,256]",
        "out/bf,fd->bd:dot_general float32[32,64]",
    ]
    first, *entries, last = str(line).splitlines()
    assert first == "test_fewest.py, around block: block = autoshard.laid_out(block, {"
    assert (
        entries[0] == f"    {keys[0]!r}: lambda x: autoshard.constrain(x, P('x'), cotangent=None),"
    )
    assert last == "})"
    found = Fewest((line,), None, 9)  # type: ignore[arg-type]
    assert str(found).startswith("1 of 9 lines (1 in repeated blocks) that name 3 arrays, beside")
    together = _constraints_of(written(step, [line], mesh), *shapes)
    assert together == _constraints_of(written(step, lines, mesh), *shapes)
    Step.layer = staticmethod(
        laid_out(
            block,
            {key: lambda x, said=said: said(x, mesh) for key, said in line.entries},
        )
    )
    assert together == _constraints_of(lambda w, x: step(w, x), *shapes)  # traced anew
    assert len(together) == 4  # three forward, and what tanh is differentiated from, again


def test_what_checkpoint_gives_to_a_function_is_said_at_the_top_of_it():
    """And what it keeps is said where it is called: as it is kept, whatever else reads it."""

    class Step:
        @staticmethod
        def block(x, w, scale):
            return jnp.tanh(x @ w) + jnp.sin(x) @ scale

        @staticmethod
        def loss(w, x, scale):
            block = jax.checkpoint(Partial(Step.block), prevent_cse=False)
            with jax.named_scope("layers"):
                x, _ = jax.lax.scan(lambda x, one: (block(x, one, scale), None), x, w)
            return jnp.sum(x)

    def step(w, x, scale):
        return jax.value_and_grad(Step.loss)(w, x, scale)

    shapes = array(3, 64, 64), array(32, 64), array(64, 64)
    program = trace(step, *shapes)
    plan = search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    mesh = make_mesh(plan, None)
    (kept,) = [op for op in program.ops if op.primitive == "stack" and not op.backward]
    entered = [op for op in program.ops if op.primitive == "enter"]  # `scale`, into both loops
    assert [op.backward for op in entered] == [False, True]

    def sites(**how):
        assignment = list(plan.decisions.assignment)
        assignment[kept.index] = how["kept"]
        for op in entered:
            assignment[op.index] = how["back"] if op.backward else (0,)
        other = replace(plan, decisions=replace(plan.decisions, assignment=tuple(assignment)))
        return sites_of(program, other, mesh, step, *shapes)

    for layout, spec in (((0,), P("x")), ((1,), P(None, "x")), ((-1,), P())):
        found = sites(kept=layout, back=layout).planned
        said = {line.spots[0]: line.says[0].spec for line in found if line.spots[0].read}
        (carry,) = [said[one] for one in said if one.primitive in REMAT and one.number == 0]
        (scale,) = [said[one] for one in said if one.primitive == "scan" and one.shape == (64, 64)]
        assert carry == spec
        assert scale == (P() if layout == (-1,) else P("x"))  # as it is cut by fewest axes
    found = sites(kept=(-1,), back=(-1,))
    given = [line for line in found.planned if line.spots[0].primitive == ARGUMENT]
    assert [line.where for line in given] == 3 * [("test_fewest.py, at the top of block",)]
    assert [line.spots[0].shape for line in given] == [(32, 64), (64, 64), (64, 64)]
    (line,) = in_functions(given[:2], found.visits, lambda lines: len(lines) > 1, lambda *_: True)
    keys = [":argument float32[32,64]", ":argument float32[64,64] #1"]
    assert [key for key, _ in line.entries] == keys
    together = _constraints_of(written(step, [line], mesh), *shapes)
    assert len(together) > len(keys)
    said = {key: lambda x, said=said: said(x, mesh) for key, said in line.entries}
    Step.block = staticmethod(laid_out(Step.block, said))
    assert together == _constraints_of(lambda *args: step(*args), *shapes)  # traced anew


def test_the_cotangent_of_an_operand_is_said_as_its_product_is_made_and_as_it_is_kept():
    """A product that derivatives transpose has no place of its own in the user's code."""

    def step(x, w):
        return jax.grad(lambda x, w: jnp.sum(jnp.tanh(x @ w)), argnums=1)(x, w)

    shapes = array(32, 64), array(64, 128)
    program = trace(step, *shapes)
    plan = search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    mesh = make_mesh(plan, None)
    (turn,) = [op for op in program.ops if op.primitive == "transpose"]
    (product,), (turned,) = turn.inputs, turn.outputs
    assert program.values[product].shape == (128, 64)

    def says(made, kept):
        stored, copy = list(plan.decisions.stored), list(plan.decisions.copy)
        assignment = list(plan.decisions.assignment)
        stored[product], copy[product], stored[turned] = made, None, kept
        assignment[turn.index] = kept
        decisions = replace(
            plan.decisions, stored=tuple(stored), copy=tuple(copy), assignment=tuple(assignment)
        )
        other = replace(plan, decisions=decisions)
        lines = sites_of(program, other, mesh, step, *shapes).planned
        (line,) = [
            line for line in lines if line.spots[0].read and line.spots[0].shape == (64, 128)
        ]
        return line.says[0].cotangent

    assert says((0,), (1,)) == P(None, "x")  # as it lies, with the dimensions in another order
    assert says((1,), (1,)) == (P("x"), P(None, "x"))
    assert says((0,), (-1,)) == (P(None, "x"), P(), P(None, "x"))  # as it is returned
    assert says((-2,), (1,)) == P(None, "x")  # what is not whole cannot be said


@pytest.mark.parametrize("checkpoint", [False, True])
def test_one_line_about_a_function_tells_equal_blocks_apart_by_their_scopes(checkpoint):
    """Where the plan has another layout in each; the scope around the function is no part of it."""

    class Step:
        @staticmethod
        def loss(w, x):
            x = jnp.sin(x)
            for number, one in enumerate(w):
                block = Partial(lambda x, one: jnp.tanh(x @ one))  # a function of its own each time
                block = jax.checkpoint(block) if checkpoint else block
                with jax.named_scope(f"block_{number}"):
                    x = block(x, one)
            return jnp.sum(x)

    def step(w, x):
        with jax.named_scope("train"):
            return jax.value_and_grad(Step.loss)(w, x)

    shapes = [array(64, 64) for _ in range(3)], array(32, 64)
    program = trace(step, *shapes)
    plan = search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    made = [op.outputs[0] for op in program.ops if op.primitive == "tanh" and not op.recomputed]
    stored = list(plan.decisions.stored)
    for value, layout in zip(made, [(0,), (1,), (1,)], strict=True):
        stored[value] = layout
    plan = replace(plan, decisions=replace(plan.decisions, stored=tuple(stored)))
    mesh = make_mesh(plan, None)
    sites = sites_of(program, plan, mesh, step, *shapes)
    (anywhere,) = [line for line in sites.planned if line.names[0].startswith("tanh in ")]
    assert not anywhere.inward
    lines = [line for line in sites.scoped if line.names[0].startswith("tanh in ")]
    assert [line.spots[0].scope[-1] for line in lines] == [f"block_{n}" for n in range(3)]
    assert len({line.says for line in lines}) > 1
    assert all(line.inward for line in lines)

    def as_made(spec, line):
        return replace(line, places=((line.spots[0], Constraint(spec, None)),))

    said = list(map(as_made, (P("x"), P(None, "x"), P(None, "x")), lines))
    (line,) = in_functions(said, sites.visits, lambda _: False, lambda *_: True)
    assert [key for key, _ in line.entries] == [
        f"block_{number}:tanh float32[32,64]" for number in range(3)
    ]
    assert not line.inward
    together = _constraints_of(written(step, [line], mesh), *shapes)
    assert together == [P("x", None), P(None, "x"), P(None, "x")]
    Step.loss = staticmethod(
        laid_out(Step.loss, {key: lambda x, said=said: said(x, mesh) for key, said in line.entries})
    )
    assert together == _constraints_of(lambda w, x: step(w, x), *shapes)  # traced anew
    # Where two are told alike, the shorter key that fits both is one entry.
    (both,) = in_functions(said[1:], sites.visits, lambda _: False, lambda *_: True)
    assert len(both.entries) == 2  # the third block is said nothing of
    outside = next(
        line
        for line in sites.planned
        if line.names[0].startswith("sin in ") and len(line.places) == 1
    )
    (all_of,) = in_functions([*said, outside], sites.visits, lambda _: False, lambda *_: True)
    assert next(key for key, _ in all_of.entries) == ":sin float32[32,64]"
    assert all_of.named == 4
    alike = [as_made(P("x"), one) for one in said]
    (short,) = in_functions(alike, sites.visits, lambda _: False, lambda *_: True)
    assert [key for key, _ in short.entries] == [":tanh float32[32,64]"]
