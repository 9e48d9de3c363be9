"""Orders of kernels: valid, their memory by brute force, and which kernel comes first by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import hypothesis
import hypothesis.strategies as st
import pytest

from autoshard.xla.kernel_orders import Kernel, depth_first, greedy, peak_bytes


def kernels(*described: tuple[int, Sequence[int]]) -> list[Kernel]:
    """Kernels that write so many bytes and read what those kernels made."""
    result = [Kernel(k, k + 1, size, before=list(b)) for k, (size, b) in enumerate(described)]
    for kernel in result:
        for one in kernel.before:
            result[one].users += 1
    return result


@st.composite
def graphs(draw: st.DrawFn) -> list[Kernel]:
    count = draw(st.integers(1, 7))
    return kernels(
        *(
            (
                draw(st.integers(0, 9)),
                sorted(draw(st.sets(st.integers(0, k - 1)) if k else st.just(set()))),
            )
            for k in range(count)
        )
    )


@hypothesis.given(graphs())
@pytest.mark.parametrize("order", [depth_first, greedy])
def test_every_kernel_runs_once_after_what_it_reads(
    order: Callable[[Sequence[Kernel]], list[int]], graph: list[Kernel]
) -> None:
    found = order(graph)
    assert sorted(found) == list(range(len(graph)))
    assert all(found.index(one) < found.index(k) for k in found for one in graph[k].before)


@hypothesis.given(graphs(), st.randoms())
def test_the_peak_is_the_most_that_some_kernel_still_wants(graph: list[Kernel], dice) -> None:
    order = list(range(len(graph)))
    alive = [
        sum(
            graph[made].bytes
            for made in order[: at + 1]
            if made == order[at]
            or not any(made in k.before for k in graph)
            or any(made in graph[later].before for later in order[at:])
        )
        for at in range(len(order))
    ]
    assert peak_bytes(graph, order) == max(alive)


@hypothesis.given(graphs())
def test_no_order_needs_less_than_the_best_of_all(graph: list[Kernel]) -> None:
    valid = (
        order
        for order in itertools.permutations(range(len(graph)))
        if all(order.index(one) < order.index(k) for k in order for one in graph[k].before)
    )
    least = min(peak_bytes(graph, order) for order in valid)
    assert min(peak_bytes(graph, one(graph)) for one in (greedy, depth_first)) >= least


def test_the_greedy_order_frees_at_once_and_the_other_waits() -> None:
    # A chain 0, 1, 2 of large arrays; 3, 4 and 5 make small ones of each.
    chain = kernels(
        (9, ()), (9, (0,)), (9, (1,)), (1, (0,)), (1, (1,)), (1, (2,)), (1, (2, 3, 4, 5))
    )
    assert greedy(chain) == [0, 3, 1, 4, 2, 5, 6]
    assert depth_first(chain)[:3] == [0, 1, 2]
    assert peak_bytes(chain, greedy(chain)) < peak_bytes(chain, depth_first(chain))
