"""In which order XLA:GPU runs kernels, and what it runs beside a collective.

Two orders are tried, depth-first and greedy, and the one that needs less memory is taken. Where
there is something to hide, another scheduler goes on from there: a collective begins as early and
ends as late as pays by its own timeline, one at a time. By flags alone
(`autoshard.machine.compiler.FLAGS`) collectives of a loop run in another turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.cost.collective import Kind, MeshTopology
from autoshard.machine.load import load
from autoshard.xla.forecast.gpu_collective_estimate import UNKNOWN_SECONDS, between_hosts
from autoshard.xla.habits.gpu_probes import (
    INNER,
    WHOLE,
    X,
    between,
    bf16,
    end_of,
    f32,
    habit,
    products,
    unprobed,
)
from autoshard.xla.habits.records import Built, Habit

_MEMORY = "xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc"
_HIDING = "xla/service/latency_hiding_scheduler.cc"
_TIMES = "xla/service/gpu/model/sol_latency_estimator.cc"
_PIPELINER = "xla/service/collective_pipeliner.cc"
_CLUSTER = (("x", 64),)
_ROWS, _SQUARE = bf16(65536, 1024), bf16(1024, 1024)

Graph = Sequence[tuple[Sequence[int], int]]
"""Kernels: those that each reads, and how much it writes."""

_DEPTH_FIRST: Graph = (((), 16), ((0,), 1), ((), 8), ((1,), 4), ((2, 3), 2), ((4,), 4))
"""Depth-first needs 17, greedily 25."""
_GREEDY: Graph = (((), 1), ((0,), 16), ((), 8), ((2,), 2), ((1, 3), 1), ((4,), 4))
"""Greedily it needs 19, depth-first 26."""


def _graph(graph: Graph) -> Callable[[Any], Any]:
    """A step whose kernels are those of a graph; the k-th writes k columns more than it should."""

    def step(x: Any) -> Any:
        made: list[Any] = []
        for number, (before, size) in enumerate(graph):
            read = x + sum(made[one][:, :1] for one in before)
            columns = jnp.arange(128 * size + number, dtype=jnp.float32)
            made.append(lax.optimization_barrier(jnp.tanh(read + columns)))
        return made[-1]

    return step


def _looped(graph: Graph) -> Callable[[Any], Any]:
    step = _graph(graph)
    return lambda x: lax.scan(lambda x, _: (step(x)[:, :1], None), x, None, length=3)[0]


def _runs(*order: int, depth: int = 0) -> Callable[[Built], bool]:
    """Whether the kernels of a graph run in this order, in so many loops."""

    def reading(built: Built) -> bool:
        kernels = built.kernels("tanh")
        columns = (one.writes[0].strip("]").split(",")[1] for one in kernels)
        return [int(count) % 128 for count in columns] == list(order) and all(
            one.depth == depth for one in kernels
        )

    return reading


def _late_weights(x: Any, a: Any, b: Any, v: Any) -> Any:
    """Three products, of which the last one's weight is gathered."""
    return jnp.tanh(jnp.tanh(x @ a) @ b) @ v


def _gradient_and_error(x: Any, a: Any, dy: Any, v: Any) -> tuple[Any, Any]:
    return x.T @ dy, jnp.tanh(dy @ a) @ v


def _three_layers(x: Any, a: Any, b: Any, c: Any) -> Any:
    return ((x @ a) @ b) @ c


def _loop_then_product(x: Any, stack: Any, v: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0] @ v


def _begins_before(built: Built) -> bool:
    """It ends right before the last product; what runs beside it takes about as long as it does."""
    (gather,) = built.collectives("all-gather")
    end, (*earlier, last) = end_of(built, gather), products(built)
    beside = between(built, gather, end)
    hidden = sum(built.seconds_of(one) for one in beside) / built.seconds_of(gather)
    in_time = last.position == end.position + 1 and end.name in last.operands
    return in_time and earlier[-1] in beside and 0.8 < hidden < 1.2


def _begins_first(built: Built) -> bool:
    (gather,) = built.collectives("all-gather")
    return gather.position == 0 and end_of(built, gather).name in products(built)[-1].operands


def _ends_last(built: Built) -> bool:
    """The sum of the gradient begins as soon as a product hides it, and ends last of all."""
    (sum_,) = built.collectives("all-reduce")
    end = end_of(built, sum_)
    beside = [one for one in between(built, sum_, end) if one in products(built)]
    return bool(beside) and end.position == max(one.position for one in built.kernels())


