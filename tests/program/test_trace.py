"""The tracer: what it makes of every kind of jaxpr, and where it says that an op is.

A program is pinned by its sketch: its ops in order, loops as `scan*4( … )`, branches as
`branch( … )` (`branch-( … )` where another one is dearer and this one is not priced), and `'`
after an op of the backward pass. Every program is also held to the invariants of a flat graph.
"""

from __future__ import annotations

import inspect
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.program.trace import Program, trace
from tests.program.steps import (
    STEPS,
    Step,
    f,
    lines_of,
    matmul_by_hand,
    of_kind,
    sine_by_hand,
    traced,
)


def sketch(program: Program) -> str:
    """`program` in the notation of the module docstring."""
    words: list[str] = []
    for position in range(len(program.ops) + 1):
        words.extend(")" for r in program.regions[1:] if r.stop == position > r.start)
        for region in program.regions[1:]:
            if region.start == position:
                length = region.trips // max(program.regions[region.parent].trips, 1)
                priced = program.ops[position].weight == 1.0
                words.append(
                    f"branch{'' if priced else '-'}("
                    if region.kind == "branch"
                    else f"{region.kind}*{length}("
                )
        if position < len(program.ops):
            op = program.ops[position]
            words.append(op.primitive + ("'" if op.backward else ""))
    return " ".join(words)


@pytest.mark.parametrize("name", STEPS)
def test_the_sketch_of_every_step(name: str) -> None:
    assert sketch(traced(name)) == STEPS[name].sketch


@pytest.mark.parametrize("name", STEPS)
def test_every_program_is_a_flat_graph(name: str) -> None:
    program = traced(name)
    values, ops, regions = program.values, program.ops, program.regions
    assert [value.index for value in values] == list(range(len(values)))
    assert [op.index for op in ops] == list(range(len(ops)))
    assert [region.index for region in regions] == list(range(len(regions)))
    assert [(k, o) for k, value in enumerate(values) if (o := value.producer) >= 0] == [
        (output, op.index) for op in ops for output in op.outputs
    ]
    for op in ops:
        assert all(values[value].producer < op.index for value in op.inputs if value >= 0)
        shapes = [
            values[value].shape if value >= 0 else op.literal_shapes[position]
            for position, value in enumerate(op.inputs)
        ]
        assert [len(tensor) for tensor in op.rule.operands] == [len(shape) for shape in shapes]
        assert [len(t) for t in op.rule.results] == [len(values[o].shape) for o in op.outputs]
        assert op.boundary == (op.primitive in BOUNDARY)
        assert op.boundary or op.flops > 0


@pytest.mark.parametrize("name", STEPS)
def test_regions_nest_and_values_cross_them_through_boundary_ops_alone(name: str) -> None:
    program = traced(name)
    values, ops, regions = program.values, program.ops, program.regions
    assert (regions[0].parent, regions[0].start, regions[0].stop) == (-1, 0, len(ops))
    for region in regions[1:]:
        around = regions[region.parent]
        assert around.start <= region.start < region.stop <= around.stop
        assert region.trips % max(around.trips, 1) == 0
        siblings = [r for r in regions[region.index + 1 :] if r.parent == region.parent]
        assert all(region.stop <= other.start for other in siblings)
    for op in ops:
        holding = [r for r in regions if r.start <= op.index < r.stop]
        assert op.region == min(holding, key=lambda r: r.stop - r.start).index
        region = regions[op.region]
        once = op.primitive == "carry" or (op.primitive == "enter" and region.kind != "branch")
        assert op.trips == (regions[region.parent].trips if once else region.trips)
        expected = region.parent if op.primitive in INTO else op.region
        for value in op.inputs:
            if value >= 0 and values[value].producer >= 0:
                maker = ops[values[value].producer]
                leaves = maker.primitive in OUT_OF
                seen_in = regions[maker.region].parent if leaves else maker.region
                branches = {r.index for r in regions if r.parent == expected}
                assert seen_in in (branches if op.primitive == "join" else {expected})


