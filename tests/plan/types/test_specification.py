"""The table of transitions is closed under transposition, and its laws are what JAX computes."""

from __future__ import annotations

import doctest
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType as MeshAxisType
from jax.sharding import PartitionSpec

from autoshard.plan.types import axis_type, specification, transitions
from autoshard.plan.types.axis_type import I, Kind, P, R, S, V, ValueType
from autoshard.plan.types.specification import SPECIFICATIONS, groups, on_groups, parts, whole
from autoshard.plan.types.transitions import TRANSITIONS, between, proposal

DEVICES = 3


@pytest.mark.parametrize("module", [axis_type, specification, transitions])
def test_examples(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def value_of(kind, dice, size):
    """Arrays that a value of `kind` may be; integers, so that sums are exact."""
    if kind in (Kind.REPLICATE, Kind.INVARIANT):
        return [dice.integers(-9, 9, size)] * DEVICES
    return [dice.integers(-9, 9, size) for _ in range(DEVICES)]


def pairing(kind, values, gradients):
    """What a change of the values adds to the loss; an `I` counts once, all else everywhere."""
    products = [int((v * g).sum()) for v, g in zip(values, gradients, strict=True)]
    return products[0] if kind is Kind.INVARIANT else sum(products)


def run(keys, values):
    for key in keys:
        values = SPECIFICATIONS[key](values)
    return values


@pytest.mark.parametrize("row", [r for r in TRANSITIONS if r.key in SPECIFICATIONS], ids=str)
def test_the_backward_rows_are_the_transpose(row):
    dice = np.random.default_rng(0)
    for _ in range(5):
        before = value_of(row.source, dice, DEVICES * DEVICES)
        after = run([row.key], before)
        back = value_of(row.target.gradient, dice, after[0].shape[0])
        gradient = run(row.backward, back)
        assert pairing(row.target, after, back) == pairing(row.source, before, gradient)
        if row.source.gradient in (Kind.REPLICATE, Kind.INVARIANT):
            assert all(np.array_equal(g, gradient[0]) for g in gradient)


def test_every_row_has_its_way_back_in_the_table():
    keys = {row.key for row in TRANSITIONS}
    assert len(keys) == len(TRANSITIONS)
    for row in TRANSITIONS:
        assert set(row.backward) <= keys, row
        assert row.backward[0][1] is row.target.gradient, row
        assert row.backward[-1][2] is row.source.gradient, row
        for (_, _, here), (_, there, _) in itertools.pairwise(row.backward):
            assert here is there, row


def test_a_single_way_back_leads_forward_again():
    one = {row.key: row.backward[0] for row in TRANSITIONS if len(row.backward) == 1}
    for key, back in one.items():
        forward = one[back]
        assert forward[1:] == key[1:], key  # all_gather may end in R or in I, as it is asked to


def test_what_does_not_communicate_reads_its_own_array_alone():
    dice = np.random.default_rng(1)
    for row in TRANSITIONS:
        if row.key not in SPECIFICATIONS or row.communicates:
            continue
        before = value_of(row.source, dice, DEVICES)
        first = run([row.key], before)[0]
        others = [before[0], *(array + 1 for array in before[1:])]
        assert np.array_equal(run([row.key], others)[0], first), row


def test_groups_of_the_shard_dialect():
    found = groups((2, 3, 4, 5), (0, 1))
    assert len(found) == 20
    places = [np.unravel_index(group, (2, 3, 4, 5)) for group in found]
    assert all(len({*place[2]}) == len({*place[3]}) == 1 for place in places)
    group = next(g for g in groups((2, 3, 4, 5), (3, 1)) if 0 in g)
    order = [
        group.index(int(np.ravel_multi_index((0, j, 0, m), (2, 3, 4, 5))))
        for m, j in ((0, 0), (0, 1), (1, 0))
    ]
    assert order[0] < order[1] < order[2]


def test_whole_refuses_replicas_that_differ():
    arrays = parts(np.arange(4), ((0,),), (2, 2))
    assert np.array_equal(whole(arrays, ((0,),), (2, 2)), np.arange(4))
    arrays[1] = arrays[1] + 1
    with pytest.raises(ValueError, match="device 0 holds other numbers than its replicas"):
        whole(arrays, ((0,),), (2, 2))


NAMES = ("x", "y", "z")
GRID = (2, 2, 2)
AXES = (("x",), ("z",), ("x", "y"), ("z", "x"), ("y", "z", "x"))
COLLECTIVES = {
    "all_gather": (
        lambda a, axes: lax.all_gather(a, axes, axis=1, tiled=True),
        lambda arrays: specification.all_gather(arrays, dimension=1),
    ),
    "psum": (lambda a, axes: lax.psum(a, axes), specification.all_reduce),
    "pmax": (
        lambda a, axes: lax.pmax(a, axes),
        lambda arrays: specification.all_reduce(arrays, operator="max"),
    ),
    "psum_scatter": (
        lambda a, axes: lax.psum_scatter(a, axes, scatter_dimension=1, tiled=True),
        lambda arrays: specification.reduce_scatter(arrays, dimension=1),
    ),
    "all_to_all": (
        lambda a, axes: lax.all_to_all(a, axes, split_axis=1, concat_axis=0, tiled=True),
        lambda arrays: specification.all_to_all(arrays, split=1, concat=0),
    ),
    "ppermute": (
        lambda a, axes: lax.ppermute(a, axes, [(0, 1), (1, 0)]),
        lambda arrays: specification.collective_permute(arrays, pairs=[(0, 1), (1, 0)]),
    ),
}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("axes", AXES, ids=",".join)
def test_the_laws_are_what_jax_computes(name, axes):
    if name == "ppermute":  # JAX numbers its devices in mesh order, however the axes stand
        axes = tuple(sorted(axes))
    ours, law = COLLECTIVES[name]
    mesh = jax.make_mesh(GRID, NAMES, axis_types=(MeshAxisType.Auto,) * 3)
    array = np.arange(8 * 2 * 8).reshape(16, 8)
    spec = PartitionSpec(NAMES)  # every device has rows of its own
    run_ours = jax.shard_map(
        lambda a: ours(a, axes), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    state = ((0, 1, 2), ())
    arrays = parts(array, state, GRID)
    expected = on_groups(law, arrays, GRID, tuple(NAMES.index(axis) for axis in axes))
    found = parts(np.asarray(jax.jit(run_ours)(jnp.asarray(array))), state, GRID)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_gradients_of_types():
    assert [str(t.gradient) for t in (R, I, V, S(1), P())] == ["P", "I", "V", "S(1)", "R"]
    with pytest.raises(ValueError, match=r"the gradient of P\(max\) is none of the four kinds"):
        _ = P("max").gradient


def test_types_are_written_as_jax_writes_them():
    value = ValueType("bfloat16", (8, 4), ((0,), ()), ((1, "max"),), frozenset({2}))
    assert value.text(NAMES) == "bf16[8@x, 4]{P(max): y; I: z}"
    assert [str(value.over(axis)) for axis in range(3)] == ["S(0)", "P(max)", "I"]


def test_proposals():
    assert proposal(S(1), R, "w", "y") == "jax.lax.all_gather(w, 'y', axis=1, tiled=True)"
    assert proposal(P("max"), R, "m", "y") == "jax.lax.pmax(m, 'y')"
    assert proposal(P(), S(0), "g", "y") == (
        "jax.lax.psum_scatter(g, 'y', scatter_dimension=0, tiled=True)"
    )
    assert proposal(P("max"), S(0), "m", "y") == "no single call leads from P(max) to S(0)"
    assert [str(row) for row in between(S(0), S(1))] == ["all_to_all(V->V)"]
    assert between(R, R) == ()