def _one_at_a_time(built: Built) -> bool:
    first, second = built.collectives("all-gather")
    beside = [one for one in between(built, second, end_of(built, second)) if one.reads]
    return end_of(built, first).position < second.position and len(beside) >= 2


def _waits_for_loop(built: Built) -> bool:
    inside, gather = built.collectives("all-gather")
    last = max(one.position for one in built.kernels() if one.depth == 1)
    return (inside.depth, gather.depth) == (1, 0) and last < gather.position


def _takes(kind: Kind, size: float, error: float) -> Callable[[Built], bool]:
    """Whether a collective takes what is reckoned, but for a relative error."""

    def reading(built: Built) -> bool:
        (only,) = built.collectives()
        reckoned = between_hosts(MeshTopology(load("h100-64"), (64,)), kind, (0,), size)
        return reckoned is not None and math.isclose(
            built.seconds_of(only), reckoned.seconds, rel_tol=error
        )

    return reading


def _unknown(built: Built) -> bool:
    first = built.collectives()[0]
    return math.isclose(built.seconds_of(first), UNKNOWN_SECONDS, rel_tol=1e-6)


def _takes_no_time(built: Built) -> bool:
    """A microsecond, from any instruction to the next."""
    (only,) = built.collectives("all-reduce")
    return only.reads == ("f32[]",) and built.seconds_of(only) < 1.5e-6


def _by_table(built: Built) -> bool:
    """Between a quarter and all of the 450 GB/s that a card sends, for a gather of 32 MiB."""
    (gather,) = built.collectives("all-gather")
    sent = 7 / 8 * (32 << 20)
    return 450e9 / 4 < sent / built.seconds_of(gather) < 450e9


def _turns(x: Any, stack: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]


def _summing(x: Any, stack: Any) -> Any:
    """Weights' gradients, one for each of the stacked errors."""
    return lax.scan(lambda x, dy: (x, x.T @ dy), x, stack)[1]


def _stacking(x: Any, stack: Any) -> Any:
    """Layers that keep what a product writes, and what a kernel makes of it."""

    def layer(x: Any, w: Any) -> Any:
        made = x @ w
        return jnp.tanh(made), made

    return lax.scan(layer, x, stack)


def _also_around(kind: str, built: Built) -> bool:
    """Whether collectives of a loop of several turns run around it, too: those of one turn."""
    return {one.depth for one in built.collectives(kind)} == {0, 1}


def _writes_in_turn(built: Built) -> bool:
    stacks = [one for one in built.kernels("dynamic-update-slice") if one.depth]
    return bool(stacks) and all("-start" not in one.opcode for one in stacks)


