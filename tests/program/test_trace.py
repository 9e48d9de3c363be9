"""The tracer: what it makes of every kind of jaxpr, and what it says when it cannot.

A program is pinned by its sketch: its ops in order, loops as `scan*4( … )`, branches as
`branch( … )` (`branch-( … )` where another one is dearer and this one is not priced), and `'`
after an op of the backward pass. Every program is also held to the invariants of a flat graph.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import autoshard
from autoshard.program.rules.ask_shardy import FactorKind, NoRuleError, UserRule
from autoshard.program.trace import Op, Program, TraceError, trace


def f(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def i(*shape: int) -> jax.ShapeDtypeStruct:
    return f(*shape, dtype=jnp.int32)


@dataclass(frozen=True, slots=True)
class Step:
    """A function, its arguments, and the sketch of its program."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    sketch: str
    options: dict[str, Any]


STEPS: dict[str, Step] = {}


def step(*args: Any, sketch: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    def keep(fn: Callable[..., Any]) -> Callable[..., Any]:
        STEPS[fn.__name__] = Step(fn, args, " ".join(sketch.split()), options)
        return fn

    return keep


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


def of_kind(program: Program, primitive: str) -> list[Op]:
    return [op for op in program.ops if op.primitive == primitive]


def traced(name: str) -> Program:
    given = STEPS[name]
    return trace(given.fn, *given.args, **given.options)


# -- derivatives and calls ---------------------------------------------------------------------


@step(f(8, 16), f(16, 4), sketch="dot_general tanh reduce_sum return")
def dead_code_is_gone(x, w):
    jnp.exp(x) @ w
    return jnp.sum(jnp.tanh(x @ w))


@step(
    f(16, 4),
    f(8, 16),
    sketch="""dot_general sin cos reduce_sum broadcast_in_dim' mul' dot_general' transpose'
    return return""",
)
def value_and_gradient(w, x):
    return jax.value_and_grad(lambda v: jnp.sum(jnp.sin(x @ v)))(w)


@step(f(8, 8), f(4, 8), sketch="dot_general sin sin sin return")
def checkpointed(w, x):
    return jnp.sin(jax.checkpoint(lambda h: jnp.sin(jnp.sin(h @ w)))(x))


@step(
    f(8, 8),
    f(4, 8),
    sketch="""dot_general sin sin cos broadcast_in_dim' mul' dot_general' sin' cos' cos' mul'
    mul' dot_general' transpose' return""",
)
def gradient_of_checkpointed(w, x):
    block = jax.checkpoint(lambda h, v: jnp.sin(jnp.sin(h @ v)))
    return jax.grad(lambda v: jnp.sum(jnp.sin(block(x, v))))(w)


@step(f(8), sketch="sin mul return")
def custom_jvp(x):
    return sine_by_hand(x)


@step(f(8), sketch="cos mul broadcast_in_dim' mul' return")
def gradient_of_custom_jvp(x):
    return jax.grad(lambda y: jnp.sum(sine_by_hand(y)))(x)


@step(f(8, 16), f(16, 4), sketch="dot_general return")
def custom_vjp(x, w):
    return matmul_by_hand(x, w)


@step(
    f(8, 16),
    f(16, 4),
    sketch="""dot_general cos broadcast_in_dim' mul' transpose' dot_general' transpose'
    dot_general' return return""",
)
def gradient_of_custom_vjp(x, w):
    return jax.grad(lambda *a: jnp.sum(jnp.sin(matmul_by_hand(*a))), argnums=(0, 1))(x, w)


@step(f(8, 16), sketch="mul neg exp add return")
def nested_jit(x):
    inner = jax.jit(lambda y: jnp.exp(-jax.jit(lambda z: z * z)(y)))
    return inner(x) + x


# -- loops and branches ------------------------------------------------------------------------


@step(
    f(4, 8, 8),
    f(2, 8),
    f(2, 8),
    sketch="""scan*4( enter carry unstack dot_general add tanh reduce_sum yield stack )
    return return""",
)
def scan(weights, x, bias):
    def layer(h, w):
        return jnp.tanh(h @ w + bias), jnp.sum(h)

    return lax.scan(layer, x, weights)


@step(f(4, 8), f(8), sketch="scan*4( carry unstack add yield stack ) return return")
def reverse_scan(rows, x):
    return lax.scan(lambda h, row: (h + row, h), x, rows, reverse=True)


@step(
    f(3, 5, 8),
    f(8),
    sketch="""scan*3( carry unstack scan*5( carry unstack mul yield stack ) yield stack )
    return return""",
)
def nested_scan(blocks, x):
    def outer(h, block):
        return lax.scan(lambda g, row: (g * row, g), h, block)

    return lax.scan(outer, x, blocks)


@step(
    f(4, 8, 8),
    f(2, 8),
    sketch="""scan*4( carry unstack dot_general sin cos yield stack stack )
    broadcast_in_dim'
    scan*4( carry' unstack' unstack' unstack' mul' dot_general' transpose' dot_general'
    yield' stack' ) return""",
)
def gradient_of_scan(weights, x):
    def loss(w):
        return jnp.sum(lax.scan(lambda h, v: (jnp.sin(h @ v), None), x, w)[0])

    return jax.grad(loss)(weights)


@step(f(8), sketch="scan*6( carry mul yield ) return")
def counted_loop(x):
    return lax.fori_loop(0, 6, lambda _, h: h * 2.0, x)


@step(f(0, 8), f(8), sketch="scan*0( carry unstack add yield ) return")
def scan_over_nothing(rows, x):
    return lax.scan(lambda h, row: (h + row, None), x, rows)[0]


@step(
    f(8),
    f(8, 8),
    i(),
    trip_counts=5,
    sketch="while*5( enter enter carry carry lt add dot_general yield yield ) return",
)
def while_loop(x, w, last):
    return lax.while_loop(lambda s: s[0] < last, lambda s: (s[0] + 1, s[1] @ w), (FIRST, x))[1]


@step(
    f(8, 8),
    i(),
    sketch="""gt convert_element_type branch-( enter mul ) branch( enter dot_general ) join
    return""",
)
def two_branches(x, which):
    return lax.cond(which > 0, lambda: x @ x, lambda: x * 2.0)


@step(
    f(8, 8),
    i(),
    sketch="""clamp branch-( enter sin ) branch( enter dot_general dot_general )
    branch-( enter dot_general ) join return""",
)
def three_branches(x, which):
    return lax.switch(which, [jnp.sin, lambda y: y @ y @ y, lambda y: y @ y], x)


@step(
    f(8, 8),
    i(),
    f(8, 8),
    sketch="""gt convert_element_type branch-( enter enter mul ) branch( enter enter dot_general )
    join return""",
)
def branches_with_own_operands(x, which, y):
    return lax.cond(which > 0, lambda: x @ y, lambda: x * 2.0)


@step(
    f(8, 8),
    i(),
    i(),
    sketch="""gt convert_element_type
    branch( enter enter dot_general dot_general dot_general )
    branch-( enter enter gt convert_element_type
        branch-( enter transpose dot_general dot_general )
        branch-( enter dot_general dot_general ) join )
    join return""",
)
def branches_within_a_branch(x, outer, inner):
    def two():
        return lax.cond(inner > 0, lambda: x @ x @ x, lambda: x.T @ x @ x)

    return lax.cond(outer > 0, two, lambda: x @ x @ x @ x)


@step(
    f(3, 8, 8),
    f(8, 8),
    i(),
    sketch="""gt convert_element_type
    branch-( enter enter dot_general dot_general )
    branch( enter enter scan*3( carry unstack dot_general yield ) ) join return""",
)
def loop_within_a_branch(weights, x, which):
    def loop():
        return lax.scan(lambda h, w: (h @ w, None), x, weights)[0]

    return lax.cond(which > 0, loop, lambda: x @ x @ x)


# -- other primitives --------------------------------------------------------------------------


@step(
    jax.eval_shape(lambda: jax.random.key(0)),
    sketch="random_split slice squeeze random_bits return",
)
def typed_key(key):
    return jax.random.bits(jax.random.split(key)[0], (8, 16))


@step(f(2, dtype=jnp.uint32), sketch="random_wrap random_bits return")
def raw_key(key):
    return jax.random.bits(key, (8, 16))


@step(f(32, 16), i(8, 1), sketch="gather return")
def gathered(table, rows):
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lax.gather(table, rows, numbers, (1, 16), mode="clip")


@step(f(32, 16), i(8, 1), f(8, 16), sketch="scatter-add scatter return return")
def scattered(table, rows, update):
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    added = lax.scatter_add(table, rows, update, numbers, mode="clip")
    return added, lax.scatter(table, rows, update, numbers, mode="clip")


@step(f(8, 16), i(8, 16), sketch="sort return return")
def sorted_pairs(keys, values):
    return lax.sort((keys, values), num_keys=1)


@step(f(8, 16), sketch="top_k return return")
def top(x):
    return lax.top_k(x, 4)


@step(f(8, 16), sketch="cumsum cummax return return")
def running(x):
    return lax.cumsum(x, axis=1), lax.cummax(x, axis=0, reverse=True)


@step(f(8, 8, 8, 4), f(3, 3, 4, 6), sketch="conv_general_dilated return")
def convolved(x, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)


@step(f(8, 8, 8, 4), sketch="reduce_window_max reduce_window_sum return return")
def pooled(x):
    window, strides = (1, 2, 2, 1), (1, 2, 2, 1)
    largest = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "VALID")
    return largest, lax.reduce_window(x, 0.0, lax.add, window, strides, "VALID")


