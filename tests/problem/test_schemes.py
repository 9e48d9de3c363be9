"""The schemes that people write by hand come out when pinned, and no plan is worse than any."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard import models
from autoshard.cost.step_prices import step_prices
from autoshard.machine.load import load
from autoshard.models.llama import Llama, llama
from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import MeshShape, Move
from autoshard.problem.build import build
from autoshard.problem.schemes import SCHEMES, DoesNotApplyError, roles
from autoshard.program.repeats import find_repeats
from autoshard.program.trace import Program, trace
from autoshard.search.search import search
from autoshard.solve.pipeline import solve
from autoshard.xla import analyse
from tests.helpers import Case, sampled

NAMES = ("x", "y")
LARGE = 2**16
SIZES = Llama(layers=4, width=1024, heads=16, kv_heads=16, hidden=4096, vocabulary=8192)


@functools.cache
def program(scan: bool = True) -> Program:
    """A small but real train step: its batch is 64 and its sequence 512."""
    fn, args, options = llama(SIZES, 64, 512, scan=scan)
    return trace(fn, *args, **options)


@functools.cache
def pinned(name: str, sizes: tuple[int, ...], scan: bool = True) -> tuple[Case, Any]:
    """A scheme's best plan without a memory limit: (case, plan)."""
    step = program(scan)
    shape = MeshShape(NAMES[: len(sizes)], sizes)
    # Gradients' sums are hidden behind the backward pass, or an embedding's is not worth summing.
    machine = replace(load("v5p-8"), overlap=0.8)
    if len(sizes) == 1:  # sums over a whole torus are not scattered, those over a ring are
        ring = replace(machine.network[0], dimensions=sizes, wraps=(True,))
        machine = replace(machine, network=(ring,))
    prices = step_prices(step, analyse(step, machine.chip), machine, sizes)
    case = Case(step, {}, shape, build(prices, find_repeats(step), limit=None))
    scheme = next(scheme for scheme in SCHEMES if scheme.name == name)
    outcome = solve(case.built.problem, gap=0.02, pins=scheme.pins(case.built))
    assert outcome.solution is not None
    return case, case.plan(case.built.decode(outcome.solution.choices))


def moves(plan: Any, *kinds: str) -> list[Move]:
    return [move for move in plan.moves if move.kind in kinds and move.bytes > LARGE]


def is_weight(move: Move) -> bool:
    """Whether a move carries a weight, a gradient of one, or a part: no batch, no sequence."""
    sizes = re.sub(r"@(\([^)]*\)|\w+)", "", move.value.split(" -> ")[1])
    return {"512", "32768"}.isdisjoint(re.findall(r"\d+", sizes))


def axes_of(spec: Any) -> set[str]:
    """The mesh axes that a spec uses."""
    return {
        name for entry in spec if entry for name in ((entry,) if isinstance(entry, str) else entry)
    }


def matrices(plan: Any) -> dict[str, Any]:
    """Specs of the weights with two dimensions or more, and of their moments."""
    return {
        path: spec
        for path, spec in plan.specs["inputs"].items()
        if "norm" not in path and "count" not in path and not path.startswith("[2]")
    }


@pytest.mark.parametrize("scan", [True, False], ids=["scan", "unrolled"])
def test_data_parallel(scan: bool) -> None:
    """State is whole everywhere; gradients are all-reduced; nothing else of size moves."""
    _, plan = pinned("data parallel", (8,), scan)
    assert all(not axes_of(spec) for spec in matrices(plan).values())
    assert axes_of(plan.specs["inputs"]["[2]['tokens']"]) == {"x"}
    assert {move.kind for move in plan.moves if move.bytes > LARGE} == {"all_reduce"}
    assert all(is_weight(move) for move in moves(plan, "all_reduce"))


@pytest.mark.parametrize("scan", [True, False], ids=["scan", "unrolled"])
def test_fsdp(scan: bool) -> None:
    """State is cut over all axes, weights are gathered, gradients reduce-scattered."""
    _, plan = pinned("FSDP", (8,), scan)
    assert all(axes_of(spec) == {"x"} for spec in matrices(plan).values())
    assert axes_of(plan.specs["inputs"]["[2]['tokens']"]) == {"x"}
    gathers, scatters = moves(plan, "all_gather"), moves(plan, "reduce_scatter")
    layers = SIZES.layers
    assert sum(move.count for move in gathers) >= 7 * layers + 2
    assert sum(move.count for move in scatters) >= 7 * layers + 2
    assert all(is_weight(move) for move in [*gathers, *scatters])
    assert not moves(plan, "all_reduce", "all_to_all")


@pytest.mark.parametrize("scan", [True, False], ids=["scan", "unrolled"])
def test_tensor_parallel(scan: bool) -> None:
    """State is cut over all axes and no weight moves; activations do."""
    _, plan = pinned("tensor parallel", (8,), scan)
    assert all(axes_of(spec) == {"x"} for spec in matrices(plan).values())
    assert not axes_of(plan.specs["inputs"]["[2]['tokens']"])
    assert moves(plan, "all_reduce", "reduce_scatter")
    assert not [move for move in moves(plan, "all_gather") if is_weight(move)]


