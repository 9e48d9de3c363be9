"""The layouts of Pope et al., Efficiently Scaling Transformer Inference, where the paper says so.

https://arxiv.org/abs/2211.05102, section 3.2, for feed-forward blocks of widths E and F = 4 E, a
batch of B tokens and n chips, with weights too large to be held whole. Each block communicates

    weights stationary, 1-D          2 B E               whatever n is
    weights stationary, 2-D          8 B E / sqrt(n)     less from n = 16 on; x = sqrt(n) / 2
    weights gathered over all chips  2 E F               whatever B is: less for large batches
"""

from __future__ import annotations

import pytest
from jax.sharding import PartitionSpec as P

from autoshard.plan.plan import Plan
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.search.test_known_optima import array, pair_weights, pairs

E, F = 8192, 32768
BLOCKS, BYTES = 8, 2
SMALL, LARGE = 512, 2**18
MIB = 2**20


def planned(chips: int, mesh: dict[str, int], tokens: int, limit: int) -> Plan:
    """The best plan of blocks in a ring: what comes out lies as what goes in, as between blocks."""
    program = trace(pairs, pair_weights(BLOCKS, E, F), array(tokens, E), donate_argnums=(1,))
    plan = search(program, f"v5p-{chips}", mesh=mesh, gap=0.0, baselines=False, memory_limit=limit)
    assert plan.proof.status == "optimal"
    return plan


def weights_of(plan: Plan) -> set[tuple[P, P]]:
    specs = plan.specs["inputs"]
    return {(specs[f"[0][{k}][0]"], specs[f"[0][{k}][1]"]) for k in range(BLOCKS)}


def moved(plan: Plan) -> dict[tuple[str, tuple[str, ...], int], int]:
    """How often each collective runs, by kind, axes and local bytes; slices move nothing."""
    found: dict[tuple[str, tuple[str, ...], int], int] = {}
    for move in plan.moves:
        if move.kind != "all_slice":
            key = move.kind, move.axes, move.bytes
            found[key] = found.get(key, 0) + move.count
    return found


@pytest.mark.parametrize("mesh", [{"x": 8}, {"x": 2, "y": 4}])
def test_few_chips_keep_weights_in_one_dimension(mesh):
    """Two axes could cut both widths, and are used as one: sums over all chips are made whole."""
    plan = planned(8, mesh, SMALL, 1600 * MIB)
    axes = tuple(mesh)
    cut = "x" if axes == ("x",) else axes
    assert weights_of(plan) == {(P(None, cut), P(cut))}
    size = SMALL * E * BYTES
    assert moved(plan) == {("all_reduce", axes, size): BLOCKS}


def test_many_chips_keep_weights_in_two_dimensions():
    plan = planned(64, {"x": 4, "y": 16}, SMALL, 300 * MIB)
    assert weights_of(plan) == {(P("x", "y"), P("y", "x"))}
    hidden, width = SMALL * F // 16 * BYTES, SMALL * E // 4 * BYTES
    assert hidden == width  # x = sqrt(n) / 2 balances the two
    assert moved(plan) == {
        (kind, (axis,), width): BLOCKS
        for kind in ("reduce_scatter", "all_gather")
        for axis in ("x", "y")
    }
    one = planned(64, {"x": 64}, SMALL, 300 * MIB)
    assert plan.estimate.collective_seconds < one.estimate.collective_seconds
    assert plan.estimate.step_seconds < one.estimate.step_seconds


def test_a_large_batch_gathers_the_weights():
    plan = planned(64, {"x": 4, "y": 16}, LARGE, 2200 * MIB)
    assert moved(plan) == {("all_gather", ("x", "y"), E * F * BYTES): 2 * BLOCKS}
    assert plan.specs["inputs"]["[1]"] == P(("x", "y"))