@step(
    f(8, 16),
    i(),
    f(8, 4),
    sketch="dynamic_slice dynamic_update_slice return return",
)
def dynamic_slices(x, at, update):
    piece = lax.dynamic_slice(x, (0, at), (8, 4), allow_negative_indices=False)
    return piece, lax.dynamic_update_slice(x, update, (0, at), allow_negative_indices=False)


@step(f(8, 16), sketch="fft return")
def fourier(x):
    return lax.fft(x, "RFFT", (16,))


@step(
    f(3, 4, 4),
    f(3, 4, 4),
    sketch="""cholesky iota add iota ge broadcast_in_dim broadcast_in_dim select_n triangular_solve
    eigh svd slice squeeze qr lu return return return return""",
)
def linear_algebra(a, b):
    lower = lax.linalg.cholesky(a, symmetrize_input=False)
    solved = lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)
    _, values = lax.linalg.eigh(a, symmetrize_input=False)
    singular = lax.linalg.svd(a, compute_uv=False)[0]
    return lax.linalg.qr(solved)[1], values, singular, lax.linalg.lu(a)[0]


FIRST = np.int32(0)


@jax.custom_jvp
def sine_by_hand(x):
    return jnp.sin(x) * 2.0


sine_by_hand.defjvp(lambda p, t: (sine_by_hand(*p), jnp.cos(p[0]) * 2.0 * t[0]))


