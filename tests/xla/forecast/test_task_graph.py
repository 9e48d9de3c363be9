"""The tasks of a computation: what runs as one, and what waits for what, by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.program.graph import Region
from autoshard.search.search import search
from autoshard.xla.forecast.event_marks import CopyBegins, Passed, Passes, Picks
from autoshard.xla.forecast.loop_tasks import UNKNOWN_SECONDS
from autoshard.xla.forecast.pipelined import Pipelined
from autoshard.xla.forecast.planned_collectives import Decided, region_read_in
from autoshard.xla.forecast.task_graph import HIGH_COST, MEDIUM_COST, TaskGraph
from autoshard.xla.fusion import fuse
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Role
from autoshard.xla.op_order import arranged, depth_first_in_loops
from tests.helpers import case, hiding, with_compiler


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def graphs(
    fn: Callable[..., Any],
    *args: Any,
    requirements: Sequence[str] = (),
    mesh: Mapping[str, int] = MappingProxyType({"x": 4}),
    donate_argnums: Sequence[int] = (),
    compiler: str = "xla:tpu",
    **chip: Any,
) -> tuple[Decided, dict[int, TaskGraph]]:
    """The best plan for four chips, and its tasks by region."""
    machine = with_compiler(hiding(4), name=compiler)
    machine = replace(machine, chip=replace(machine.chip, **chip))
    given = case(fn, *args, mesh=mesh, machine=machine, donate_argnums=donate_argnums)
    plan = search(given.program, machine, mesh=mesh, requirements=requirements, time_limit=10.0)
    decided, fusion = Decided(given.built.prices, plan.decisions), fuse(given.program)
    found: dict[int, TaskGraph] = {}

    def look(region: Region, kernels: Sequence[Kernel]) -> list[int]:
        found[region.index] = TaskGraph(decided, fusion, (), region, kernels, Pipelined(decided))
        return depth_first_in_loops(region, kernels)

    arranged(given.program, fusion, look)
    return decided, found


def test_kernels_that_run_as_one_are_one_task() -> None:
    def update(w: Any, m: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        return w - m, m

    decided, found = graphs(update, *(array(64, 32),) * 3)
    tasks = {task for task in found[0].tasks if len(task.kernels) == 2}
    assert len(tasks) == 1
    (task,) = tasks
    primitives = [
        decided.prices.program.ops[found[0].kernels[number].first].primitive
        for number in task.kernels
    ]
    assert sorted(primitives) == ["add", "sub"]


def test_a_collective_between_two_kernels_keeps_them_apart() -> None:
    def update(w: Any, m: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        return w - m, m

    cut = ["pin w [x, None]", "pin result[0] [x, None]", "pin m [None, x]", "pin g [None, x]"]
    _, found = graphs(update, *(array(64, 32),) * 3, requirements=[*cut, "pin result[1] [None, x]"])
    assert found[0].flights
    assert all(len(task.kernels) < 2 for task in found[0].tasks)


def test_what_leaves_a_loop_is_copied_around_it() -> None:
    def step(x: Any, w: Any) -> Any:
        carry, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=3)
        return w @ carry

    _, found = graphs(
        step,
        array(64, 64),
        array(64, 64),
        requirements=[
            "pin x [x, None]",
            "pin w [None, None]",
            "pin result [x, None]",
            "limit reduce_scatter count 0",
        ],
    )
    outer, inner = found[0], found[1]
    values, ops = outer.program.values, outer.program.ops
    copied = [
        one.begin.content.value
        for one in outer.flights
        if isinstance(one.begin.content, CopyBegins)
    ]
    left = [value for value in copied if ops[values[value].producer].region == 1]
    assert len(left) == 1
    assert region_read_in(outer.program, left[0]) == 0
    assert not inner.flights


@pytest.mark.parametrize("added", [True, False])
def test_a_scatter_onto_zeros_waits_for_the_array_to_which_it_is_added(added: bool) -> None:
    def step(table: Any, tokens: Any, x: Any, y: Any) -> Any:
        looked_up = jnp.zeros_like(table).at[tokens].add(x)
        return looked_up + x.T @ y if added else (looked_up, x.T @ y)

    arguments = array(32, 32), array(32, dtype=jnp.int32), array(32, 32), array(32, 32)
    names = "table", "x", "y", *(("result",) if added else ("result[0]", "result[1]"))
    decided, found = graphs(
        step, *arguments, requirements=[f"pin {name} [None, x]" for name in names]
    )
    graph, ops = found[0], decided.prices.program.ops
    made = {
        ops[kernel.first].primitive: graph.tasks[number]
        for number, kernel in enumerate(graph.kernels)
    }
    assert made["scatter-add"].needs(made["dot_general"]) is added


def test_a_copy_over_two_axes_is_two_collectives_one_after_the_other() -> None:
    _, found = graphs(
        lambda w, x: w @ x,
        array(256, 64),
        array(64, 64),
        mesh={"x": 2, "y": 2},
        requirements=["pin w [None, None]", "pin x [x, y]", "pin result [None, None]"],
        peak_flops={"float32": 1e15},
        memory_bandwidth=1e15,
    )
    first, second = found[0].flights
    passes = first.begin.content
    assert isinstance(passes, Passes)
    assert passes.bytes == 64 * 64 * 4 / 2
    assert isinstance(second.begin.content, CopyBegins)
    assert second.end.content == Passed(passes)
    assert second.begin.before == [first.end]


@pytest.mark.parametrize("library", [True, False])
def test_what_a_library_makes_comes_out_of_a_tuple(library: bool) -> None:
    decided, found = graphs(
        lambda x, w: jnp.tanh(x @ w),
        *(array(64, 64),) * 2,
        compiler="xla:gpu" if library else "xla:tpu",
    )
    graph, ops = found[0], decided.prices.program.ops
    made = {ops[k.first].primitive: graph.tasks[n] for n, k in enumerate(graph.kernels)}
    (before,) = made["tanh"].before
    if library:
        assert before.role is Role.NOTHING
        assert before.before == [made["dot_general"]]
    else:
        assert before is made["dot_general"]


def test_a_product_reads_what_is_no_matrix_as_one() -> None:
    decided, found = graphs(
        lambda x, w: jnp.einsum("abd,df->abf", jnp.tanh(x), w),
        array(8, 8, 64),
        array(64, 32),
        compiler="xla:gpu",
    )
    graph, ops = found[0], decided.prices.program.ops
    made = {ops[k.first].primitive: graph.tasks[n] for n, k in enumerate(graph.kernels)}
    operand = made["dot_general"].before[0]
    assert operand.role is Role.NOTHING
    assert operand.before == [made["tanh"]]


@pytest.mark.parametrize("library", [True, False])
def test_where_no_library_computes_products_kernels_and_collectives_have_fixed_costs(
    library: bool,
) -> None:
    """As in XLA:TPU's scheduler; elsewhere they take what they are priced at."""
    decided, found = graphs(
        lambda x, w: jnp.tanh(x) @ w.T,
        *(array(64, 64),) * 2,
        requirements=["pin x [x, None]", "pin w [x, None]", "pin result [x, None]"],
        compiler="xla:gpu" if library else "xla:tpu",
    )
    graph, ops = found[0], decided.prices.program.ops
    flight = graph.flights[0]
    seconds = {
        ops[kernel.first].primitive: graph.tasks[number].seconds
        for number, kernel in enumerate(graph.kernels)
    }
    fixed = [flight.begin.latency, seconds["dot_general"], seconds["tanh"]]
    assert (fixed == [UNKNOWN_SECONDS, HIGH_COST, MEDIUM_COST]) is not library


@pytest.mark.parametrize("library", [True, False])
def test_places_of_a_pools_largest_elements_are_found_before_where_they_are_written(
    library: bool,
) -> None:
    """As values and four indices; XLA:TPU selects and scatters in one instruction."""

    def step(x: Any) -> Any:
        def pooled(x: Any) -> Any:
            windows = (1, 2, 2, 1)
            return jnp.sum(
                jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, windows, windows, "VALID")
            )

        return jax.grad(pooled)(x)

    decided, found = graphs(step, array(8, 4, 4, 2), compiler="xla:gpu" if library else "xla:tpu")
    ops, graph = decided.prices.program.ops, found[0]
    if not library:
        assert not graph.picking
        return
    (picks,) = graph.picking
    pool = next(op for op in ops if op.primitive == "select_and_scatter_add")
    layout = decided.chosen(pool).reads[0]
    source = float(decided.prices.local_bytes(pool.inputs[0], layout)[0])
    assert picks.content == Picks(pool.index, 5 * source)
    assert graph.tasks[graph.maker[pool.outputs[0]]].needs(picks)
