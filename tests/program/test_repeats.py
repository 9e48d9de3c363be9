"""Repeated layers are found, and deciding them once loses nothing that is not proven."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.cost.step_prices import step_prices
from autoshard.machine.load import load
from autoshard.models.llama import Llama, llama
from autoshard.models.mlp import mlp
from autoshard.plan.evaluate import evaluate, tidy
from autoshard.plan.plan import MeshShape
from autoshard.problem.build import build
from autoshard.program.repeats import find_repeats
from autoshard.program.trace import Program, trace
from autoshard.search.search import search
from autoshard.solve.evaluate import evaluate as evaluate_problem
from autoshard.xla import analyse
from tests.helpers import Case, _toss, case, random_plan, sampled, toy_machine

SIZES = Llama(layers=1, width=64, heads=8, kv_heads=8, hidden=128, vocabulary=128)


def unrolled(kind: str, layers: int) -> Program:
    """A train step whose layers are written out, one after the other."""
    if kind == "mlp":
        fn, args, options = mlp(16, 32, 64, layers)
    else:
        fn, args, options = llama(SIZES, 8, 16, layers=layers, scan=False)
    return trace(fn, *args, **options)


@pytest.mark.parametrize(
    ("kind", "most"), [("mlp", 1.0), pytest.param("llama", 1.05, marks=pytest.mark.long)]
)
def test_decisions_hardly_grow_with_layers(kind: str, most: float) -> None:
    """From 3 to 9 layers ops grow more than twice, what is decided not at all, or hardly."""
    small, large = (unrolled(kind, layers) for layers in (3, 9))
    assert len(large.ops) > 2 * len(small.ops)
    classes = [find_repeats(program) for program in (small, large)]
    assert len(classes[1].op_members) <= most * len(classes[0].op_members)
    assert len(classes[1].value_members) <= most * len(classes[0].value_members)
    nodes = [
        len(build(_prices(p), c, limit=None).problem.nodes)
        for p, c in zip((small, large), classes, strict=True)
    ]
    assert nodes[1] <= most * nodes[0]


def _prices(program: Program) -> Any:
    machine = load("h100-8")
    return step_prices(program, analyse(program, machine.chip), machine, (8,))


@pytest.mark.parametrize("kind", ["mlp", "llama"])
def test_members_of_a_class_are_alike(kind: str) -> None:
    program = unrolled(kind, 4)
    classes = find_repeats(program)
    for number, members in enumerate(classes.op_members):
        kinds = {(program.ops[m].primitive, program.ops[m].rule) for m in members}
        assert len(kinds) == 1
        assert {int(classes.op_class[m]) for m in members} == {number}
    for members in classes.value_members:
        assert len({(program.values[v].shape, program.values[v].dtype) for v in members}) == 1
    assert sorted(m for members in classes.op_members for m in members) == [
        op.index for op in program.ops
    ]
    weights = {
        path: int(classes.value_class[value])
        for path, value in zip(program.input_paths, program.inputs, strict=True)
        if path.startswith("[0]['layers']")
    }
    by_name: dict[str, set[int]] = {}
    for path, number in weights.items():
        by_name.setdefault(path.rsplit("[", 1)[1], set()).add(number)
    assert all(len(numbers) == 1 for numbers in by_name.values())  # one layout for all layers
    assert len(by_name) == len({number for (number,) in by_name.values()})


def test_no_copy_is_paid_for_where_the_last_layer_does_not_read_it() -> None:
    """Every layer's result goes to the next layer's product; the last one's to the loss."""
    program = unrolled("mlp", 6)
    given = case_of(program)
    readers = program.consumers()
    classes = given.built.classes
    last = [
        op.outputs[0]
        for op in program.ops
        if "layer_5" in op.scope
        and any("loss" in program.ops[r].scope for r, _ in readers[op.outputs[0]])
    ]
    assert last
    for value in last:
        members = classes.value_members[classes.value_class[value]]
        assert not any("layer_4" in program.ops[program.values[m].producer].scope for m in members)


def test_nothing_repeats_without_fold() -> None:
    program = unrolled("mlp", 4)
    classes = find_repeats(program, fold=False)
    assert all(len(members) == 1 for members in classes.op_members)
    assert all(len(members) == 1 for members in classes.value_members)