@jax.custom_vjp
def matmul_by_hand(x, w):
    return x @ w


matmul_by_hand.defvjp(
    lambda x, w: (x @ w, (x, w)), lambda saved, t: (t @ saved[1].T, saved[0].T @ t)
)


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
    allowed = {f"test_program.py:{number}" for fn in helpers for number in lines_of(fn)}
    allowed |= {f"test_program.py:{number}" for number in derivative_lines()}
    for op in program.ops:
        if not op.boundary:
            # The scalar that chooses a branch or ends a loop has no reader.
            decides = [program.values[output].shape for output in op.outputs] == [()]
            assert decides or any(readers[o] for o in op.outputs), f"nobody reads {op}"
        if op.primitive != "return":
            assert op.line in allowed, str(op)


BOUNDARY = {"enter", "carry", "unstack", "yield", "stack", "join", "return"}
INTO = {"enter", "carry", "unstack"}
OUT_OF = {"yield", "stack"}


def lines_of(fn: Any) -> range:
    lines, first = inspect.getsourcelines(fn)
    return range(first, first + len(lines))


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
        "unstack": "model/stack",
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
        f"sin at model (test_program.py:{line})",
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
        "program two layers: 7 ops, 10 values, 3 inputs (0.00 GiB, 2 of them state), 1 regions"
    )
    assert [str(program.values[value]) for value in program.inputs] == [
        "f32[1024]",
        "f32[1024,1024]",
        "f32[255,1024]",
    ]
    assert [program.values[v].bytes for v in program.inputs] == [4096, 4 * 1024**2, 255 * 4096]


# -- trips -------------------------------------------------------------------------------------


