"""Loops, calls and values followed through them, on real modules."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.compiler.hlo.places import Place, trip_count, walk
from autoshard.compiler.hlo.scalars import depends_on_device, per_device
from autoshard.compiler.hlo.text import read_module
from autoshard.compiler.hlo.uses import readers
from autoshard.lower.facts.loop_trips import loop_trips
from autoshard.program.trace import trace
from tests.compiler.hlo.dumps import compiled, mesh_of, on

X = jax.ShapeDtypeStruct((64,), jnp.float32)


def loops(text: str) -> list[int | None]:
    """The trip counts of all loops, outermost first."""
    return [
        trip_count(place, instruction)
        for place in walk(read_module(text))
        for instruction in place.computation.instructions
        if instruction.opcode == "while"
    ]


def before_xla(function, *arguments) -> str:
    """HLO as JAX hands it over, with no trip count written by the compiler."""
    return jax.jit(function).lower(*arguments).as_text("hlo")


def counted(start: int, stop: int, step: int, test=jnp.less):
    def run(x):
        def body(state):
            index, x = state
            return index + step, jnp.sin(x) * index

        return jax.lax.while_loop(lambda state: test(state[0], stop), body, (start, x))[1]

    return run


@pytest.mark.parametrize(
    ("start", "stop", "step", "test"),
    [
        (0, 7, 1, jnp.less),
        (3, 17, 4, jnp.less),
        (0, 8, 2, jnp.less_equal),
        (9, 2, -3, jnp.greater),
        (9, 3, -3, jnp.greater_equal),
        (0, 12, 3, jnp.not_equal),
        (5, 5, 1, jnp.less),
    ],
)
def test_trip_counts(start, stop, step, test):
    turns, index = 0, start
    while test(index, stop):
        turns, index = turns + 1, index + step
    assert loops(before_xla(counted(start, stop, step, test), X)) == [turns]


def test_the_compiler_writes_the_same_count():
    final = compiled(counted(3, 17, 4), X)[1]
    assert loops(final) == [4]
    assert "known_trip_count" in final


def test_loops_in_loops_multiply():
    def run(x, weights):
        def outer(x, w):
            def inner(x, _):
                return jnp.tanh(x + w), None

            return jax.lax.scan(inner, x, None, length=5)[0], None

        return jax.lax.scan(outer, x, weights)[0]

    text = before_xla(run, X, jax.ShapeDtypeStruct((3, 64), jnp.float32))
    counts = [
        place.count
        for place in walk(read_module(text))
        for instruction in place.computation.instructions
        if instruction.opcode == "tanh"
    ]
    assert counts == [15]


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    def run(x):
        with jax.named_scope("until_small"):
            return jax.lax.while_loop(lambda x: x[0] > 0.1, lambda x: jnp.tanh(x) * 0.5, x)

    text = compiled(run, X)[1]
    assert loops(text) == [None]
    (inside,) = [
        place
        for place in walk(read_module(text))
        if any(i.opcode == "tanh" for i in place.computation.instructions)
    ]
    assert inside.count == 1
    assert ["until_small" in name for name in inside.unknown] == [True]
    program = trace(run, X, trip_counts=9)
    module = replace(read_module(text), loops=tuple(loop_trips(program)))
    (inside,) = [
        place
        for place in walk(module)
        if any(i.opcode == "tanh" for i in place.computation.instructions)
    ]
    assert (inside.count, inside.unknown) == (9, ())


def test_loops_of_one_line_have_the_trips_of_the_program_in_its_order():
    def run(x, y):
        def shrink(x):
            return jax.lax.while_loop(lambda x: x[0] > 0.1, lambda x: jnp.tanh(x) * 0.5, x)

        return [shrink(one) for one in (x, y)]

    y = jax.ShapeDtypeStruct((32,), jnp.float32)
    program = trace(run, X, y, trip_counts=[9, 4])
    module = read_module(compiled(run, X, y)[1])
    module = replace(module, loops=tuple(loop_trips(program)))
    counts = {
        instruction.shape_text.partition("{")[0]: place.count
        for place in walk(module)
        for instruction in place.computation.instructions
        if instruction.opcode == "tanh"
    }
    assert counts == {"f32[64]": 9, "f32[32]": 4}


def test_branches_run_once_each():
    def run(x):
        return jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)

    for text in (before_xla(run, X), compiled(run, X)[1]):
        found = [
            (instruction.opcode, place.count)
            for place in walk(read_module(text))
            for instruction in place.computation.instructions
            if instruction.opcode in ("sine", "cosine")
        ]
        assert sorted(found) == [("cosine", 1), ("sine", 1)]


@pytest.mark.parametrize("final", [False, True])
def test_slices_begin_where_the_partitioner_says(final):
    mesh = mesh_of({"x": 2, "y": 4})

    def run(x):
        return jax.lax.with_sharding_constraint(jnp.sin(x), on(mesh, ("y", "x")))

    x = jax.ShapeDtypeStruct((64,), jnp.float32, sharding=on(mesh))
    module = read_module(compiled(run, x)[final])
    starts = []
    for place in walk(module):
        for instruction in place.computation.instructions:
            if instruction.opcode == "dynamic-slice" and instruction.arrays[0].dtype == "f32":
                index = place.find(instruction.operands[1])
                assert depends_on_device(place, index)
                starts.append(per_device(place, index, 8))
    assert len(starts) == 1
    wanted = [8 * (2 * y + x) for x in range(2) for y in range(4)]
    assert starts[0] is not None
    np.testing.assert_array_equal(starts[0].reshape(8), wanted)


ARITHMETIC = """\
HloModule arithmetic, num_partitions=4

