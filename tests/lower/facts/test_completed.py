"""What propagation completes of a program's own annotations, and the plan of exactly that."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard import compat
from autoshard.lower.collectives import read_collectives
from autoshard.lower.compare import compare
from autoshard.lower.facts.completed import completed
from autoshard.lower.merged import drop_constants, merge_equal
from autoshard.machine.load import load
from autoshard.plan.plan import MeshShape
from autoshard.problem.requirements.from_program import constraints_of
from autoshard.problem.requirements.preferred import Preferred
from autoshard.program.layout_pattern import Dimension, LayoutPattern
from autoshard.program.rules.user import UserRule
from autoshard.program.trace import trace
from autoshard.search.search import MeshError, search

FSDP = MeshShape(("fsdp",), (8,))
BOTH = MeshShape(("fsdp", "tensor"), (4, 2))
X = ("x",)
LAYERS, ROWS, WIDTH, HIDDEN = 4, 128, 64, 256


def on(mesh: MeshShape):
    kinds = (AxisType.Auto,) * len(mesh.sizes)
    whole = AbstractMesh(mesh.sizes, mesh.names, axis_types=kinds)
    return lambda *spec: NamedSharding(whole, P(*spec))


def stacked(mesh: MeshShape, hidden: str | None, *, remat: bool):
    """A step of layers in a loop, annotated as people do: parameters, and the input of a layer."""
    at = on(mesh)

    def layer(x, weights):
        up, down = weights
        x = jax.lax.with_sharding_constraint(x, at("fsdp", None))
        return x + jax.nn.silu(x @ up) @ down, None

    def loss(params, x):
        body = jax.checkpoint(layer) if remat else layer
        return jnp.sum(jax.lax.scan(body, x, params)[0] ** 2)

    def step(params, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    up, down = (LAYERS, WIDTH, HIDDEN), (LAYERS, HIDDEN, WIDTH)
    params = tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in (up, down))
    given = (at(None, "fsdp", hidden), at(None, hidden, "fsdp"))
    args = (params, jax.ShapeDtypeStruct((ROWS, WIDTH), "float32"))
    return jax.jit(step, in_shardings=(given, at("fsdp", None)), out_shardings=given), args


@pytest.mark.parametrize(
    ("mesh", "hidden", "remat"),
    [(FSDP, None, True), (BOTH, "tensor", True), (BOTH, None, True), (BOTH, "tensor", False)],
)
def test_a_completed_plan_has_the_collectives_of_the_program_itself(mesh, hidden, remat):
    step, args = stacked(mesh, hidden, remat=remat)
    program = trace(step, *args, donate_argnums=0)
    asked = {"mesh": dict(zip(mesh.names, mesh.sizes, strict=True)), "baselines": False}
    plan = search(program, load("v5e-8"), complete=True, **asked)
    module = step.trace(*args).lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")
    explicit = compat.with_explicit_collectives(module)
    merge_equal(explicit)
    drop_constants(explicit)
    found = compare(plan.moves, read_collectives(explicit))
    assert any(move.count == LAYERS and move.kind == "all_gather" for move in plan.moves)
    assert (found.missing, found.unplanned) == ((), ())
    assert any("propagation completes" in note for note in plan.notes)
    free = search(program, load("v5e-8"), **asked)  # which gathers all layers at once
    assert free.estimate.step_seconds < plan.estimate.step_seconds


def test_layouts_in_and_out_of_loops_are_read():
    step, args = stacked(FSDP, None, remat=True)
    program = trace(step, *args, donate_argnums=0)
    found = completed(program, FSDP, constraints_of(program)).values
    slices = [op.outputs[0] for op in program.ops if op.primitive == "scan_slice"]
    shown = {(program.values[v].shape, str(found[v])) for v in slices}
    assert ((WIDTH, HIDDEN), "[fsdp, None]") in shown
    assert ((HIDDEN, WIDTH), "[None, fsdp]") in shown
    stacks = [op.outputs[0] for op in program.ops if op.primitive == "scan_stack"]
    assert {str(found[v]) for v in stacks} == {"[None, fsdp, None]", "[None, None, fsdp]"}
    lost = [v for v in program.values if v.shape and not v.free and v.index not in found]
    assert {program.ops[v.producer].primitive for v in lost} <= {"carry", "yield"}


def test_what_shardy_has_no_rule_for_is_cut_by_ours():
    at = on(FSDP)

    def step(x):
        return jax.lax.square(x), jax.lax.erf_inv(x)

    args = (jax.ShapeDtypeStruct((64, 8), "float32"),)
    program = trace(jax.jit(step, in_shardings=at("fsdp", None)), *args)
    found = completed(program, FSDP, constraints_of(program)).values
    assert {str(found[v]) for v in program.outputs} == {"[fsdp, None]"}


def test_calls_are_cut_by_the_rules_of_the_user():
    at = on(FSDP)
    kept = jax.ShapeDtypeStruct((64, 8), jnp.float32)

    def step(x):
        return x + jax.ffi.ffi_call("made", kept)(), jax.ffi.ffi_call("turned", kept)(x)

    rules = {
        "made": UserRule(" -> d0 d1", replicate=("d0", "d1")),
        "turned": UserRule("batch width -> batch other", replicate=("width", "other")),
    }
    program = trace(jax.jit(step, in_shardings=at("fsdp", None)), kept, user_rules=rules)
    found = completed(program, FSDP, constraints_of(program)).values
    assert {str(found[value]) for value in program.outputs} == {"[fsdp, None]"}


def test_an_axis_of_one_device_in_the_program_says_nothing():
    one = on(MeshShape(("fsdp", "tensor"), (4, 1)))

    def step(x, w):
        return jax.lax.with_sharding_constraint(x @ w, one("fsdp", None))

    args = (jax.ShapeDtypeStruct((64, 8), "float32"), jax.ShapeDtypeStruct((8, 64), "float32"))
    program = trace(step, *args)
    found = completed(program, BOTH, constraints_of(program)).values
    assert str(found[program.inputs[0]]) == "[fsdp, None]"


def test_of_layouts_that_cannot_all_be_kept_those_of_most_bytes_are(monkeypatch):
    def step(state, x):
        return state + 1.0, x * 2.0

    args = (jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((64, 8), "float32"))
    program = trace(step, *args, donate_argnums=0)
    rows, columns = (LayoutPattern((Dimension(a), Dimension(b))) for a, b in ((X, ()), ((), X)))
    ends = program.inputs[0], program.outputs[0]  # one state, of one layout
    wanted = {ends[0]: rows, ends[1]: columns, program.inputs[1]: columns}
    monkeypatch.setattr("autoshard.search.prepare.completed", lambda *_: Preferred(wanted))
    plan = search(program, load("v5e-8"), mesh={"x": 8}, complete=True, baselines=False)
    stored = [plan.decisions.stored[v] for v in (*ends, program.inputs[1])]
    assert stored[0] == stored[1]
    assert stored[0] in ((0,), (1,))
    assert stored[2] == (1,)


def test_it_needs_a_mesh_and_axes_that_propagate():
    _, args = stacked(FSDP, None, remat=False)
    with pytest.raises(MeshError, match=r"give it, as --mesh x=8"):
        search(trace(lambda x: x, args[1]), load("v5e-8"), complete=True)
    kinds = (AxisType.Explicit,)
    explicit = NamedSharding(AbstractMesh((8,), ("x",), axis_types=kinds), P("x"))
    typed = jax.ShapeDtypeStruct((64,), "float32", sharding=explicit)
    with pytest.raises(MeshError, match="nothing is left to complete"):
        search(trace(jnp.sin, typed), load("v5e-8"), mesh={"x": 8}, complete=True)