def two_loops(x):
    def again(h):
        with jax.named_scope("inner"):
            return lax.while_loop(lambda g: jnp.sum(g) < 9.0, jnp.exp, h)

    with jax.named_scope("outer"):
        x = lax.while_loop(lambda h: jnp.sum(h) < 5.0, lambda h: jnp.sin(again(h)), x)
    with jax.named_scope("last"):
        return lax.while_loop(lambda h: jnp.sum(h) < 7.0, jnp.cos, x)


@pytest.mark.parametrize(
    ("trip_counts", "expected"),
    [
        (3, {"sin": 3, "exp": 9, "cos": 3}),
        ((2, 5, 7), {"sin": 2, "exp": 10, "cos": 7}),
        ([2, 5, 0], {"sin": 2, "exp": 10, "cos": 0}),
        ({"inner": 4, "outer": 6, "last": 1}, {"sin": 6, "exp": 24, "cos": 1}),
        ({"outer/inner": 4, "outer": 6, "last": 1}, {"sin": 6, "exp": 24, "cos": 1}),
    ],
)
def test_trip_counts_of_while_loops(trip_counts: Any, expected: dict[str, int]) -> None:
    program = trace(two_loops, f(8), trip_counts=trip_counts)
    assert {name: of_kind(program, name)[0].trips for name in expected} == expected
    assert [region.kind for region in program.regions] == ["step", "while", "while", "while"]
    assert [region.parent for region in program.regions] == [-1, 0, 1, 0]


@pytest.mark.parametrize(
    ("trip_counts", "warned"),
    [((), [0, 1, 2]), ((3,), [1, 2]), ({"outer": 3}, [2]), ({"elsewhere": 3}, [0, 1, 2])],
)
def test_a_while_loop_without_a_trip_count_is_counted_once_with_a_warning(
    trip_counts: Any, warned: list[int]
) -> None:
    first = lines_of(two_loops)[0]
    lines = [first + 6, first + 3, first + 8]
    scopes = ["outer", "outer/inner", "last"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = trace(two_loops, f(8), trip_counts=trip_counts)
    assert [str(entry.message) for entry in caught] == [
        f"while loop {number} at {scopes[number]} (test_program.py:{lines[number]}) has no trip "
        "count and is counted once: pass trip_counts=… with its number of iterations"
        for number in warned
    ]
    lengths = [
        region.trips // program.regions[region.parent].trips for region in program.regions[1:]
    ]
    assert all(lengths[number] == 1 for number in warned)


# -- inputs, outputs, state --------------------------------------------------------------------

TREE = {"w": f(8, 4), "b": f(4)}


def test_inputs_and_outputs_are_named_by_their_tree_paths() -> None:
    def fn(params, batch, scale):
        return {"loss": jnp.sum(batch[0] @ params["w"]) * scale, "parts": [params["b"], batch[1]]}

    program = trace(fn, TREE, (f(2, 8), i(3)), f())
    assert program.input_paths == ("[0]['b']", "[0]['w']", "[1][0]", "[1][1]", "[2]")
    assert program.output_paths == ("['loss']", "['parts'][0]", "['parts'][1]")
    assert trace(jnp.sin, f(8)).output_paths == ("",)


STATE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any, dict[str, str]]] = {
    "a tree that comes back is state": (
        lambda p, x: (jnp.sum(x), p),
        (TREE, f(8)),
        (),
        {"[0]['b']": "[1]['b']", "[0]['w']": "[1]['w']"},
    ),
    "two equal-shaped trees are matched in order": (
        lambda p, average: (p, average),
        (TREE, TREE),
        (),
        {
            "[0]['b']": "[0]['b']",
            "[0]['w']": "[0]['w']",
            "[1]['b']": "[1]['b']",
            "[1]['w']": "[1]['w']",
        },
    ),
    "parameters do not take the place of a moment": (
        lambda p, moments: (jnp.sum(p["b"]), moments, p),
        (TREE, (TREE, TREE)),
        0,
        {
            "[0]['b']": "[2]['b']",
            "[0]['w']": "[2]['w']",
            "[1][0]['b']": "[1][0]['b']",
            "[1][0]['w']": "[1][0]['w']",
            "[1][1]['b']": "[1][1]['b']",
            "[1][1]['w']": "[1][1]['w']",
        },
    ),
    "a single leaf that is not donated is not tied": (lambda x: (x, 1), (f(8),), (), {}),
    "a donated leaf is tied": (lambda x: (jnp.sum(x), x), (f(8),), (0,), {"[0]": "[1]"}),
    "a donated leaf with no result like it": (lambda x: jnp.sum(x), (f(8),), 0, {}),
    "a tree of other shapes is not state": (
        lambda p: jax.tree.map(lambda leaf: leaf[None], p),
        (TREE,),
        (),
        {},
    ),
    "a tree of another type is not state": (
        lambda p: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), p),
        (TREE,),
        (),
        {},
    ),
    "state within a tuple": (
        lambda state, x: ((state[0], x), jnp.sum(x)),
        ((TREE, f(3)), f(5)),
        (),
        {"[0][0]['b']": "[0][0]['b']", "[0][0]['w']": "[0][0]['w']"},
    ),
}