@pytest.mark.parametrize("sequence", [False, True], ids=["", "sequence"])
def test_fsdp_by_tensor_parallel(sequence: bool) -> None:
    """Weights are cut over both axes, gathered over data and never over model."""
    name = "FSDP x TP x sequence" if sequence else "FSDP x TP"
    case, plan = pinned(name, (2, 4))
    assert all(axes_of(spec) == {"x", "y"} for spec in matrices(plan).values())
    assert axes_of(plan.specs["inputs"]["[2]['tokens']"]) == {"x"}
    weights = [move for move in moves(plan, "all_gather") if is_weight(move)]
    assert weights
    assert {move.axes for move in weights} == {("x",)}
    up, down = (plan.specs["inputs"][f"[0]['layers']['{name}']"] for name in ("up", "down"))
    assert up[2] == "y"  # column, then row
    assert down[1] == "y"
    boundaries = roles(case.built).boundaries
    assert boundaries
    expected = (0, 1) if sequence else (0, -1)
    stored = {plan.decisions.stored[value] for value in boundaries}
    assert expected in stored
    if sequence:  # the sums of a layer become reduce-scatters over the sequence
        scattered = [move for move in moves(plan, "reduce_scatter") if not is_weight(move)]
        assert any("512@y" in move.value.split(" -> ")[1] for move in scattered)


@pytest.mark.parametrize(
    ("name", "machine"),
    sampled(
        [
            ("mlp", "h100-8"),
            ("llama3-8b-unrolled", "v5e-8"),
            ("llama3-8b-decode", "h100-8"),
            ("mixtral-8x7b", "v5p-8"),
            ("vit-l16", "h100-8"),
            ("gnn", "v5e-8"),
        ],
        lambda one: one[0] in ("mlp", "llama3-8b-decode", "gnn"),
    ),
)
def test_no_plan_is_worse_than_a_scheme_that_fits(name: str, machine: str) -> None:
    fn, args, options = models.tiny(name)
    plan = search(
        trace(fn, *args, **options), machine, mesh={"x": 2, "y": 4}, time_limit=120.0, gap=0.02
    )
    rows = {row.name: row.step_seconds for row in plan.baselines}
    assert set(rows) == {scheme.name for scheme in SCHEMES}
    priced = [seconds for seconds in rows.values() if seconds is not None]
    assert len(priced) >= 2
    assert plan.estimate.step_seconds <= min(priced)


def test_weights_of_a_serving_step() -> None:
    """Neither the cache, which comes back, nor the tokens are weights."""
    fn, args, options = models.tiny("llama3-8b-decode")
    step = trace(fn, *args, **options)
    prices = step_prices(step, analyse(step, load("v5p-8").chip), load("v5p-8"), (8,))
    found = roles(build(prices, find_repeats(step), limit=None))
    paths = {step.values[value].path for value in found.state}
    assert paths == {path for path in step.input_paths if path.startswith("[0]")}
    assert {step.values[value].path for value in found.batch} == {"[2]"}


def test_a_cache_that_layers_carry_is_no_boundary() -> None:
    def decode(weights: Any, cache: Any, x: Any) -> Any:
        def layer(carry: Any, one: Any) -> Any:
            (x, cache), (weight, index) = carry, one
            new = jnp.tanh(x @ weight)
            cache = lax.dynamic_update_slice(cache, new[None, :, None], (index, 0, 3, 0))
            rows = lax.dynamic_index_in_dim(cache, index, keepdims=False)
            return (x + jnp.sum(rows, axis=1), cache), None

        return lax.scan(layer, (x, cache), (weights, jnp.arange(4)))[0]

    shapes = (4, 64, 64), (4, 16, 32, 64), (16, 64)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    step = trace(decode, *args, donate_argnums=1)
    prices = step_prices(step, analyse(step, load("v5p-8").chip), load("v5p-8"), (8,))
    found = roles(build(prices, find_repeats(step), limit=None))
    (cache,) = (step.inputs[i] for i, _ in step.ties)
    carried = {
        first for first, _ in step.carries if cache in step.ops[step.values[first].producer].inputs
    }
    assert len(carried) == 1
    assert not carried & found.boundaries


def test_norms_and_biases_are_not_used_by_products() -> None:
    case, _ = pinned("FSDP", (8,))
    found = roles(case.built)
    paths = {case.program.values[value].path for value in found.used & found.state}
    assert not any("norm" in path for path in paths)
    assert {path.rsplit("[", 1)[1] for path in paths} == {
        f"'{name}']"
        for name in ("embedding", "unembedding", "wq", "wk", "wv", "wo", "gate", "up", "down")
    }


def test_a_scheme_that_does_not_apply_says_why() -> None:
    def step(w: Any, x: Any) -> Any:
        return x @ w

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (3, 64))]
    plan = search(trace(step, *shapes), "h100-8", mesh={"x": 8})
    notes = {row.name: row.note for row in plan.baselines}
    assert notes["data parallel"] == "does not apply: no batch dimension divides by 8"
    assert notes["FSDP x TP"] == "does not apply: needs a mesh of at least two axes"


def test_pins_are_solved_at_the_prices_of_the_plan() -> None:
    """A scheme's decisions cost what the evaluator says, and break no pin."""
    case, plan = pinned("FSDP", (8,))
    scheme = next(scheme for scheme in SCHEMES if scheme.name == "FSDP")
    pins = scheme.pins(case.built)
    outcome = solve(replace(case.built.problem, limit=None), gap=0.02, pins=pins)
    assert outcome.solution is not None
    assert all(outcome.solution.choices[node] in chosen for node, chosen in pins.items())
    decisions = case.built.decode(outcome.solution.choices)
    priced = evaluate(case.built.prices, decisions, case.mesh.names)
    assert priced.estimate.step_seconds == pytest.approx(outcome.report.objective, rel=1e-9)
    with pytest.raises(DoesNotApplyError, match="two axes"):
        next(s for s in SCHEMES if s.name == "FSDP x TP").pins(case.built)
    assert np.isfinite(plan.estimate.step_seconds)
