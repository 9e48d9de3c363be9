"""Reshards: every collective is possible as data movement, every path shortest, sums exact."""

import itertools
import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from autoshard.cost.collective import MeshTopology
from autoshard.cost.reshard import ReshardCache, Step
from autoshard.cost.settle import settle_path
from autoshard.cost.states import MOST_STATES, ReshardError, layout_of, state_graph, state_of
from autoshard.machine.load import load, presets
from autoshard.program.layout import LayoutError, layouts, local_bytes
from tests.helpers import wires

MESHES = [("v5p-64", (4, 4, 4)), ("h100-64", (2, 4, 8)), ("v5e-16", (4, 4)), ("v5p-8", (2, 2, 2)),
          ("v5p-8", (2, 1, 4)), ("gb200-nvl72-72", (6, 3, 4)), ("2xv5p-8", (2, 8)),
          ("mi300x-16", (4, 4)), ("v7x-16", (2, 2, 2, 2))]  # fmt: skip
CACHES = [ReshardCache(MeshTopology(wires(name), mesh)) for name, mesh in MESHES]
SIZES = st.sampled_from([1, 3, 4, 8, 12, 64, 144, 4096])


@st.composite
def tables(draw, rank=3):
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=rank)))
    return draw(st.sampled_from(CACHES)).table(shape, draw(st.sampled_from([0.5, 1, 2, 4])))


def shards_held(state, mesh_shape):
    """Return per device, over all mesh coordinates, the index of its block in every dimension."""
    for device in itertools.product(*map(range, mesh_shape)):
        block = []
        for places in state:
            index = 0
            for axis in places:
                index = index * mesh_shape[axis] + device[axis]
            block.append(index)
        yield device, tuple(block)