@pytest.mark.parametrize("name", STATE)
def test_state_ties(name: str) -> None:
    fn, args, donate, expected = STATE[name]
    program = trace(fn, *args, donate_argnums=donate)
    inputs, outputs = program.input_paths, program.output_paths
    assert {inputs[source]: outputs[result] for source, result in program.ties} == expected


def test_donated_inputs_are_all_leaves_of_the_argument() -> None:
    program = trace(lambda x, p, y: x, f(8), TREE, f(3), donate_argnums=(1, 2))
    assert program.donated == {1, 2, 3}
    assert trace(lambda x: x, f(8)).donated == frozenset()


def test_a_training_step_with_adamw() -> None:
    optimizer = optax.adamw(1e-3)

    def loss_of(params, x):
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - x) ** 2)

    def train(params, state, x):
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        updates, state = optimizer.update(gradients, state, params)
        return loss, optax.apply_updates(params, updates), state

    params = {"up": f(8, 32), "down": f(32, 8)}
    state = jax.eval_shape(optimizer.init, params)
    program = trace(train, params, state, f(4, 8), donate_argnums=(0, 1))
    leaves = len(jax.tree.leaves((params, state)))
    assert program.ties == tuple((k, k + 1) for k in range(leaves))
    assert program.donated == frozenset(range(leaves))
    products = of_kind(program, "dot_general")
    assert [op.backward for op in products] == [False, False, True, True, True]
    assert [op.flops for op in products] == [2 * 4 * 8 * 32] * 5
    assert "[1][0].mu['down']" in program.input_paths
    assert "[2][0].nu['up']" in program.output_paths
    after = [op for op in program.ops if op.line.startswith(("transform.py", "update.py"))]
    assert after
    assert not any(op.backward for op in after)


# -- free values and constants -----------------------------------------------------------------

TABLE = np.arange(32, dtype=np.float32).reshape(8, 4)
OTHER = np.ones((4, 4), np.float32)


@pytest.mark.parametrize(
    ("fn", "primitive", "free"),
    [
        (lambda x: x * jnp.sin(jnp.arange(8.0)), "sin", True),
        (lambda x: x * jnp.sin(TABLE[:, 0]), "sin", True),
        (lambda x: x + (jnp.ones(8) - x), "sub", False),
        (lambda x: x * jnp.cos(jnp.exp(jnp.arange(8.0))), "cos", True),
        (lambda x: x + jnp.cumsum(jnp.arange(8.0)), "cumsum", False),
        (lambda x: x + jax.random.bits(jax.random.key(0), (8,)), "random_bits", False),
        (lambda x: x + jnp.sin(jax.random.uniform(jax.random.key(0), (8,))), "sin", False),
        (
            lambda x: lax.scan(lambda h, _: (h * jnp.sin(TABLE[:, 0]), None), x, length=3)[0],
            "sin",
            True,
        ),
        (
            lambda x: lax.scan(lambda h, _: (jnp.sin(h), None), jnp.ones(8), length=3)[0] + x,
            "sin",
            False,
        ),
    ],
)
def test_what_depends_on_constants_alone_is_free(
    fn: Callable[..., Any], primitive: str, free: bool
) -> None:
    program = trace(fn, f(8))
    found = {program.values[o].free for op in of_kind(program, primitive) for o in op.outputs}
    assert found == {free}
    assert not any(program.values[v].free for v in (*program.inputs, *program.outputs))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: x @ TABLE, 128),
        (lambda x: (x @ TABLE, jnp.sin(x) @ TABLE), 128),
        (lambda x: jax.jit(lambda y: y @ TABLE)(x) + jax.jit(lambda y: y @ TABLE)(x * 2), 128),
        (lambda x: (x @ TABLE) @ OTHER, 192),
        (lambda x: lax.scan(lambda h, _: (h, h @ TABLE), x, length=5), 128),
        (lambda x: x * 2.0 + jnp.ones(8), 0),
        (lambda x: (x @ TABLE, x * 2.0)[1], 0),
    ],
)
def test_the_bytes_of_a_constant_are_counted_once(fn: Callable[..., Any], expected: int) -> None:
    assert trace(fn, f(2, 8)).constant_bytes == expected


