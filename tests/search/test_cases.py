"""The small programs of `../shared/data/cases`, where they lie: planned, lowered and judged.

Each of their functions returns a step and its arguments. What a rule of theirs may not say is
refused, with the repair.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AbstractMesh, AxisType

from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from autoshard.plan.plan import Plan
from autoshard.problem.requirements.records import RequirementError
from autoshard.program.flops import is_matrix_op
from autoshard.program.rules.ask_shardy import NoRuleError
from autoshard.program.trace import Program, TraceError, trace
from autoshard.search.search import search
from tests.helpers import concrete_like

CASES = Path(__file__).parents[3] / "shared" / "data" / "cases"
FILES = (
    *("annotate_under_vmap", "callbacks", "clamped_update", "complex_sum", "constraints_in_a_row"),
    *("grouped_convolution", "linear_solve", "logical_rules", "ragged_dot", "segment_sums"),
    *("sequence_parallel_constraints", "shard_map_rule", "vmapped_update", "while_loops"),
    *("attention_kernels", "bias_before_batch_norm", "host_memory", "meshes_of_the_program"),
)
MESHES = ({"x": 8}, {"x": 4, "y": 2}, {"data": 2, "model": 4}, {"model": 8}, {"devices": 8})
ON_THEIR_MESH = ("attention_kernels", "host_memory", "meshes_of_the_program")
"""Files that are planned on the mesh that they name."""
OWN_MESH = {"data": 2, "model": 4}
REFUSED = {
    "forward_ruled": "needs no rule",  # a shard_map is planned op by op
    "revorder": "or give the mesh in that order: --mesh y=2,x=4",
    "pallas_rule": "s: in operands only; say how parts are combined",
    "act_host": "does not trace",  # JAX differentiates no transfer to a memory space
}
COLUMNS = {"reduce_scatter": 1, "all_reduce": 1, "all_gather": 1}
"""Two weights cut along what lies between them: of the result, the loss and its gradient."""
SENT = (
    ("constraints_in_a_row", "plain one_and_pin", {}),
    ("constraints_in_a_row", "one_axis both_same join dot", {"all_to_all": 1}),
    ("constraints_in_a_row", "constrained_of_input reshape_between", {"all_to_all": 1}),
    ("constraints_in_a_row", "move_both direct join_rev dot_after", {"all_to_all": 2}),
    ("constraints_in_a_row", "sin_dot dot_direct_dot dot_sin_dot", {"all_to_all": 2}),
    ("constraints_in_a_row", "gather dot_gather", {"all_gather": 2}),
    ("constraints_in_a_row", "swap", {"all_to_all": 3}),
    ("constraints_in_a_row", "norm_between", {"all_to_all": 1, "all_gather": 1}),
    ("logical_rules", "ulysses", {"all_to_all": 2}),
    ("ragged_dot", "case columns two train", {}),
    ("clamped_update", "case negative end big", {}),
    ("vmapped_update", "rows take read_row", {}),
    ("vmapped_update", "put add segment", {"all_gather": 1}),  # of what is written
    ("complex_sum", "sums mean prod cumsum gradient bias_gradient pad", {}),
    ("complex_sum", "dot", {"reduce_scatter": 1}),
    ("linear_solve", "solve inv slogdet grad_slogdet cholesky cho_solve eigh qr svd", {}),
    ("linear_solve", "expm solve_big", {}),
    ("linear_solve", "cg", {"all_reduce": 6}),  # does any go on? in five turns, and at the end
    ("while_loops", "shared dead", {}),
    ("while_loops", "batched dead_batched", {"all_reduce": 6}),
    ("while_loops", "counted", {"all_reduce": 7}),
    ("callbacks", "dbg_const cplx_sum chk_nan", {}),
    ("callbacks", "dbg_scalar dbg_array dbg_cb", {"all_reduce": 1}),
    ("annotate_under_vmap", "plain two scan at_in_vmap", {}),
    ("shard_map_rule", "forward_only", {}),
    ("bias_before_batch_norm", "case", {}),
    ("grouped_convolution", "depthwise strided", {"all_reduce": 1}),  # of the loss
    ("grouped_convolution", "two_groups four_groups", {"all_reduce": 1, "reduce_scatter": 1}),
    ("meshes_of_the_program", "lazy_psum_axis explicit_constraint_only", COLUMNS),
    ("meshes_of_the_program", "explicit_mode", {"all_gather": 1, "all_reduce": 4}),
    ("host_memory", "opt_device", {"all_reduce": 4}),
    ("host_memory", "opt_host", {"all_gather": 2, "all_reduce": 2, "reduce_scatter": 2}),
)
COLLECTIVES = {(file, name): kinds for file, names, kinds in SENT for name in names.split()}
"""What the best plan sends, by file and step: as often as each kind runs."""
FETCHED = {"opt_device": {}, "opt_host": {"from_host": 2, "to_host": 2}}
"""Moments that are fetched from the host and sent back, by step."""
ONE = 2 * 128 * 64 * 32
RAGGED_FLOPS = {
    "case": ONE,
    "columns": ONE,
    "two": 2 * ONE,
    "train": 2 * ONE,
    "big_two": 4 * 65536 * 2048 * 8192,
}
"""Of the ragged products of a step: each row is multiplied once."""
SCRIPTS = {
    "while_carry_gathered_twice": (r"\b0 missing, 0 unplanned", 4, "REFUTED"),
    "reduce_scatter_after_gather": (r" agrees$", 12, "REFUTED"),
    "reduce_scatter_after_reordered_product": (r"^0 of 45 plans are refuted", 1, "REFUTED"),
    "recursion_chain": (r" equations: ok$", 28, "RecursionError"),
}
"""What a script prints, how often, and what it does not."""
SMALL = 5e6
"""Bytes of arguments of which numbers are compared."""
pytestmark = [
    pytest.mark.filterwarnings("ignore:autoshard.rules is now:DeprecationWarning"),
    pytest.mark.long,
    pytest.mark.skipif(not CASES.exists(), reason="there is no ../shared/data/cases here"),
]


def steps(file: str) -> Iterator[tuple[str, Any]]:
    """The functions of a file that take no argument and return a step."""
    spec = importlib.util.spec_from_file_location(file, CASES / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, made in list(vars(module).items()):
        if inspect.isclass(made) or name.startswith("_") or not callable(made):
            continue
        own = isinstance(made, partial) or getattr(made, "__module__", "") == file
        needed = [
            one for one in inspect.signature(made).parameters.values() if one.default is one.empty
        ]
        if own and not needed and isinstance(found := made(), tuple) and callable(found[0]):
            yield name, found
            jax.set_mesh(None)  # some set one


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: Any) -> Iterator[None]:
    """Meshes have Auto axes unless they say otherwise, as when the cases were written.

    There is the module of which one of them takes a step.
    """
    make_mesh = jax.make_mesh
    auto = lambda names: {"axis_types": (AxisType.Auto,) * len(names)}  # noqa: E731
    monkeypatch.setattr(
        jax.sharding,
        "AbstractMesh",
        lambda sizes, names: AbstractMesh(sizes, names, **auto(names)),
    )
    monkeypatch.setattr(
        jax,
        "make_mesh",
        lambda sizes, names, **said: make_mesh(sizes, names, **{**auto(names), **said}),
    )
    remat = types.ModuleType("remat")
    remat.__dict__["_adam"] = adam
    monkeypatch.setitem(sys.modules, "remat", remat)
    for name in ("check_cudnn_version", "check_compute_capability"):  # a case puts its own there
        monkeypatch.setattr(
            fused_attention_stablehlo, name, getattr(fused_attention_stablehlo, name)
        )
    yield
    jax.set_mesh(None)


def adam(fetch: Any, send: Any) -> tuple[Any, Any, Any]:
    """A step whose moments are fetched from where `send` leaves them."""

    def step(params: Any, moments: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            predicted = jax.nn.gelu(x @ params["a"]) @ params["b"]
            return jnp.mean((predicted - y).astype(jnp.float32) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        moments = jax.tree.map(lambda m, g: 0.9 * fetch(m) + 0.1 * g, moments, gradients)
        params = jax.tree.map(lambda p, m: (p - 1e-3 * m).astype(p.dtype), params, moments)
        return params, jax.tree.map(send, moments), value

    shapes = {"a": (1024, 4096), "b": (4096, 1024)}
    params, moments = (
        {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}
        for dtype in (jnp.bfloat16, jnp.float32)
    )
    x = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16)
    return step, (params, moments, x, x), {"donate_argnums": (0, 1)}


@pytest.mark.parametrize("file", FILES)
def test_every_step_is_planned_and_computes_what_it_did(file) -> None:
    met = set[str]()
    for name, (fn, args, *options) in steps(file):
        met.add(name)
        given = {"trip_counts": 5, **(options[0] if options else {})}
        if name in REFUSED:
            refusals = NoRuleError, RequirementError, TraceError
            with pytest.raises(refusals, match=re.escape(REFUSED[name])):
                judge(file, name, fn, args, given)
        else:
            plan, program = judge(file, name, fn, args, given)
            sent = Counter[str]()
            for move in plan.moves:
                sent[move.kind] += move.count * (move.kind != "all_slice")
            if (expected := COLLECTIVES.get((file, name))) is not None:
                assert +sent == expected, name
            if file == "host_memory" and name in FETCHED:
                assert Counter(one.kind for one in plan.transfers) == FETCHED[name], name
                assert {one.bytes for one in plan.transfers} <= {1024 * 4096 * 4 // 8}, name
            if file == "ragged_dot" and name in RAGGED_FLOPS:
                ragged = [op for op in program.ops if op.primitive.startswith("ragged_dot")]
                assert sum(op.flops for op in ragged) == RAGGED_FLOPS[name], name
    assert met


def test_axes_against_the_order_of_the_mesh_are_planned_on_the_mesh_that_is_proposed():
    found = dict(steps("constraints_in_a_row"))
    fn, args = found["revorder"]
    judge("constraints_in_a_row", "revorder", fn, args, {}, meshes=({"y": 2, "x": 4},))


def test_a_ragged_product_has_the_flop_of_a_dense_one():
    found = dict(steps("ragged_dot_price"))
    dense, ragged = (
        sum(op.flops for op in trace(fn, *args).ops if is_matrix_op(op.primitive))
        for fn, args in (found["dense"], found["ragged"])
    )
    assert dense == ragged == 2 * 65536 * 4096 * 14336


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_finds_nothing_wrong(script):
    said, count, never = SCRIPTS[script]
    done = subprocess.run(
        [sys.executable, CASES / f"{script}.py"], capture_output=True, text=True, check=True
    )
    assert len(re.findall(said, done.stdout, re.MULTILINE)) == count, done.stdout
    assert never not in done.stdout


def judge(
    file: str, name: str, fn: Any, args: Any, options: dict[str, Any], meshes: Any = None
) -> tuple[Plan, Program]:
    program = trace(fn, *args, **options)
    small = sum(program.values[value].bytes for value in program.inputs) < SMALL
    machine = str(CASES / "slow.toml") if small else machine_of(file, name)
    meshes = meshes or ((OWN_MESH,) if file in ON_THEIR_MESH else MESHES)
    plan = None
    for mesh in meshes:
        try:
            plan = search(program, machine, mesh=mesh, baselines=False, gap=0.01)
            break
        except RequirementError:  # of axes that this mesh has not
            if (name in REFUSED and mesh == MESHES[1]) or mesh == meshes[-1]:
                raise
    assert plan is not None
    assert plan.proof.gap <= 0.01, f"{name}: {plan.proof}"
    lowered = lower(plan, fn, *args)
    comparison = verify_collectives(lowered)
    assert comparison.agrees, f"{name}\n{comparison}"
    if small and not plan.transfers:  # CPUs have no memory of a host
        given = args if all(isinstance(one, jax.Array) for one in jax.tree.leaves(args)) else None
        assert numeric_differences(lowered, fn, given or concrete_like(args)) == [], name
    return plan, program


def machine_of(file: str, name: str) -> str:
    return "v5e-8" if file == "attention_kernels" and "cud" not in name else "h100-8"
