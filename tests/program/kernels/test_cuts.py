"""Which axes of a kernel's grid may be cut, and why others stay whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import autoshard
from autoshard import compat
from autoshard.program.bodies import all_equations
from autoshard.program.kernels.cuts import KernelCuts, kernel_cuts
from autoshard.program.rules.record import FactorKind
from tests.program.kernels.functions import (
    attention,
    carried_sum,
    column_sum,
    f,
    looked_up,
    masked,
    matmul,
    row_softmax,
    running_sum,
    turned,
    updated,
)

QUERIES, KEYS = f(2, 4, 32, 8), f(2, 2, 32, 8)


def cuts_of(fn: Callable[..., Any], *args: Any) -> KernelCuts:
    program = autoshard.trace(fn, *args)
    (equation,) = (one for one in program.jaxpr.jaxpr.eqns if one.primitive.name == compat.PALLAS)
    return kernel_cuts(equation)


UNREAD = "result 0 is made over all of it"
CARRIED = "the kernel carries scratch along it"


@pytest.mark.parametrize(
    ("fn", "shapes", "parts", "whole"),
    [
        (matmul, (f(32, 16), f(16, 32)), {0: 4, 1: 4}, {2: UNREAD}),
        (row_softmax, (f(16, 8),), {0: 8}, {}),
        (attention, (QUERIES, KEYS, KEYS), {0: 2, 1: 2, 2: 4}, {}),
        (
            partial(attention, causal=True),
            (QUERIES, KEYS, KEYS),
            {0: 2, 1: 2, 2: 4},
            {},
        ),
        (running_sum, (f(8, 16),), {}, {0: CARRIED, 1: CARRIED}),
        (partial(running_sum, anew=True), (f(8, 16),), {0: 4}, {1: CARRIED}),
        (partial(running_sum, apart=True), (f(8, 16),), {0: 4}, {1: CARRIED}),
        (
            jax.vmap(partial(running_sum, apart=True)),
            (f(2, 8, 16),),
            {0: 2, 1: 4},
            {2: CARRIED},
        ),
        (
            carried_sum,
            (f(8, 16),),
            {},
            {0: CARRIED, 1: CARRIED},
        ),
        (
            looked_up,
            (f(8, dtype=jnp.int32), f(16, 1, 32)),
            {0: 8, 1: 4},
            {},
        ),
        (updated, (f(16, 8), f(1, 8)), {0: 8}, {}),
        (
            turned,
            (f(16, 8),),
            {0: 8},
            {},
        ),
        (column_sum, (f(16, 32),), {0: 4}, {1: UNREAD}),
        (jax.vmap(matmul), (f(2, 32, 16), f(2, 16, 32)), {0: 2, 1: 4, 2: 4}, {3: UNREAD}),
        (
            jax.vmap(matmul, (0, None)),
            (f(4, 32, 16), f(16, 32)),
            {0: 4, 1: 4, 2: 4},
            {3: UNREAD},
        ),
        (
            row_softmax,
            (f(15, 8),),
            {},
            {0: "blocks do not divide dimension 0 of result 0 (15)"},
        ),
    ],
)
def test_axes_of_a_grid(
    fn: Callable[..., Any], shapes: tuple[Any, ...], parts: dict[int, int], whole: dict[int, str]
) -> None:
    found = cuts_of(fn, *shapes)
    assert {cut.axis: cut.parts for cut in found.cuts} == parts
    assert dict(found.whole) == whole


def test_heads_that_share_keys_are_cut_in_groups() -> None:
    """Four heads of queries, two of keys: the rule has a factor of two, and pairs stay whole."""
    (op,) = (
        op
        for op in autoshard.trace(attention, QUERIES, KEYS, KEYS).ops
        if op.primitive == compat.PALLAS
    )
    rule = op.rule
    queries, keys = rule.operands[0][1], rule.operands[1][1]
    assert [rule.factors[k].size for k in queries] == [2, 2]
    assert keys == queries[:1]
    assert rule.factors[queries[0]].kind is FactorKind.PASS
    assert rule.factors[queries[1]].kind is FactorKind.REPLICATE


@pytest.mark.parametrize(
    ("fn", "shapes", "told", "maps"),
    [
        (attention, (QUERIES, KEYS, KEYS), [], []),
        (partial(attention, causal=True), (QUERIES, KEYS, KEYS), [2], []),
        (looked_up, (f(8, dtype=jnp.int32), f(16, 1, 32)), [0], [0]),
        (masked, (f(16, 8), f(16, 8)), [0], [0]),
        (turned, (f(16, 8),), [0], [0]),
    ],
)
def test_parts_are_told_where_they_start_only_where_they_ask(
    fn: Callable[..., Any], shapes: tuple[Any, ...], told: list[int], maps: list[int]
) -> None:
    """The mask of attention asks; a table is looked up in by maps, and blocks read out of order."""
    found = cuts_of(fn, *shapes).cuts
    assert [cut.axis for cut in found if cut.told] == told
    assert [cut.axis for cut in found if cut.maps] == maps


def test_a_kernel_of_a_gpu_whose_index_maps_ask_stays_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no scalar in advance that they could read."""
    monkeypatch.setattr("autoshard.compat.kernels._platform", lambda *_: "gpu")
    found = cuts_of(masked, f(16, 8), f(16, 8))
    assert found.cuts == ()
    said = "index maps ask for their place along it, and none can be told"
    assert dict(found.whole) == {0: said}


def test_a_kernel_that_asks_within_a_loop_stays_whole() -> None:
    def body(x_ref: Any, out_ref: Any) -> None:
        def turn(_: Any, value: Any) -> Any:
            return value + pl.program_id(0)

        out_ref[...] = x_ref[...] + jax.lax.fori_loop(0, 3, turn, 0)

    spec = pl.BlockSpec((2, 8), lambda i: (i, 0))
    call = pl.pallas_call(body, out_shape=f(16, 8), grid=(8,), in_specs=[spec], out_specs=spec)
    found = cuts_of(call, f(16, 8))
    assert found.cuts == ()
    assert dict(found.whole) == {0: "the kernel asks for its place along it within scan"}


def test_a_kernel_in_a_shard_map_of_the_users_is_told_where_its_part_starts() -> None:
    """Its body is copied without types, branches that write to references too."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec(None, "x")
    fn = jax.shard_map(masked, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False)
    (equation,) = (
        one
        for one in all_equations(autoshard.trace(fn, f(16, 16), f(16, 16)).jaxpr.jaxpr)
        if one.primitive.name == compat.PALLAS
    )
    assert [(cut.axis, cut.told) for cut in kernel_cuts(equation).cuts] == [(0, False), (1, True)]