def test_no_array_is_needed() -> None:
    huge = f(2**20, 2**20)
    program = trace(lambda x, y: x @ y, huge, huge)
    assert program.ops[0].flops == 2.0**61
    concrete = trace(lambda x, y: x @ y, np.ones((2, 3), np.float32), jnp.ones((3, 4)))
    assert concrete.fingerprint == trace(lambda x, y: x @ y, f(2, 3), f(3, 4)).fingerprint


# -- prices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "primitive", "flops"),
    [
        ("dead_code_is_gone", "dot_general", 2 * 8 * 16 * 4),
        ("value_and_gradient", "dot_general", 2 * 8 * 16 * 4),
        ("scan", "dot_general", 2 * 2 * 8 * 8),
        ("convolved", "conv_general_dilated", 2 * (8 * 8 * 8 * 6) * (3 * 3 * 4)),
        ("gathered", "gather", 8 * 16),
        ("scattered", "scatter-add", 8 * 16),
        ("dynamic_slices", "dynamic_slice", 8 * 4),
        ("dynamic_slices", "dynamic_update_slice", 8 * 4),
        ("linear_algebra", "cholesky", 3 * 4**3),
    ],
)
def test_flops_of_one_run_of_an_op(name: str, primitive: str, flops: int) -> None:
    assert {op.flops for op in of_kind(traced(name), primitive)} == {float(flops)}


def test_flops_of_a_product_with_batch_dimensions_and_of_a_grouped_convolution() -> None:
    batched = trace(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), f(3, 4, 5), f(3, 5, 6))
    assert of_kind(batched, "dot_general")[0].flops == 2 * 3 * 4 * 5 * 6

    def grouped(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (2, 2), "VALID", dimension_numbers=numbers, feature_group_count=2
        )

    program = trace(grouped, f(1, 8, 8, 4), f(2, 2, 2, 6))
    assert program.ops[0].flops == 2 * (4 * 4 * 6) * (2 * 2 * 2)


def test_only_the_dearest_branch_is_priced() -> None:
    program = traced("three_branches")
    weights = [
        {op.weight for op in program.ops[region.start : region.stop]}
        for region in program.regions
        if region.kind == "branch"
    ]
    assert weights == [{0.0}, {1.0}, {0.0}]
    assert {op.weight for op in program.ops if op.region == 0} == {1.0}


# -- fingerprints and options ------------------------------------------------------------------


def base(x, w):
    return jnp.tanh(x @ w)


def test_equal_programs_have_equal_fingerprints() -> None:
    def named_otherwise(left, right):
        product = left @ right
        return jnp.tanh(product)

    one = trace(base, f(8, 16), f(16, 4))
    two = trace(named_otherwise, f(8, 16), f(16, 4), name="other")
    assert one.fingerprint == two.fingerprint
    assert len(one.fingerprint) == 16
    assert (one.name, two.name) == ("base", "other")


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (base, (f(8, 16), f(16, 5))),
        (base, (f(8, 16, dtype=jnp.bfloat16), f(16, 4, dtype=jnp.bfloat16))),
        (lambda x, w: jnp.sin(x @ w), (f(8, 16), f(16, 4))),
        (lambda x, w: jnp.tanh(x) @ w, (f(8, 16), f(16, 4))),
        (lambda x, w: (jnp.tanh(x @ w), x), (f(8, 16), f(16, 4))),
        (lambda w, x: base(x, w), (f(16, 4), f(8, 16))),
    ],
)
def test_other_shapes_and_other_code_have_other_fingerprints(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    assert trace(fn, *args).fingerprint != trace(base, f(8, 16), f(16, 4)).fingerprint


def test_other_trip_counts_have_other_fingerprints() -> None:
    prints = {trace(two_loops, f(8), trip_counts=count).fingerprint for count in (1, 2, (2, 2, 1))}
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"trip_counts": 3}, {"trip_counts": 3}),
        ({"trip_counts": (2, 3, 4)}, {"trip_counts": [2, 3, 4]}),
        (
            {"trip_counts": {"inner": 2, "outer": 3, "last": 4}},
            {"trip_counts": {"inner": 2, "outer": 3, "last": 4}},
        ),
        (
            {"trip_counts": 3, "donate_argnums": 0},
            {"trip_counts": 3, "donate_argnums": [0]},
        ),
    ],
)
def test_options_survive_a_round_trip(given: dict[str, Any], kept: dict[str, Any]) -> None:
    program = trace(two_loops, f(8), **given)
    assert program.options == kept
    again = trace(two_loops, f(8), **json.loads(json.dumps(program.options)))
    assert again.options == program.options
    assert again.fingerprint == program.fingerprint
    assert again.ties == program.ties
    assert again.donated == program.donated


