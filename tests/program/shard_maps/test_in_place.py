"""What stands in place of a `shard_map` has the values that it has on eight devices."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec as P

from autoshard import compat
from autoshard.program.rules.ask_shardy import NoRuleError, UserRule
from autoshard.program.shard_maps.collectives import CollectiveError
from autoshard.program.shard_maps.in_place import run_shard_maps, shard_maps_in
from autoshard.program.trace import TraceError, trace
from tests.program.shard_maps.steps import STEPS, grid, line, normal, with_gradients


def held(fn: Callable[..., Any], *args: Any) -> Any:
    """The closed jaxpr of `fn` with ordinary ops, once its values are held to those of `fn`."""
    closed = jax.jit(fn).trace(*args).jaxpr
    assert shard_maps_in(closed)
    opened = run_shard_maps(closed)
    assert not shard_maps_in(opened)
    flat = jax.tree.leaves(args)
    found = jaxpr_as_fun(compat.without_reshards(opened))(*flat)
    for one, other in zip(found, jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        largest = max(float(np.max(np.abs(other))), 1.0)
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5 * largest)
    return opened


def mapped(part: Any, into: Any, out: Any, mesh: Any = None, **options: Any) -> Any:
    return jax.shard_map(
        part, mesh=line() if mesh is None else mesh, in_specs=into, out_specs=out, **options
    )


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_steps_of_users(name: str, check: bool) -> None:
    fn, args = STEPS[name](check=check)
    held(fn, *args)


@pytest.mark.parametrize("name", STEPS)
def test_their_gradients(name: str) -> None:
    fn, args = with_gradients(STEPS[name]())
    held(fn, *args)


def around(count: int, by: int) -> list[tuple[int, int]]:
    return [(k, (k + by) % count) for k in range(count)]


ONE_AXIS: dict[str, tuple[Any, ...]] = {
    "psum": (lambda x: lax.psum(x, "x"), P("x"), P(), (16, 3)),
    "psum of what is equal": (lambda x: lax.psum(x, "x"), P(), P(), (4, 3)),
    "pmean": (lambda x: lax.pmean(x, "x"), P("x"), P(), (16, 3)),
    "pmax and pmin": (lambda x: lax.pmax(x, "x") - lax.pmin(x, "x"), P("x"), P(), (16, 3)),
    "gather": (lambda x: lax.all_gather(x, "x", axis=1), P("x"), P("x"), (16, 3)),
    "gather along": (lambda x: lax.all_gather(x, "x", tiled=True) + x[:1], P("x"), P("x"), (8, 3)),
    "scatter": (lambda x: lax.psum_scatter(x, "x", tiled=True), P(None, "x"), P("x"), (16, 8)),
    "scatter apart": (lambda x: lax.psum_scatter(x, "x"), P(None, "x"), P("x"), (8, 16, 2)),
    "permute": (lambda x: lax.ppermute(x, "x", around(8, 3)), P("x"), P("x"), (16, 3)),
    "permute some": (lambda x: lax.ppermute(x, "x", around(8, 1)[2:6]), P("x"), P("x"), (16, 3)),
    "exchange pairs": (
        lambda x: lax.ppermute(x, "x", [(k, k ^ 1) for k in range(8)]),
        P("x"),
        P("x"),
        (16, 3),
    ),
    "all to all": (lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True), P("x"), P("x"), (16, 8)),
    "all to all back": (
        lambda x: lax.all_to_all(x, "x", 0, 1, tiled=True),
        P("x"),
        P("x"),
        (64, 3),
    ),
    "all to all in place": (
        lambda x: lax.all_to_all(x, "x", 1, 1, tiled=True),
        P("x"),
        P("x"),
        (16, 24),
    ),
    "all to all apart": (lambda x: lax.all_to_all(x, "x", 0, 2), P("x"), P("x"), (64, 3, 2)),
    "index": (lambda x: x * lax.axis_index("x"), P("x"), P("x"), (16, 3)),
    "equal on all": (lambda x: x * 2, P(), P("x"), (2, 3)),
    "of nothing": (lambda: lax.axis_index("x")[None], (), P("x")),
    "integers": (
        lambda: lax.psum_scatter(jnp.arange(8) * lax.axis_index("x"), "x", tiled=True),
        (),
        P("x"),
    ),
    "random": (
        lambda x: (
            x
            + jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("x")), x.shape)
        ),
        P("x"),
        P("x"),
        (16, 3),
    ),
}


@pytest.mark.parametrize("name", ONE_AXIS)
def test_over_one_axis(name: str) -> None:
    part, into, out, *shapes = ONE_AXIS[name]
    held(mapped(part, into, out, check_vma=False), *(normal(k, *s) for k, s in enumerate(shapes)))


TWO_AXES: dict[str, tuple[Any, ...]] = {
    "psum": (lambda x: lax.psum(x, ("b", "a")), P("a", "b"), P(), (16, 4)),
    "gather": (lambda x: lax.all_gather(x, ("a", "b"), axis=1), P(("a", "b")), P(None), (16, 3)),
    "gather turned": (
        lambda x: lax.all_gather(x, ("b", "a"), tiled=True),
        P("a", "b"),
        P(),
        (8, 4),
    ),
    "scatter": (
        lambda x: lax.psum_scatter(x, ("b", "a"), scatter_dimension=1),
        P("a", "b"),
        P(("b", "a")),
        (16, 16),
    ),
    "permute": (
        lambda x: lax.ppermute(x, ("a", "b"), around(8, 1)),
        P("b", "a"),
        P(("a", "b")),
        (16, 4),
    ),
    "all to all": (
        lambda x: lax.all_to_all(x, ("a", "b"), 0, 1, tiled=True),
        P("a", "b"),
        P("b", "a"),
        (64, 32),
    ),
    "all to all turned": (
        lambda x: lax.all_to_all(x, ("b", "a"), 1, 0, tiled=True),
        P("a", "b"),
        P("b", "a"),
        (64, 32),
    ),
    "over one of them": (
        lambda x: lax.all_to_all(x, "b", 1, 0, tiled=True),
        P("b", "a"),
        P("a", "b"),
        (16, 16),
    ),
    "index": (lambda x: x * lax.axis_index(("b", "a")), P("a", "b"), P("b", "a"), (8, 8)),
    "of one device": (lambda x: x + lax.psum(x, "a"), P("b"), P("b"), (8, 3)),
}


@pytest.mark.parametrize("name", TWO_AXES)
def test_over_two_axes(name: str) -> None:
    part, into, out, shape = TWO_AXES[name]
    held(mapped(part, into, out, grid(), check_vma=False), normal(0, *shape))


def test_axes_of_one_device_are_none() -> None:
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((1, 8), ("a", "b"), axis_types=kinds)

    def part(x: Any) -> Any:
        x = lax.all_to_all(lax.all_gather(x, "a"), "a", 0, 1, tiled=True)[0]
        return lax.ppermute(lax.psum(x, "a"), ("a", "b"), around(8, 1)) + lax.axis_index("a")

    opened = held(mapped(part, P("b"), P("b"), mesh, check_vma=False), normal(0, 16, 3))
    assert "transpose" not in str(opened)


def test_loops_and_branches_of_a_body() -> None:
    """A loop that all devices leave together, and a branch that each takes for itself."""

    def part(x: Any) -> Any:
        y = lax.while_loop(lambda y: lax.psum(jnp.sum(y), "x") < 100, lambda y: y * 1.5 + 0.1, x)
        y, taken = lax.scan(lambda y, k: (y + lax.axis_index("x"), k * y), y, jnp.arange(3.0))
        y = y + lax.fori_loop(0, 3, lambda k, y: lax.ppermute(y, "x", around(8, 1)), y)
        return lax.cond(lax.axis_index("x") % 2 == 0, jnp.sin, lambda y: y * 2, y + taken.sum(0))

    held(mapped(part, P("x"), P("x")), jnp.abs(normal(0, 16, 3)))


@pytest.mark.parametrize("gradients", [False, True])
def test_one_inside_of_another(gradients: bool) -> None:
    def inner(x: Any) -> Any:
        part = mapped(
            lambda x: lax.psum(x * x, "b"),
            P("b"),
            P(),
            jax.sharding.get_abstract_mesh(),
            axis_names={"b"},
        )
        return lax.psum(part(x), "a")

    outer = mapped(inner, P("a"), P(), grid(), axis_names={"a"})
    step = outer, (normal(0, 16, 4),)
    fn, args = with_gradients(step) if gradients else step
    with jax.set_mesh(grid()):
        held(fn, *args)


def test_under_vmap_and_inside_of_a_cond() -> None:
    part = mapped(lambda x: lax.psum(x, "x") * x.sum(), P("x"), P(), check_vma=False)

    def fn(x: Any) -> Any:
        return lax.cond(x[0, 0] > 0, jax.vmap(part), lambda x: x[:, :2], x)

    held(fn, normal(3, 5, 16))


def test_solves_of_a_body() -> None:
    def part(x: Any) -> Any:
        return jnp.linalg.solve(x @ x.mT + jnp.eye(4), x)

    held(mapped(part, P("x"), P("x"), check_vma=False), normal(0, 8, 4, 4))


def test_custom_partitioning_in_a_body_is_what_it_computes() -> None:
    double = custom_partitioning(lambda x: x * 2)
    double.def_partition(partition=lambda *_: None, sharding_rule="i j -> i j")
    held(mapped(lambda x: lax.psum(double(x), "x"), P("x"), P()), normal(0, 16, 3))


def test_sums_are_reductions_and_exchanges_are_transpositions() -> None:
    """No array is copied for each part, nor is anything gathered."""

    def part(x: Any) -> Any:
        return lax.psum(lax.all_to_all(x, "x", 0, 1, tiled=True), "x")

    opened = held(mapped(part, P("x"), P()), normal(0, 64, 3))
    (call,) = opened.jaxpr.eqns
    names = [one.primitive.name for one in call.params["jaxpr"].eqns]
    assert set(names) == {"reshape", "transpose", "reduce_sum"}


def test_scopes_and_lines_stay() -> None:
    def part(x: Any) -> Any:
        with jax.named_scope("inside"):
            return lax.psum(jnp.sin(x), "x")

    def fn(x: Any) -> Any:
        with jax.named_scope("outside"):
            return mapped(part, P("x"), P())(x)

    program = trace(fn, jax.ShapeDtypeStruct((16, 4), jnp.float32))
    (sine,) = [op for op in program.ops if op.primitive == "sin"]
    assert sine.scope == "outside/inside"
    assert "test_in_place.py:" in sine.line
    assert sine.flops >= 64
    assert program.shard_maps
    assert not program.dead_ops


def test_derivative_rules_of_a_body_are_not_lost_in_silence() -> None:
    def part(x: Any) -> Any:
        return jax.nn.relu(x)

    opened = run_shard_maps(jax.jit(mapped(part, P("x"), P("x"))).trace(jnp.zeros(8)).jaxpr)
    (same,) = jaxpr_as_fun(opened)(jnp.arange(-4.0, 4.0))
    np.testing.assert_array_equal(same, [0, 0, 0, 0, 0, 1, 2, 3])
    with pytest.raises(CollectiveError, match="plan the step with its gradients"):
        jax.grad(lambda x: jaxpr_as_fun(opened)(x)[0].sum())(jnp.zeros(8))


def refused(fn: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(TraceError) as error:
        trace(fn, *args)
    return re.sub(r"\S*test_in_place.py:\d+", "LINE", str(error.value))


def test_what_cannot_be_said_is_refused() -> None:
    def grouped(x: Any) -> Any:
        return lax.psum(x, "x", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]])

    assert refused(mapped(grouped, P("x"), P("x"), check_vma=False), normal(0, 16)) == (
        "LINE: in a shard_map, psum among axis_index_groups=((0, 1, 2, 3), (4, 5, 6, 7)) cannot be "
        "planned: give the mesh an axis for the groups and one for the places in a group, and name "
        "the latter alone"
    )

    def turned(x: Any) -> Any:
        return lax.ppermute(x, ("b", "a"), around(8, 1))

    assert refused(mapped(turned, P(("a", "b")), P(("a", "b")), grid()), normal(0, 16)) == (
        "LINE: in a shard_map, ppermute over ('b', 'a') names axes in another order than the mesh "
        "has, of which versions of JAX think differently: name ('a', 'b'), and number the parts in "
        "this order"
    )

    def ragged(x: Any) -> Any:
        told = [jnp.ones(4, jnp.int32)] * 4
        groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
        return lax.ragged_all_to_all(x, x, *told, axis_name="x", axis_index_groups=groups)

    said = refused(mapped(ragged, P("x"), P("x"), check_vma=False), normal(0, 64))
    assert said.startswith("LINE: in a shard_map, ragged_all_to_all among axis_index_groups=")


def test_a_rule_for_a_body_is_refused() -> None:
    def body(x: Any) -> Any:
        return x * 2

    def fn(x: Any) -> Any:
        return jax.shard_map(body, mesh=line(), in_specs=P("x"), out_specs=P("x"))(x)

    for name in ("body", "shard_map"):
        with pytest.raises(NoRuleError) as error:
            trace(fn, normal(0, 16), user_rules={name: UserRule("i -> i")})
        assert re.sub(r"at \S+:\d+", "at LINE", str(error.value)) == (
            "a shard_map needs no rule, since its body is planned op by op, and would obey none; "
            f"rules are given for these:\n  - {name!r} (at LINE)\nLeave them out of user_rules. "
            "What must lie in a certain way can be required: autoshard.search(..., "
            "requirements=[...])."
        )