def elements(state, mesh_shape, shape):
    """Return per device the set of elements that it holds."""
    counts = [math.prod(mesh_shape[axis] for axis in places) for places in state]
    return {
        device: frozenset(
            itertools.product(
                *(
                    range(index * size // count, (index + 1) * size // count)
                    for index, size, count in zip(block, shape, counts, strict=True)
                )
            )
        )
        for device, block in shards_held(state, mesh_shape)
    }


@pytest.mark.parametrize(
    ("name", "mesh", "rank"),
    [("v5p-8", (2, 2, 2), 2), ("h100-8", (2, 4), 3), ("a100-12", (2, 6), 2)],
)
def test_every_edge_moves_data_within_its_groups(name, mesh, rank):
    """Each device finds what it must hold afterwards among the devices that its axes join."""
    graph = state_graph(rank, MeshTopology(wires(name), mesh))
    shape = (math.prod(mesh),) * rank
    held = [elements(state, mesh, shape) for state in graph.wiring.states]
    for edge, (source, target) in enumerate(
        zip(graph.wiring.source, graph.wiring.target, strict=True)
    ):
        before, after, axes = held[source], held[target], graph.wiring.axes[edge]
        groups = {}
        for device in before:
            groups.setdefault(rest_of(device, axes), set()).update(before[device])
        kind, where = (
            graph.wiring.kinds[edge],
            (graph.wiring.states[source], graph.wiring.states[target]),
        )
        for device in before:
            assert after[device] <= groups[rest_of(device, axes)], (kind, where)
            sizes = len(before[device]), len(after[device])
            if kind == "all_gather":
                assert before[device] < after[device], where
                assert sizes[1] == sizes[0] * math.prod(mesh[axis] for axis in axes), where
            elif kind == "all_slice":
                assert after[device] < before[device], where
            else:
                assert sizes[0] == sizes[1], where
        if kind == "collective_permute":
            assert shuffled(before, axes) == shuffled(after, axes), where
            continue
        for axis in axes if kind != "all_slice" else ():
            fewer = {}
            for device in before:
                fewer.setdefault(rest_of(device, axes, but=axis), set()).update(before[device])
            assert any(
                not after[device] <= fewer[rest_of(device, axes, but=axis)] for device in before
            ), (kind, axes, where)


def rest_of(device, axes, *, but=None):
    """Return the coordinates along which a collective over `axes` (without `but`) does not run."""
    return tuple(p for axis, p in enumerate(device) if axis not in axes or axis == but)


def shuffled(held, axes):
    """Return per group how often each block is held: what a permutation cannot change."""
    counts = {}
    for device, block in held.items():
        counts.setdefault(rest_of(device, axes), Counter())[block] += 1
    return counts


@pytest.mark.parametrize(("mesh", "rank", "count"), [((4, 4, 4), 4, 193), ((4, 4, 4), 5, 316)])
def test_the_number_of_ordered_states(mesh, rank, count):
    assert len(state_graph(rank, MeshTopology(wires("v5p-64"), mesh)).wiring.states) == count


@settings(max_examples=30)
@given(tables())
def test_table_is_the_shortest_path_of_the_graph(table):
    graph, count = table._graph, len(table._graph.wiring.states)
    finite = np.isfinite(table._lengths)
    ends = graph.wiring.source[finite], graph.wiring.target[finite]
    network = csr_array((table._lengths[finite], ends), shape=(count, count))
    rows = [graph.wiring.rows[state_of(graph.rank, layout)] for layout in table.layouts]
    assert (table.seconds == dijkstra(network, indices=rows)[:, rows]).all()


@given(tables())
def test_a_metric_without_tolerance(table):
    seconds = table.seconds
    assert (np.diag(seconds) == 0).all()
    assert (seconds[~np.eye(len(table), dtype=bool)] > 0).all()
    assert np.isfinite(seconds).all()
    for middle in range(len(table)):
        assert (seconds <= seconds[:, middle, None] + seconds[None, middle, :]).all()


@given(tables(), st.data())
def test_paths_lead_from_layout_to_layout_and_add_up(table, data):
    rows = st.integers(0, len(table) - 1)
    source, target = data.draw(rows), data.draw(rows)
    steps = table.path(source, target)
    assert sum(step.seconds for step in steps) == table.seconds[source, target]
    rank, axes = len(table.shape), len(table.topology.mesh_shape)
    state = state_of(rank, table.layouts[source])
    for step in steps:
        assert step.from_state == state
        state = step.to_state
        price = table.topology.collective_seconds(step.kind, step.axes, step.bytes)
        assert price <= step.seconds <= price + 1e-12
    assert layout_of(state, axes) == table.layouts[target]
    assert table.steps(table.layouts[source], table.layouts[target]) == steps


@given(st.sampled_from(CACHES), st.data())
def test_larger_values_are_dearer(cache, data):
    shape = (64 * 144, 64 * 144)
    small, large = cache.table(shape, 1), cache.table(shape, 4)
    assert small.layouts == large.layouts
    off = ~np.eye(len(small), dtype=bool)
    assert (small.seconds[off] < large.seconds[off]).all()
    assert (large.seconds <= 4 * small.seconds + 1e-9).all()


@pytest.mark.parametrize("cache", CACHES, ids=[f"{n}-{m}" for n, m in MESHES])
def test_rows_are_the_layouts_that_divide(cache):
    shape = (12, 64)
    table = cache.table(shape, 4)
    assert list(table.layouts) == layouts(shape, cache.topology.mesh_shape)
    assert table is cache.table(list(shape), 4)
    assert [table.index(layout) for layout in table.layouts] == list(range(len(table)))


def kinds(table, source, target):
    return [(step.kind, step.axes) for step in table.steps(source, target)]


def test_the_well_known_reshards():
    cache = ReshardCache(MeshTopology(wires("v5p-64"), (8, 8)))
    table = cache.table((512, 512), 2)
    assert kinds(table, (0, -1), (-1, -1)) == [("all_gather", (0,))]
    assert kinds(table, (0, 0), (-1, -1)) == [("all_gather", (0, 1))]
    both = kinds(table, (0, 1), (-1, -1))
    assert sorted(both) == [("all_gather", (0,)), ("all_gather", (1,))]
    assert kinds(table, (-1, -1), (0, 1)) == [("all_slice", (0, 1))]
    assert kinds(table, (0, -1), (1, -1)) == [("all_to_all", (0,))]
    assert kinds(table, (0, -1), (0, 1)) == [("all_slice", (1,))]
    assert kinds(table, (0, -1), (0, -1)) == []
    square = ReshardCache(MeshTopology(wires("gb200-nvl72-64"), (8, 8))).table((8192, 8192), 2)
    assert kinds(square, (0, -1), (-1, 0)) == [("collective_permute", (0, 1))]


@pytest.mark.parametrize("name", ["v5p-64", "h100-64"])
def test_large_gathers_borrow_the_links_of_idle_axes(name):
    """Slice over the axis that replicates, gather over both: all links carry a part."""
    cache = ReshardCache(MeshTopology(wires(name), (8, 8)))
    table = cache.table((8192, 8192), 2)
    assert kinds(table, (0, -1), (-1, -1)) == [("all_slice", (1,)), ("all_gather", (0, 1))]
    plain = cache.topology.collective_seconds("all_gather", (0,), 8192 * 8192 * 2)
    assert table.seconds[table.index((0, -1)), table.index((-1, -1))] < plain


def test_gathering_the_major_axis_of_two_needs_two_collectives():
    cache = ReshardCache(MeshTopology(wires("v5p-64"), (4, 16)))
    table = cache.table((8192, 8192), 2)
    path = kinds(table, (0, 0), (-1, 0))
    assert len(path) == 2
    assert path[-1][0] in ("all_gather", "all_slice")


def test_slow_links_are_avoided():
    """From sharded over hosts to sharded within them: never more than needed over the network."""
    cache = ReshardCache(MeshTopology(wires("h100-64"), (8, 8)))
    table = cache.table((8192, 8192), 2)
    shard = local_bytes((8192, 8192), 2, (0, 1), (8, 8))
    slow = 7 / 8 * shard / (50e9 * 0.85)
    assert table.seconds[table.index((0, 1)), table.index((1, -1))] >= slow


def test_dimensions_are_not_gathered_over_slow_links_last():
    """They are when much is there to be sent; x lies between hosts, y within them."""
    topology = MeshTopology(wires("h100-64"), (8, 8))
    table = ReshardCache(topology).table((8192, 8192), 2)
    size = 8192 * 8192 * 2.0

    def gathers(first, second):
        early = topology.collective_seconds("all_gather", (first,), size / 8)
        return early + topology.collective_seconds("all_gather", (second,), size)

    for before in [(0, 1), (1, 0)]:
        seconds = table.seconds[table.index(before), table.index((-1, -1))]
        assert seconds <= gathers(0, 1) * (1 + 1e-6)
        assert gathers(0, 1) < gathers(1, 0) / 3


def test_the_largest_state_on_the_way_is_known():
    cache = ReshardCache(MeshTopology(wires("h100-64"), (8, 8)))
    table = cache.table((16384, 16384), 2)
    source, target = table.index((0, -1)), table.index((0, 1))
    assert [step.kind for step in table.path(source, target)] == ["all_slice"]
    assert table.peak_bytes(source, target) == 16384 * 16384 * 2 / 8
    source, target = table.index((0, -1)), table.index((-1, -1))
    assert [step.kind for step in table.path(source, target)][-1] == "all_gather"
    assert table.peak_bytes(source, target) == 16384 * 16384 * 2
    assert table.peak_bytes(source, source) == 16384 * 16384 * 2 / 8


def test_a_table_of_few_layouts_agrees_with_the_whole():
    for cache in CACHES:
        shape = (144, 64, 3)
        whole = cache.table(shape, 2)
        few = [whole.layouts[0], whole.layouts[len(whole) // 2], whole.layouts[-1]]
        part = cache.table(shape, 2, layouts=few)
        assert part.layouts == tuple(dict.fromkeys(few))
        rows = [whole.index(layout) for layout in part.layouts]
        assert (part.seconds >= whole.seconds[np.ix_(rows, rows)]).all()
        assert np.isfinite(part.seconds).all()


def test_many_axes_need_few_layouts():
    cache = ReshardCache(MeshTopology(wires("v5p-64"), (2,) * 6))
    with pytest.raises(ReshardError, match=f"more than {MOST_STATES} ordered layouts"):
        cache.table((64, 64), 2)
    table = cache.table((64, 64), 2, layouts=[(0, 0, 0, 1, 1, 1), (-1,) * 6, (0, 0, 0, -1, -1, -1)])
    assert len(table) == 3


def test_faulty_questions_are_refused():
    table = CACHES[0].table((8, 3), 2)
    with pytest.raises(LayoutError, match="dimension 1 has size 3, cut into 4 parts"):
        table.index((1, -1, -1))
    with pytest.raises(LayoutError, match="does not divide"):
        CACHES[0].table((8, 3), 2, layouts=[(1, -1, -1)])
    few = CACHES[0].table((8, 8), 2, layouts=[(0, -1, -1)])
    with pytest.raises(ReshardError, match=re.escape("(1, -1, -1) of shape (8, 8) is not among")):
        few.index((1, -1, -1))
    with pytest.raises(ReshardError, match="is not in the graph"):
        few.steps_from_state(((), (0,)), (0, -1, -1))


def test_a_step_prints_as_a_line():
    step = Step("all_gather", (0, 2), ((0, 2), (1,)), ((), (1,)), 2e6, 3e-6)
    assert step.text((8, 4), "float32", "xyz") == (
        "all_gather@x,z: f32[8@(x,z), 4@y] -> f32[8, 4@y], 2.00 MB, 3.0 us"
    )


@st.composite
def partial_sums(draw):
    index = draw(st.integers(0, len(CACHES) - 1))
    mesh = CACHES[index].topology.mesh_shape
    shape = tuple(draw(st.lists(st.just(64 * 144), min_size=1, max_size=3)))
    reduced = draw(st.sets(st.integers(0, len(mesh) - 1), min_size=1))
    dimension = st.integers(-1, len(shape) - 1)
    written = tuple(-1 if axis in reduced else draw(dimension) for axis in range(len(mesh)))
    scattered = draw(st.sets(st.sampled_from(sorted(reduced))))
    scatter = {axis: draw(st.integers(0, len(shape) - 1)) for axis in scattered}
    return index, shape, written, reduced, scatter


@given(partial_sums())
def test_settling(case):
    index, shape, written, reduced, scatter = case
    cache, topology = CACHES[index], CACHES[index].topology
    done = settle_path(cache, shape, 4, written, reduced, scatter=scatter)
    assert done.seconds == pytest.approx(sum(step.seconds for step in done.steps))
    assert (done.seconds > 0) == (topology.group_size(reduced) > 1)
    steps = {step.kind: step for step in done.steps}
    for axis, dimension in enumerate(done.layout):
        large = topology.mesh_shape[axis] > 1
        wanted = scatter.get(axis, written[axis])
        assert dimension == (wanted if large else -1)
    seen = {axis for kind in ("reduce_scatter", "all_reduce") if kind in steps
            for axis in steps[kind].axes}  # fmt: skip
    assert seen == {axis for axis in reduced if topology.mesh_shape[axis] > 1}
    if "all_reduce" in steps:
        parts = math.prod(topology.mesh_shape[axis] for axis in scatter)
        assert (
            steps["all_reduce"].bytes == local_bytes(shape, 4, written, topology.mesh_shape) / parts
        )
    whole = settle_path(cache, shape, 4, written, reduced)
    if all(step.kind == "reduce_scatter" for step in done.steps):
        assert done.seconds <= whole.seconds


def test_scattering_out_of_mesh_order_ends_in_mesh_order():
    cache = ReshardCache(MeshTopology(wires("v5p-64"), (4, 16)))
    done = settle_path(cache, (4096, 4096), 4, (-1, 0), (0,), scatter={0: 0})
    assert [step.kind for step in done.steps] == ["reduce_scatter", "collective_permute"]
    assert done.steps[0].to_state == ((1, 0), ())
    assert done.steps[-1].to_state == ((0, 1), ())
    assert done.layout == (0, 0)


def test_faulty_settlements_are_refused_with_all_faults():
    with pytest.raises(ReshardError) as caught:
        settle_path(CACHES[0], (64, 64), 4, (0, -1, -1), (0, 1), scatter={2: 1})
    assert str(caught.value) == (
        "cannot settle (64, 64) in layout (0, -1, -1) over axes [0, 1]:\n"
        "  * axis 0 is reduced, but shards dimension 0 of the partial sum\n"
        "  * axis 2 is scattered onto dimension 1, but it is not reduced"
    )


@pytest.mark.parametrize("family", presets())
def test_every_preset_prices_a_reshard(family):
    chips = 72 if "nvl72" in family else 64
    mesh = (chips // 8, 8)
    table = ReshardCache(MeshTopology(wires(f"{family}-{chips}"), mesh)).table((1152, 1152), 2)
    assert np.isfinite(table.seconds).all()


def test_a_gather_of_an_inner_dimension_transposes_the_shard_first():
    """And where a shard fills no tiles of memory along it, the whole is put into tiles at last."""
    plain = load("v5p-8")
    plain = replace(plain, chip=replace(plain.chip, sublanes=1))
    for machine, width, moved in (
        (load("h100-8"), 4096, 2 / 8),
        (load("v5p-8"), 4096, 2 / 8),  # 512 columns a shard
        (load("v5p-8"), 32, 2 / 8 + 2),  # 4 columns a shard
        (load("h100-8"), 32, 2 / 8),
        (plain, 32, 0),
    ):
        topology = MeshTopology(machine, (8,))
        table = ReshardCache(topology).table((1024, width), 4)
        whole = table.index((-1,))
        outer, inner = (table.seconds[table.index((d,)), whole] for d in (0, 1))
        seconds = moved * 1024 * width * 4 / machine.chip.memory_rate
        assert inner - outer == pytest.approx(seconds, abs=2e-12)
        flat = ReshardCache(topology).table((1, 4096), 4)
        assert flat.seconds[flat.index((1,)), flat.index((-1,))] == pytest.approx(
            topology.collective_seconds("all_gather", (0,), 4096 * 4.0), abs=2e-12
        )