def test_a_program_that_was_told_nothing_keeps_no_options() -> None:
    assert trace(base, f(8, 16), f(16, 4)).options == {}


# -- errors ------------------------------------------------------------------------------------


def does_not_multiply(x):
    y = jnp.sin(x)
    return y @ x


def asks_for_a_number(x):
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("fn", "offset", "kind"),
    [(does_not_multiply, 2, "TypeError"), (asks_for_a_number, 1, "TracerBoolConversionError")],
)
def test_a_function_that_does_not_trace(fn: Callable[..., Any], offset: int, kind: str) -> None:
    with pytest.raises(TraceError) as caught:
        autoshard.trace(fn, f(8, 4))
    where = f"{__file__}:{lines_of(fn)[offset]}"
    cause = caught.value.__cause__
    assert type(cause).__name__ == kind
    assert str(caught.value) == f"{fn.__name__} does not trace at {where}: {kind}: {cause}"


@pytest.mark.parametrize(("donate", "named"), [(2, 2), (-1, -1), ((0, 5), 5)])
def test_donating_an_argument_that_is_not_there(donate: Any, named: int) -> None:
    with pytest.raises(TraceError) as caught:
        trace(base, f(8, 16), f(16, 4), donate_argnums=donate)
    assert str(caught.value) == (
        f"donate_argnums holds {named}, but the function is given 2 arguments"
    )


def rotated(x, y):
    rotate = jax.ffi.ffi_call("rotate", f(8, 4))
    return rotate(x) + rotate(y), jax.ffi.ffi_call("fold", f(8))(x)


def test_an_op_without_a_rule_says_how_to_add_one() -> None:
    with pytest.raises(NoRuleError) as caught:
        trace(rotated, f(8, 4), f(8, 4))
    line = lines_of(rotated)[2]
    assert str(caught.value) == (
        "no sharding rule for 3 equation(s):\n"
        f"  - ffi_call 'rotate': (float32[8,4]) -> (float32[8,4]) at test_program.py:{line}: "
        "what it computes inside is opaque (2 times)\n"
        f"  - ffi_call 'fold': (float32[8,4]) -> (float32[8]) at test_program.py:{line}: "
        "what it computes inside is opaque\n"
        "Say for each which dimensions may be split, with one name per dimension and the same "
        "name where dimensions go together, for example "
        'user_rules={"rotate": UserRule("d0 d1 -> d2 d3", replicate=("d0", "d1", "d2", "d3"))}, '
        "where every dimension must stay whole until you say otherwise."
    )


def test_the_rule_that_the_message_proposes_is_taken() -> None:
    rules = {
        "rotate": UserRule("d0 d1 -> d2 d3", replicate=("d0", "d1", "d2", "d3")),
        "fold": UserRule("row column -> row", reduction={"column": "sum"}),
    }
    program = trace(rotated, f(8, 4), f(8, 4), user_rules=rules)
    first, second, fold = of_kind(program, "ffi_call")
    assert first.rule == second.rule
    assert {factor.kind for factor in first.rule.factors} == {FactorKind.REPLICATE}
    assert [(f.size, f.kind) for f in fold.rule.factors] == [
        (8, FactorKind.PASS),
        (4, FactorKind.REDUCE),
    ]
