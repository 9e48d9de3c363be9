"""Orders that hide collectives: valid ones, one collective at a time, and by hand what hides it."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

from autoshard.xla.latency_hiding import Role, Task, any_needs, hide, in_post_order


def collective(seconds: float, name: str) -> tuple[Task, Task]:
    begin = Task(f"{name} begins", Role.BEGIN, latency=seconds)
    end = Task(f"{name} ends", Role.END)
    end.reads(begin)
    return begin, end


@st.composite
def graphs(draw: st.DrawFn) -> list[Task]:
    """Tasks in an order in which they can run; whoever reads a collective reads its end."""
    there: list[Task] = []
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 9))):
        read = draw(st.lists(st.sampled_from(there), max_size=3)) if there else []
        seconds = draw(st.sampled_from([0.0, 1e-6, 1e-3]))
        role = draw(st.sampled_from([Role.KERNEL, Role.NOTHING, Role.LOOP, Role.BEGIN]))
        if role is Role.BEGIN:
            made = collective(seconds, str(number))
        else:
            made = (Task(number, role, seconds),)
        for other in read:
            made[0].reads(other)
        tasks += made
        there.append(made[-1])
    return tasks


@hypothesis.given(graphs())
def test_every_task_runs_once_after_what_it_reads(tasks: list[Task]) -> None:
    order = hide(tasks)
    place = {task: number for number, task in enumerate(order)}
    assert len(order) == len(place) == len(tasks)
    assert all(place[one] < place[task] for task in tasks for one in task.before)


@hypothesis.given(graphs())
def test_one_collective_is_under_way_and_no_loop_with_others(tasks: list[Task]) -> None:
    under_way = 0
    for task in hide(tasks):
        assert not (under_way and task.role in (Role.BEGIN, Role.LOOP))
        under_way += (task.role is Role.BEGIN) - (task.role is Role.END)
        assert under_way in (0, 1)


def test_a_product_that_is_wanted_late_waits_for_a_small_reduction_after_the_loop() -> None:
    # As a weight's gradient before a loop does, whose operand then lives through the loop.
    cotangent = Task("cotangent", Role.KERNEL, 1e-3)
    loop = Task("loop", Role.LOOP)
    loop.reads(cotangent)
    product = Task("product", Role.KERNEL, 5e-3)
    product.reads(cotangent)
    begin, end = collective(3e-5, "reduction")
    begin.reads(loop)
    update, others = Task("update", Role.KERNEL, 1e-4), Task("others", Role.KERNEL, 1e-5)
    update.reads(product)
    others.reads(end)
    order = hide([cotangent, product, loop, begin, end, update, others])
    assert order.index(loop) < order.index(begin) < order.index(product) < order.index(end)


def test_without_a_collective_after_the_loop_the_product_stays_before_it() -> None:
    cotangent, product = Task("cotangent", Role.KERNEL), Task("product", Role.KERNEL, 5e-3)
    loop, update = Task("loop", Role.LOOP), Task("update", Role.KERNEL, 1e-4)
    product.reads(cotangent)
    loop.reads(cotangent)
    update.reads(product)
    order = hide([cotangent, product, loop, update])
    assert order.index(product) < order.index(loop)


def test_what_comes_nearest_to_the_time_is_run_beside_a_collective() -> None:
    begin, end = collective(1e-3, "gather")
    reader = Task("reader", Role.KERNEL, 1e-4)
    reader.reads(end)
    near, long = Task("near", Role.KERNEL, 1e-3), Task("long", Role.KERNEL, 9e-3)
    for tasks in ([begin, near, long, end, reader], [begin, long, near, end, reader]):
        order = hide(tasks)
        assert order.index(begin) < order.index(long) < order.index(near) < order.index(end)


def test_a_task_that_takes_in_another_waits_for_all_that_it_read_and_is_waited_for() -> None:
    first, second = Task("first", Role.KERNEL, 1.0), Task("second", Role.NOTHING, 0.0)
    reader = Task("reader", Role.KERNEL)
    own = Task("own", Role.KERNEL, 1.0, kernels=(2,))
    other = Task("other", Role.KERNEL, 2.0, kernels=(5,))
    own.reads(first)
    other.reads(second)
    other.reads(own)
    reader.reads(other)
    own.takes_in(other)
    assert (own.kernels, own.seconds) == ((2, 5), 3.0)
    assert own.before == [first, second]
    assert own.after == [reader]
    assert reader.before == [own]
    assert reader.needs(second)
    assert any_needs([first, reader], second)
    assert not any_needs([own.before[0]], second)
    assert not first.needs(reader)


def test_a_loop_with_collectives_comes_after_what_waits_for_more_of_them() -> None:
    begin, end = collective(1e-3, "gather")
    product = Task("product", Role.KERNEL, 5e-3)
    product.reads(end)
    loop = Task("loop", Role.LOOP)
    reader = Task("reader", Role.KERNEL)
    reader.reads(product)
    reader.reads(loop)
    order = [task.content for task in hide([begin, end, product, loop, reader])]
    assert order == ["gather begins", "gather ends", "product", "loop", "reader"]


def test_a_collective_is_not_drawn_out_where_a_loop_waits_for_it_to_begin() -> None:
    begin, end = collective(0.0, "sum")
    product = Task("product", Role.KERNEL, 5e-3)
    loop = Task("loop", Role.LOOP)
    reader = Task("reader", Role.KERNEL)
    for one in (end, product, loop):
        reader.reads(one)
    order = [task.content for task in hide([product, loop, begin, end, reader])]
    assert order == ["product", "loop", "sum begins", "sum ends", "reader"]


@pytest.mark.parametrize("length", [1, 2, 4])
def test_tasks_that_wait_for_each_other_are_an_error(length: int) -> None:
    ring = [Task(number, Role.KERNEL) for number in range(length)]
    for one, other in zip(ring, [*ring[1:], ring[0]], strict=True):
        one.before.append(other)
        other.after.append(one)
    reader = Task("reader", Role.KERNEL)
    reader.reads(ring[0])
    with pytest.raises(ValueError, match=r"tasks \d and \d wait for each other"):
        in_post_order([reader])