HABITS: tuple[Habit, ...] = (
    habit(
        "depth-first-where-least",
        "Kernels run depth-first where that needs less memory than the greedy order.",
        _MEMORY,
        _graph(_DEPTH_FIRST),
        (f32(8192, 1),),
        (X,),
        (X,),
        _runs(0, 1, 3, 2, 4, 5),
    ),
    habit(
        "greedy-where-least",
        "Kernels run in the greedy order where that needs less memory than depth-first.",
        _MEMORY,
        _graph(_GREEDY),
        (f32(8192, 1),),
        (X,),
        (X,),
        _runs(0, 2, 3, 1, 4, 5),
    ),
    habit(
        "least-memory-in-loops",
        "The kernels of a loop without collectives run in the order that needs least memory, too.",
        _MEMORY,
        _looped(_GREEDY),
        (f32(8192, 1),),
        (X,),
        (X,),
        _runs(0, 2, 3, 1, 4, 5, depth=1),
    ),
    habit(
        "gathers-hidden",
        "A gather that only a late product needs ends right before it, and begins as much earlier "
        "as it is reckoned to take.",
        _HIDING,
        _late_weights,
        (_ROWS, _SQUARE, _SQUARE, bf16(1024, 4096)),
        (X, WHOLE, WHOLE, X),
        (X,),
        _begins_before,
    ),
    habit(
        "gathers-first-on-ampere",
        "Where the compiler knows no times, a gather of what the step is given begins before all "
        "kernels, however late it is read.",
        "observed",
        _late_weights,
        (_ROWS, _SQUARE, _SQUARE, bf16(1024, 4096)),
        (X, WHOLE, WHOLE, X),
        (X,),
        _begins_first,
        machine="a100-8",
        chips=("A100 SXM 80GB",),
    ),
    habit(
        "sums-hidden",
        "A gradient's sum that nothing waits for runs beside the products of the error.",
        _HIDING,
        _gradient_and_error,
        (_ROWS, _SQUARE, _ROWS, _SQUARE),
        (X, WHOLE, X, WHOLE),
        (WHOLE, X),
        _ends_last,
    ),
    habit(
        "one-collective-at-a-time",
        "A collective begins when the one before it has ended.",
        _HIDING,
        _three_layers,
        (bf16(8192, 2560), *(bf16(2560, 2560),) * 3),
        (X,) * 4,
        (X,),
        _one_at_a_time,
    ),
    habit(
        "loops-with-collectives-alone",
        "A loop with collectives in it does not run while a collective around it is under way.",
        _HIDING,
        _loop_then_product,
        (bf16(8192, 512), bf16(4, 512, 512), bf16(512, 1024)),
        (X, INNER, X),
        (X,),
        _waits_for_loop,
    ),
    habit(
        "gathers-between-hosts-reckoned",
        "A gather between hosts is reckoned by a ring: its steps, one card's share of the bytes, "
        "and three passes through the main memory.",
        _TIMES,
        lambda x, w: x @ w,
        (bf16(65536, 2048), bf16(2048, 4096)),
        (X, X),
        (X,),
        _takes("all_gather", 2048 * 4096 * 2, 0.01),
        machine="h100-64",
        mesh=_CLUSTER,
    ),
    habit(
        "sums-between-hosts-reckoned",
        "An all-reduce between hosts is reckoned as two rounds of the ring.",
        _TIMES,
        lambda x, w: x @ w,
        (bf16(2048, 65536), bf16(65536, 4096)),
        (INNER, X),
        (WHOLE,),
        _takes("all_reduce", 2048 * 4096 * 2, 0.03),
        machine="h100-64",
        mesh=_CLUSTER,
    ),
    habit(
        "strange-groups-unknown",
        "A collective whose groups do not divide a host's cards is reckoned to take 5 ms.",
        _TIMES,
        lambda x, w: x @ w,
        (bf16(8192, 512), bf16(512, 1024)),
        (("b",), ("a",)),
        (("b",),),
        _unknown,
        machine="h100-64",
        mesh=(("a", 2), ("b", 32)),
    ),
    habit(
        "collectives-within-hosts-by-table",
        "Times of collectives within a host come from a table that was measured.",
        "xla/service/gpu/model/collective_interpolator.cc",
        lambda x, w: x @ w,
        (bf16(8192, 4096), bf16(4096, 4096)),
        (X, X),
        (X,),
        _by_table,
    ),
    habit(
        "scalar-sums-take-no-time",
        "The sum of one number over the cards of a host is reckoned to take no time.",
        _TIMES,
        lambda x: jnp.sum(x * x),
        (f32(8192, 512),),
        (X,),
        (WHOLE,),
        _takes_no_time,
    ),
    unprobed(
        "waits-counted-in-views",
        "A view of an array (an element of a tuple, another shape) is a node of the scheduler's "
        "graph, one step from what makes it.",
        f"{_HIDING}: shows in ties between ready kernels alone",
    ),
    unprobed(
        "longest-chain-first",
        "Of what could run the scheduler takes what the longest chain of collectives needs.",
        f"{_HIDING}: one of ten rules, of which a module shows the outcome of all",
    ),
    habit(
        "gathers-a-turn-ahead-by-recipe",
        "With the flags of recipes a loop gathers slices of a stack a turn before they are read, "
        "and those of the first turn before the loop.",
        _PIPELINER,
        _turns,
        (_ROWS, bf16(8, 1024, 1024)),
        (X, INNER),
        (X,),
        lambda built: _also_around("all-gather", built),
        flags="recipe",
    ),
    habit(
        "sums-a-turn-behind-by-recipe",
        "With the flags of recipes a loop reduces what it stacks a turn after it was computed, and "
        "that of the last turn behind the loop.",
        _PIPELINER,
        _summing,
        (_ROWS, bf16(8, 65536, 1024)),
        (X, INNER),
        (INNER,),
        lambda built: _also_around("reduce-scatter", built),
        flags="recipe",
    ),
    habit(
        "stacks-written-in-turn",
        "What a loop only copies into a stack is written in the order of its kernels, and not, as "
        "by later releases, beside them, which reckon 5 ms for each.",
        "xla/backends/gpu/transforms/dynamic_slice_copy_fusion_async_wrapper.cc",
        _stacking,
        (_ROWS, bf16(8, 1024, 1024)),
        (X, INNER),
        (X, INNER),
        _writes_in_turn,
    ),
)