@pytest.mark.parametrize("name", STEPS)
def test_carries_and_results_pair_up(name: str) -> None:
    program = traced(name)
    values, ops = program.values, program.ops
    for first, last in program.carries:
        begin, end = ops[values[first].producer], ops[values[last].producer]
        assert (begin.primitive, end.primitive) == ("carry", "yield")
        assert begin.region == end.region
        assert values[first].shape == values[last].shape
        assert values[first].dtype == values[last].dtype
    carried = len(program.carries)
    assert [len(of_kind(program, kind)) for kind in ("carry", "yield")] == [carried, carried]
    given = STEPS[name]
    out = jax.eval_shape(given.fn, *given.args)
    assert [(values[v].shape, values[v].dtype) for v in program.outputs] == [
        (leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(out)
    ]
    assert [ops[values[v].producer] for v in program.outputs] == list(
        ops[len(ops) - len(program.outputs) :]
    )
    assert program.in_tree == jax.tree.structure(given.args)
    assert program.out_tree == jax.tree.structure(out)


@pytest.mark.parametrize("name", STEPS)
def test_every_computed_op_is_needed_and_names_a_line_of_its_function(name: str) -> None:
    program = traced(name)
    readers = program.consumers()
    assert sorted(
        (op, position, value) for value, uses in enumerate(readers) for op, position in uses
    ) == [
        (op.index, position, value)
        for op in program.ops
        for position, value in enumerate(op.inputs)
        if value >= 0
    ]
    helpers = (STEPS[name].fn, sine_by_hand.fun, matmul_by_hand.fun)
    allowed = {f"steps.py:{number}" for fn in helpers for number in lines_of(fn)}
    allowed |= {f"steps.py:{number}" for number in derivative_lines()}
    for op in program.ops:
        if not op.boundary:
            # The scalar that chooses a branch or ends a loop has no reader.
            decides = [program.values[output].shape for output in op.outputs] == [()]
            assert decides or any(readers[o] for o in op.outputs), f"nobody reads {op}"
        if op.primitive != "return":
            assert op.line in allowed, str(op)


BOUNDARY = {"enter", "carry", "scan_slice", "yield", "scan_stack", "join", "return"}
INTO = {"enter", "carry", "scan_slice"}
OUT_OF = {"yield", "scan_stack"}


def derivative_lines() -> range:
    """The lines of this file in which the two derivatives by hand are defined."""
    lines = inspect.getsource(inspect.getmodule(Step)).splitlines()
    numbers = [k for k, text in enumerate(lines, start=1) if "_by_hand.def" in text]
    return range(numbers[0], numbers[1] + 3)


# -- where an op is ----------------------------------------------------------------------------


def test_scopes_follow_the_name_stack_through_calls_and_loops() -> None:
    def fn(x, rows):
        with jax.named_scope("model"):
            x = jnp.sin(x)

            def layer(h, row):
                with jax.named_scope("layer"):
                    return jax.jit(lambda y: jnp.cos(y))(h) * row, None

            with jax.named_scope("stack"):
                x, _ = lax.scan(layer, x, rows)
        return jnp.exp(x)

    program = trace(fn, f(8), f(4, 8))
    scopes = {op.primitive: op.scope for op in program.ops}
    assert scopes == {
        "sin": "model",
        "carry": "model/stack",
        "scan_slice": "model/stack",
        "cos": "model/stack/layer",
        "mul": "model/stack/layer",
        "yield": "model/stack",
        "exp": "",
        "return": "",
    }


def test_an_op_says_where_it_is() -> None:
    def fn(x):
        with jax.named_scope("model"):
            return jnp.sin(x)

    line = lines_of(fn)[2]
    program = trace(fn, f(8))
    assert [str(op) for op in program.ops] == [
        f"sin at model (test_trace.py:{line})",
        "return at (top) (no source line)",
    ]


def test_transposed_and_recomputed_ops_are_backward_and_forward_ones_are_not() -> None:
    program = traced("gradient_of_checkpointed")
    parts = Counter(
        "recomputed"
        if "rematted_computation" in op.scope
        else "transposed"
        if "transpose(" in op.scope
        else "forward"
        for op in program.ops
        if op.backward
    )
    assert parts == {"recomputed": 4, "transposed": 6}
    assert not any("transpose(" in op.scope for op in program.ops if not op.backward)


def test_a_program_describes_itself() -> None:
    params = {"w": f(1024, 1024), "b": f(1024)}
    program = trace(
        lambda p, x: (p, lax.scan(lambda h, _: (h @ p["w"], None), x, length=2)[0]),
        params,
        f(255, 1024),
        name="two layers",
    )
    assert str(program) == (
        "program two layers: 7 ops, 10 values, 3 inputs (0.00 GiB, 2 of them state), 1 region"
    )
    assert [str(program.values[value]) for value in program.inputs] == [
        "f32[1024]",
        "f32[1024,1024]",
        "f32[255,1024]",
    ]
    assert [program.values[v].bytes for v in program.inputs] == [4096, 4 * 1024**2, 255 * 4096]


def test_a_programs_own_stack_is_no_edge_of_a_loop():
    def step(x, y):
        a, b = jnp.unstack(jnp.stack([x, y], axis=1), axis=1)
        return a * b

    made = [op.primitive for op in trace(step, f(8, 4), f(8, 4)).ops]
    assert made == ["stack", "unstack", "mul", "return"]
    assert not BOUNDARY & {"stack", "unstack"}
