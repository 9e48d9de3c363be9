"""One line about a function: what it says of the arrays in it, and where it is written."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from jax.tree_util import Partial

from autoshard.compat import ARGUMENT, REMAT
from autoshard.lower.spmd import make_mesh
from autoshard.program.annotations import laid_out
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.study.annotate.fewest import Fewest
from autoshard.study.annotate.function_lines import in_functions
from autoshard.study.annotate.sites import sites_of, written
from autoshard.study.annotate.source_lines import Constraint
from tests.helpers import toy_machine
from tests.problem.requirements.programs import array
from tests.study.annotate.constraints import constraints_of


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
    assert first == "test_function_lines.py, around block: block = autoshard.laid_out(block, {"
    assert (
        entries[0] == f"    {keys[0]!r}: lambda x: autoshard.constrain(x, P('x'), cotangent=None),"
    )
    assert last == "})"
    found = Fewest((line,), None, 9)  # type: ignore[arg-type]
    assert str(found).startswith("1 of 9 lines (1 in repeated blocks) that name 3 arrays, beside")
    together = constraints_of(written(step, [line], mesh), *shapes)
    assert together == constraints_of(written(step, lines, mesh), *shapes)
    Step.layer = staticmethod(
        laid_out(
            block,
            {key: lambda x, said=said: said(x, mesh) for key, said in line.entries},
        )
    )
    assert together == constraints_of(lambda w, x: step(w, x), *shapes)  # traced anew
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
    (kept,) = [op for op in program.ops if op.primitive == "scan_stack" and not op.backward]
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
    assert [line.where for line in given] == 3 * [("test_function_lines.py, at the top of block",)]
    assert [line.spots[0].shape for line in given] == [(32, 64), (64, 64), (64, 64)]
    (line,) = in_functions(given[:2], found.visits, lambda lines: len(lines) > 1, lambda *_: True)
    keys = [":argument float32[32,64]", ":argument float32[64,64] #1"]
    assert [key for key, _ in line.entries] == keys
    together = constraints_of(written(step, [line], mesh), *shapes)
    assert len(together) > len(keys)
    said = {key: lambda x, said=said: said(x, mesh) for key, said in line.entries}
    Step.block = staticmethod(laid_out(Step.block, said))
    assert together == constraints_of(lambda *args: step(*args), *shapes)  # traced anew


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
    together = constraints_of(written(step, [line], mesh), *shapes)
    assert together == [P("x", None), P(None, "x"), P(None, "x")]
    Step.loss = staticmethod(
        laid_out(Step.loss, {key: lambda x, said=said: said(x, mesh) for key, said in line.entries})
    )
    assert together == constraints_of(lambda w, x: step(w, x), *shapes)  # traced anew
    # Where two are told alike, the shorter key that fits both is one entry.
    (both,) = in_functions(said[1:], sites.visits, lambda _: False, lambda *_: True)
    assert len(both.entries) == 2  # the third block is said nothing of
    sines = [line for line in sites.planned if line.names[0].startswith("sin in ")]
    outside = next(line for line in sines if len(line.places) == 1)
    (all_of,) = in_functions([*said, outside], sites.visits, lambda _: False, lambda *_: True)
    assert next(key for key, _ in all_of.entries) == ":sin float32[32,64]"
    assert all_of.named == 4
    alike = [as_made(P("x"), one) for one in said]
    (short,) = in_functions(alike, sites.visits, lambda _: False, lambda *_: True)
    assert [key for key, _ in short.entries] == [":tanh float32[32,64]"]