def test_a_program_without_layers_has_no_classes() -> None:
    def step(a: Any, b: Any) -> Any:
        return jnp.tanh(a @ b).sum(axis=0), a * 2

    program = trace(step, np.ones((4, 8), np.float32), np.ones((8, 6), np.float32))
    assert all(len(members) == 1 for members in find_repeats(program).op_members)


@pytest.mark.parametrize(
    ("kind", "layers", "mesh", "machine"),
    sampled(
        [
            ("mlp", 3, {"x": 8}, "toy"),
            ("mlp", 5, {"x": 2, "y": 4}, "toy"),
            ("mlp", 3, {"x": 8}, "v5e-8"),
            ("llama", 3, {"x": 8}, "toy"),
            ("llama", 3, {"x": 8}, "h100-8"),
        ],
        lambda one: one[0] == "mlp" and one[1] == 3,
    ),
)
def test_folded_and_unfolded_solves_agree(
    kind: str, layers: int, mesh: dict[str, int], machine: str
) -> None:
    """The unfolded problem holds every folded plan; layers that are alike are best decided alike.

    A bound of one says nothing against the plan of the other beyond what is proven: the folded
    plan is not cheaper than the unfolded bound, nor dearer than the unfolded plan beyond its gap.
    """
    program = unrolled(kind, layers)
    chips = toy_machine(8) if machine == "toy" else load(machine)
    folded, unfolded = (
        search(program, chips, mesh=mesh, gap=0.005, time_limit=20.0, baselines=False, fold=fold)
        for fold in (True, False)
    )
    assert folded.proof.gap <= 0.005
    assert folded.proof.objective >= unfolded.proof.bound * (1 - 1e-9)
    assert folded.proof.bound <= unfolded.proof.objective / (1 - unfolded.proof.gap) + 1e-12
    assert folded.proof.objective <= unfolded.proof.objective * 1.01


@pytest.mark.parametrize("kind", ["mlp", "llama"])
def test_a_folded_plan_costs_what_it_costs_unfolded(kind: str) -> None:
    """A copy that no layer reads is a whim of a random plan; some layers may read it, some not."""
    program = unrolled(kind, 4)
    given = case_of(program)
    prices, problem = given.built.prices, given.built.problem
    dice = np.random.default_rng(0)
    for _ in range(4):
        choices = _toss(problem, [np.ones(node.costs.size) for node in problem.nodes], dice)
        assert choices is not None
        decisions = given.built.decode(choices)
        most = evaluate(prices, decisions, ("x",)).estimate
        least = evaluate(prices, tidy(prices, decisions), ("x",)).estimate
        price = evaluate_problem(problem, choices)
        assert least.step_seconds * (1 - 1e-9) <= price.objective
        assert price.objective <= most.step_seconds * (1 + 1e-9)
        assert least.peak_bytes <= round(price.peak) + program.constant_bytes <= most.peak_bytes
    found = search(program, toy_machine(), mesh={"x": 8}, baselines=False)
    choices = given.built.encode(found.decisions)
    if choices is not None:
        price = evaluate_problem(problem, choices)
        assert price.objective == pytest.approx(found.estimate.step_seconds, rel=1e-9)


@pytest.mark.parametrize("kind", ["mlp", "llama"])
def test_the_ideal_does_not_depend_on_folding(kind: str) -> None:
    program = unrolled(kind, 4)
    prices = _prices(program)
    folded, unfolded = (
        prices.ideal_seconds(find_repeats(program, fold=fold).op_members) for fold in (True, False)
    )
    assert folded == pytest.approx(unfolded, rel=1e-9)


def case_of(program: Program) -> Case:
    """A case of an already traced program on one axis of eight toy chips."""
    prices = step_prices(program, analyse(program), toy_machine(), (8,))
    return Case(
        program, {}, MeshShape(("x",), (8,)), build(prices, find_repeats(program), limit=None)
    )


def test_copies_that_read_one_another_are_consistent() -> None:
    """A chain of equal elementwise blocks, whose copies read each other's results."""

    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(6):
            x = jnp.tanh(x @ w)
            x = jnp.exp(x) + x
        return x

    given = case(step, np.ones((8, 8), np.float32), np.ones((8, 8), np.float32), mesh={"x": 8})
    assert any(len(members) == 6 for members in find_repeats(given.program).op_members)
    for seed in range(10):
        random_plan(given, seed)  # priced, and so checked, on the unfolded program


def test_a_program_without_operations_has_no_repeats():
    program = trace(lambda x: (), jax.ShapeDtypeStruct((8,), "float32"))
    assert find_repeats(program).op_members == ()