%fused (a: u32[], b: u32[]) -> u32[] {
  %a = u32[] parameter(0)
  %b = u32[] parameter(1)
  ROOT %m = u32[] multiply(%a, %b)
}

ENTRY %main () -> s32[] {
  %id = u32[] partition-id()
  %two = u32[] constant(2)
  %three = u32[] constant(3)
  %sum = u32[] add(%id, %three)
  %less = u32[] subtract(%id, %two)
  %product = u32[] fusion(%sum, %two), kind=kLoop, calls=%fused
  %rest = u32[] remainder(%product, %three)
  %quotient = u32[] divide(%product, %three)
  %small = pred[] compare(%id, %two), direction=LT
  %chosen = u32[] select(%small, %two, %three)
  %clamped = u32[] clamp(%two, %id, %three)
  %shifted = u32[] shift-left(%id, %two)
  %table = s32[2,3]{1,0} constant({ { 10, 20, 30 }, { 40, 50, 60 } })
  %zero = s32[] constant(0)
  %column = s32[] convert(%rest)
  %row = s32[] convert(%id)
  %entry = s32[1,1]{1,0} dynamic-slice(%table, %row, %column), dynamic_slice_sizes={1,1}
  %wide = s32[2,3]{1,0} broadcast(%zero), dimensions={}
  %part = s32[1,2]{1,0} slice(%table), slice={[1:2], [0:2]}
  %unknown = u32[] custom-call(), custom_call_target="dice"
  %sum.1 = u32[] add(%unknown, %id)
  %elided = s32[12]{0} constant({...})
  %lookup = s32[1]{0} dynamic-slice(%elided, %row), dynamic_slice_sizes={1}
  ROOT %out = s32[] reshape(%entry)
}
"""


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("sum", [3, 4, 5, 6]),
        ("less", [2**32 - 2, 2**32 - 1, 0, 1]),
        ("product", [6, 8, 10, 12]),
        ("rest", [0, 2, 1, 0]),
        ("quotient", [2, 2, 3, 4]),
        ("small", [1, 1, 0, 0]),
        ("chosen", [2, 2, 3, 3]),
        ("clamped", [2, 2, 2, 3]),
        ("shifted", [0, 4, 8, 12]),
        ("out", [10, 60, 50, 40]),
        ("wide", [[0] * 6] * 4),
        ("part", [[40, 50]] * 4),
        ("sum.1", None),
        ("lookup", None),
    ],
)
def test_arithmetic_on_every_device(name, values):
    module = read_module(ARITHMETIC)
    place = Place(module, module.computations["main"])
    found = per_device(place, place.find(name), 4)
    if values is None:
        assert found is None
    else:
        assert found is not None
        assert found.reshape(4, -1).squeeze().tolist() == values
    constant = name in ("wide", "part")
    assert depends_on_device(place, place.find(name)) != constant


def test_readers_look_through_copies_fusions_and_tuples():
    text = """\
HloModule uses

%inner (p: f32[8], q: f32[8]) -> (f32[8], f32[8]) {
  %p = f32[8]{0} parameter(0)
  %q = f32[8]{0} parameter(1)
  %c = f32[8]{0} copy(%p)
  %s = f32[8]{0} add(%q, %c)
  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%s, %c)
}

ENTRY %main (x: f32[8], y: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} parameter(1)
  %b = f32[8]{0} bitcast(%x)
  %f = (f32[8]{0}, f32[8]{0}) fusion(%b, %y), kind=kLoop, calls=%inner
  %g0 = f32[8]{0} get-tuple-element(%f), index=0
  %g1 = f32[8]{0} get-tuple-element(%f), index=1
  %n = f32[8]{0} negate(%g1)
  ROOT %m = f32[8]{0} maximum(%g0, %n)
}
"""
    module = read_module(text)
    place = Place(module, module.computations["main"])
    found = {(r.name, position) for _, r, position in readers(place, place.find("x"))}
    assert found == {("s", 1), ("n", 0)}
    where, made = place.origin(place.find("g1"))
    assert (where.computation.name, made.name) == ("main", "x")
    where, made = place.origin(place.find("g0"))
    assert (where.computation.name, made.name) == ("inner", "s")
