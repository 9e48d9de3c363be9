"""Two layouts that are asked for with only fused operations between: the kernel is cut there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.lower.spmd import lower
from autoshard.lower.verify import verify_collectives
from autoshard.machine.load import load
from autoshard.problem.requirements.demands import demands_of
from autoshard.program.trace import trace
from autoshard.search.explain import Explainer
from autoshard.search.search import InfeasibleError, search
from autoshard.xla import analyse
from tests.helpers import toy_machine
from tests.problem.requirements.programs import array, plan_of

SIZES = {"x": 4, "y": 2}
MESH = AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * len(SIZES))
CUBE = array(16, 16, 16)
SQUARE = array(64, 64)


def constrain(x, *entries):
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*entries)))


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True))


def in_a_row(first, second, between=jnp.sin):
    def step(x):
        return constrain(between(constrain(x, *first)), *second)

    return step


def verified(step, *shapes, requirements=(), **options):
    """The kinds of the collectives of a plan that Shardy's own passes agree with."""
    plan = plan_of(trace(step, *shapes), *requirements, **{"mesh": SIZES, **options})
    assert all(one["kept"] for one in plan.requirements)
    lowered = lower(plan, step, *shapes)
    assert verify_collectives(lowered).agrees
    return sorted((move.kind, move.axes) for move in plan.moves if move.kind != "all_slice")


def over_x(moves):
    """Of an axis that no layout names, products may make use as they like."""
    return [move for move in moves if "x" in move[1]]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("x",), (None, "x"), [("all_to_all", ("x",))]),
        (("y", None, "x"), ("y", "x", None), [("all_to_all", ("x",))]),
        (("x", "y"), (("x", "y"), None), [("all_to_all", ("y",))]),
        (("y", None, "x"), (None, ("x", "y")), [("all_to_all", ("x",)), ("all_to_all", ("y",))]),
        (("x", "y"), (), [("all_gather", ("x",)), ("all_gather", ("y",))]),
        ((), ("x", "y"), []),
    ],
)
@pytest.mark.parametrize("between", [jnp.sin, lambda x: x], ids=["sin", "nothing"])
def test_both_layouts_are_kept_with_the_collectives_between_them(first, second, expected, between):
    assert verified(in_a_row(first, second, between), CUBE) == expected


def test_before_and_behind_products():
    def step(x, w):
        x = constrain(x @ w, "x", None)
        x = constrain(norm(x), None, None)
        return x @ w

    assert ("all_gather", ("x",)) in verified(step, SQUARE, SQUARE, mesh={"x": 8})


def test_a_reshape_between():
    def step(x, w):
        x = constrain(x @ w, "x", None)
        return constrain(x.reshape(64, 8, 8), None, "x", None)

    assert over_x(verified(step, SQUARE, SQUARE)) == [("all_to_all", ("x",))]


def test_a_constraint_and_a_pin_of_the_user():
    def step(x, w):
        return jnp.sin(constrain(x @ w, "x", None))

    asked = ("pin result [None, x]",)
    assert over_x(verified(step, SQUARE, SQUARE, requirements=asked)) == [("all_to_all", ("x",))]


def test_megatrons_sequence_parallelism_forward_and_backward():
    def step(w, x):
        def loss(w):
            h = constrain(x @ w["embed"], None, "x", None)
            n = constrain(norm(h), None, None, None)
            a = constrain(jax.nn.gelu(n @ w["up"]), None, None, "x")
            return jnp.mean((h + constrain(a @ w["down"], None, "x", None)) ** 2)

        return jax.value_and_grad(loss)(w)

    w = {"embed": array(64, 64), "up": array(64, 256), "down": array(256, 64)}
    kinds = [kind for kind, _ in verified(step, w, array(4, 64, 64))]
    assert "all_gather" in kinds


def test_what_is_cut_is_written_and_takes_memory():
    """On a chip, the kernel in front of the reshard reads and writes what would be fused."""
    step = in_a_row(("x",), (None, "x"))
    machine = load("v5p-8")
    plan = search(trace(step, CUBE), machine, mesh=SIZES, baselines=False)
    program = trace(step, CUBE)
    flow = demands_of(program, (), plan.mesh).facts(analyse(program, machine.chip))
    (cut,) = (v for v, copy in enumerate(plan.decisions.copy) if copy is not None)
    assert cut in flow.parted
    assert flow.is_inside(program, cut)
    # Two kernels in place of one: each is launched, and moves its part in and out of memory.
    chip = machine.chip
    once = chip.launch_seconds + 2 * 4 * 16**3 / 4 / chip.memory_rate
    sines = 2 * 16**3 / 4 * 100 / chip.vector_flops
    assert once <= plan.estimate.compute_seconds <= 2 * once + sines


def test_what_a_program_lays_out_may_lie_otherwise_for_its_readers():
    program = trace(lambda x: jnp.cos(constrain(jnp.sin(x), "x")), CUBE)
    flow = analyse(program, toy_machine().chip)
    made = {op.primitive: op.outputs[0] for op in program.ops}
    laid_out = made["sharding_constraint"]
    assert flow.is_inside(program, laid_out)
    assert flow.can_be_copied(program, laid_out)
    assert not flow.can_be_copied(program, made["sin"])


def test_one_layout_leaves_kernels_whole():
    program = trace(in_a_row(("x",), ("x",)), CUBE)
    shape = plan_of(program, mesh=SIZES).mesh
    flow = demands_of(program, (), shape).facts(analyse(program, toy_machine().chip))
    assert flow.parted == frozenset()


ROWS = array(16, 8)
LONG = array(16)
SHORT = array(8)


def joined(x):
    return constrain(jnp.sin(jnp.concatenate([x, jnp.cos(x)])), "x", None)


def reversed_half(x):
    rows = jnp.flip(jnp.cumsum(x))
    return constrain(jnp.sin(jnp.tanh(rows)), "x"), jnp.tanh(rows)[::2]


def summed_and_read(x):
    total = jnp.tanh(jnp.cumsum(x))
    return constrain(jnp.sin(total), "x"), total[::2]


def largest(x, w):
    """Loses a layout between a result that is state and the sort that reads the same sum."""

    def loss(w):
        y = x * jax.nn.one_hot(jnp.argmax(x), 8)
        top = jax.lax.top_k(jnp.sin(y + w), 4)[0]
        return jnp.sum(jnp.tanh(top)) + jnp.mean(jnp.tanh(jnp.tanh(y).reshape(2, 4)))

    value, gradient = jax.value_and_grad(loss)(w)
    return value, w - gradient


@pytest.mark.parametrize(
    ("step", "shapes", "asked", "options", "chips"),
    [
        (joined, (ROWS,), (), {}, "v5e-8"),
        (reversed_half, (LONG,), (), {}, "v5e-8"),
        (summed_and_read, (LONG,), (), {}, "v5e-8"),
        (largest, (SHORT, SHORT), ("pin [1] [x]",), {"donate_argnums": (1,)}, ""),
    ],
)
def test_one_layout_at_an_end_and_an_operation_that_is_whole_at_another(
    step, shapes, asked, options, chips
):
    program, machine = trace(step, *shapes, **options), chips or toy_machine(8)
    plan = search(program, machine, mesh={"x": 8}, requirements=asked, baselines=False)
    assert all(one["kept"] for one in plan.requirements)
    assert verify_collectives(lower(plan, step, *shapes)).agrees
    value = next(v for v, copy in enumerate(plan.decisions.copy) if copy is not None)
    explained = Explainer(program, machine, plan).explain(value)
    assert explained.step_seconds == plan.estimate.step_seconds


def test_too_little_memory_is_not_taken_for_a_layout_that_cannot_be_kept():
    program = trace(joined, array(8192, 8192))
    with pytest.raises(InfeasibleError, match="raise `limit memory 1KiB"):
        search(program, "v5e-8", mesh={"x": 8}, memory_limit=2**10, baselines=False)
